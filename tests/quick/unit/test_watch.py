"""Wake-ups. Time is the test's own here: a wait that no event ends would last for ever, and fails by `WITHIN`."""

import asyncio
import logging
import os
import resource
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from watchdog.observers.api import EventQueue, ObservedWatch

from cdfd.log.watch import Backoff, DirectoryWatch, PollWatch, Watch, is_log_entry
from cdfd.runtime.file_events import FileEvents
from tests.support.manual_time import ManualClock
from tests.support.privileges import unprivileged

WITHIN = 20  # seconds until a test gives up; nothing waits for it otherwise
LONG = 1e6

linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify")


@pytest.fixture
def file_events() -> Iterator[FileEvents]:
    before = set(threading.enumerate())
    with closing(FileEvents()) as file_events:
        yield file_events
    assert set(threading.enumerate()) <= before


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "orders" / "_delta_log"
    folder.mkdir(parents=True)
    return folder


def run(scenario: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WITHIN):
            await scenario

    asyncio.run(bounded())


async def established(watch: DirectoryWatch, folder: Path) -> None:
    """Wait until `folder` is what is being watched."""
    while watch.watched is None or watch.watched[0] != str(folder):
        await watch.wait(LONG)


async def waiting_on(watch: Watch, clock: ManualClock) -> asyncio.Task[None]:
    """A wait on `watch` that has begun and that nothing has ended yet."""
    waiting = asyncio.create_task(watch.wait(LONG))
    await clock.wait_for_sleepers()
    assert not waiting.done()
    return waiting


