"""The tailer, under a clock of the test's own: nothing here waits for real time but the wake-ups of the file system."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cdfd.deliver.resuming import explain_gap
from cdfd.delta.commit import serialize
from cdfd.demo.writer import TableWriter
from cdfd.errors import GapError, LogError, TableChangedError
from cdfd.log.log import DeltaLog
from cdfd.log.table import Table
from cdfd.log.tailer import GAP_CHECK_SECONDS, REMOVAL_STEP, SETTLE_SECONDS, SETTLE_STEP, Tailer
from cdfd.log.watch import Backoff, PollWatch
from cdfd.model.position import Position
from cdfd.storage.local import LocalStorage
from tests.support.lake import SCHEMA, Lake, checkpoint, entry_path, manual_clock, rows, run, table
from tests.support.manual_time import ManualClock

LONG = 1e6


class Following:
    """A tailer in a task of its own, and the versions that it has given so far."""

    def __init__(self, lake: Lake, clock: ManualClock, start: int = 0, until: int | None = None) -> None:
        self.clock = clock
        self.tailer = Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0))
        self.versions: list[int] = []
        self.files: list[int] = []
        self.task = asyncio.create_task(self._follow(start, until))

    async def _follow(self, start: int, until: int | None) -> None:
        async for entry in self.tailer.entries(start, until):
            self.versions.append(entry.commit.version)
            self.files.append(len(entry.commit.adds))

    async def idle(self) -> None:
        """Return once it waits, or has ended."""
        sleeping = asyncio.ensure_future(self.clock.wait_for_sleepers())
        await asyncio.wait((self.task, sleeping), return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        if self.task.done():
            self.task.result()

    async def after(self, seconds: float) -> list[int]:
        """The versions, once `seconds` have passed and it waits again."""
        self.clock.advance(seconds)
        await self.idle()
        return self.versions


@asynccontextmanager
async def following(lake: Lake, clock: ManualClock, start: int = 0) -> AsyncIterator[Following]:
    reader = Following(lake, clock, start)
    try:
        await reader.idle()
        yield reader
    finally:
        reader.task.cancel()
        await asyncio.gather(reader.task, return_exceptions=True)


class TestOrder:
    async def test_what_is_there_and_then_what_comes(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            assert reader.versions == [0, 1, 2]
            await writer.insert(rows(3))
            assert await reader.after(1) == [0, 1, 2, 3]
            await writer.insert(rows(4))
            await writer.insert(rows(5))
            assert await reader.after(1) == [0, 1, 2, 3, 4, 5]

    async def test_a_head_start_of_the_delivery(self, clock: ManualClock, lake: Lake) -> None:
        """After an entry that the tailer waited for, it polls for the next one later. It reads existing entries at once."""
        writer = await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            reader.tailer.head_start = 0.5
            assert reader.versions == [0, 1, 2]
            for version in range(3, 6):
                await writer.insert(rows(version))
            assert await reader.after(1) == [0, 1, 2, 3]
            assert await reader.after(0.4) == [0, 1, 2, 3]
            assert await reader.after(0.1) == [0, 1, 2, 3, 4, 5]
            lake.calls.clear()
            assert await reader.after(0.9) == [0, 1, 2, 3, 4, 5]
            assert lake.calls == []

    async def test_up_to_a_version_and_no_further(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 5, clock)
        reader = Following(lake, clock, start=1, until=3)
        await reader.task
        assert reader.versions == [1, 2, 3]

    async def test_modification_times_come_with_the_entries(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 1, clock)
        clock.advance(7)
        await writer.insert(rows(1))
        tailer = Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0))
        times = [entry.stat.modified_ms async for entry in tailer.entries(0, 1)]
        assert times[1] - times[0] == 7000


class TestRequests:
    @pytest.mark.parametrize("remote", [False, True])
    async def test_an_idle_poll_is_one_read(self, remote: bool, clock: ManualClock, lake: Lake) -> None:
        """And a look at the last entry: each time where that costs next to nothing, and every half a minute in a store."""

        lake.remote = remote
        await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            for delay in (1, 2, 4, 8, 8):
                lake.calls.clear()
                await reader.after(delay - 0.001)
                assert lake.calls == []
                await reader.after(0.001)
                assert lake.calls == [("read", entry_path(3))] + [("stat", entry_path(2))] * (not remote)
            lake.calls.clear()
            for _ in range(4):
                await reader.after(8)
            assert lake.calls.count(("read", entry_path(3))) == 4
            assert lake.calls.count(("stat", entry_path(2))) == (1 if remote else 4)

    async def test_a_reader_that_keeps_up_never_lists(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            lake.calls.clear()
            for version in range(3, 40):
                await writer.insert(rows(version))
                await reader.after(1)
            assert reader.versions == list(range(40))
            assert {method for method, _ in lake.calls} == {"read", "stat"}
            assert sum(method == "read" for method, _ in lake.calls) == 2 * 37  # each entry, and a look for the next

    async def test_the_first_look_at_nothing_asks_why_and_so_does_one_a_minute_later(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            assert [method for method, _ in lake.calls].count("list") == 1
            lake.calls.clear()
            passed = 0
            while passed < 10 * GAP_CHECK_SECONDS:
                passed += 8
                await reader.after(8)
            assert 8 <= [method for method, _ in lake.calls].count("list") <= 10

    async def test_the_poll_interval_grows_and_starts_again_once_something_came(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        writer = await table(lake, 1, clock)
        async with following(lake, clock) as reader:
            delays = []
            for _ in range(5):
                delays.append(reader.tailer.backoff.delay)
                await reader.after(8)
            assert delays == [1, 2, 4, 8, 8]
            await writer.insert(rows(1))
            assert await reader.after(8) == [0, 1]
            assert await reader.after(0.999) == [0, 1]
            await writer.insert(rows(2))
            assert await reader.after(0.001) == [0, 1, 2]


class TestSlowWriters:
    """Not every writer's entries appear whole."""

    @pytest.mark.parametrize("visible", [0, 1, 40, -1])
    async def test_an_entry_that_is_being_written_is_given_time(
        self, visible: int, clock: ManualClock, lake: Lake
    ) -> None:
        writer = await table(lake, 2, clock)
        await writer.insert(rows(2))
        whole = lake.bytes_of(entry_path(2)).rstrip()
        await lake.put(entry_path(2), whole[:visible])
        async with following(lake, clock) as reader:
            for _ in range(5):
                assert await reader.after(SETTLE_STEP) == [0, 1]
            await lake.put(entry_path(2), whole)
            assert await reader.after(SETTLE_STEP) == [0, 1, 2]

    async def test_lines_that_come_while_it_is_read_are_not_lost(self, clock: ManualClock, lake: Lake) -> None:
        """A partly written entry may end at a line's end, and be valid."""

        writer = await table(lake, 2, clock)
        await writer.insert(rows(2))
        whole = lake.bytes_of(entry_path(2))
        await lake.put(entry_path(2), whole[: whole.index(b"\n") + 1])

        def write_the_rest(method: str, path: str) -> None:
            if (method, path) == ("stat", entry_path(2)):
                lake.replace(path, whole)

        lake.before = write_the_rest
        reader = Following(lake, clock, start=2)
        await reader.idle()
        assert reader.versions == []
        reader.task.cancel()
        entries = reader.tailer.entries(2)
        entry = await anext(entries)
        assert [add.path for add in entry.commit.adds]
        await entries.aclose()

    async def test_one_that_stays_damaged_is_an_error(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 2, clock)
        await lake.put(entry_path(2), b'{"add":{"path":"pa')
        async with following(lake, clock) as reader:
            await reader.after(SETTLE_SECONDS - SETTLE_STEP)
            with pytest.raises(LogError, match=r"not valid JSON.*memory://orders, version 2, file _delta_log/0*2.json"):
                await reader.after(SETTLE_STEP)
            assert reader.versions == [0, 1]

    async def test_an_old_one_that_is_damaged_is_one_at_once(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 2, clock)
        await lake.put(entry_path(2), b'{"add":{"path":"pa')
        clock.advance(SETTLE_SECONDS)
        with pytest.raises(LogError, match="not valid JSON"):
            await Following(lake, clock).task

    @pytest.mark.parametrize("age", [-3_600_000, 0, 60_000])
    async def test_an_empty_one_is_given_time_whatever_its_age(self, age: int, clock: ManualClock, lake: Lake) -> None:
        """The clock of a file server need not be this machine's: a file that was only just created may look old."""

        writer = await table(lake, 2, clock)
        await writer.insert(rows(2))
        whole = lake.bytes_of(entry_path(2))
        lake.replace(entry_path(2), b"", modified_ms=clock.now_ms() - age)
        async with following(lake, clock) as reader:
            assert await reader.after(SETTLE_SECONDS / 2) == [0, 1]
            await lake.put(entry_path(2), whole)
            assert await reader.after(SETTLE_STEP) == [0, 1, 2]

    async def test_one_that_stays_empty_is_a_version_without_actions(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 2, clock)
        await lake.put(entry_path(2), b"")
        async with following(lake, clock) as reader:
            assert await reader.after(SETTLE_SECONDS - SETTLE_STEP) == [0, 1]
            assert await reader.after(SETTLE_STEP) == [0, 1, 2]

    async def test_an_empty_one_that_another_follows_is_a_version_without_actions(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, 4, clock)
        await lake.put(entry_path(2), b"")
        async with following(lake, clock) as reader:
            assert reader.versions == [0, 1, 2, 3]

    async def test_an_empty_one_that_became_whole_before_another_followed_is_read_again(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        """Between the look at the entry and the look at the next one, its writer and another one may have gone on."""

        await table(lake, 4, clock)
        whole = lake.bytes_of(entry_path(2))
        lake.replace(entry_path(2), b"")

        def go_on(method: str, path: str) -> None:
            if (method, path) == ("stat", entry_path(3)):
                lake.replace(entry_path(2), whole)

        lake.before = go_on
        async with following(lake, clock) as reader:
            assert reader.versions == [0, 1, 2, 3]
            assert reader.files == [0, 1, 1, 1]

    async def test_one_that_its_writer_takes_back_has_not_been_there(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 2, clock)
        await lake.put(entry_path(2), b'{"add":{"path":"pa')
        async with following(lake, clock) as reader:
            lake.forget(entry_path(2))
            assert await reader.after(SETTLE_STEP) == [0, 1]
            await writer.insert(rows(2))
            assert await reader.after(1) == [0, 1, 2]


class TestGaps:
    @pytest.mark.parametrize(
        ("missing", "told"),
        [([3], "version 3 is missing"), ([3, 4], "versions 3 to 4 are missing"), ([0], "version 0 is missing")],
    )
    async def test_a_hole_that_is_there_already(
        self, missing: list[int], told: str, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, 8, clock)
        lake.forget(*map(entry_path, missing))
        reader = Following(lake, clock)
        with pytest.raises(GapError, match=f"{told}.*continues to version 7.*memory://orders"):
            await reader.task
        assert reader.versions == list(range(missing[0]))

    async def test_one_that_comes_later_is_found_within_a_minute(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            await writer.insert(rows(3))
            await writer.insert(rows(4))
            lake.forget(entry_path(3))
            with pytest.raises(GapError, match="version 3 is missing, although the log continues to version 4"):
                await reader.after(GAP_CHECK_SECONDS)
            assert reader.versions == [0, 1, 2]

    async def test_log_clean_up_that_overtakes_the_reader(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            for version in range(3, 9):
                await writer.insert(rows(version))
            lake.forget(*map(entry_path, range(6)))
            with pytest.raises(GapError, match="versions 3 to 5 are missing") as caught:
                await reader.after(GAP_CHECK_SECONDS)
            assert caught.value.version == 3
            assert "snapshot" in str(caught.value.hint)

    async def test_log_clean_up_behind_the_reader_is_no_matter(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            for version in range(3, 9):
                await writer.insert(rows(version))
                await checkpoint(lake, version)
                lake.forget(*map(entry_path, range(version)))
                assert (await reader.after(8))[-1] == version
            await reader.after(GAP_CHECK_SECONDS)
            await writer.insert(rows(9))
            assert await reader.after(GAP_CHECK_SECONDS) == list(range(10))

    async def test_log_clean_up_of_the_entry_read_last_is_none_for_another_reader(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        """The entry has no file that a checkpoint could have, so nothing shows that the log continues it."""
        writer = await table(lake, 3, clock)
        await writer.commit("COMMENT", [])
        async with following(lake, clock) as reader:
            await writer.insert(rows(4))
            await checkpoint(lake, 4)
            lake.forget(*map(entry_path, range(4)))
            with pytest.raises(GapError, match=r"version 3, which cdfd has read.*restart cdfd") as caught:
                await reader.after(GAP_CHECK_SECONDS)
            assert caught.value.retriable
            with pytest.raises(GapError, match="restart cdfd"), explain_gap():
                raise caught.value

    async def test_versions_that_come_between_the_look_and_the_listing_are_none(self, clock: ManualClock) -> None:
        lake, other = Lake(clock), Lake(clock)
        writer = await table(lake, 5, clock)
        other.copy_from(lake)
        lake.forget(entry_path(3), entry_path(4))

        def commit(method: str, path: str) -> None:
            if method == "list":
                lake.copy_from(other)

        lake.before = commit
        async with following(lake, clock) as reader:
            assert writer.version == 4
            assert await reader.after(1) == [0, 1, 2, 3, 4]


class TestOtherTables:
    async def test_a_table_that_is_deleted(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 3, clock, "old")
        async with following(lake, clock) as reader:
            lake.forget("")
            with pytest.raises(TableChangedError, match="the table old was deleted"):
                await reader.after(GAP_CHECK_SECONDS)

    @pytest.mark.parametrize("versions", [1, 2, 3, 4, 9])
    async def test_one_that_is_created_anew(self, versions: int, clock: ManualClock, lake: Lake) -> None:
        """The new table is shorter than the old one, as long, or longer: the reader returns none of its versions."""

        await table(lake, 3, clock, "old")
        async with following(lake, clock) as reader:
            lake.forget("")
            clock.advance(0.5)
            await table(lake, versions, clock, "new")
            with pytest.raises(TableChangedError, match="its id was old and is new"):
                await reader.after(GAP_CHECK_SECONDS)
            assert reader.versions == [0, 1, 2]

    async def test_one_that_is_longer_is_found_out_before_its_first_version_is_taken_for_ours(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, 3, clock, "old")
        async with following(lake, clock) as reader:
            lake.forget("")
            clock.advance(0.5)
            await table(lake, 9, clock, "new")
            with pytest.raises(TableChangedError, match="its id was old and is new"):
                await reader.after(0.5)
            assert reader.versions == [0, 1, 2]

    @pytest.mark.parametrize("common", [1, 2, 3])
    @pytest.mark.parametrize("versions", [3, 4, 9])
    def test_a_copy_that_went_another_way(self, versions: int, common: int) -> None:
        """It has the same id, and so many versions in common with the one that was read: all three, or an older state."""

        async def scenario() -> None:
            clock = manual_clock()
            lake, copy = Lake(clock), Lake(clock)
            writer = await table(lake, 3, clock)
            copy.copy_from(lake)
            copy.forget(*map(entry_path, range(common, 3)))
            forked = TableWriter(copy, SCHEMA, clock=clock, table_id="T", version=common - 1)
            for version in range(common, versions):
                await forked.insert(rows(100 + version))
            async with following(lake, clock) as reader:
                clock.advance(0.5)
                lake.forget("")
                lake.copy_from(copy)
                if common == 3:
                    assert await reader.after(GAP_CHECK_SECONDS) == list(range(versions))
                    return
                with pytest.raises(
                    TableChangedError, match=r"with the same id.*version 2 is not the one that was read"
                ):
                    await reader.after(0.5)
                assert reader.versions == list(range(writer.version + 1))

        run(scenario())

    async def test_a_reader_that_was_held_up_looks_too(self, clock: ManualClock, lake: Lake) -> None:
        """Back-pressure may hold it for long, and then the next version is there at once."""

        await table(lake, 9, clock, "old")
        tailer = Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0))
        entries = tailer.entries(0)
        for _ in range(3):
            await anext(entries)
        lake.forget("")
        clock.advance(GAP_CHECK_SECONDS)
        await table(lake, 9, clock, "new")
        with pytest.raises(TableChangedError, match="its id was old and is new"):
            await anext(entries)

    async def test_a_table_that_is_replaced_has_another_id_and_the_same_log(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        """After `CREATE OR REPLACE TABLE` the entries define the id. A later deletion and re-creation is still detected."""

        await table(lake, 2, clock, "old")
        other = Lake(clock)
        await table(other, 1, clock, "new")
        await lake.put(entry_path(2), other.bytes_of(entry_path(0)))
        tailer = Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0))
        assert [entry.commit.version async for entry in tailer.entries(0, 2)] == [0, 1, 2]
        lake.forget("")
        clock.advance(GAP_CHECK_SECONDS)
        await table(lake, 5, clock, "third")
        with pytest.raises(TableChangedError, match="its id was new and is third"):
            await anext(tailer.entries(3))

    async def test_the_same_table_from_an_older_copy(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 5, clock)
        async with following(lake, clock) as reader:
            lake.forget(entry_path(3), entry_path(4))
            await reader.after(1)
            with pytest.raises(TableChangedError, match="ends at version 2 now, although version 4 was there"):
                await reader.after(REMOVAL_STEP)

    @pytest.mark.parametrize("resumed", [False, True])
    async def test_a_table_that_is_removed_file_by_file_is_deleted(
        self, clock: ManualClock, lake: Lake, *, resumed: bool
    ) -> None:
        """While its log still shrinks, an older copy would look the same."""
        await table(lake, 5, clock)
        digest = (await DeltaLog(lake).fingerprint(4)).digest
        async with following(lake, clock) as reader:
            lake.forget(entry_path(4))
            tailer = Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0))
            reading = asyncio.ensure_future(tailer.resume(Position("T", 5, digest=digest))) if resumed else reader.task
            for version in (3, 1, 0, 2):
                clock.advance(REMOVAL_STEP)
                await clock.wait_for_sleepers()
                assert not reading.done()
                lake.forget(entry_path(version))
            clock.advance(REMOVAL_STEP)
            with pytest.raises(TableChangedError, match="the table T was deleted or moved"):
                await reading

    async def test_a_table_that_is_copied_is_the_same(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        async with following(lake, clock) as reader:
            clock.advance(0.5)
            for version in range(3):
                await lake.put(entry_path(version), lake.bytes_of(entry_path(version)))
            await reader.after(GAP_CHECK_SECONDS)
            await writer.insert(rows(3))
            assert await reader.after(8) == [0, 1, 2, 3]

    async def test_no_table_at_all(self, clock: ManualClock) -> None:
        with pytest.raises(LogError, match="not a Delta table"):
            await Following(Lake(clock), clock).task


class TestLocalTables:
    """Under a clock that stands almost still: only the file system wakes the reader."""

    @pytest.mark.parametrize("removed", ["table", "log", "last entry"])
    async def test_what_is_removed_is_noticed_at_once(self, tmp_path: Path, removed: str, clock: ManualClock) -> None:
        folder = tmp_path / "orders"
        await table(LocalStorage(folder), 3, manual_clock())
        with Table.open(str(folder)).tailer(clock, LONG, LONG) as tailer:
            entries = tailer.entries(0)
            for _ in range(3):
                await anext(entries)
            coming = asyncio.ensure_future(anext(entries))
            await clock.wait_for_sleepers()
            if removed == "last entry":
                (folder / entry_path(2)).unlink()
                told = "the log ends at version 1 now"
            else:
                shutil.rmtree(folder if removed == "table" else folder / "_delta_log")
                told = "was deleted|are missing|is missing|no longer in the log|ends at version"
            async with asyncio.timeout(20):
                while not coming.done():  # too short for the next poll
                    await asyncio.sleep(0.02)
                    clock.advance(REMOVAL_STEP)
            with pytest.raises((TableChangedError, GapError), match=told):
                await coming

    @pytest.mark.parametrize("versions", [1, 3, 9])
    async def test_a_table_that_is_written_in_its_place_is_noticed_at_once(
        self, tmp_path: Path, versions: int, clock: ManualClock
    ) -> None:
        folder = tmp_path / "orders"
        await table(LocalStorage(folder), 3, manual_clock())
        with Table.open(str(folder)).tailer(clock, LONG, LONG) as tailer:
            entries = tailer.entries(0)
            for _ in range(3):
                await anext(entries)
            coming = asyncio.ensure_future(anext(entries))
            await clock.wait_for_sleepers()
            shutil.rmtree(folder)
            await table(LocalStorage(folder), versions, manual_clock(), "new")
            with pytest.raises((TableChangedError, GapError)):
                await coming


class TestLateTables:
    async def test_it_is_waited_for_and_that_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "cdfd"):
            clock = manual_clock()
            lake = Lake(clock)
            tailer = Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0))
            waiting = asyncio.create_task(tailer.wait_for_table())
            for _ in range(6):
                await clock.wait_for_sleepers()
                clock.advance(8)
            await clock.wait_for_sleepers()
            await table(lake, 1, clock)
            clock.advance(8)
            assert await waiting
            assert tailer.backoff.delay == 1
            assert not await tailer.wait_for_table()
        assert [record.message for record in caplog.records] == ["waiting for the table to appear"]

    async def test_the_file_system_tells_of_its_first_version_and_of_those_after_it(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        lake = Table.open(str(tmp_path / "lake" / "orders"))
        writer = None
        with lake.tailer(clock, LONG, LONG) as tailer:
            waiting = asyncio.create_task(tailer.wait_for_table())
            await clock.wait_for_sleepers()
            storage = LocalStorage(tmp_path / "lake" / "orders")
            writer = await table(storage, 2, clock)
            assert await waiting
            entries = tailer.entries(0)
            for version in range(2):
                assert (await anext(entries)).commit.version == version
            for version in range(2, 6):
                coming = asyncio.ensure_future(anext(entries))
                await clock.wait_for_sleepers()
                await writer.insert(rows(version))
                assert (await coming).commit.version == version

    async def test_a_slow_writer_in_the_file_system(self, tmp_path: Path, clock: ManualClock) -> None:
        """The entry is created, then written in two pieces, as by a program that just opens and writes it."""

        writer = await table(LocalStorage(tmp_path), 2, clock)
        whole = serialize([("commitInfo", {"operation": "WRITE"}), ("txn", {"appId": "me", "version": 1})])
        with Table.open(str(tmp_path)).tailer(None, LONG, LONG) as tailer:
            entries = tailer.entries(writer.version + 1)
            coming = asyncio.ensure_future(anext(entries))
            with (tmp_path / entry_path(2)).open("wb") as file:
                for at in range(0, len(whole), 30):
                    file.write(whole[at : at + 30])
                    file.flush()
                    await asyncio.sleep(0.01)
            assert (await coming).commit.txns[0].app_id == "me"
