"""Rate limits of deliveries: rows and bytes a second, of a table and of the whole pipeline.

A delivery is never cut: it is a transaction. Its rows and bytes are counted when it is committed, and the next delivery waits until they
fit the rate.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cdfd.runtime.clock import Clock

_POLL_SECONDS = 0.25
"""Longest time until a delivery that waits notices a stop."""
_SHORTEST_SECONDS = 0.01


class Stop(Protocol):
    """Says whether deliveries have to end, such as an `asyncio.Event`."""

    def is_set(self) -> bool:
        """Whether they have to."""


class _TokenBucket:
    """Tokens that arrive at a rate, one second's worth at most. A debt delays what follows."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate = rate
        self._level = rate or 0.0
        self._seen = now

    def delay(self, now: float) -> float:
        """Seconds until the debt is paid."""
        if self._rate is None:
            return 0.0
        self._level = min(self._rate, self._level + (now - self._seen) * self._rate)
        self._seen = now
        return max(0.0, -self._level / self._rate)

    def take(self, tokens: float) -> None:
        """Take tokens. A negative number gives some back."""
        if self._rate is not None:
            self._level -= tokens

    def reserve(self, tokens: float) -> float:
        """Take a second's worth at most; how many. A larger delivery would otherwise wait for a debt that it has not made."""
        reserved = 0.0 if self._rate is None else min(tokens, self._rate)
        self.take(reserved)
        return reserved


class RateLimit:
    """Rows and bytes a second, shared by the deliveries of one table or of all tables.

    Deliveries are admitted in order of request, so that each table gets its turn. A delivery reserves its probable amount, so that
    deliveries that run at the same time stay within the rate together. It blocks no other one while it runs.

    Args:
        rows_per_second: None for no limit.
        bytes_per_second: None for no limit; of the files that are read.
    """

    def __init__(self, rows_per_second: float | None, bytes_per_second: float | None, clock: Clock) -> None:
        now = clock.monotonic()
        self._rows, self._bytes = _TokenBucket(rows_per_second, now), _TokenBucket(bytes_per_second, now)
        self._clock = clock
        # The stop of each delivery that waits, and an event that wakes it once it is the first one, or once its stop is set.
        self._queue: deque[tuple[Stop, asyncio.Event]] = deque()

    async def admit(self, rows: float, size: float, stop: Stop) -> tuple[float, float] | None:
        """Wait for the turn of a delivery; the rows and bytes that are reserved for it, or None if a stop came first."""
        woken = asyncio.Event()
        waiting = stop, woken
        self._queue.append(waiting)
        try:
            while self._queue[0] is not waiting or self._delay() > 0:
                if stop.is_set():
                    return None
                if self._queue[0] is waiting:
                    await self._clock.sleep(min(max(self._delay(), _SHORTEST_SECONDS), _POLL_SECONDS))
                    # Only the first one sleeps, and looks for the stops of all: thousands that sleep would keep the processor busy.
                    for other, wake in self._queue:
                        if other.is_set():
                            wake.set()
                else:
                    await woken.wait()
                    woken.clear()
            return self._rows.reserve(rows), self._bytes.reserve(size)
        finally:
            self._queue.remove(waiting)
            if self._queue:
                self._queue[0][1].set()

    def settle(self, reserved: tuple[float, float], rows: float, size: float) -> None:
        """Replace a reservation by the actual rows and bytes."""
        self._rows.take(rows - reserved[0])
        self._bytes.take(size - reserved[1])

    def _delay(self) -> float:
        now = self._clock.monotonic()
        return max(self._rows.delay(now), self._bytes.delay(now))


@dataclass(eq=False)
class Rates:
    """All limits that hold for the deliveries of one table.

    Attributes:
        limits: those of the table, and of the pipeline.
    """

    limits: Sequence[RateLimit] = ()
    _reserved: list[tuple[RateLimit, tuple[float, float]]] = field(default_factory=list, init=False)
    _last_rows: float = field(default=0.0, init=False)

    async def admit(self, size: int, stop: Stop) -> bool:
        """Wait until every limit admits a delivery of `size` bytes; False if a stop came first."""
        self.settle(0, 0)  # an earlier delivery was aborted
        for limit in self.limits:
            reserved = await limit.admit(self._last_rows, size, stop)
            if reserved is None:
                self.settle(0, 0)
                return False
            self._reserved.append((limit, reserved))
        return True

    def settle(self, rows: int, size: int) -> None:
        """The admitted delivery has so many rows and bytes; 0 and 0 if it is aborted."""
        for limit, reserved in self._reserved:
            limit.settle(reserved, rows, size)
        if self._reserved and rows:
            self._last_rows = rows
        self._reserved.clear()
