"""Blocking iterators, for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import TypeVar, cast

T = TypeVar("T")


async def iterate_in_thread(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """The items of a blocking iterator, each fetched in a worker thread. The iterator is closed at the end, so use `aclosing`."""
    done = object()
    fetched: asyncio.Future[T | object] | None = None
    loop = asyncio.get_running_loop()
    try:
        while True:
            fetched = loop.run_in_executor(None, next, items, done)
            # A thread cannot be cancelled, and an iterator that it runs cannot be closed.
            item = await asyncio.shield(fetched)
            if item is done:
                return
            yield cast(T, item)
    finally:
        if fetched is not None:
            await asyncio.wait((fetched,))
        close = getattr(items, "close", None)
        if close is not None:
            await loop.run_in_executor(None, close)
