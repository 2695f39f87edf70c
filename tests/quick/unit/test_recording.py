"""Telling the ledger: at its pace, again after it failed, and at the end."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.deliver.admission import SMALL_BYTES, Admission
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.recorder import LedgerWarnings, Recorder
from cdfd.errors import CdfdError, StorageError
from cdfd.sinks.ledger.ledger import LedgerEntry, NoLedger
from tests.support.feeding import MemoryPlace, feed
from tests.support.lake import Lake, manual_clock, table
from tests.support.manual_time import ManualClock

WITHIN = 20


class Book(NoLedger):
    """A ledger that keeps every recorded version, and fails while a test asks for it."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.digests: list[str | None] = []
        self.full = False
        self.renewals = 0

    async def position(self, app_id: str) -> LedgerEntry | None:
        return LedgerEntry(app_id, self.versions[-1], "T", None) if self.versions else None

    async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
        assert (app_id, table_id) == ("cdfd/shop/orders", "T")
        if self.full:
            raise StorageError("no space left on device")
        self.versions.append(version)
        self.digests.append(digest)

    async def renew(self, app_id: str) -> None:
        if self.full:
            raise StorageError("no space left on device")
        self.renewals += 1


class Told(Monitor):
    def __init__(self) -> None:
        self.errors: list[CdfdError] = []
        self.versions: list[int] = []
        self.before: int | None = None

    def error(self, error: CdfdError) -> None:
        self.errors.append(error)

    def recorded(self, version: int) -> None:
        self.versions.append(version)

    def found_record(self, version: int) -> None:
        self.before = version


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WITHIN):
            await scenario()

    asyncio.run(bounded())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class TestRecorder:
    async def test_the_first_at_once_then_the_newest_at_its_pace(self) -> None:
        book, told, clock = Book(), Told(), ManualClock()
        recorder = Recorder(book, "cdfd/shop/orders", 10, clock, told)
        task = asyncio.create_task(recorder.run())
        for version in range(1, 4):
            recorder.delivered(version, "T")
            await settle()
        assert book.versions == [1]
        await clock.wait_for_sleepers()
        clock.advance(10)
        await settle()
        assert book.versions == told.versions == [1, 3]
        recorder.delivered(4, "T", ours=True)
        clock.advance(100)
        await settle()
        assert book.versions == [1, 3]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_the_hash_is_that_of_the_version_which_is_recorded(self) -> None:
        book, clock = Book(), ManualClock()
        recorder = Recorder(book, "cdfd/shop/orders", 10, clock, Told())
        recorder.delivered(1, "T", "of 1")
        recorder.delivered(2, "T", "of 2")
        recorder.delivered(3, "T", "of 3", ours=True)
        await recorder.finish()
        recorder.delivered(4, "T", "of 4", ours=True)
        await recorder.finish()
        recorder.delivered(5, "T")
        await recorder.finish()
        assert list(zip(book.versions, book.digests, strict=True)) == [(3, "of 3"), (5, None)]

    async def test_the_position_of_a_quiet_table_is_renewed(self) -> None:
        book, told, clock = Book(), Told(), ManualClock()
        task = asyncio.create_task(Recorder(book, "cdfd/shop/orders", 1, clock, told, renewal=30).run())
        for full in (False, True, False):
            book.full = full
            await clock.wait_for_sleepers()
            clock.advance(30)
            await settle()
        assert (book.renewals, len(told.errors)) == (2, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_a_ledger_that_fails_is_asked_again_and_rows_do_not_wait(self) -> None:
        book, told, clock = Book(), Told(), ManualClock()
        book.full = True
        recorder = Recorder(book, "cdfd/shop/orders", 10, clock, told)
        task = asyncio.create_task(recorder.run())
        recorder.delivered(1, "T")
        await settle()
        assert [error.what for error in told.errors] == ["no space left on device"]
        book.full = False
        recorder.delivered(2, "T")
        await settle()
        assert book.versions == []
        await clock.wait_for_sleepers()
        clock.advance(10)
        await settle()
        assert book.versions == [2]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_an_outage_is_logged_once_for_all_tables_then_from_time_to_time(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "cdfd.progress")
        book, clock, warnings, told = Book(), ManualClock(), LedgerWarnings(), Told()
        recorders = [Recorder(book, "cdfd/shop/orders", 10, clock, told, warnings=warnings) for _ in range(5)]
        tasks = [asyncio.create_task(recorder.run()) for recorder in recorders]

        async def after(full: bool) -> list[str]:
            book.full = full
            caplog.clear()
            for recorder in recorders:
                recorder.delivered(1, "T")
            for _ in range(30):
                await settle()
                clock.advance(10)
            return [record.message for record in caplog.records]

        failed = (
            "cannot record version 1 in the ledger: no space left on device (table none); "
            "retrying in 10 s, deliveries continue"
        )
        assert await after(full=True) == [failed]
        assert len(told.errors) == 150, "metrics count each one"
        assert await after(full=True) == [failed]
        assert await after(full=False) == ["the ledger can be written again"]
        assert await after(full=False) == []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def test_a_version_that_comes_while_another_is_recorded_is_not_lost(self) -> None:
        class Busy(Book):
            async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
                if version == 7:
                    recorder.delivered(8, "T")
                await super().record(app_id, version, table_id, digest)

        book = Busy()
        recorder = Recorder(book, "cdfd/shop/orders", 10, ManualClock(), Told())
        recorder.delivered(7, "T")
        await recorder.finish()
        await recorder.finish()
        assert book.versions == [7, 8]

    async def test_without_an_interval_every_version_is_recorded(self) -> None:
        book = Book()
        recorder = Recorder(book, "cdfd/shop/orders", 0, ManualClock(), Told())
        task = asyncio.create_task(recorder.run())
        for version in range(3):
            recorder.delivered(version, "T")
            await settle()
        assert book.versions == [0, 1, 2]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def test_a_clean_stop_records_what_is_pending(self) -> None:
        book = Book()
        recorder = Recorder(book, "cdfd/shop/orders", 10, ManualClock(), Told())
        await recorder.finish()
        recorder.delivered(5, "T")
        await recorder.finish()
        await recorder.finish()
        assert book.versions == [5]
        book.full = True
        recorder.delivered(6, "T")
        await recorder.finish()
        with pytest.raises(StorageError):
            await recorder.record_now()


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.booleans()), max_size=60), st.floats(0.1, 20))
def test_never_more_often_and_never_out_of_order(events: list[tuple[float, bool, bool]], seconds: float) -> None:
    clock, attempts = ManualClock(), list[float]()

    class Timed(Book):
        async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
            attempts.append(clock.monotonic())
            await super().record(app_id, version, table_id, digest)

    async def scenario() -> None:
        book, newest = Timed(), -1
        recorder = Recorder(book, "cdfd/shop/orders", seconds, clock, Told())
        task = asyncio.create_task(recorder.run())
        await settle()
        for version, (passed, ours, book.full) in enumerate(events):
            clock.advance(passed)
            await settle()
            is_pending = newest != (book.versions[-1] if book.versions else -1)
            newest = version if is_pending or not ours else newest
            recorder.delivered(version, "T", ours=ours)
            await settle()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert all(later - earlier >= seconds * 0.999 for earlier, later in itertools.pairwise(attempts))
        book.full = False
        await recorder.finish()
        assert book.versions == sorted(set(book.versions))
        assert (book.versions[-1] if book.versions else -1) == newest

    run(scenario)


