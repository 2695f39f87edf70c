"""Admission control among the tables of a daemon: large deliveries queue for a slot, small ones start at once.

A table at risk of losing changes to clean-up goes before the others.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

STALL_SECONDS = 60.0
"""A delivery without progress for this long loses its slot: a store or broker of one table that hangs must not stop the other tables."""
SMALL_BYTES = 1 << 20
"""Deliveries of at most this many bytes of files need no slot. Most deliveries of a followed table are that small."""
REST_SECONDS = 1.0
"""Time without a large delivery after which their memory is returned."""


Urgency = Callable[[], float | None]
"""Seconds until clean-up may remove what a table has not delivered, if it is at risk; None if it is not."""


class Admission:
    """Admits a limited number of large deliveries at a time: tables at risk first, otherwise in order of request.

    The limit bounds the memory of all deliveries together. A table with a backlog requests a slot for each delivery, so that other
    tables get their share. A delivery that stalls keeps its memory, but loses its slot.

    Args:
        limit: large deliveries at a time.
        stall: seconds without progress after which a delivery loses its slot.
        when_idle: called when there has been no large delivery for `REST_SECONDS`; None: nothing is.
    """

    def __init__(self, limit: int, stall: float = STALL_SECONDS, when_idle: Callable[[], None] | None = None) -> None:
        self._limit = limit
        self._free = limit
        self._when_idle = when_idle
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Urgency, asyncio.Future[None]]] = []
        self._stall = stall

    @asynccontextmanager
    async def admit(
        self, size: int, urgency: Urgency = lambda: None, waiting: Callable[[bool], None] = lambda _: None
    ) -> AsyncIterator[Callable[[], None]]:
        """Wait for a slot for a delivery of `size` bytes of files. Yields a function to call after each progress.

        Args:
            size: bytes of files.
            urgency: of the table.
            waiting: called with True before a wait, and with False after it.
        """
        if size <= SMALL_BYTES:
            yield lambda: None  # it has no slot to lose
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._free:
            self._free -= 1
        else:
            waiting(True)
            try:
                await self._queue(urgency)
            finally:
                waiting(False)
        loop = asyncio.get_running_loop()
        with ExitStack() as slot:
            slot.callback(self._release)
            timer = loop.call_later(self._stall, slot.close)

            def progressed() -> None:
                nonlocal timer
                timer.cancel()
                timer = loop.call_later(self._stall, slot.close)

            try:
                yield progressed
            finally:
                timer.cancel()

    async def _queue(self, urgency: Urgency) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = urgency, granted
        self._waiting.append(request)
        try:
            await granted
        except asyncio.CancelledError:
            if request in self._waiting:
                self._waiting.remove(request)
            elif not granted.cancelled():
                self._release()  # the slot came together with the cancellation
            raise

    def _release(self) -> None:
        self._waiting = [each for each in self._waiting if not each[1].done()]
        if not self._waiting:
            self._free += 1
            if self._free == self._limit and self._when_idle is not None:
                self._idle_timer = asyncio.get_running_loop().call_later(REST_SECONDS, self._when_idle)
            return
        # The earliest of equals. Asked late, because a table may become at risk while it waits.
        first = min(self._waiting, key=lambda each: math.inf if (urgency := each[0]()) is None else urgency)
        self._waiting.remove(first)
        first[1].set_result(None)
