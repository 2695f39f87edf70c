"""Access to a Kafka sink for the daemon and its commands, from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cdfd.changes.position import Position
from cdfd.config import settings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.daemon.loop.monitor import Monitor
from cdfd.sinks.kafka import configured
from cdfd.sinks.kafka.configured import destination
from cdfd.sinks.kafka.progress import positions
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.transactions.sink import KafkaSink


@asynccontextmanager
async def opened(
    config: Settings, sink: KafkaSettings, table: settings.Table, monitor: Monitor, role: str | None = None
) -> AsyncIterator[KafkaSink]:
    """Open the sink of a table, and close it at the end of the block. A `role` other than the daemon's has its own position.

    Raises:
        ConfigError: the client is not installed, or a certificate cannot be used.
        SinkError, FencedError: as in `KafkaSink.open`.
    """
    async with configured.opened(sink, table, destination(config, sink, table, role), monitor.stage) as found:
        yield found


async def check(config: Settings, sink: KafkaSettings, table: settings.Table) -> str:
    """Check the broker, the topics and the schema registry without writing; the text for the report.

    Raises:
        ConfigError: the client is not installed, or a certificate cannot be used.
        SinkError: the sink cannot be used.
    """
    configured.client(sink)
    found = await positions.check(destination(config, sink, table))
    with configured.registry(sink) as registry:
        if registry is not None:
            await asyncio.to_thread(registry.check)
    return found


async def position(config: Settings, sink: KafkaSettings, table: settings.Table) -> Position | None:
    """A table's position; works while a daemon delivers."""
    return await positions.read_position(destination(config, sink, table))


async def progress(
    config: Settings, sink: KafkaSettings, table: settings.Table, role: str | None = None
) -> Progress | None:
    """The progress record of a table's last delivery in a role; works during a delivery."""
    return await positions.read_progress(destination(config, sink, table, role))


async def move(config: Settings, sink: KafkaSettings, table: settings.Table, to: Position | None) -> None:
    """Set a table's position. Fences a daemon that delivers the table."""
    await positions.move_position(destination(config, sink, table), configured.client(sink), to)
