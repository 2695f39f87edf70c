"""Polls follow the rhythm of each table, within the budget of all."""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import poll_rhythm as patterns
from bench.poll_rhythm import Result, adaptive, same_requests, simulate
from cdfd.log.log import DeltaLog
from cdfd.log.pace import CHECK_SECONDS, HOUR, LISTING_SECONDS, LONGEST_INTERVAL, Pace, PollBudget
from cdfd.log.rhythm import GAPS, Rhythm
from cdfd.log.tailer import Tailer
from cdfd.log.watch import Backoff, PollWatch
from cdfd.runtime.clock import Clock
from tests.support.lake import Lake, manual_clock
from tests.support.sampling import stride


def learned(gaps: Sequence[float], error: float = 0.1) -> Rhythm:
    rhythm = Rhythm(5.0)
    for gap in gaps:
        rhythm.learn(gap, error)
    return rhythm


def polls(rhythm: Rhythm, price: float, until: float) -> list[float]:
    """The times of polls after a commit, if none comes."""
    times, now = [], 0.0
    while now < until and len(times) < 10_000:
        now += max(rhythm.delay(now, price), 0.01)
        times.append(now)
    return times


class TestRhythm:
    def test_table_of_every_minute_is_polled_around_the_minute(self) -> None:
        chance = random.Random(1)
        times = polls(learned([60 + chance.gauss(0, 0.5) for _ in range(30)]), 0.05, 120)
        near = [time for time in times if 58 <= time <= 62]
        before = [time for time in times if time < 58]
        assert len(near) >= 8
        assert len(before) <= 3

    def test_skipped_run_of_a_job_is_expected_one_period_later(self) -> None:
        times = polls(learned([60.0] * 30), 0.05, 200)
        near, far = (sum(abs(time - at) <= 1 for time in times) for at in (120, 95))
        assert near > far

    def test_bursts_are_followed_densely_and_pauses_rarely(self) -> None:
        rhythm = learned(([3.0] * 20 + [3600.0]) * 3)
        times = polls(rhythm, 0.05, 4000)
        assert sum(time < 10 for time in times) > 5
        assert sum(100 < time < 3000 for time in times) <= 20
        assert sum(3000 < time < 4000 for time in times) > 5

    def test_sleeping_table_is_polled_ever_more_rarely(self) -> None:
        times = polls(learned([10.0] * 20), 0.5, 1e5)
        late = [after - before for before, after in pairwise(times) if before > 1000]
        assert all(after > 0.999 * before for before, after in pairwise(late))
        assert late[-1] > 5 * late[0]

    def test_new_rhythm_is_learned_within_twenty_commits(self) -> None:
        times = polls(learned([3600.0] * GAPS + [10.0] * 20), 0.02, 20)
        assert sum(9.5 <= time <= 10.5 for time in times) >= 2
        assert sum(time < 9.5 for time in times) <= 4

    def test_equal_gaps_are_no_gap_of_zero(self) -> None:
        assert math.isfinite(learned([0.0] * 10, 0.0).delay(0.0, 0.1))

    @given(
        st.lists(st.floats(0, 1e6), max_size=GAPS + 5),
        st.floats(0, 1e5),
        st.floats(0, 1e8),
        st.floats(5e-5, 50),
    )
    @settings(max_examples=200, deadline=None)
    def test_any_gaps_give_a_delay(self, gaps: list[float], error: float, elapsed: float, price: float) -> None:
        delay = learned(gaps, error).delay(elapsed, price)
        assert delay >= 0
        assert not math.isnan(delay)

    @given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=GAPS), st.floats(0, 1e5), st.floats(5e-5, 10))
    @settings(max_examples=200, deadline=None)
    def test_dearer_polls_are_rarer(self, gaps: list[float], elapsed: float, price: float) -> None:
        rhythm = learned(gaps)
        assert rhythm.delay(elapsed, price) <= rhythm.delay(elapsed, 4 * price) + 1e-6


class Polled:
    """Polls of simulated tables: the time and the requests of each, and the waits of each table."""

    def __init__(self) -> None:
        self.requests: list[tuple[float, int]] = []
        self.waits: list[list[float]] = []

    def most_in_an_hour(self) -> int:
        times = sorted(self.requests)
        starts = [time for time, _ in times]
        total = [0]
        for _, count in times:
            total.append(total[-1] + count)
        return max(total[at + 1] - total[bisect_left(starts, time - HOUR)] for at, time in enumerate(starts))


