"""The contract of every `Lease`.

To add an implementation, add a function to `LEASES`. It takes an empty folder for its use, and returns a function that opens the lease of a
pipeline, any number of times. A fixture of that name does the same, where there is a server.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from cdfd.config.parser import parse
from cdfd.errors import SinkError
from cdfd.sinks.base import connector
from cdfd.sinks.lease import Claim, Lease
from cdfd.sinks.stored_lease import FOLDER, KEPT, StoredLease
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from tests.support.axes import under_test
from tests.support.kafka.shared import SharedBroker
from tests.support.memory_storage import MemoryStorage
from tests.support.s3.fixtures import new_bucket
from tests.support.s3.server import KEY_ID, SECRET, Server

Open = Callable[[], AbstractAsyncContextManager[Lease]]
PATIENCE = 60.0
FIRST, SECOND = Claim("a", 1), Claim("b", 2)


def _configured(text: str) -> Open:
    return lambda: connector(parse(f"pipeline: shop\ntables: [{{uri: /lake/orders}}]\n{text}", {})).lease(PATIENCE)


def _of_files(folder: Path) -> Open:
    return _configured(f"sink: {{kind: files, path: {folder / 'out'}}}")


def _of_delta(folder: Path) -> Open:
    return _configured(f"sink: {{kind: delta, path: {folder / 'targets'}}}")


@pytest.fixture
def of_delta_on_s3(moto_server: Server) -> Open:
    keys = f"endpoint_url: '{moto_server.url}', access_key_id: {KEY_ID}, secret_access_key: {SECRET}, region: us-east-1"
    storage = f"storage: {{s3: {{{keys}}}}}"
    return _configured(f"sink: {{kind: delta, path: 's3://{new_bucket(moto_server)}/targets'}}\n{storage}")


@pytest.fixture
def of_kafka(broker: SharedBroker, name: str) -> Open:
    text = f"pipeline: {name}\ntables: [{{uri: /lake/orders}}]\nsink: {{kind: kafka, bootstrap_servers: '{broker.bootstrap_servers}'}}"
    config = parse(text, {})

    async def wait_for_coordinator() -> None:
        """A new broker creates the topic of offsets for the first group."""
        async with asyncio.timeout(60), connector(config).lease(PATIENCE) as lease:
            while True:
                with suppress(SinkError):
                    await lease.read()
                    return
                await asyncio.sleep(0.1)

    asyncio.run(wait_for_coordinator())
    return lambda: connector(config).lease(PATIENCE)


LEASES = [_of_files, _of_delta]


@pytest.fixture(
    params=[*LEASES, *under_test("s3", ["of_delta_on_s3"]), "of_kafka"],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    open_one: Open = (
        request.getfixturevalue(request.param) if isinstance(request.param, str) else request.param(tmp_path)
    )
    return open_one


Leases = Callable[[], AbstractAsyncContextManager[list[Lease]]]


@pytest.fixture
def open_leases(place: Open) -> Leases:
    """Opens the lease for three processes."""

    @asynccontextmanager
    async def three() -> AsyncIterator[list[Lease]]:
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(place()) for _ in range(3)]

    return three


async def test_nobody_has_a_new_lease(open_leases: Leases) -> None:
    async with open_leases() as (lease, *_):
        assert await lease.read() is None
        assert await lease.read() is None
        assert lease.place


async def test_claim_is_read_by_its_owner_and_by_others(open_leases: Leases) -> None:
    async with open_leases() as (one, other, _):
        assert await one.read() is None
        assert await other.read() is None
        await one.write(FIRST)
        assert await one.read() == FIRST
        assert await other.read() == FIRST


async def test_renewals_and_release_are_seen(open_leases: Leases) -> None:
    async with open_leases() as (one, other, _):
        await one.read()
        claim = FIRST
        for _ in range(3 * KEPT):
            await one.write(claim)
            claim = claim.renewed()
            assert await other.read() == await one.read()
        released = Claim("a", 1, claim.beat, released=True)
        await one.write(released)
        assert await other.read() == released


async def test_process_that_comes_later_reads_the_newest_claim(open_leases: Leases) -> None:
    async with open_leases() as (one, other, late):
        await one.read()
        for beat in range(2 * KEPT):
            await one.write(Claim("a", 1, beat))
            await one.read()
        await other.read()
        await other.write(SECOND)
        assert await late.read() == SECOND
        assert await one.read() == SECOND


async def test_of_processes_that_write_at_once_all_read_the_same(open_leases: Leases) -> None:
    async with open_leases() as leases:
        for lease in leases:
            await lease.read()
        claims = [Claim(owner, 1) for owner in "abc"]
        await asyncio.gather(*(lease.write(claim) for lease, claim in zip(leases, claims, strict=True)))
        winner, *others = [await lease.read() for lease in leases]
        assert winner in claims
        assert others == [winner, winner]


# Of stores: the objects.


@pytest.fixture(
    params=[lambda folder: MemoryStorage(), lambda folder: LocalStorage(folder, sync=False)], ids=["memory", "local"]
)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    store: Storage = request.param(tmp_path)
    return store


async def names(storage: Storage) -> list[str]:
    return [stat.path async for stat in storage.list(f"{FOLDER}/shop/")]


async def test_old_objects_are_deleted(storage: Storage) -> None:
    lease = StoredLease(storage, "shop", PATIENCE)
    for beat in range(4 * KEPT):
        await lease.read()
        await lease.write(Claim("a", 1, beat))
    assert len(await names(storage)) <= KEPT + 1


async def test_claim_after_a_pause_does_not_count_if_others_went_on(storage: Storage) -> None:
    """Its number is free again, because the objects with that number are deleted."""
    now = 0.0
    one = StoredLease(storage, "shop", PATIENCE, lambda: now)
    other = StoredLease(storage, "shop", PATIENCE)
    await one.read()
    await one.write(FIRST)
    for beat in range(3 * KEPT):
        await other.read()
        await other.write(Claim("b", 2, beat))
    assert not any(name.endswith("02.json") for name in await names(storage))
    now = PATIENCE + 1
    await one.write(FIRST.renewed())
    assert await one.read() == Claim("b", 2, 3 * KEPT - 1)


async def test_first_claim_of_a_term_is_checked_without_a_pause(storage: Storage) -> None:
    one, other = StoredLease(storage, "shop", PATIENCE), StoredLease(storage, "shop", PATIENCE)
    await one.read()
    await one.write(FIRST)
    await other.read()
    for beat in range(3 * KEPT):
        await other.write(Claim("b", 2, beat))
    await one.write(Claim("a", 3))
    assert await one.read() == Claim("b", 2, 3 * KEPT - 1)


async def test_something_else_in_the_place_is_an_error(storage: Storage) -> None:
    await storage.put(f"{FOLDER}/shop/{1:020d}.json", b'{"owner": 7}')
    with pytest.raises(SinkError, match="not a claim"):
        await StoredLease(storage, "shop", PATIENCE).read()