async def test_a_recorder_that_dies_of_a_bug_ends_the_loop_whose_ledger_would_fall_behind(
    clock: ManualClock, lake: Lake
) -> None:
    class Buggy(Book):
        async def position(self, app_id: str) -> LedgerEntry | None:
            return None

        async def record(self, app_id: str, version: int, table_id: str, digest: str | None = None) -> None:
            raise ValueError("a bug")

    await table(lake, 3, clock)
    recorder = Recorder(Buggy(), "cdfd/shop/orders", 0, clock, Told())
    with pytest.raises(ValueError, match="a bug"):
        await feed(lake, MemoryPlace(), clock, start="earliest", recorder=recorder)


async def test_a_stop_ends_the_waiting_for_a_table_that_only_the_ledger_knows() -> None:
    clock, book, stop = manual_clock(), Book(), asyncio.Event()
    book.versions.append(3)
    recorder = Recorder(book, "cdfd/shop/orders", 0, clock, Told())
    feeding = asyncio.create_task(feed(Lake(clock), MemoryPlace(), clock, stop=stop, recorder=recorder))
    await clock.wait_for_sleepers()
    stop.set()
    await feeding
    assert book.versions == [3]


@pytest.mark.parametrize("versions", [[], [0]])
async def test_the_version_in_a_ledger_that_is_full_from_the_start_is_told(versions: list[int]) -> None:
    """Without it, no alert would see that the ledger stands still."""
    clock, book, told, place, lake = manual_clock(), Book(), Told(), MemoryPlace(), Lake(manual_clock())
    book.versions, book.full = versions, True
    await table(lake, 3, clock)
    await feed(lake, place, clock, 1, start="earliest")
    recorder = Recorder(book, "cdfd/shop/orders", 10, clock, Told())
    await feed(lake, place, clock, 2, recorder=recorder, monitor=told)
    assert told.before == (0 if versions else -1)