def poll(budget: PollBudget, tables: int, commits: Sequence[Sequence[float]], hours: float, interval: float) -> Polled:
    """Tables that start at once, each with the times of its commits, ascending."""
    polled = Polled()
    paces = [Pace(budget, interval) for _ in range(tables)]
    for pace in paces:
        pace.join()
    upcoming = [list(reversed(commits[number % len(commits)])) for number in range(tables)]
    polled.waits = [[] for _ in range(tables)]
    checked = [0.0] * tables
    queue = [(0.0, number) for number in range(tables)]
    while queue[0][0] < hours * HOUR:
        now, number = queue[0]
        while upcoming[number] and upcoming[number][-1] <= now:
            paces[number].arrived(now, now - upcoming[number].pop(), 0.5)
        delay = paces[number].delay(now)
        count = 1
        if now + delay - checked[number] >= CHECK_SECONDS:
            count, checked[number] = 2, now + delay
        paces[number].spend(now, count)
        polled.requests.append((now + delay, count))
        polled.waits[number].append(delay)
        heapq.heapreplace(queue, (now + delay, number))
    return polled


commit_times = st.lists(st.lists(st.floats(0, 3 * HOUR), max_size=100).map(sorted), min_size=1, max_size=4) | st.lists(
    st.integers(2, 900).map(lambda gap: [float(at) for at in range(gap, 3 * 3600, gap)]), min_size=1, max_size=4
)


