"""Admission control among the tables of a daemon: large deliveries queue for a slot, small ones start at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

STALL_SECONDS = 60.0
"""A delivery without progress for this long loses its slot: a store or broker of one table that hangs must not stop the other tables."""
SMALL_BYTES = 1 << 20
"""Deliveries of at most this many bytes of files need no slot. Most deliveries of a followed table are that small."""


class Admission:
    """Admits a limited number of large deliveries at a time, in order of request.

    The limit bounds the memory of all deliveries together. A table with a backlog requests a slot for each delivery, so that other
    tables get their share. A delivery that stalls keeps its memory, but loses its slot.

    Args:
        limit: large deliveries at a time.
        stall: seconds without progress after which a delivery loses its slot.
    """

    def __init__(self, limit: int, stall: float = STALL_SECONDS) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._stall = stall

    @asynccontextmanager
    async def admit(self, size: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for a slot for a delivery of `size` bytes of files. Yields a function to call after each progress."""
        if size <= SMALL_BYTES:
            yield _no_slot
            return
        await self._slots.acquire()
        slot = _Slot(self._slots.release, self._stall)
        try:
            yield slot.progressed
        finally:
            slot.free()


def _no_slot() -> None:
    """A small delivery has no slot to lose."""


class _Slot:
    """A slot that frees itself after a stall."""

    def __init__(self, release: Callable[[], None], stall: float) -> None:
        self._release = release
        self._stall = stall
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(stall, self.free)

    def progressed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._stall, self.free)

    def free(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._release()
