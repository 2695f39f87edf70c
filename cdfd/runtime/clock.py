"""Time as a port, so that tests can control it."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for people and positions, monotonic time for durations, and two ways to wait."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump."""

    def monotonic(self) -> float:
        """Seconds since some moment. Never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`. If that is not positive, return after other tasks have run."""

    async def wait(self, event: asyncio.Event, timeout: float) -> bool:
        """Return True as soon as `event` is set, False `timeout` seconds later. The event is left as it is."""


class SystemClock:
    """The machine's time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, timeout: float) -> bool:
        """Wait for `event`, or for `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await event.wait()
        except TimeoutError:
            return False
