"""Several readers of one log: one of them polls for all, and each of them reads every entry."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from cdfd.errors import NotFoundError
from cdfd.log.log import DeltaLog
from cdfd.log.pace import Pace, PollBudget
from cdfd.log.table import Table
from cdfd.log.tailer import Tailer
from cdfd.log.watch import PollWatch, SharedTip, SharedWatch
from cdfd.scan.table_files import TableFiles
from cdfd.storage.base import Stat
from tests.support.lake import rows, table
from tests.support.manual_time import ManualClock
from tests.support.memory_storage import MemoryStorage

WITHIN = 20  # seconds until a test gives up; nothing waits for it otherwise
POLL, MOST = 1.0, 4.0
VERSIONS = list(range(14))


class Store(MemoryStorage):
    """A remote store that counts the requests for entries that do not exist."""

    remote = True
    misses = 0

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        try:
            return await super().fetch(path, length)
        except NotFoundError:
            self.misses += 1
            raise


class Reader:
    """A reader of the log that notes the versions that it has."""

    def __init__(
        self, store: Store, clock: ManualClock, tip: SharedTip | None, budget: PollBudget | None = None
    ) -> None:
        pace = Pace(budget or PollBudget(None, MOST), POLL)
        self._tailer = Table(DeltaLog(store), TableFiles(store, lambda _: store)).tailer(
            clock, POLL, MOST, pace=pace, tip=tip
        )
        self.tailer = self._tailer.__enter__()
        self.versions: list[int] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        async for entry in self.tailer.entries(0):
            self.versions.append(entry.commit.version)
            await self.may_go_on.wait()

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self._tailer.__exit__(None, None, None)


async def pass_time(clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds * 4)):
        await settle()
        clock.advance(0.25)
    await settle()


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def misses(shared: bool) -> tuple[int, Sequence[list[int]], int]:
    """Misses of three readers in 100 s without a commit, the versions that they read, and what they pay in 100 s with commits."""
    clock = ManualClock()
    store = Store("s3://bucket/t")
    writer = await table(store, 3, clock)
    tip = SharedTip(clock) if shared else None
    budget = PollBudget(None, MOST)
    readers = [Reader(store, clock, tip, budget) for _ in range(3)]
    await pass_time(clock, 5)
    await writer.insert(rows(10))
    await pass_time(clock, MOST)
    assert budget.tables == (1 if shared else 3)
    store.misses = 0
    await pass_time(clock, 100)
    missed, paid = store.misses, budget.requests
    for number in range(11, 21):
        await pass_time(clock, 10)
        await writer.insert(rows(number))
    paid = budget.requests - paid
    await pass_time(clock, MOST)
    for reader in readers:
        await reader.end()
    assert not budget.tables
    return missed, [reader.versions for reader in readers], paid


def test_one_reader_polls_for_all() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(WITHIN):
            alone, versions, paid_alone = await misses(shared=False)
            assert versions == [VERSIONS] * 3
            together, versions, paid = await misses(shared=True)
            assert versions == [VERSIONS] * 3
            assert together <= alone / 3 + 1
            assert paid <= paid_alone / 3 + 1

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["ends", "is busy"])
def test_another_reader_polls_when_the_one_that_polled(how: str) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = Store("s3://bucket/t")
        writer = await table(store, 1, clock)
        tip = SharedTip(clock)
        readers = [Reader(store, clock, tip) for _ in range(2)]
        await pass_time(clock, 5)
        [leader] = [each for each in readers if each.tailer.watch is tip.leader]
        [other] = [each for each in readers if each is not leader]
        if how == "ends":
            await leader.end()
        else:
            leader.may_go_on.clear()
        for version in (1, 2, 3):
            await writer.insert(rows(version))
            await pass_time(clock, 2 * MOST)
            assert other.versions[-1] == version
        assert leader.versions == ([0] if how == "ends" else [0, 1])
        leader.may_go_on.set()
        await pass_time(clock, 1)
        assert leader.versions == ([0] if how == "ends" else [0, 1, 2, 3])
        for reader in readers:
            await reader.end()

    asyncio.run(asyncio.wait_for(scenario(), WITHIN))


async def after_restart(versions: int) -> tuple[float, int, list[int]]:
    """A process starts half a minute before a commit of a table that commits every minute, and has so many versions.

    Returns:
        Seconds until the process has that commit, its polls before, and the gaps that it remembers then.
    """
    clock = ManualClock(1_700_000_000_000)
    store = Store("s3://bucket/t", now_ms=clock.now_ms)
    writer = await table(store, 1, clock)
    for version in range(1, versions):
        clock.advance(60)
        await writer.insert(rows(version))
    clock.advance(30)
    pace = Pace(PollBudget(None, 20.0), 0.25)
    reader = Table(DeltaLog(store), TableFiles(store, lambda _: store))
    with reader.tailer(clock, 0.25, 20.0, pace=pace) as tailer:
        planned = aclosing(reader.stream().versions(tailer, versions))
        async with planned as following:
            upcoming = asyncio.ensure_future(anext(following))
            await pass_time(clock, 30)
            polls = store.misses
            await writer.insert(rows(versions))
            committed = clock.monotonic()
            while not upcoming.done():
                await pass_time(clock, 0.25)
            assert (await upcoming).plan.version == versions
    return clock.monotonic() - committed, polls, [round(seconds) for seconds, _ in pace.rhythm.gaps]


def test_a_process_that_starts_again_knows_the_rhythm_by_the_log() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(WITHIN):
            latency, polls, gaps = await after_restart(30)
            assert gaps == [60] * 30
            latency_of_new, polls_of_new, _ = await after_restart(1)
            assert latency <= 1 < latency_of_new
            assert polls <= polls_of_new

    asyncio.run(scenario())


def test_all_readers_learn_that_the_table_has_appeared() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store, tip = Store("s3://bucket/t"), SharedTip(clock)
        reader = Table(DeltaLog(store), TableFiles(store, lambda _: store))
        with reader.tailer(clock, POLL, MOST, tip=tip) as one, reader.tailer(clock, POLL, MOST, tip=tip) as two:
            begun = []

            async def begin(tailer: Tailer) -> None:
                await tailer.wait_for_table()
                begun.append(tailer)
                await tailer.watch.wait(1000)  # it is at the tip, and polls for what follows

            reading = [asyncio.create_task(begin(each)) for each in (one, two)]
            await pass_time(clock, 5)
            await table(store, 1, clock)
            await pass_time(clock, 5 * MOST)
            assert len(begun) == 2
            for each in reading:
                each.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), WITHIN))


def test_a_reader_whose_miss_comes_late_reads_what_another_one_found_at_once() -> None:
    """The other one was behind, and has read the entry without a wait before this one follows it."""

    class Slow(Store):
        """Its misses come late."""

        delay = 0.0

        async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
            try:
                return await super().fetch(path, length)
            except NotFoundError:
                await clock.sleep(self.delay)
                raise

    clock = ManualClock()

    async def scenario() -> None:
        fast, slow, tip = Store("s3://bucket/t"), Slow("s3://bucket/t"), SharedTip(clock)
        slow._objects = fast._objects  # one table
        writer = await table(fast, 2, clock)
        ahead, behind = Reader(slow, clock, tip), Reader(fast, clock, tip)
        behind.may_go_on.clear()
        await pass_time(clock, 1)
        slow.delay = 10.0
        await pass_time(clock, MOST)  # a poll is under way, and misses
        await writer.insert(rows(2))
        behind.may_go_on.set()
        await pass_time(clock, 5 * MOST)
        assert [ahead.versions, behind.versions] == [[0, 1, 2]] * 2
        for reader in (ahead, behind):
            await reader.end()

    asyncio.run(asyncio.wait_for(scenario(), WITHIN))


def test_news_reach_a_reader_that_does_not_wait_yet() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        tip = SharedTip(clock)
        one, two = SharedWatch(tip, PollWatch(clock)), SharedWatch(tip, PollWatch(clock))
        waiting = asyncio.create_task(one.wait(1))
        await settle()
        clock.advance(1)
        await waiting
        one.arrived()
        await two.wait(1000)  # at once: nothing advances the clock

    asyncio.run(asyncio.wait_for(scenario(), WITHIN))