async def settled(watch: Watch, clock: ManualClock, sleepers: int = 1) -> asyncio.Task[None]:
    """As `sleeping`, once late news of a folder's earlier lives (they come from another thread) has ended its waits."""
    while True:
        waiting = asyncio.create_task(watch.wait(LONG))
        sleeping = asyncio.create_task(clock.wait_for_sleepers(sleepers))
        await asyncio.wait({waiting, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        if not waiting.done():
            return waiting


class TestBackoff:
    def test_doubles_up_to_the_most_and_falls_back_at_once(self) -> None:
        backoff = Backoff(1.0, 5.0)
        delays = []
        for _ in range(5):
            delays.append(backoff.delay)
            backoff = backoff.longer()
        assert delays == [1.0, 2.0, 4.0, 5.0, 5.0]
        assert backoff.reset() == Backoff(1.0, 5.0)

    def test_delay_is_at_most_the_limit(self) -> None:
        assert Backoff(3.0, 2.0).delay == 2.0
        assert Backoff(1.0, 60.0, idle=100_000).delay == 60.0


class TestPollWatch:
    async def test_poll_waits_for_its_time_by_the_clock(self) -> None:
        clock = ManualClock()
        watch = PollWatch(clock)
        waiting = asyncio.create_task(watch.wait(2))
        await clock.wait_for_sleepers()
        clock.advance(1)
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(1)
        await waiting
        watch.close()


class TestNames:
    @pytest.mark.parametrize(
        ("name", "accepts"),
        [
            ("00000000000000000007.json", True),
            (".00000000000000000007.json", False),
            (".cdfd-00ff.tmp", False),
            ("00000000000000000007.checkpoint.parquet", False),
            ("_last_checkpoint", False),
            ("00000000000000000007.crc", False),
        ],
    )
    def test_only_names_of_log_entries_wake_the_watcher(self, name: str, accepts: bool) -> None:
        assert is_log_entry(name) is accepts


def write_in_place(target: Path) -> None:
    target.write_bytes(b"{}")


def link(target: Path) -> None:
    temporary = target.with_name(".temporary")
    temporary.write_bytes(b"{}")
    os.link(temporary, target)
    temporary.unlink()


def rename(target: Path) -> None:
    temporary = target.with_name(".temporary")
    temporary.write_bytes(b"{}")
    temporary.rename(target)


def rename_from_elsewhere(target: Path) -> None:
    temporary = target.parents[1] / "temporary"
    temporary.write_bytes(b"{}")
    temporary.rename(target)


def rename_after_another_left(target: Path) -> None:
    leaving = target.with_name(".leaving")
    leaving.write_bytes(b"{}")
    leaving.rename(target.parents[1] / "left")
    rename(target)


class TestDirectoryWatch:
    @pytest.mark.parametrize("create", [write_in_place, link, rename, rename_from_elsewhere, rename_after_another_left])
    async def test_wakes_however_an_entry_is_created(
        self, log: Path, file_events: FileEvents, create: Callable[[Path], None]
    ) -> None:
        clock = ManualClock()
        for version in range(3):
            entry = log / f"{version:020d}.json"
            watch = DirectoryWatch(str(log), file_events, clock, accepts=entry.name.__eq__)
            await established(watch, log)
            waiting = await waiting_on(watch, clock)
            await asyncio.to_thread(create, entry)
            await waiting
            assert watch.refusal is None
            watch.close()

    async def test_an_event_between_two_waits_is_not_lost(self, log: Path, file_events: FileEvents) -> None:
        clock = ManualClock()
        watch, other = (DirectoryWatch(str(log), file_events, clock) for _ in range(2))
        await established(watch, log)
        await established(other, log)
        rename(log / "1.json")
        await other.wait(LONG)  # both have the event now, or are about to get it
        await watch.wait(LONG)

    async def test_files_of_no_concern_wake_nobody(self, log: Path, file_events: FileEvents) -> None:
        clock = ManualClock()
        watch = DirectoryWatch(str(log), file_events, clock)
        last = DirectoryWatch(str(log), file_events, clock, accepts="_last_checkpoint".__eq__)
        await established(watch, log)
        await established(last, log)
        waiting = await waiting_on(watch, clock)
        for name in ("1.crc", "1.checkpoint.parquet", ".2.json", "_last_checkpoint"):
            (log / name).write_bytes(b"")
        # Events come in order: those before the last file's have arrived.
        await last.wait(LONG)
        assert not waiting.done()
        write_in_place(log / "1.json")
        await waiting

    async def test_a_wait_ends_by_its_timeout(self, log: Path, file_events: FileEvents) -> None:
        clock = ManualClock()
        watch = DirectoryWatch(str(log), file_events, clock)
        await established(watch, log)
        waiting = asyncio.create_task(watch.wait(5))
        await clock.wait_for_sleepers()
        clock.advance(4.5)
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.advance(0.5)
        await waiting

    async def test_a_mount_that_hangs_keeps_no_other_table_waiting(
        self, log: Path, file_events: FileEvents, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mounted, stat = threading.Event(), os.stat

        def hanging(path: object, *args: object, **options: object) -> os.stat_result:
            if path == str(log):
                mounted.wait(2 * WITHIN)
            return stat(path, *args, **options)  # type: ignore[arg-type]

        clock = ManualClock()
        watch = DirectoryWatch(str(log), file_events, clock)
        monkeypatch.setattr(os, "stat", hanging)
        try:
            waiting = asyncio.create_task(watch.wait(LONG))
            for _ in range(20):
                await asyncio.sleep(0.001)  # another table's turn
            assert not waiting.done()
        finally:
            mounted.set()
        await waiting
        assert watch.watched is not None
        assert watch.watched[0] == str(log)
        watch.close()

    async def test_many_tables_share_the_threads(self, tmp_path: Path, file_events: FileEvents) -> None:
        clock = ManualClock()
        folders = [tmp_path / f"t{n}" for n in range(8)]
        watches = [DirectoryWatch(str(folder), file_events, clock) for folder in folders]
        for folder, watch in zip(folders, watches, strict=True):
            folder.mkdir()
            await established(watch, folder)
        for folder, watch in zip(folders, watches, strict=True):
            waiting = await waiting_on(watch, clock)
            rename(folder / "0.json")
            await waiting
            watch.close()

    async def test_closing_one_of_two_leaves_the_other(self, log: Path, file_events: FileEvents) -> None:
        clock = ManualClock()
        closed, watch = (DirectoryWatch(str(log), file_events, clock) for _ in range(2))
        await established(closed, log)
        await established(watch, log)
        closed.close()
        closed.close()
        waiting = await waiting_on(watch, clock)
        rename(log / "1.json")
        await waiting

    async def test_through_a_symbolic_link(self, tmp_path: Path, log: Path, file_events: FileEvents) -> None:
        linked = tmp_path / "link" / "_delta_log"
        (tmp_path / "link").symlink_to(tmp_path / "orders")

        clock = ManualClock()
        watch = DirectoryWatch(str(linked), file_events, clock)
        await established(watch, linked)
        waiting = await waiting_on(watch, clock)
        rename(log / "1.json")
        await waiting


class TestLateAndLostFolders:
    async def test_a_table_that_appears_later(self, tmp_path: Path, file_events: FileEvents) -> None:
        folder = tmp_path / "lake" / "orders" / "_delta_log"

        clock = ManualClock()
        watch = DirectoryWatch(str(folder), file_events, clock)
        for step in (folder.parents[1], folder.parents[0], folder):
            await established(watch, step.parent)
            waiting = await waiting_on(watch, clock)
            step.mkdir()
            await waiting
        await established(watch, folder)
        waiting = await waiting_on(watch, clock)
        rename(folder / "0.json")
        await waiting

    async def test_a_table_that_appears_at_once(self, tmp_path: Path, file_events: FileEvents) -> None:
        folder = tmp_path / "lake" / "orders" / "_delta_log"
        ready = tmp_path / "ready"
        (ready / "orders" / "_delta_log").mkdir(parents=True)

        clock = ManualClock()
        watch = DirectoryWatch(str(folder), file_events, clock)
        await established(watch, tmp_path)
        waiting = await waiting_on(watch, clock)
        (tmp_path / "unrelated").mkdir()
        ready.rename(tmp_path / "lake")
        await waiting
        await established(watch, folder)

    @pytest.mark.parametrize("watches", [1, 2])
    async def test_a_folder_that_is_removed_and_made_anew(
        self, log: Path, file_events: FileEvents, watches: int
    ) -> None:
        clock = ManualClock()
        those = [DirectoryWatch(str(log), file_events, clock) for _ in range(watches)]
        for watch in those:
            await established(watch, log)
        await asyncio.to_thread(shutil.rmtree, log.parent)
        for watch in those:
            await established(watch, log.parents[1])
        await asyncio.to_thread(log.mkdir, parents=True)
        for watch in those:
            await established(watch, log)
            watch.close()
        last = DirectoryWatch(str(log), file_events, clock, accepts="0.json".__eq__)
        await established(last, log)
        waiting = await settled(last, clock)
        rename(log / "0.json")
        await waiting

    @pytest.mark.parametrize("watches", [1, 2])
    async def test_a_folder_that_is_replaced_behind_our_back(
        self, log: Path, file_events: FileEvents, watches: int
    ) -> None:
        clock = ManualClock()
        those = [DirectoryWatch(str(log), file_events, clock) for _ in range(watches)]
        for watch in those:
            await established(watch, log)
        # No event tells that a folder above the watched one was moved: the next wait finds out.
        log.parent.rename(log.parent.with_name("old"))
        log.mkdir(parents=True)
        for watch in those:
            await watch.wait(LONG)
        waiting = [await settled(watch, clock, sleepers) for sleepers, watch in enumerate(those, start=1)]
        rename(log / "0.json")
        await asyncio.gather(*waiting)


class TestRefusals:
    @contextmanager
    def no_more_files(self) -> Iterator[None]:
        """The process may open no further file: inotify_init answers EMFILE."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        descriptors = [os.open(os.devnull, os.O_RDONLY)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors[0] + 16, hard))
            try:
                while True:
                    descriptors.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                yield
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    @linux
    async def test_polls_and_says_so_once_then_recovers(
        self, log: Path, file_events: FileEvents, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock()
        watch = DirectoryWatch(str(log), file_events, clock)
        with self.no_more_files():
            for _ in range(3):
                waiting = await waiting_on(watch, clock)
                clock.advance(LONG)
                await waiting
        assert watch.refusal is not None
        assert watch.watched is None
        told = [record for record in caplog.records if record.name == "cdfd.tail"]
        assert [record.levelno for record in told] == [logging.WARNING]
        assert str(log) in told[0].getMessage()
        await established(watch, log)
        assert watch.refusal is None
        waiting = await waiting_on(watch, clock)
        rename(log / "0.json")
        await waiting

    @linux
    def test_a_folder_that_may_not_be_listed(self, file_events: FileEvents) -> None:
        async def scenario(log: Path) -> None:
            clock = ManualClock()
            watch = DirectoryWatch(str(log), file_events, clock)
            await waiting_on(watch, clock)
            assert watch.refusal == "Permission denied"

        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o311)
            with unprivileged():
                run(scenario(Path(folder)))

    async def test_a_loop_that_is_closed_stops_nobody_else(self, log: Path, file_events: FileEvents) -> None:
        await established(DirectoryWatch(str(log), file_events, ManualClock()), log)  # never closed

        async def scenario() -> None:
            clock = ManualClock()
            for version in range(3):
                entry = log / f"{version}.json"
                watch = DirectoryWatch(str(log), file_events, clock, accepts=entry.name.__eq__)
                await established(watch, log)
                waiting = await waiting_on(watch, clock)
                rename(entry)
                await waiting

        (await scenario())


@linux
def test_events_that_watchdog_holds_back_are_not_asked_for() -> None:
    from watchdog.observers.inotify_c import InotifyConstants

    from cdfd.runtime import folder_observer as module

    observer = module.Observer()
    try:
        assert observer._emitter_class is module._Emitter
        assert not module._MASK & InotifyConstants.IN_MOVED_FROM
    finally:
        observer.start()
        observer.stop()
        observer.join()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no inotify")
def test_an_event_of_a_folder_that_is_no_longer_watched_is_not_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from cdfd.runtime.folder_observer import _Emitter

    emitter = _Emitter(EventQueue(), ObservedWatch(str(tmp_path), recursive=False))
    emitter.queue_events(0)
    assert caplog.messages == []
