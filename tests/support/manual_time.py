"""A clock for tests: time passes only when a test advances it."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count


class ManualClock:
    """Time that passes only in `advance`. Belongs to one event loop.

    Args:
        now_ms: where wall time starts.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._start_ms = now_ms
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._tiebreak = count()
        self._arrived = asyncio.Event()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, by this clock."""
        return self._start_ms + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has been advanced by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            await self._alarm(seconds)

    async def wait(self, event: asyncio.Event, timeout: float) -> bool:
        """Return once `event` is set or the clock has been advanced by `timeout` seconds."""
        if event.is_set() or timeout <= 0:
            await asyncio.sleep(0)
            return event.is_set()
        alarm = self._alarm(timeout)
        waiter = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((alarm, waiter), return_when=asyncio.FIRST_COMPLETED)
            return waiter.done()
        finally:
            alarm.cancel()
            waiter.cancel()

    def advance(self, seconds: float) -> None:
        """Let time pass: those whose time has come are woken, the earliest first, and see the new time."""
        self._elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            alarm = heapq.heappop(self._sleepers)[2]
            if not alarm.done():
                alarm.set_result(None)

    async def wait_for_sleepers(self, sleepers: int = 1) -> None:
        """Return once at least so many are sleeping or waiting on this clock: the moment to `advance` it."""
        while sum(not alarm.done() for _, _, alarm in self._sleepers) < sleepers:
            self._arrived.clear()
            await self._arrived.wait()

    def _alarm(self, seconds: float) -> asyncio.Future[None]:
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._tiebreak), alarm))
        self._arrived.set()
        return alarm


@asynccontextmanager
async def passing(clock: ManualClock, step: float = 1.0) -> AsyncIterator[ManualClock]:
    """A clock that advances by itself within the block: by `step` seconds each time a task sleeps on it."""

    async def advance() -> None:
        while True:
            await clock.wait_for_sleepers()
            clock.advance(step)
            await asyncio.sleep(0)

    task = asyncio.ensure_future(advance())
    try:
        yield clock
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
