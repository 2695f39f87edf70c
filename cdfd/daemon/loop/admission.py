"""Fairness and bounded memory among the tables of a daemon: large deliveries take turns, small ones do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

PATIENCE_SECONDS = 60.0
"""After so long without progress a delivery gives its turn away: a store or a broker of one table that hangs must not stop the others."""
SMALL_BYTES = 1 << 20
"""Bytes of files that are read without a turn: the changes of a table that is followed."""


class Turns:
    """At most so many large deliveries at a time, in the order in which they asked.

    What a delivery needs of memory is bounded, and so is what all of them need. A table that has much to deliver asks again for each
    of its deliveries: others come in between. A delivery that makes no progress keeps its memory, but not its turn.

    Args:
        limit: how many.
        patience: seconds without progress after which a turn ends.
    """

    def __init__(self, limit: int, patience: float = PATIENCE_SECONDS) -> None:
        self._free = asyncio.Semaphore(limit)
        self._patience = patience

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[Callable[[], None]]:
        """Wait for a turn for a delivery of `size` bytes of files; the function that the delivery calls after each progress."""
        if size <= SMALL_BYTES:
            yield _no_turn
            return
        await self._free.acquire()
        turn = _Turn(self._free.release, self._patience)
        try:
            yield turn.moved
        finally:
            turn.end()


def _no_turn() -> None:
    """A small delivery has no turn to keep."""


class _Turn:
    """A turn, until its end or until it was not used for a while."""

    def __init__(self, release: Callable[[], None], patience: float) -> None:
        self._release = release
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(patience, self.end)

    def moved(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._patience, self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._release()
