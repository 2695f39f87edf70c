"""Tables whose position is the ledger's, because the sink keeps none or has lost it: a backup with the same id is refused."""

from collections.abc import Callable

import pytest

from cdfd.deliver.monitor import Monitor
from cdfd.deliver.recorder import Recorder
from cdfd.deliver.resuming import read_ledger
from cdfd.demo.writer import TableWriter
from cdfd.errors import TableChangedError, UnsupportedError
from cdfd.log.log import DeltaLog
from cdfd.sinks.base import Sink
from cdfd.sinks.ledger.ledger import Ledger, app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.base import Storage
from tests.support.feeding import MemoryPlace, feed, ids
from tests.support.lake import SCHEMA, Lake, manual_clock, rows, table
from tests.support.manual_time import passing
from tests.support.memory_storage import MemoryStorage

ORDERS = app_id("shop", "orders")
VERSIONS = 6
POLICIES = pytest.mark.parametrize("policy", ["ledger_counts", "recover_from_ledger"])
OTHERS = {
    "an older state": (3, 3),
    "an older state that went on": (3, 9),
    "a copy that went another way in its last version": (VERSIONS - 1, VERSIONS),
    "a new table with the same id": (0, 9),
}
"""Versions that are the same, and all versions."""


class Forgetful(MemoryPlace):
    """A sink that keeps no position, or was emptied: what opens it finds nothing."""

    async def open(self) -> Sink:
        self.delivered.clear()
        return await super().open()


def table_ledger(lake: Storage) -> Ledger:
    return TableLedger(MemoryStorage(), manual_clock())


def source_ledger(lake: Storage) -> Ledger:
    return SourceLedger(lake, manual_clock())


def recorder_of(ledger: Ledger) -> Recorder:
    return Recorder(ledger, ORDERS, 0, manual_clock(), Monitor())


async def delivered(policy: str, ledger: Ledger) -> Lake:
    """A table that is delivered completely and recorded in the ledger."""
    lake = Lake(manual_clock())
    await table(lake, VERSIONS, manual_clock())
    options = {policy: True, "start": "earliest", "recorder": recorder_of(ledger)}
    await feed(lake, Forgetful(), manual_clock(), VERSIONS - 1, **options)
    actual = await ledger.position(ORDERS)
    assert actual is not None
    assert (actual.version, actual.digest) == (VERSIONS - 1, await DeltaLog(lake).digest(VERSIONS - 1))
    return lake


async def replaced(lake: Lake, common: int, versions: int) -> Lake:
    """A table with the same id, whose first `common` versions are the same."""
    other = Lake(manual_clock())
    if not common:
        await table(other, versions, manual_clock(), first_id=1000)
        return other
    other.copy_from(lake)
    for version in range(common, VERSIONS):
        await other.delete(f"_delta_log/{version:020d}.json")
    writer = TableWriter(other, SCHEMA, clock=manual_clock(), table_id="T", version=common - 1)
    for version in range(common, versions):
        await writer.insert(rows(1000 + version))
    return other


@POLICIES
@pytest.mark.parametrize("other", OTHERS)
async def test_a_backup_that_is_put_back_is_refused(policy: str, other: str) -> None:
    ledger = TableLedger(MemoryStorage(), manual_clock())
    lake = await delivered(policy, ledger)
    common, versions = OTHERS[other]
    put_back, place = await replaced(lake, common, versions), MemoryPlace()
    for _ in range(2):
        # A log without its newest entries is looked at twice, some time apart.
        async with passing(manual_clock()) as clock:
            with pytest.raises(TableChangedError, match="version 5"):
                await feed(put_back, place, clock, 8, recorder=recorder_of(ledger), **{policy: True})
        # Nor is the position made durable in the sink: that of the ledger has to be put right, and no other.
        assert place.delivered == []


@POLICIES
async def test_the_table_itself_goes_on(policy: str) -> None:
    ledger = TableLedger(MemoryStorage(), manual_clock())
    lake, place = await delivered(policy, ledger), MemoryPlace()
    same = await replaced(lake, VERSIONS, 9)
    await feed(same, place, manual_clock(), 8, recorder=recorder_of(ledger), **{policy: True})
    assert ids(place) == [("insert", version, 1000 + version) for version in range(VERSIONS, 9)]
    assert place.delivered[0].position.digest == await DeltaLog(lake).digest(VERSIONS - 1)


@POLICIES
@pytest.mark.parametrize("make", [table_ledger, source_ledger], ids=lambda make: make.__name__)
async def test_a_ledger_of_an_earlier_cdfd_is_not_compared(make: Callable[[Storage], Ledger], policy: str) -> None:
    lake, place = Lake(manual_clock()), MemoryPlace()
    await table(lake, 3, manual_clock())
    ledger = make(lake)
    await ledger.record(ORDERS, 1, "T")
    last = await DeltaLog(lake).latest_version()
    await feed(lake, place, manual_clock(), last, recorder=recorder_of(ledger), **{policy: True})
    assert ids(place) == [("insert", 2, 2)]
    actual = await ledger.position(ORDERS)
    assert actual is not None
    assert actual.version >= 2
    assert actual.digest == await DeltaLog(lake).digest(actual.version)


async def test_a_log_that_cdfd_can_no_longer_write_matters_only_without_another_position(lake: Lake) -> None:
    writer = await table(lake, VERSIONS, manual_clock())
    features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["new"]}
    await writer.commit("UPGRADE", [("protocol", features)])
    ledger = SourceLedger(lake, manual_clock())
    entry, unreadable = await read_ledger(ledger, ORDERS, needed=False)
    assert entry is None
    assert isinstance(unreadable, UnsupportedError)
    with pytest.raises(UnsupportedError, match="cannot be written into the table"):
        await read_ledger(ledger, ORDERS, needed=True)


async def test_the_ledger_in_the_table_is_compared_too(lake: Lake) -> None:
    """The ledger `source` of a table whose newest entries were put back over it, all but the one with the position."""

    await table(lake, VERSIONS, manual_clock())
    ledger = SourceLedger(lake, manual_clock())
    await ledger.record(ORDERS, VERSIONS - 1, "T", await DeltaLog(lake).digest(VERSIONS - 1))
    other = await replaced(lake, VERSIONS - 1, VERSIONS)
    path = f"_delta_log/{VERSIONS - 1:020d}.json"
    await lake.put(path, await other.read(path))
    with pytest.raises(TableChangedError, match="version 5"):
        await feed(lake, MemoryPlace(), manual_clock(), 9, recorder=recorder_of(ledger), ledger_counts=True)
