"""Planning ahead of delivery: versions in bursts of what is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from cdfd.changes.stream import Version

AHEAD = 64
"""Versions planned and not yet delivered, at most."""


async def bursts(versions: AsyncIterator[Version], ahead: int = AHEAD) -> AsyncGenerator[list[Version], None]:
    """What is ready, in order: at the tip of a table one version at once, in catch-up as many as are planned meanwhile.

    The error that ends `versions` is raised after all versions before it.
    """
    planned: asyncio.Queue[Version | None] = asyncio.Queue()
    room = asyncio.Semaphore(ahead)

    async def plan() -> None:
        async for version in versions:
            await room.acquire()
            planned.put_nowait(version)

    planner = asyncio.create_task(plan())
    # However planning ends, its end comes after what it planned.
    planner.add_done_callback(lambda _: planned.put_nowait(None))
    try:
        while True:
            burst = []
            version = await planned.get()
            while version is not None:
                room.release()
                burst.append(version)
                if planned.empty():
                    break
                version = planned.get_nowait()
            if burst:
                yield burst
            if version is None:
                await planner
                return
    finally:
        planner.cancel()
        await asyncio.gather(planner, return_exceptions=True)
