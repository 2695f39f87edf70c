"""Fairness and bounded memory among the tables of a daemon: large deliveries take turns, small ones do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SMALL_BYTES = 1 << 20
"""Bytes of files that are read without a turn: the changes of a table that is followed."""


class Turns:
    """At most so many large deliveries at a time, in the order in which they asked.

    What a delivery needs of memory is bounded, and so is then what all of them need. A table that has much to deliver asks anew for each
    of its deliveries: others come in between.

    Args:
        limit: how many.
    """

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for a turn for a delivery of `size` bytes of files."""
        if size <= SMALL_BYTES:
            yield
            return
        async with self._free:
            yield
