"""A checkpoint that cannot be read: an older one and log entries serve, with a warning. If they do not, the error names the checkpoint."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cdfd
from cdfd.cli import app
from cdfd.delta import paths
from cdfd.delta.checkpoint import State
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import CheckpointError, GapError, LogError
from cdfd.log import checkpoint_files
from cdfd.log.listing import list_live
from cdfd.log.log import DeltaLog
from cdfd.log.segment import Checkpoint
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.storage.local import LocalStorage
from tests.support.feeding import MemoryPlace, feed, ids
from tests.support.lake import Lake, checkpoint, entry_path, manual_clock, run, table
from tests.support.manual_time import ManualClock

NEWEST, OLDER = (f"{paths.LOG}/{version:020d}.checkpoint.parquet" for version in (4, 2))

DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: data[: len(data) // 2],
    lambda data: b"x" * 99,
]


@pytest.fixture(params=DAMAGES, ids=["empty", "truncated", "other"])
def damaged(request: pytest.FixtureRequest, clock: ManualClock, lake: Lake) -> Lake:
    """Versions 0 to 5, and checkpoints of 2 and 4, of which that of 4 is damaged."""

    async def made() -> None:
        await table(lake, 6, clock)
        await checkpoint(lake, 2)
        await checkpoint(lake, 4)

    run(made())
    lake.replace(NEWEST, request.param(lake.bytes_of(NEWEST)))
    return lake


@pytest.mark.parametrize("kept", [0, 3])
async def test_older_files_are_read_in_place_of_a_damaged_checkpoint(
    damaged: Lake, kept: int, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    damaged.forget(*map(entry_path, range(kept)))
    log = DeltaLog(damaged)
    assert len((await log.snapshot()).live()) == 5
    assert (await log.header()).version == 5
    live = await list_live(log)
    assert live is not None
    assert sum(map(len, live.paths(damaged))) == 5
    assert len([record for record in caplog.records if NEWEST in record.getMessage()]) == 1
    place = MemoryPlace()
    await feed(damaged, place, clock, 5)
    assert sorted(ids(place)) == [("insert", 5, row) for row in range(1, 6)]


async def test_the_state_of_a_checkpoint_is_built_in_a_thread(
    clock: ManualClock, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table may have many transactions and sidecars, which must not stop the other tables."""
    await table(lake, 3, clock)
    await checkpoint(lake, 2)
    threads, build = list[threading.Thread](), checkpoint_files.snapshot_of

    def snapshot_of(checkpoint: Checkpoint, state: State) -> Snapshot:
        threads.append(threading.current_thread())
        return build(checkpoint, state)

    monkeypatch.setattr(checkpoint_files, "snapshot_of", snapshot_of)
    assert await list_live(DeltaLog(lake)) is not None
    assert threads
    assert threading.current_thread() not in threads


async def test_ledger_in_such_a_table(damaged: Lake, clock: ManualClock) -> None:
    ledger, name = SourceLedger(damaged, clock), app_id("shop", "orders")
    assert await ledger.position(name) is None
    await ledger.record(name, 5, "T")
    entry = await ledger.position(name)
    assert entry is not None
    assert entry.version == 5


async def test_damaged_checkpoint_is_named_if_nothing_replaces_it(damaged: Lake) -> None:
    damaged.forget(OLDER, *map(entry_path, range(4)))
    log = DeltaLog(damaged)
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught:
            await log.snapshot()
        assert (caught.value.table, caught.value.version, caught.value.path) == (damaged.uri, 4, NEWEST)


async def test_earliest_is_the_first_checkpoint_that_can_be_read(clock: ManualClock, lake: Lake) -> None:
    writer = await table(lake, 8, clock)
    await checkpoint(lake, 4)
    await checkpoint(lake, 6)
    lake.replace(NEWEST, b"x" * 99)
    lake.forget(*map(entry_path, range(4)))
    place = MemoryPlace()
    assert writer.version == 7
    await feed(lake, place, clock, 7, start="earliest")
    assert ids(place) == [("insert", 6, 6), ("insert", 7, 7)]
    lake.forget(f"{paths.LOG}/{6:020d}.checkpoint.parquet")
    with pytest.raises(CheckpointError, match="the checkpoint cannot be read"):
        await feed(lake, MemoryPlace(), clock, 7, start="earliest")


async def test_checkpoint_that_log_clean_up_removes_meanwhile_is_not_damaged(clock: ManualClock, lake: Lake) -> None:
    await table(lake, 6, clock)
    await checkpoint(lake, 4)
    await checkpoint(lake, 5)

    def clean_up(method: str, path: str) -> None:
        if method == "open":
            lake.forget(NEWEST, *map(entry_path, range(5)))

    lake.forget(*map(entry_path, range(4)))
    lake.before = clean_up
    with pytest.raises(GapError, match=r"version 4 is no longer in the log; the oldest that can be read is 5"):
        await DeltaLog(lake).snapshot(4)


async def test_state_never_goes_back(damaged: Lake) -> None:
    """The entries up to the damaged checkpoint are lost, so an older state is not the newest one."""
    damaged.forget(*map(entry_path, (4, 5)))
    with pytest.raises(LogError, match="checkpoint"):
        await DeltaLog(damaged).snapshot()
    assert len((await DeltaLog(damaged).snapshot(3)).live()) == 3


def test_snapshot_and_inspect_read_past_a_damaged_checkpoint(tmp_path: Path) -> None:
    run(table(LocalStorage(tmp_path), 3, manual_clock()))
    (tmp_path / paths.LOG / f"{2:020d}.checkpoint.parquet").write_bytes(b"")
    assert cdfd.snapshot(str(tmp_path)).read_all().num_rows == 2
    assert CliRunner().invoke(app, ["inspect", str(tmp_path)]).exit_code == 0
