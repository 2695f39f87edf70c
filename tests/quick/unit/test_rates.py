"""Rate limits: what they let through in any stretch of time, turns among tables, stops."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.deliver.rates import RateLimit, Rates
from tests.support.feeding import MemoryPlace, feed, ids
from tests.support.lake import Lake, manual_clock, table
from tests.support.manual_time import ManualClock


class SleepingClock(ManualClock):
    """A clock on which a sleep takes no real time."""

    async def sleep(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)


class CountingClock(SleepingClock):
    sleeps = 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await super().sleep(seconds)


async def deliver(rates: Rates, rows: int, size: int = 0) -> None:
    assert await rates.admit(size, asyncio.Event())
    rates.settle(rows, size)


class TestOneTable:
    @given(
        rate=st.integers(1, 1000),
        deliveries=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=15),
    )
    def test_what_went_before_fits_the_rate(self, rate: int, deliveries: list[tuple[int, int]]) -> None:
        """At any admission, after `t` seconds: the rows and bytes before it are those of `t + 1` seconds at most."""

        async def scenario() -> None:
            clock = SleepingClock()
            rates = Rates([RateLimit(rate, 2 * rate, clock)])
            gone_rows = gone_bytes = 0
            for seconds, more_seconds in deliveries:
                count, size = rate * seconds // 4, rate * more_seconds // 4
                assert await rates.admit(size, asyncio.Event())
                allowed = rate * (clock.monotonic() + 1) * (1 + 1e-9)
                assert gone_rows <= allowed
                assert gone_bytes <= 2 * allowed
                rates.settle(count, size)
                gone_rows, gone_bytes = gone_rows + count, gone_bytes + size

        asyncio.run(scenario())

    async def test_it_is_no_slower_than_the_rate(self) -> None:
        clock = SleepingClock()
        rates = Rates([RateLimit(100, None, clock)])
        for _ in range(100):
            await deliver(rates, 50, 1 << 30)
        assert clock.monotonic() == pytest.approx((100 * 50 - 100) / 100, abs=1)

    async def test_a_delivery_that_is_aborted_costs_nothing(self) -> None:
        clock = SleepingClock()
        rates = Rates([RateLimit(10, 10, clock)])
        await deliver(rates, 10, 10)
        for _ in range(50):
            assert await rates.admit(10, asyncio.Event())  # and nothing comes of it
        assert clock.monotonic() <= 1

    async def test_a_stop_ends_the_wait(self) -> None:
        clock, stop = ManualClock(), asyncio.Event()
        rates = Rates([RateLimit(1, None, clock)])
        await deliver(rates, 1_000_000)
        waiting = asyncio.create_task(rates.admit(0, stop))
        await clock.wait_for_sleepers()
        stop.set()
        clock.advance(1)
        assert not await waiting

    async def test_no_limit_is_no_wait(self) -> None:
        assert await Rates().admit(1 << 40, asyncio.Event())


class TestSeveralTables:
    async def test_each_gets_its_turn(self) -> None:
        """One table has large deliveries, the other small ones: they alternate, and share the rate."""

        clock, order = ManualClock(), list[str]()
        limit = RateLimit(100, None, clock)

        async def table(name: str, rows: int) -> None:
            rates = Rates([limit])
            for _ in range(5):
                await deliver(rates, rows)
                order.append(name)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(table(*each)) for each in (("large", 500), ("small", 50))]
        while not all(task.done() for task in tasks):
            clock.advance(0.25)
            for _ in range(5):
                await asyncio.sleep(0)
            assert clock.monotonic() < 60
        assert not any(one == other for one, other in pairwise(order)), order

    async def test_only_the_first_one_sleeps_and_the_others_follow_in_order(self) -> None:
        clock, order = CountingClock(), list[int]()
        limit = RateLimit(100, None, clock)
        await deliver(Rates([limit]), 200)

        async def table(number: int) -> None:
            await deliver(Rates([limit]), 50)
            order.append(number)

        await asyncio.gather(*(table(number) for number in range(40)))
        assert order == list(range(40))
        assert clock.monotonic() == pytest.approx(40 * 50 / 100, abs=1)
        assert clock.sleeps <= 40 * 4

    async def test_a_stop_ends_the_wait_of_one_that_is_not_the_first(self) -> None:
        clock, stop = ManualClock(), asyncio.Event()
        limit = RateLimit(1, None, clock)
        await deliver(Rates([limit]), 1_000_000)
        first = asyncio.create_task(Rates([limit]).admit(0, asyncio.Event()))
        second, third = (asyncio.create_task(Rates([limit]).admit(0, each)) for each in (stop, asyncio.Event()))
        await clock.wait_for_sleepers()
        stop.set()
        clock.advance(1)
        assert not await second
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await clock.wait_for_sleepers()
        clock.advance(1_000_000)
        assert await third

    async def test_a_delivery_that_hangs_stops_no_other(self) -> None:
        clock = SleepingClock()
        limit = RateLimit(10, None, clock)
        hanging = Rates([limit])
        await deliver(hanging, 10)
        assert await hanging.admit(0, asyncio.Event())
        await deliver(Rates([limit]), 10)
        assert clock.monotonic() <= 3


async def test_a_feed_delivers_everything_at_its_rate() -> None:
    clock = SleepingClock(manual_clock().now_ms())
    lake, place = Lake(clock), MemoryPlace()
    await table(lake, 10, clock)
    began = clock.monotonic()
    await feed(lake, place, clock, 9, start="earliest", rates=Rates([RateLimit(0.5, None, clock)]))
    actual = ids(place)
    assert [version for _, version, _ in actual] == sorted(version for _, version, _ in actual)
    assert len({version for _, version, _ in actual}) == 9  # version 0 has no rows
    assert clock.monotonic() - began >= (len(actual) - 2) / 0.5
