"""The tables of a standby: they are open, connected and followed at a slow pace, so that it delivers soon after it is elected.

Nothing is written, and the leader is not fenced. An error waits for the next pass: the leader has it too, and reports it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from cdfd.config.settings import Settings, Table
from cdfd.daemon.membership.discovery import discover_tables
from cdfd.daemon.sources import Sources
from cdfd.errors import CdfdError
from cdfd.runtime.clock import Clock
from cdfd.runtime.tasks import background
from cdfd.sinks.base import Connector, connector

logger = logging.getLogger("cdfd.standby")

PASS_SECONDS = 30.0
"""Seconds between two passes over the tables."""
STORE_SECONDS = 600.0
"""The same for logs in a store of objects, and for searches. Each costs some requests."""
SOON_SECONDS = 5.0
"""Seconds since the last pass after which a take-over that is expected begins another one."""
MOST_TABLES = 64
"""Tables that are prepared. A process opens the others after it is elected."""
STATE_BYTES = 32 << 20
"""Checkpoints of all tables together whose files are kept in memory, compressed."""
_AT_A_TIME = 8


class WarmTables:
    """Prepares the tables of a pipeline while this process stands by.

    Args:
        expected: set while this process may soon lead.

    Attributes:
        sources: the tables that are open.
        connectors: the sinks that are connected, by name.
    """

    def __init__(self, config: Settings, clock: Clock, expected: asyncio.Event) -> None:
        self._config = config
        self._clock = clock
        self._expected = expected
        self._searched: dict[str, tuple[float, Sequence[Table]]] = {}
        self._read: dict[tuple[str, str], float] = {}
        self._following: asyncio.Task[object] | None = None
        self.sources = Sources(clock)
        self.connectors: dict[str, Connector] = {name: connector(each) for name, each in config.by_sink.items()}

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Prepare the tables and follow them until the block ends. Then everything that was not opened is released."""
        async with AsyncExitStack() as stack:
            for each in tuple(self.connectors.values()):
                stack.push_async_callback(each.retain, ())
            self._following = await stack.enter_async_context(background("warm tables", self._follow()))
            yield

    def stop(self) -> None:
        """Follow the tables no longer: this process opens them. Everything that is prepared stays."""
        assert self._following is not None
        self._following.cancel()

    async def _follow(self) -> None:
        while True:
            began = self._clock.monotonic()
            slots = asyncio.Semaphore(_AT_A_TIME)
            tables = [
                (config, table) for config in self._config.by_sink.values() for table in await self._list_tables(config)
            ]
            tables = tables[:MOST_TABLES]
            async with asyncio.TaskGroup() as group:
                for config, table in tables:
                    # Each may keep an equal share of the bytes of checkpoints.
                    group.create_task(self._prepare(config, table, STATE_BYTES // len(tables), slots))
            # Release what is prepared for tables that have vanished.
            names = {(config.sink_name, table.name) for config, table in tables}
            self._read = {key: read_at for key, read_at in self._read.items() if key in names}
            self.sources.retain(tables)
            for name, sink in self.connectors.items():
                await sink.retain([table for config, table in tables if config.sink_name == name])
            await self._clock.sleep(max(0.0, began + SOON_SECONDS - self._clock.monotonic()))
            await self._clock.wait(self._expected, began + PASS_SECONDS - self._clock.monotonic())

    async def _list_tables(self, config: Settings) -> Sequence[Table]:
        """The tables of a sink, with those of patterns as the last search saw them."""
        if not config.discoveries:
            return config.listed
        now = self._clock.monotonic()
        searched_at, tables = self._searched.get(config.sink_name, (-math.inf, config.listed))
        if now - searched_at >= STORE_SECONDS:
            try:
                tables = (await discover_tables(config))[0].listed
            except CdfdError as error:
                logger.debug("cannot search for tables while standing by: %s", error)
            self._searched[config.sink_name] = now, tables
        return tables

    async def _prepare(self, config: Settings, table: Table, share: int, slots: asyncio.Semaphore) -> None:
        now, key = self._clock.monotonic(), (config.sink_name, table.name)
        seconds = PASS_SECONDS if self._expected.is_set() else STORE_SECONDS
        async with slots:
            try:
                if not self.sources.is_remote(config, table) or now - self._read.get(key, -math.inf) >= seconds:
                    self._read[key] = now
                    await self.sources.prepare(config, table, share)
                await self.connectors[config.sink_name].prepare(table)
            except CdfdError as error:
                logger.debug("cannot prepare a table while standing by: %s", error, extra={"table": table.name})
