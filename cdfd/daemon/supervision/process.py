"""The daemon's process: the loops of all tables and an HTTP server, until a signal or a fatal error."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path

from cdfd import __version__
from cdfd.config import load
from cdfd.config.settings import Settings, Table
from cdfd.daemon import assembly
from cdfd.daemon.controls.controller import Controller, controlled_tables
from cdfd.daemon.engines import OpenLoop, engine_of
from cdfd.daemon.heartbeats import beating
from cdfd.daemon.http import server as http
from cdfd.daemon.http.controls import ControlRoutes
from cdfd.daemon.http.history import History, sampled
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.summary import summarised
from cdfd.daemon.loop.monitor import Monitor
from cdfd.daemon.supervision.preflight import preflight
from cdfd.daemon.supervision.signals import Stopping
from cdfd.daemon.supervision.supervisor import Loop, Supervisor
from cdfd.errors import ConfigError
from cdfd.tables import allocator
from cdfd.tail.clock import Clock, SystemClock

logger = logging.getLogger("cdfd.daemon")

SHARED_THREADS, THREADS_OF_A_TABLE = 16, 8
"""Limits of threads for blocking calls. A table never needs more than its share, so a hanging store cannot block another table."""


def run(path: Path, *, recover_from_ledger: bool = False) -> int:
    """Run the daemon with a configuration file; the exit code after a signal.

    Raises:
        ConfigError: the configuration is invalid.
        CdfdError: all loops have failed.
    """
    allocator.prefer_jemalloc()
    return asyncio.run(serve(load(path), path, recover_from_ledger=recover_from_ledger))


async def serve(config: Settings, path: Path, *, recover_from_ledger: bool = False) -> int:
    """Run the loops of all tables until a signal: 0 after SIGTERM, 130 after SIGINT. `path` is the file of `config`.

    Raises:
        ConfigError: the configuration is invalid; see `preflight`.
        CdfdError: all loops have failed; see `Supervisor`.
    """
    preflight(config)
    stopping = Stopping()
    stopping.ignore_hangup()
    # A thread that waits for a broker or a disk must not block another table. The executor starts threads on demand.
    threads = SHARED_THREADS + THREADS_OF_A_TABLE * len(config.tables)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads, "cdfd"))
    count = len(config.tables)
    logger.info("cdfd %s: pipeline %s, %d table%s", __version__, config.pipeline, count, "" if count == 1 else "s")
    clock = SystemClock()
    status = Status(config, clock)
    async with AsyncExitStack() as stack:
        history = await stack.enter_async_context(sampled(status, clock))
        controller = Controller(config.pipeline, controlled_tables(config), clock)
        status.notifications = controller.recent
        await _serve_http(stack, config, status, history, controller, clock)
        await stack.enter_async_context(summarised(status, clock))
        await stack.enter_async_context(beating(config, status, clock))
        opened: OpenLoop
        if (of_engine := engine_of(config).loops(path, clock)) is not None:
            opened = await stack.enter_async_context(of_engine)
        else:
            shared = await stack.enter_async_context(
                assembly.shared(config, clock, recover_from_ledger, controller.tables)
            )
            opened = partial(assembly.feed, shared)
        supervisor = Supervisor(stopping.event, clock)
        for table in config.tables:
            monitor = status.table(table.name)
            mailbox = controller.tables.get(table.name)
            wake = None if mailbox is None else mailbox.interrupt
            supervisor.add(table.name, partial(_opened, opened, table, monitor), monitor, wake)
        await stopping.run(supervisor.run())
    logger.info("stopped")
    return stopping.exit_code


def _opened(loops: OpenLoop, table: Table, monitor: Monitor, stop: asyncio.Event) -> AbstractAsyncContextManager[Loop]:
    return loops(table, stop, monitor)


async def _serve_http(
    stack: AsyncExitStack, config: Settings, status: Status, history: History, controller: Controller, clock: Clock
) -> None:
    """Start the HTTP server and the socket of controls. If the server's address is the default and in use, the daemon runs without it."""
    trusted = ControlRoutes(controller, None, clock, trusted=True)
    await stack.enter_async_context(http.serve_socket(config.controls.socket, status, history, trusted))
    controls = ControlRoutes(controller, config.controls.token, clock)
    listen, hosts = config.http.listen, config.http.hosts
    try:
        await stack.enter_async_context(http.serve(listen, status, hosts, config.http, history, controls))
    except ConfigError as error:
        if "listen" in config.http.model_fields_set:
            raise
        logger.warning("no metrics, health and status over HTTP: %s", error)
