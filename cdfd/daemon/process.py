"""The daemon's process: the loops of all tables and an HTTP server, until a signal or an error that ends them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from threading import Timer

from cdfd import __version__, allocator
from cdfd.config import load
from cdfd.config.settings import Settings
from cdfd.daemon import assembly, http
from cdfd.daemon.status import Status
from cdfd.daemon.supervisor import Supervisor
from cdfd.errors import ConfigError
from cdfd.tail.clock import SystemClock

logger = logging.getLogger("cdfd.daemon")

STOP_SECONDS = 4.0
"""How long a delivery under way may take to finish after a signal, before it is aborted."""
LEAVE_SECONDS = 9.0
"""How long after a signal the process ends, whatever does not answer. Nothing is lost: it could be killed at any time."""
INTERRUPTED = 130


def run(path: Path, *, recover_from_ledger: bool = False) -> int:
    """Run the daemon that a configuration file describes; the exit code after a signal.

    Raises:
        ConfigError: the file is wrong.
        CdfdError: what ended the tables' loops.
    """
    allocator.prefer_small()
    return asyncio.run(serve(load(path), recover_from_ledger=recover_from_ledger))


async def serve(config: Settings, *, recover_from_ledger: bool = False) -> int:
    """Run the loops of all tables until a signal: 0 after SIGTERM, 130 after SIGINT.

    Raises:
        CdfdError: what ended the tables' loops; see `Supervisor`.
    """
    stopping = _Stopping()
    # A thread that waits for a broker or a disk must not be the one that another table needs.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8 + 2 * len(config.tables)))
    count = len(config.tables)
    logger.info("cdfd %s: pipeline %s, %d table%s", __version__, config.pipeline, count, "" if count == 1 else "s")
    clock = SystemClock()
    status = Status(config, clock)
    async with AsyncExitStack() as stack:
        await _serve_http(stack, config, status)
        shared = await stack.enter_async_context(assembly.shared(config, clock, recover_from_ledger))
        monitors = {table.name: status.table(table.name) for table in config.tables}
        loops = {
            table.name: partial(assembly.feed, shared, table, stopping.event, monitors[table.name])
            for table in config.tables
        }
        await _run(Supervisor(loops, monitors, stopping.event, clock), stopping)
    logger.info("stopped")
    stopping.done()
    return stopping.exit_code


async def _serve_http(stack: AsyncExitStack, config: Settings, status: Status) -> None:
    """Answer over HTTP. Where nobody asked for it, a second daemon on a machine goes without."""
    try:
        await stack.enter_async_context(http.serve(config.http.listen, status))
    except ConfigError as error:
        if "listen" in config.http.model_fields_set:
            raise
        logger.warning("no metrics, health and status over HTTP: %s", error)


async def _run(supervisor: Supervisor, stopping: _Stopping) -> None:
    """Run the loops. After a signal they have a while to finish by themselves."""
    running = asyncio.create_task(supervisor.run())
    stopped = asyncio.create_task(stopping.event.wait())
    try:
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((running,), timeout=STOP_SECONDS)
        if not running.done():
            logger.info("a delivery did not finish within %g s; it is aborted", STOP_SECONDS)
    finally:
        running.cancel()
        stopped.cancel()
        await asyncio.wait((running, stopped))
    if not running.cancelled():
        running.result()


class _Stopping:
    """What a signal does."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.exit_code = 0
        self._leave: Timer | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, 0)
        loop.add_signal_handler(signal.SIGINT, self._stop, INTERRUPTED)

    def _stop(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.event.set()
        if self._leave is None:
            self._leave = Timer(LEAVE_SECONDS, self._give_up)
            self._leave.daemon = True
            self._leave.start()

    def done(self) -> None:
        """Everything has ended by itself."""
        if self._leave is not None:
            self._leave.cancel()

    def _give_up(self) -> None:
        logger.warning("something does not answer %g s after the signal; leaving it behind", LEAVE_SECONDS)
        os._exit(self.exit_code)
