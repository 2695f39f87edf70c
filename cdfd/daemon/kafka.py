"""What the daemon and its commands do with a Kafka sink, by the settings."""

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
    """The sink of a table, perhaps in another role than the daemon's, closed at the end.

    Raises:
        ConfigError: a client that is not installed, or a certificate that cannot be used.
        SinkError, FencedError: as `KafkaSink.open` says.
    """
    async with configured.opened(sink, table, destination(config, sink, table, role), monitor.stage) as found:
        yield found


async def check(config: Settings, sink: KafkaSettings, table: settings.Table) -> str:
    """What the broker, the topics and the schema registry allow; nothing is written.

    Raises:
        ConfigError: a client that is not installed, or a certificate that cannot be used.
        SinkError: it would not work.
    """
    configured.client(sink)
    found = await positions.check(destination(config, sink, table))
    with configured.registry(sink) as registry:
        if registry is not None:
            await asyncio.to_thread(registry.check)
    return found


async def position(config: Settings, sink: KafkaSettings, table: settings.Table) -> Position | None:
    """Where a table's delivery stands; works while a daemon delivers."""
    return await positions.read_position(destination(config, sink, table))


async def progress(
    config: Settings, sink: KafkaSettings, table: settings.Table, role: str | None = None
) -> Progress | None:
    """What the last delivery of a table in a role left behind; works while another one is under way."""
    return await positions.read_progress(destination(config, sink, table, role))


async def move(config: Settings, sink: KafkaSettings, table: settings.Table, to: Position | None) -> None:
    """Make a table's delivery stand elsewhere. A daemon that delivers it is fenced."""
    await positions.move_position(destination(config, sink, table), configured.client(sink), to)
