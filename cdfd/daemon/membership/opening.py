"""Turns for opening tables, so that a daemon of many tables does not ask the broker and the stores for all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_A_TIME = 16
"""Tables that are opened at once. Opening a table takes threads and connections that it does not keep."""
LONGEST_WAIT = 10.0
"""Seconds after which a table is opened without a turn: tables whose store hangs must not keep the others waiting."""


class Turns:
    """A limited number of turns at a time, in order of request.

    Args:
        limit: turns at a time.
        patience: longest wait for a turn, in seconds.
    """

    def __init__(self, limit: int = AT_A_TIME, patience: float = LONGEST_WAIT) -> None:
        self._free = asyncio.Semaphore(limit)
        self._patience = patience

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and give it back at the end of the block. After `patience`, go on without."""
        try:
            async with asyncio.timeout(self._patience):
                await self._free.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            self._free.release()