class TestBudget:
    @given(st.integers(1, 6), st.integers(20, 2000), st.sampled_from([1.0, 5.0, 60.0, 600.0]), commit_times)
    @settings(max_examples=25, deadline=None)
    def test_no_hour_takes_more_than_the_budget(
        self, tables: int, share: int, max_interval: float, commits: list[list[float]]
    ) -> None:
        budget = PollBudget(share * tables, max_interval)
        polled = poll(budget, tables, commits, 2.5, 0.5)
        assert polled.most_in_an_hour() <= share * tables
        assert max(map(max, polled.waits)) <= max(budget.max_interval, max_interval)

    @given(st.integers(1, 6), st.sampled_from([1.0, 5.0, 60.0, 600.0]), commit_times)
    @settings(max_examples=25 // stride(3), deadline=None)
    def test_without_a_budget_no_table_waits_longer_than_max_interval(
        self, tables: int, max_interval: float, commits: list[list[float]]
    ) -> None:
        budget = PollBudget(None, max_interval)
        polled = poll(budget, tables, commits, 1.5, min(1.0, max_interval))
        assert max(map(max, polled.waits)) <= max_interval
        budget_of_one = PollBudget(None, max_interval)
        budget_of_one.join("orders")
        assert polled.most_in_an_hour() <= tables * (budget_of_one.max_requests_per_hour + 4)

    def test_none_of_500_tables_starves(self) -> None:
        busy = [float(at) for at in range(1, 900, 20)]
        budget = PollBudget(500 * 160, 60.0)
        polled = poll(budget, 500, [busy] * 9 + [[]], 0.2, 0.25)
        assert budget.suffices
        assert max(map(max, polled.waits)) <= 60.0
        assert polled.most_in_an_hour() <= 500 * 160

    def test_budget_that_does_not_suffice_makes_every_table_wait_longer(self) -> None:
        budget = PollBudget(500 * 60, 5.0)
        polled = poll(budget, 500, [[]], 1.0, 1.0)
        assert not budget.suffices
        assert budget.max_interval == pytest.approx(150, rel=0.2)
        assert min(sum(1 for _ in waits) for waits in polled.waits) >= 3600 // budget.max_interval
        assert polled.most_in_an_hour() <= 500 * 60

    def test_no_table_waits_longer_than_ten_minutes(self) -> None:
        budget = PollBudget(1, 5.0)
        for table in range(100):
            budget.join(table)
        assert budget.max_interval == LONGEST_INTERVAL

    def test_document_has_the_last_hour(self) -> None:
        budget = PollBudget(720, 60.0)
        budget.join("a table")
        budget.spend(10.0, 5)
        budget.spend(HOUR, 2)
        assert budget.document(HOUR) == {
            "tables": 1,
            "max_requests_per_hour": 720,
            "requests_last_hour": 2,
            "max_interval_seconds": 60.0,
        }
        assert budget.requests == 7


class TestPatterns:
    """Against backoff with the same number of requests, as `bench/poll_rhythm.py` measures it."""

    @staticmethod
    def both(pattern: patterns.Pattern, hours: float) -> tuple[Result, Result]:
        tables = [pattern] * 2
        result = adaptive(tables, hours, 720, 0.25, 60.0, hours / 2)
        return result, same_requests(tables, hours, result.requests, hours / 2)[1]

    def test_commits_of_every_minute_wait_a_fifth_of_the_time(self) -> None:
        result, backoff = self.both(patterns.every_minute, 2)
        assert result.quantile(0.5) < backoff.quantile(0.5) / 5
        assert result.quantile(0.99) < backoff.quantile(0.99) / 2

    def test_commits_at_any_time_wait_no_longer(self) -> None:
        result, backoff = self.both(patterns.poisson, 6)
        assert result.quantile(0.5) < 1.25 * backoff.quantile(0.5)
        assert result.quantile(0.99) < 2 * backoff.quantile(0.99)

    def test_defaults_are_as_fast_as_backoff_where_nothing_can_be_known(self) -> None:
        tables = [patterns.poisson] * 2
        result = adaptive(tables, 4, None, 1.0, 5.0)
        backoff = simulate(tables, 4, partial(patterns.Doubling, 1.0, 5.0))
        assert result.quantile(0.5) < 1.15 * backoff.quantile(0.5)
        assert result.quantile(0.99) <= 5.0
        assert result.requests < 1.25 * backoff.requests


class TestClocks:
    def test_store_whose_clock_is_wrong_is_believed_about_nothing(self) -> None:
        pace = Pace(PollBudget(None, 60.0), 1.0)
        pace.join()
        for number in range(1, 4):
            pace.delay(60.0 * number - 2)
            pace.arrived(60.0 * number, age=-3600.0 if number % 2 else 7200.0, error=0.5)
        assert [seconds for seconds, _ in pace.rhythm.gaps] == [60.0, 60.0]

    def test_commits_that_were_there_already_are_learned_by_the_times_of_their_files(self) -> None:
        pace = Pace(PollBudget(None, 60.0), 1.0)
        for age in (300.0, 240.0, 250.0, 60.0):
            pace.arrived(1000.0, age, 0.5)
        assert [seconds for seconds, _ in pace.rhythm.gaps] == [60.0, 0.0, 180.0]


class Waits(PollWatch):
    """Returns from each wait at once, and keeps how long it would have been."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.timeouts = list[float]()

    async def wait(self, timeout: float) -> None:
        self.timeouts.append(timeout)


async def test_tailer_learns_the_gaps_and_pays_for_its_polls() -> None:
    clock = manual_clock()
    budget = PollBudget(None, 8.0)
    pace = Pace(budget, 1.0)
    pace.join()
    waits = Waits(clock)
    tailer = Tailer(DeltaLog(Lake(clock)), waits, clock, Backoff(1.0, 8.0), pace=pace)
    now = clock.now_ms()

    tailer.learn([now - 61_001, now - 1001])
    assert [seconds for seconds, _ in pace.rhythm.gaps] == [60.0]
    for checked, listed, requests in ((0, 0, 1), (CHECK_SECONDS, 0, 2), (CHECK_SECONDS, LISTING_SECONDS, 3)):
        tailer._checked_at = clock.monotonic() - checked
        tailer._gap_checked_at = clock.monotonic() - listed
        before = budget.requests
        await tailer._wait()
        assert 1.0 <= waits.timeouts[-1] <= 8.0
        assert budget.requests - before == requests


async def test_table_that_does_not_exist_takes_one_request_a_poll() -> None:
    clock = manual_clock()
    budget = PollBudget(None, 8.0)
    pace = Pace(budget, 1.0)
    pace.join()
    tailer = Tailer(DeltaLog(Lake(clock)), Waits(clock), clock, Backoff(1.0, 8.0), pace=pace)
    await tailer._wait()
    assert budget.requests == 1


def test_readers_of_one_table_have_one_share_of_the_budget_and_the_one_that_polls_pays() -> None:
    budget = PollBudget(None, 5.0)
    paces = [Pace(budget, 1.0) for _ in range(3)]
    for pace, follows in zip(paces, (True, False, True), strict=True):
        pace.join("the table", lambda follows=follows: follows)
        pace.spend(0.0, 2)
    assert (budget.tables, budget.requests) == (1, 2)
    paces[1].leave()
    assert budget.tables == 1
    for pace in (paces[0], paces[2]):
        pace.leave()
    assert budget.tables == 0
