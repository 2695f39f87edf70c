"""How often tables without events are polled, within a budget of requests for the process. Pure: times are given, none is read."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from cdfd.log.rhythm import Rhythm

HOUR = 3600.0
BURST = 12
"""A twelfth of the budget may be spent at once: five minutes' worth."""
CHEAPEST, DEAREST = 0.005, 50.0
"""Seconds of delay of a commit that a request is worth, while the budget is untouched and once it is spent."""
HEADROOM = 1.25
"""The budget if none is configured, relative to polls of every table at `max_interval`."""
LONGEST_INTERVAL = 600.0
"""Seconds after which every table is polled, whatever the budget."""
CHECK_SECONDS, LISTING_SECONDS = 30.0, 900.0
"""Seconds after which a poll takes a further request: it verifies the last entry, and looks for missing versions."""
_DEBT = 4
"""Requests of each table that are paid for without tokens: two polls, each with a check."""


class PollBudget:
    """The requests that all tables of a process may take for polling.

    It is a bucket of tokens. The emptier it is, the more has a poll to be worth. A table whose `max_interval` has passed is polled in any
    case: other polls wait until the bucket has tokens again.

    Args:
        max_requests_per_hour: in any hour; None: 25 % more requests than polling every table at `max_interval` takes.
        max_interval: seconds after which every table is polled.
    """

    def __init__(self, max_requests_per_hour: float | None, max_interval: float) -> None:
        self._configured = max_requests_per_hour
        self._max_interval = max_interval
        self._readers = Counter[object]()
        self._tokens = self._capacity
        self._at: float | None = None
        self._minutes: deque[tuple[int, int]] = deque()
        self.requests = 0
        """Requests since the start."""
        self.warned = False
        """Whether a log has it that the budget does not suffice."""

    @property
    def tables(self) -> int:
        """Tables that are polled now."""
        return len(self._readers)

    @property
    def max_requests_per_hour(self) -> float:
        """The budget, for the tables that are polled now."""
        if self._configured is not None:
            return self._configured
        interval = self._max_interval
        polls = HOUR / interval + HOUR / max(interval, CHECK_SECONDS) + HOUR / max(interval, LISTING_SECONDS)
        return self.tables * HEADROOM * polls

    @property
    def max_interval(self) -> float:
        """Seconds after which every table is polled: as configured, or longer if the budget does not suffice for the number of tables."""
        if self._configured is None:
            return self._max_interval
        most = self._refill / max(self.tables, 1) - HOUR / LISTING_SECONDS
        checks = HOUR / CHECK_SECONDS
        polls = most - checks if most > 2 * checks else most / 2
        shortest = HOUR / polls if polls > 0 else math.inf
        return max(self._max_interval, min(shortest, LONGEST_INTERVAL))

    @property
    def suffices(self) -> bool:
        """Whether every table is polled after the configured `max_interval`."""
        return self.max_interval <= self._max_interval

    def join(self, table: object) -> None:
        """One more reader polls a table. Readers that share their polls name the same table."""
        before = self._capacity
        self._readers[table] += 1
        self._tokens += self._capacity - before

    def leave(self, table: object) -> None:
        """A reader does not poll a table any more."""
        self._readers[table] -= 1
        if not self._readers[table]:
            del self._readers[table]
        self._tokens = min(self._tokens, self._capacity)

    def price(self, now: float) -> float:
        """Seconds of delay of a commit that a request is worth at a monotonic time; infinite if only `max_interval` counts."""
        if self._at is not None:
            self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._refill / HOUR)
        self._at = now
        if self._tokens <= 0:
            return math.inf
        return CHEAPEST * float((DEAREST / CHEAPEST) ** (1 - self._tokens / self._capacity))

    def spend(self, now: float, requests: int) -> None:
        """A poll is decided that takes so many requests."""
        self._tokens = max(self._tokens - requests, -float(_DEBT * self.tables))
        self.requests += requests
        minute = int(now // 60)
        if self._minutes and self._minutes[-1][0] == minute:
            self._minutes[-1] = (minute, self._minutes[-1][1] + requests)
        else:
            self._minutes.append((minute, requests))
        self._forget(minute)

    def document(self, now: float) -> dict[str, Any]:
        """Its part of `/status`, as JSON values, at a monotonic time."""
        self._forget(int(now // 60))
        return {
            "tables": self.tables,
            "max_requests_per_hour": round(self.max_requests_per_hour),
            "requests_last_hour": sum(requests for _, requests in self._minutes),
            "max_interval_seconds": round(self.max_interval, 3),
        }

    def _forget(self, minute: int) -> None:
        while self._minutes and self._minutes[0][0] <= minute - 60:
            self._minutes.popleft()

    @property
    def _capacity(self) -> float:
        return self.max_requests_per_hour / BURST

    @property
    def _refill(self) -> float:
        """Tokens an hour: with those of a full bucket, and those that tables may owe, they are the budget."""
        budget = self.max_requests_per_hour
        return max(budget - self._capacity - 2 * _DEBT * self.tables, budget / 4)


class Pace:
    """When one table is polled: by its rhythm and by the price of a request.

    Args:
        budget: of all tables.
        interval: seconds between two polls, at least.
    """

    def __init__(self, budget: PollBudget, interval: float) -> None:
        self._budget = budget
        self._interval = interval
        self.rhythm = Rhythm(budget.max_interval)
        self._table: object = self
        self._follows: Callable[[], bool] = lambda: False
        self.commit: tuple[float, float] | None = None
        """The last commit: its monotonic time, and by how much that may be wrong."""
        self._since: float | None = None
        self._missed_at: float | None = None

    def join(self, table: object = None, follows: Callable[[], bool] = lambda: False) -> None:
        """The table is polled from now on.

        Args:
            table: what readers that share their polls have in common; None: there is one reader.
            follows: whether another reader polls, so that a wait of this one takes no request.
        """
        self._missed_at = None
        self._table, self._follows = self if table is None else table, follows
        self._budget.join(self._table)

    def leave(self) -> None:
        """The table is not polled any more."""
        self._budget.leave(self._table)

    def delay(self, now: float) -> float:
        """Seconds to wait until the next poll. The last one, at the monotonic time `now`, found no commit."""
        if self._since is None:
            self._since = now
        self._missed_at = now
        price, longest = self._budget.price(now), self._budget.max_interval
        if price == math.inf:
            return longest
        return min(longest, max(self._interval, self.rhythm.delay(now - self._since, price)))

    def spend(self, now: float, requests: int) -> None:
        """The poll after that delay takes so many requests, unless another reader polls."""
        if not self._follows():
            self._budget.spend(now, requests)

    def arrived(self, now: float, age: float, error: float) -> None:
        """A commit was read at the monotonic time `now`.

        Args:
            now: a monotonic time.
            age: seconds since the commit, by the store's clock.
            error: seconds by which that may be wrong, if the clocks agree.
        """
        at = now - age
        if self._missed_at is not None:
            # It came between the poll before and this one. A clock that says something else is wrong.
            if not self._missed_at - error <= at <= now + error:
                at, error = (self._missed_at + now) / 2, (now - self._missed_at) / 2
            at = min(max(at, self._missed_at), now)
            error = min(error, (now - self._missed_at) / 2)
            self._missed_at = None
        if self.commit is not None:
            before, error_before = self.commit
            at = max(at, before)
            self.rhythm.learn(at - before, error + error_before)
        self.commit, self._since = (at, error), at
