"""Planning ahead of delivery: versions in bursts of what is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from cdfd.changes.stream import Version

AHEAD, AHEAD_FILES = 512, 4096
"""Versions planned and not yet delivered, at most, and the files that they have to read, beyond which none is planned.

As many go into one transaction, and a transaction takes as long as reading some twenty files of one row.
"""


async def bursts(
    versions: AsyncGenerator[Version, None], ahead: int = AHEAD, ahead_files: int = AHEAD_FILES
) -> AsyncGenerator[list[Version], None]:
    """What is ready, in order: at the tip of a table one version at once, in catch-up as many as are planned meanwhile.

    The error that ends `versions` is raised after all versions before it. `versions` is closed with this one.
    """
    planned: asyncio.Queue[Version | None] = asyncio.Queue()
    taken = asyncio.Event()
    files = 0

    async def plan() -> None:
        nonlocal files
        async for version in versions:
            while planned.qsize() >= ahead or files >= ahead_files:
                taken.clear()
                await taken.wait()
            files += len(version.plan.scans)
            planned.put_nowait(version)

    planner = asyncio.create_task(plan())
    # However planning ends, its end comes after what it planned.
    planner.add_done_callback(lambda _: planned.put_nowait(None))
    try:
        while True:
            burst = []
            version = await planned.get()
            while version is not None:
                files -= len(version.plan.scans)
                taken.set()
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
        await versions.aclose()
