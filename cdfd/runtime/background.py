"""Tasks beside the deliveries: they observe, and their failures never affect a delivery."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

logger = logging.getLogger("cdfd.daemon")


@asynccontextmanager
async def background(name: str, work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run `work` until the block ends. An unexpected error ends only the task, and is logged at once.

    Args:
        name: of the task, for the log.
        work: runs until it is cancelled.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_report)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _report(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the task %r ended unexpectedly", task.get_name(), exc_info=error)
