"""Blocking iterators, for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def _never(item: object) -> bool:
    return False


async def iterate_in_thread(items: Iterator[T], may_be_last: Callable[[T], bool] = _never) -> AsyncGenerator[T, None]:
    """The items of a blocking iterator, each fetched in a worker thread. The iterator is closed at the end, so use `aclosing`.

    Args:
        items: the iterator.
        may_be_last: whether there is probably no item after this one, so that the end is looked for in the same switch to a thread. An
            error that comes instead of the end takes the place of the item.
    """

    def fetch() -> tuple[list[T], bool]:
        """The next items, and whether they are the last ones."""
        found = []
        for item in items:
            found.append(item)
            if not may_be_last(item):
                return found, False
        return found, True

    fetched: asyncio.Future[tuple[list[T], bool]] | None = None
    loop = asyncio.get_running_loop()
    ended = False
    try:
        while not ended:
            fetched = loop.run_in_executor(None, fetch)
            # A thread cannot be cancelled, and an iterator that it runs cannot be closed.
            found, ended = await asyncio.shield(fetched)
            for item in found:
                yield item
    finally:
        if fetched is not None:
            await asyncio.wait((fetched,))
        close = getattr(items, "close", None)
        if close is not None and not ended:
            await loop.run_in_executor(None, close)
