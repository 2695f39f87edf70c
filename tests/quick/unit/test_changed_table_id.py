"""`metaData.id` changes along one log: one table to everything that reads it, also where it begins again after the change."""

import asyncio
import contextlib
from contextlib import aclosing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cdfd
from cdfd.cli import app
from cdfd.demo.writer import TableWriter
from cdfd.errors import TableChangedError
from cdfd.log.log import DeltaLog
from cdfd.log.start import start_position
from cdfd.log.table import Table, position_after
from cdfd.model.position import Position
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.storage.local import LocalStorage
from tests.support.feeding import DeltaPlace, FilesPlace, MemoryPlace, feed, ids, position
from tests.support.lake import Lake, checkpoint, entry_path, manual_clock, rows, run, table
from tests.support.manual_time import ManualClock

ROWS = [("insert", 1, 1), ("insert", 2, 2), ("insert", 3, 3), ("insert", 4, 4)]


async def change_id(writer: TableWriter, table_id: str, row: int) -> None:
    """One more row, in a version that gives the table another id, as delta-rs up to 0.25.2 did with each new schema."""
    writer.table_id = table_id
    await writer.commit("WRITE", [writer._metadata(), await writer._add(rows(row))])


async def changed(lake: Lake | LocalStorage, clock: ManualClock) -> None:
    """Versions 0 and 1 have the id `first`, 2 and 3 `second`, 4 `third`."""
    writer = await table(lake, 2, clock, "first")
    await change_id(writer, "second", 2)
    await writer.insert(rows(3))
    await change_id(writer, "third", 4)


@pytest.mark.parametrize("start", range(6))
def test_every_range_has_the_rows_of_both_ids(tmp_path: Path, start: int) -> None:
    run(changed(LocalStorage(tmp_path), manual_clock()))
    expected = [row for row in ROWS if row[1] >= start]
    rows = [row for batch in cdfd.changes(str(tmp_path), start) for row in batch.to_pylist()]
    assert [(row["_change_type"], row["_commit_version"], row["id"]) for row in rows] == expected
    if start < 5:
        state = [row["id"] for batch in cdfd.snapshot(str(tmp_path), start) for row in batch.to_pylist()]
        assert sorted(state) == list(range(1, start + 1))
    result = CliRunner().invoke(app, ["tail", str(tmp_path), "--from", str(start), "--until", "now"])
    assert len(result.stdout.splitlines()) == len(expected)


@pytest.mark.parametrize("start", ["earliest", 3])
async def test_following_goes_on_under_the_new_id(tmp_path: Path, start: str | int) -> None:
    await changed(LocalStorage(tmp_path), manual_clock())
    expected = [row[2] for row in ROWS if start == "earliest" or row[1] >= 3]
    ids: list[int] = []
    async with aclosing(cdfd.follow(str(tmp_path), start, poll_interval=1e6)) as batches, asyncio.timeout(60):
        async for batch in batches:
            ids += batch.column("id").to_pylist()
            if len(ids) == len(expected):
                break
    assert ids == expected


@pytest.mark.parametrize("place_type", [MemoryPlace, FilesPlace, DeltaPlace])
@pytest.mark.parametrize("stops", [(), (0,), (1,), (2,), (3,), (1, 2), (0, 1, 2, 3)])
async def test_daemon_that_stops_and_resumes(
    tmp_path: Path,
    place_type: type[MemoryPlace | FilesPlace | DeltaPlace],
    stops: tuple[int, ...],
    clock: ManualClock,
    lake: Lake,
) -> None:
    await changed(lake, clock)
    place = place_type(tmp_path / "out")
    for until in (*stops, 4):
        # One version a delivery: the daemon stops exactly after it.
        await feed(lake, place, clock, until, start="earliest", max_bytes=1)
    assert ids(place) == ROWS
    assert (await position(place) or Position("", 0)).table_id == "first"


async def test_change_that_a_daemon_waits_for(clock: ManualClock, lake: Lake) -> None:
    writer = await table(lake, 2, clock, "first")
    place = MemoryPlace()
    running = asyncio.create_task(feed(lake, place, clock, 4, start="snapshot"))
    while not place.rows():
        await asyncio.sleep(0)
    for version, table_id in enumerate(("second", "third", "first"), 2):
        await change_id(writer, table_id, version)
        clock.advance(10)
        await asyncio.sleep(0)
    while not running.done():
        clock.advance(10)
        await asyncio.sleep(0.001)
    await running
    assert ids(place) == ROWS


async def test_other_table_is_still_refused(clock: ManualClock, lake: Lake) -> None:
    """Its log has the same ids, and other entries."""
    await changed(lake, clock)
    place = MemoryPlace()
    await feed(lake, place, clock, 3, start="earliest", max_bytes=1)
    lake.forget("")
    clock.advance(60)
    await changed(lake, clock)
    with pytest.raises(TableChangedError):
        await feed(lake, place, clock, 4)
    assert ids(place) == ROWS[:3]


@pytest.mark.parametrize("start", ["snapshot", "latest", "earliest", 2, 3])
async def test_start_after_clean_up(start: str | int, clock: ManualClock, lake: Lake) -> None:
    """Neither the entry before the start nor its hash is there: the id as of the start is the evidence."""
    await changed(lake, clock)
    await checkpoint(lake, 2)
    lake.forget(*map(entry_path, range(2)))
    actual = await start_position(DeltaLog(lake), start, clock.now_ms())
    place = MemoryPlace()
    await feed(lake, place, clock, actual.version - 1 if actual.version > 4 else 4, start=start)
    expected = [row for row in ROWS if row[1] >= actual.version]
    assert ids(place)[-len(expected) :] == expected or actual.snapshot or not expected


async def test_position_that_is_set(clock: ManualClock, lake: Lake) -> None:
    """It keeps the table id of the sink's position, which the log continues, but not that of another table."""
    await changed(lake, clock)
    source = Table(DeltaLog(lake), None)  # type: ignore[arg-type]  # reads no files
    known = Position("first", 2, digest=await DeltaLog(lake).digest(1))
    assert await position_after(source, 3, known) == Position("first", 4)
    assert await position_after(source, 3, None) == Position("second", 4)
    assert await position_after(source, 3, Position("other", 2, digest="0" * 32)) == Position("second", 4)


async def test_ledger_in_the_table(clock: ManualClock, lake: Lake) -> None:
    await changed(lake, clock)
    ledger, name = SourceLedger(lake, clock), app_id("shop", "orders")
    digest = await DeltaLog(lake).digest(3)
    await ledger.record(name, 3, "first", digest)
    entry = await ledger.position(name)
    assert entry is not None
    assert (entry.version, entry.digest, entry.table_id) == (3, digest, None)
    with contextlib.suppress(TableChangedError):
        await ledger.record(name, 4, "first", "0" * 32)
        pytest.fail("an entry with another hash was taken for the one that was delivered")
