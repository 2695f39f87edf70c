"""How long commits wait for a poll, by pattern of commits: the adaptive poll and today's backoff, at the same number of requests.

    python -m bench.poll_rhythm [HOURS]

Simulated: commits are times, and a poll takes no time. Tables of each pattern share a budget.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from cdfd.log.pace import CHECK_SECONDS, HOUR, LISTING_SECONDS, Pace, PollBudget
from cdfd.log.watch import Backoff

Pattern = Callable[[random.Random], Iterator[float]]
DAY = 24 * HOUR


def every_minute(chance: random.Random) -> Iterator[float]:
    """A stream that commits every minute, a second sooner or later."""
    phase = chance.uniform(0, 60)
    for number in count():
        yield phase + 60 * number + chance.gauss(1, 0.5)


def every_ten_seconds(chance: random.Random) -> Iterator[float]:
    """A stream with a trigger of ten seconds, which takes a second or two."""
    phase = chance.uniform(0, 10)
    for number in count():
        yield phase + 10 * number + chance.uniform(0.5, 2)


def hourly(chance: random.Random) -> Iterator[float]:
    """A job at the hour, which takes a minute or two."""
    for number in count(1):
        yield HOUR * number + chance.lognormvariate(4.4, 0.25)


def poisson(chance: random.Random) -> Iterator[float]:
    """Independent writers: 30 commits an hour at any time."""
    at = 0.0
    while True:
        at += chance.expovariate(30 / HOUR)
        yield at


def bursts(chance: random.Random) -> Iterator[float]:
    """Twenty commits within some minutes, then nothing for an hour or so."""
    at = 0.0
    while True:
        at += chance.expovariate(1 / HOUR)
        for _ in range(20):
            at += chance.lognormvariate(2, 0.7)
            yield at


def nightly(chance: random.Random) -> Iterator[float]:
    """A load at two in the morning, give or take five minutes: ten commits of half a minute."""
    for day in count():
        at = day * DAY + 2 * HOUR + chance.gauss(0, 300)
        for _ in range(10):
            at += chance.uniform(20, 40)
            yield at


PATTERNS: Sequence[Pattern] = (every_ten_seconds, every_minute, hourly, poisson, bursts, nightly)


@dataclass
class Result:
    """Seconds that commits waited, ascending, and requests of a table an hour."""

    waits: list[float]
    requests: float

    def quantile(self, share: float) -> float:
        return self.waits[min(len(self.waits) - 1, int(share * len(self.waits)))]


class Doubling:
    """Today's poll, as a pace."""

    def __init__(self, interval: float, max_interval: float) -> None:
        self._backoff = Backoff(interval, max_interval)

    def delay(self, now: float) -> float:
        delay = self._backoff.delay
        self._backoff = self._backoff.longer()
        return delay

    def arrived(self, now: float, age: float, error: float) -> None:
        self._backoff = self._backoff.reset()

    def spend(self, now: float, requests: int) -> None: ...


def simulate(
    patterns: Sequence[Pattern], hours: float, pace_of: Callable[[], Doubling | Pace], seed: int = 1, warm: float = 0.0
) -> Result:
    """Tables with these patterns, one each, polled for so many hours. Waits count after `warm` hours."""
    waits, requests = [], 0
    queue: list[tuple[float, int]] = []
    commits, paces, upcoming, checked, listed = [], [], [], [], []
    for number, pattern in enumerate(patterns):
        times = pattern(random.Random(f"{seed} {number}"))
        commits.append(times)
        upcoming.append(next(times))
        paces.append(pace_of())
        checked.append(0.0)
        listed.append(0.0)
        heapq.heappush(queue, (0.0, number))
    while queue[0][0] < hours * HOUR:
        now, number = queue[0]
        pace = paces[number]
        while upcoming[number] <= now:
            pace.arrived(now, now - upcoming[number], 0.5)
            if now >= warm * HOUR:
                waits.append(now - upcoming[number])
            upcoming[number] = next(commits[number])
            checked[number] = now
        delay = pace.delay(now)
        cost = 1
        if now + delay - checked[number] >= CHECK_SECONDS:
            cost, checked[number] = 2, now + delay
        if now + delay - listed[number] >= LISTING_SECONDS:
            cost, listed[number] = cost + 1, now + delay
        pace.spend(now, cost)
        if now >= warm * HOUR:
            requests += cost
        heapq.heapreplace(queue, (now + delay, number))
    return Result(sorted(waits), requests / (hours - warm) / len(patterns))


def adaptive(
    patterns: Sequence[Pattern],
    hours: float,
    budget: float | None,
    interval: float,
    max_interval: float,
    warm: float = 0.0,
) -> Result:
    """With a budget of requests an hour for each table; None: the one that is not configured."""
    shared = PollBudget(budget and budget * len(patterns), max_interval)

    def pace() -> Pace:
        made = Pace(shared, interval)
        made.join()
        return made

    return simulate(patterns, hours, pace, warm=warm)


def same_requests(patterns: Sequence[Pattern], hours: float, requests: float, warm: float) -> tuple[float, Result]:
    """Today's backoff from 1 s with the maximum that takes as many requests."""
    low, high = 0.2, 300.0
    for _ in range(12):
        middle = (low * high) ** 0.5
        result = simulate(patterns, hours, partial(Doubling, min(1.0, middle), middle), warm=warm)
        low, high = (middle, high) if result.requests > requests else (low, middle)
    return middle, result


def main() -> None:
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else 12.0
    print("| pattern | requests an hour | backoff | its p50 | p99 | adaptive p50 | p99 | requests |")
    print("|---|---|---|---|---|---|---|---|")
    mixed = [PATTERNS[number % len(PATTERNS)] for number in range(60)]
    for budget in (720, 180):
        for name, tables in [*((each.__name__, [each] * 4) for each in PATTERNS), ("all of these", mixed)]:
            length = 24 * 10 if name == "nightly" else hours
            warm = length / 3
            learned = adaptive(tables, length, budget, 0.25, 60.0, warm)
            longest, backoff = same_requests(tables, length, learned.requests, warm)
            cells = [
                name.replace("_", " "),
                budget,
                f"1 s, {longest:.1f} s",
                *(f"{each:.2f}" for each in (backoff.quantile(0.5), backoff.quantile(0.99))),
                *(f"{each:.2f}" for each in (learned.quantile(0.5), learned.quantile(0.99))),
                f"{learned.requests:.0f}",
            ]
            print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
