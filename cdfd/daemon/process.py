"""The daemon's process: one loop per table, until a signal or an error that ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

from cdfd import __version__, allocator
from cdfd.config import load, settings
from cdfd.config.settings import Settings
from cdfd.daemon import assembly

logger = logging.getLogger("cdfd.daemon")

STOP_SECONDS = 8.0
"""How long a delivery under way may take to finish after a signal, before it is aborted."""
INTERRUPTED = 130


def run(path: Path) -> int:
    """Run the daemon that a configuration file describes; the exit code after a signal.

    Raises:
        ConfigError: the file is wrong.
        CdfdError: what ended a table's loop.
    """
    allocator.prefer_small()
    return asyncio.run(serve(load(path)))


async def serve(config: Settings) -> int:
    """Run the loops of all tables until a signal: 0 after SIGTERM, 130 after SIGINT. The first error ends all of them."""
    stop, interrupted = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        interrupted.set()
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    logger.info("cdfd %s: pipeline %s, %d tables", __version__, config.pipeline, len(config.tables))
    feeds = [asyncio.create_task(_feed(config, table, stop), name=table.name) for table in config.tables]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([*feeds, stopping], return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.wait(feeds, timeout=STOP_SECONDS)
    finally:
        for task in (*feeds, stopping):
            task.cancel()
        await asyncio.gather(*feeds, stopping, return_exceptions=True)
    errors = [error for task in feeds if not task.cancelled() and (error := task.exception()) is not None]
    for error in errors[1:]:
        logger.error("%s", error)
    if errors:
        raise errors[0]
    logger.info("stopped")
    return INTERRUPTED if interrupted.is_set() else 0


async def _feed(config: Settings, table: settings.Table, stop: asyncio.Event) -> None:
    async with assembly.feed(config, table, stop) as feed:
        await feed.run()
