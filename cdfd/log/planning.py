"""Planning ahead of delivery: versions are planned while earlier ones are delivered, and handed over in batches."""

import asyncio
from collections.abc import AsyncGenerator

from cdfd.model.version import Version

MAX_VERSIONS, MAX_FILES = 512, 4096
"""Versions that are planned and not yet taken, at most, and files in them; beyond either, planning waits.

One transaction delivers as many. It takes as long as reading some twenty files of one row.
"""


async def version_batches(
    versions: AsyncGenerator[Version, None], max_versions: int = MAX_VERSIONS, max_files: int = MAX_FILES
) -> AsyncGenerator[list[Version], None]:
    """The planned versions, in order: one at a time at the tip of a table, and in catch-up as many as were planned meanwhile.

    The error that ends `versions` is raised after all versions before it. `versions` is closed with this generator.
    """
    planned: asyncio.Queue[Version | None] = asyncio.Queue()
    taken = asyncio.Event()
    files = 0

    async def plan() -> None:
        nonlocal files
        async for version in versions:
            while planned.qsize() >= max_versions or files >= max_files:
                taken.clear()
                await taken.wait()
            files += len(version.plan.scans)
            planned.put_nowait(version)

    planner = asyncio.create_task(plan())
    # The end of planning follows the planned versions in the queue, also after an error.
    planner.add_done_callback(lambda _: planned.put_nowait(None))
    try:
        while True:
            batch = []
            version = await planned.get()
            while version is not None:
                files -= len(version.plan.scans)
                taken.set()
                batch.append(version)
                if planned.empty():
                    break
                version = planned.get_nowait()
            if batch:
                yield batch
            if version is None:
                await planner
                return
    finally:
        planner.cancel()
        await asyncio.gather(planner, return_exceptions=True)
        await versions.aclose()
