"""The contract of every `Ledger`.

To add an implementation, add a function to `LEDGERS`. It takes an empty folder for its use, and returns a function that opens the ledger, any
number of times, for a table whose id is `TABLE`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cdfd.errors import StorageError
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.ledger.ledger import Ledger, LedgerEntry, NoLedger, app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from cdfd.storage.location import open_storage
from tests.support.axes import under_test
from tests.support.lake import run, table
from tests.support.memory_storage import MemoryStorage
from tests.support.s3.fixtures import new_bucket
from tests.support.s3.server import Server

TABLE = "table-1"
ORDERS, ITEMS = app_id("shop", "orders"), app_id("shop", "items")
FIRST = 1000  # versions that the source table lacks: the ledger cannot look up their writers
Open = Callable[[], Ledger]
DIGESTS = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100", "0" * 31 + "1", "f" * 32


def _table(storage: Storage) -> Open:
    return lambda: TableLedger(storage, SystemClock())


def _source(storage: Storage) -> Open:
    run(table(storage, 3, SystemClock(), table_id=TABLE))
    return lambda: SourceLedger(storage, SystemClock())


def table_in_memory(folder: Path) -> Open:
    return _table(MemoryStorage())


def table_local(folder: Path) -> Open:
    return _table(LocalStorage(folder / "ledger", sync=False))


def source_in_memory(folder: Path) -> Open:
    return _source(MemoryStorage())


def source_local(folder: Path) -> Open:
    return _source(LocalStorage(folder / "orders", sync=False))


LEDGERS: list[Callable[[Path], Open]] = [table_in_memory, table_local, source_in_memory, source_local]
SERVERS = ["moto_server", "versitygw_server"]
"""Of S3: fixtures. The ledger is a table of its own."""


@pytest.fixture(
    params=[*LEDGERS, *under_test("s3", SERVERS)],
    ids=lambda ledger: ledger if isinstance(ledger, str) else ledger.__name__,
)
def open_ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if isinstance(request.param, str):
        server: Server = request.getfixturevalue(request.param)
        return _table(open_storage(f"s3://{new_bucket(server)}/ledger", server.options()))
    actual: Open = request.param(tmp_path)
    return actual


def told(entry: LedgerEntry | None) -> tuple[int, str | None] | None:
    """Version and table. A ledger in the log of the table itself need not name it."""
    return None if entry is None else (entry.version, entry.table_id or TABLE)


async def test_nothing_is_known_at_first(open_ledger: Open) -> None:
    ledger = open_ledger()
    assert await ledger.position(ORDERS) is None
    await ledger.forget(ORDERS)
    assert await ledger.position(ORDERS) is None
    assert ledger.uri
    await ledger.close()


async def test_what_is_recorded_is_known_to_all(open_ledger: Open) -> None:
    ledger = open_ledger()
    now = SystemClock().now_ms()
    await ledger.record(ORDERS, FIRST, TABLE)
    for each in (ledger, open_ledger()):
        actual = await each.position(ORDERS)
        assert actual is not None
        assert (actual.app_id, actual.version, actual.table_id or TABLE) == (ORDERS, FIRST, TABLE)
        assert actual.last_updated is not None
        assert now <= actual.last_updated <= SystemClock().now_ms()
        assert await each.position(ITEMS) is None


async def test_the_last_counts_be_it_lower(open_ledger: Open) -> None:
    ledger = open_ledger()
    for version in (FIRST, FIRST + 7, FIRST + 7, FIRST + 3, 0, FIRST + 9):
        await ledger.record(ORDERS, version, TABLE)
        assert told(await ledger.position(ORDERS)) == (version, TABLE)
        assert told(await open_ledger().position(ORDERS)) == (version, TABLE)


async def test_the_hash_of_the_entry_comes_and_goes_with_its_version(open_ledger: Open) -> None:
    ledger = open_ledger()
    first, second, low, high = DIGESTS
    steps = [
        (FIRST, None, None),
        (FIRST, first, first),  # a ledger of an earlier cdfd has the version alone
        (FIRST, None, first),  # who does not know it takes nothing away
        (FIRST + 1, second, second),
        (FIRST + 1, first, first),
        (FIRST + 2, None, None),  # it is not that of another version
        (FIRST + 1, None, None),
        (FIRST + 3, low, low),
        (FIRST + 4, high, high),
        (FIRST + 5, "of another form", None),
    ]
    for version, digest, known in steps:
        await ledger.record(ORDERS, version, TABLE, digest)
        for each in (ledger, open_ledger()):
            actual = await each.position(ORDERS)
            assert actual is not None
            assert (actual.version, actual.table_id or TABLE, actual.digest) == (version, TABLE, known)
    await ledger.record(ORDERS, FIRST, TABLE, first)
    await ledger.forget(ORDERS)
    await ledger.record(ORDERS, FIRST, TABLE)
    actual = await open_ledger().position(ORDERS)
    assert actual is not None
    assert actual.digest is None


async def test_each_table_has_its_own_hash(open_ledger: Open) -> None:
    ledger = open_ledger()
    names = {app_id("shop", name): digest for name, digest in zip(("a", "a.b", "b", "c"), DIGESTS, strict=True)}
    await asyncio.gather(*(ledger.record(name, FIRST, TABLE, digest) for name, digest in names.items()))
    for name, digest in names.items():
        actual = await open_ledger().position(name)
        assert actual is not None
        assert actual.digest == digest


async def test_the_hash_survives_many_versions_of_others(open_ledger: Open) -> None:
    """The default ledger writes checkpoints meanwhile, and removes the entry that has it."""

    ledger = open_ledger()
    await ledger.record(ORDERS, FIRST, TABLE, DIGESTS[0])
    for version in range(FIRST, FIRST + 32):
        await ledger.record(ITEMS, version, TABLE, DIGESTS[version % 4])
    for name, digest in ((ORDERS, DIGESTS[0]), (ITEMS, DIGESTS[(FIRST + 31) % 4])):
        actual = await open_ledger().position(name)
        assert actual is not None
        assert actual.digest == digest


async def test_forgotten_is_forgotten(open_ledger: Open) -> None:
    ledger = open_ledger()
    await ledger.record(ORDERS, FIRST, TABLE)
    await ledger.record(ITEMS, FIRST + 1, TABLE)
    await ledger.forget(ORDERS)
    await ledger.forget(ORDERS)
    assert await ledger.position(ORDERS) is None
    assert await open_ledger().position(ORDERS) is None
    assert told(await open_ledger().position(ITEMS)) == (FIRST + 1, TABLE)
    await ledger.record(ORDERS, 0, TABLE)
    assert told(await open_ledger().position(ORDERS)) == (0, TABLE)


async def test_many_writers_take_turns(open_ledger: Open) -> None:
    async def write(ledger: Ledger, number: int) -> None:
        for version in range(FIRST, FIRST + 8):
            await ledger.record(app_id("shop", f"t{number}"), version, TABLE)

    shared = open_ledger()
    # Some in one process, some in others.
    await asyncio.gather(*(write(shared if number % 2 else open_ledger(), number) for number in range(6)))
    for number in range(6):
        assert told(await open_ledger().position(app_id("shop", f"t{number}"))) == (FIRST + 7, TABLE)


async def test_a_writer_that_slept_through_a_clean_up(open_ledger: Open) -> None:
    sleeper, writer = open_ledger(), open_ledger()
    await sleeper.record(ORDERS, FIRST, TABLE)
    for version in range(FIRST, FIRST + 45):
        await writer.record(ITEMS, version, TABLE)
    await sleeper.record(ORDERS, FIRST + 1, TABLE)
    for each in (sleeper, writer, open_ledger()):
        assert told(await each.position(ORDERS)) == (FIRST + 1, TABLE)
        assert told(await each.position(ITEMS)) == (FIRST + 44, TABLE)


async def test_a_record_that_is_cancelled(open_ledger: Open) -> None:
    ledger = open_ledger()
    for version in range(FIRST, FIRST + 30):
        recording = asyncio.create_task(ledger.record(ORDERS, version, TABLE))
        for _ in range(version - FIRST):
            await asyncio.sleep(0)
        recording.cancel()
        await asyncio.gather(recording, return_exceptions=True)
    await ledger.record(ORDERS, FIRST + 99, TABLE)
    assert told(await open_ledger().position(ORDERS)) == (FIRST + 99, TABLE)


async def test_a_closed_ledger_records_nothing(open_ledger: Open) -> None:
    ledger = open_ledger()
    recording = asyncio.create_task(ledger.record(ORDERS, FIRST, TABLE))
    await asyncio.sleep(0)
    await ledger.close()
    await recording
    await ledger.close()
    for call in (ledger.record(ORDERS, FIRST + 1, TABLE), ledger.forget(ORDERS)):
        with pytest.raises(StorageError, match="closed"):
            await call
    assert told(await open_ledger().position(ORDERS)) == (FIRST, TABLE)


async def test_no_ledger_knows_nothing() -> None:
    ledger: Ledger = NoLedger()
    await ledger.record(ORDERS, 1, TABLE)
    assert await ledger.position(ORDERS) is None
    await ledger.forget(ORDERS)
    await ledger.close()
    assert ledger.uri == "none"


async def test_a_renewal_keeps_the_position_and_moves_its_time(open_ledger: Open) -> None:
    """Tables of users are left as they are: each renewal would be a version."""

    ledger = open_ledger()
    await ledger.renew(ORDERS)
    assert await ledger.position(ORDERS) is None
    await ledger.record(ORDERS, FIRST, TABLE, DIGESTS[0])
    await ledger.record(ITEMS, FIRST, TABLE)
    before = await ledger.position(ORDERS)
    other = await ledger.position(ITEMS)
    assert before is not None
    assert before.last_updated is not None
    while SystemClock().now_ms() <= before.last_updated:
        await asyncio.sleep(0.001)
    await ledger.renew(ORDERS)
    await ledger.renew("cdfd/shop/nobody")
    after = await open_ledger().position(ORDERS)
    assert after is not None
    assert after.last_updated is not None
    moves = isinstance(ledger, TableLedger)
    assert (after.last_updated > before.last_updated) == moves
    assert replace(after, last_updated=0) == replace(before, last_updated=0)
    assert await open_ledger().position(ITEMS) == other
    await ledger.forget(ORDERS)
    await ledger.renew(ORDERS)
    assert await open_ledger().position(ORDERS) is None
