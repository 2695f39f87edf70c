"""The contract of every `Clock`, and the further methods of the manual one."""

import asyncio
import time
from collections.abc import Callable

import pytest

from cdfd.runtime.clock import Clock, SystemClock
from tests.support.manual_time import ManualClock


@pytest.fixture(params=[SystemClock, ManualClock])
def make(request: pytest.FixtureRequest) -> Callable[[], Clock]:
    return request.param


async def pass_time(clock: Clock) -> None:
    """Let every task that sleeps or waits on the clock finish."""
    if isinstance(clock, ManualClock):
        await clock.wait_for_sleepers()
        clock.advance(10)


class TestEveryClock:
    async def test_time_goes_on(self, make: Callable[[], Clock]) -> None:
        clock = make()
        wall, monotonic = clock.now_ms(), clock.monotonic()
        sleeping = asyncio.create_task(clock.sleep(0.002))
        await pass_time(clock)
        await sleeping
        assert clock.monotonic() >= monotonic + 0.002
        assert clock.now_ms() >= wall

    @pytest.mark.parametrize("seconds", [0, -1])
    async def test_sleep_that_is_no_sleep_lets_others_run(self, make: Callable[[], Clock], seconds: float) -> None:
        clock = make()
        ran = asyncio.Event()
        asyncio.get_running_loop().call_soon(ran.set)
        await clock.sleep(seconds)
        assert ran.is_set()

    async def test_wait_times_out(self, make: Callable[[], Clock]) -> None:
        clock, event = make(), asyncio.Event()
        waiting = asyncio.create_task(clock.wait(event, 0.002))
        await pass_time(clock)
        assert await waiting is False

    async def test_wait_ends_with_the_event(self, make: Callable[[], Clock]) -> None:
        clock, event = make(), asyncio.Event()
        waiting = asyncio.create_task(clock.wait(event, 1e6))
        await asyncio.sleep(0)
        event.set()
        assert await waiting is True
        assert event.is_set()
        assert await clock.wait(event, 1e6) is True
        assert await clock.wait(event, 0) is True

    @pytest.mark.parametrize("timeout", [0, -1])
    async def test_wait_without_time(self, make: Callable[[], Clock], timeout: float) -> None:
        assert await make().wait(asyncio.Event(), timeout) is False

    async def test_both_can_be_cancelled(self, make: Callable[[], Clock]) -> None:
        clock = make()
        for call in (clock.sleep(1e6), clock.wait(asyncio.Event(), 1e6)):
            task = asyncio.create_task(call)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        # A cancelled sleeper does not return when its time comes.
        if isinstance(clock, ManualClock):
            clock.advance(1e7)
            await asyncio.sleep(0)


class TestSystemClock:
    def test_is_the_machine_s(self) -> None:
        clock = SystemClock()
        before = time.time_ns() // 1_000_000
        assert before <= clock.now_ms() <= time.time_ns() // 1_000_000
        assert time.monotonic() <= clock.monotonic() <= time.monotonic()


class TestManualClock:
    def test_manual_clock_moves_only_when_it_is_advanced(self) -> None:
        clock = ManualClock(1_000)
        assert (clock.now_ms(), clock.monotonic()) == (1_000, 0)
        clock.advance(2.5)
        assert (clock.now_ms(), clock.monotonic()) == (3_500, 2.5)

    async def test_wakes_whose_time_has_come_the_earliest_first(self) -> None:
        clock, woken = ManualClock(), []

        async def sleeper(seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append(seconds)

        tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2, 5, 1)]
        await clock.wait_for_sleepers(5)
        clock.advance(0.5)
        await asyncio.sleep(0)
        assert woken == []
        clock.advance(2.5)
        await asyncio.gather(tasks[0], tasks[1], tasks[2], tasks[4])
        assert woken == [1, 1, 2, 3]
        await clock.wait_for_sleepers(1)
        clock.advance(2)
        await tasks[3]

    async def test_tells_when_all_are_asleep(self) -> None:
        clock = ManualClock()
        sleeping = asyncio.create_task(clock.wait_for_sleepers(2))
        first = asyncio.create_task(clock.sleep(1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not sleeping.done()
        second = asyncio.create_task(clock.wait(asyncio.Event(), 1))
        await sleeping
        clock.advance(1)
        await first
        assert await second is False