class TestAdmission:
    async def test_large_deliveries_run_in_order_and_small_ones_do_not_wait(self) -> None:
        admission, order = Admission(1), []
        go = asyncio.Event()

        async def deliver(name: str, size: int) -> None:
            async with admission.admit(size):
                order.append(name)
                if size > SMALL_BYTES:
                    await go.wait()

        large = [asyncio.create_task(deliver(name, 1 << 30)) for name in "abc"]
        await settle()
        await deliver("small", 1000)
        assert order == ["a", "small"]
        go.set()
        await asyncio.gather(*large)
        assert order == ["a", "small", "b", "c"]

    async def test_memory_is_returned_after_the_last_large_delivery(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cdfd.deliver.admission.REST_SECONDS", 0)
        rests = list[str]()
        admission = Admission(2, when_idle=lambda: rests.append("rest"))
        async with admission.admit(1 << 30):
            async with admission.admit(1 << 30):
                pass
            await settle()
            assert not rests, "another delivery was under way"
        async with admission.admit(1 << 30):
            await settle()
            assert not rests, "another delivery had begun"
        await settle()
        assert rests == ["rest"]
        async with admission.admit(1000):
            pass
        await settle()
        assert rests == ["rest"], "small deliveries do not count"

    async def test_a_delivery_that_hangs_loses_its_slot_once(self) -> None:
        admission, order = Admission(1, stall=0.01), []
        hang, moving = asyncio.Event(), asyncio.Event()

        async def hangs() -> None:
            async with admission.admit(1 << 30):
                order.append("hangs")
                await hang.wait()

        async def moves(name: str) -> None:
            async with admission.admit(1 << 30) as progressed:
                order.append(name)
                while not moving.is_set():
                    progressed()
                    await asyncio.sleep(0)

        hanging = asyncio.create_task(hangs())
        await settle()
        first = asyncio.create_task(moves("first"))
        second = asyncio.create_task(moves("second"))
        while "first" not in order:
            await asyncio.sleep(0.001)
        hang.set()
        await hanging
        for _ in range(100):
            await asyncio.sleep(0.0005)
        assert order == ["hangs", "first"]
        moving.set()
        await asyncio.gather(first, second)
