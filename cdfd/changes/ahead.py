"""Planning ahead of delivery: versions in bursts of what is ready."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from cdfd.changes.stream import Version
from cdfd.errors import CdfdError

AHEAD = 64
"""Versions planned and not yet delivered, at most."""


async def bursts(versions: AsyncIterator[Version], ahead: int = AHEAD) -> AsyncGenerator[list[Version], None]:
    """What is ready, in order: at the tip of a table one version at once, in catch-up as many as are planned meanwhile.

    The error that ends `versions` is raised after all versions before it.
    """
    queue: asyncio.Queue[Version | CdfdError | None] = asyncio.Queue(ahead)

    async def plan() -> None:
        try:
            async for version in versions:
                await queue.put(version)
            await queue.put(None)
        except CdfdError as error:
            await queue.put(error)

    planner = asyncio.create_task(plan())
    try:
        while True:
            end = await queue.get()
            burst = []
            while isinstance(end, Version):
                burst.append(end)
                if queue.empty():
                    break
                end = queue.get_nowait()
            if burst:
                yield burst
            if isinstance(end, CdfdError):
                raise end
            if end is None:
                return
    finally:
        planner.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await planner
