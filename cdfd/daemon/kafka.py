"""Settings to a Kafka sink: destinations, clients, encoders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cdfd.changes.position import Position
from cdfd.config import settings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.daemon.monitor import Monitor
from cdfd.encoding.registry import SchemaRegistry
from cdfd.errors import ConfigError
from cdfd.sinks.base import Sink
from cdfd.sinks.kafka import positions
from cdfd.sinks.kafka.connection import arguments
from cdfd.sinks.kafka.destination import Destination, MakeProducer, encoders
from cdfd.sinks.kafka.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.sink import KafkaSink

CLOSING_SECONDS = 2.0
"""How long each step of closing a sink may take: all of them together less than a daemon has to stop."""


def destination(config: Settings, sink: KafkaSettings, table: settings.Table) -> Destination:
    """Where the rows of a table go.

    Raises:
        ConfigError: a certificate or key cannot be used.
    """
    prefix = sink.topics.prefix.rstrip("._-") or config.pipeline
    return Destination(
        arguments(sink),
        config.pipeline,
        table.name,
        table.topic,
        keyed=bool(table.key),
        topics=sink.topics,
        delivery=sink.delivery,
        compression=sink.compression,
        tombstones=sink.tombstones,
        oversized=sink.oversized,
        schema_topic=f"{prefix}.schema" if sink.topics.schemas else None,
        transactions_topic=f"{prefix}.transactions" if sink.topics.transactions else None,
        closing_timeout=CLOSING_SECONDS,
        transaction_timeout=sink.transaction_timeout,
    )


@asynccontextmanager
async def opened(config: Settings, sink: KafkaSettings, table: settings.Table, monitor: Monitor) -> AsyncIterator[Sink]:
    """The sink of a table, closed at the end.

    Raises:
        ConfigError: a client that is not installed, or a certificate that cannot be used.
        SinkError, FencedError: as `KafkaSink.open` says.
    """
    place = destination(config, sink, table)
    registry = _registry(sink)
    try:
        encoder = encoders(
            sink.format,
            table.key,
            None if registry is None else registry.register,
            longs_as_strings=sink.longs == "string",
        )
        found = await KafkaSink.open(place, _client(sink), encoder, monitor.stage)
        try:
            yield found
        finally:
            await found.close()
    finally:
        if registry is not None:
            registry.close()


async def check(config: Settings, sink: KafkaSettings, table: settings.Table) -> str:
    """What the broker, the topics and the schema registry allow; nothing is written.

    Raises:
        ConfigError: a client that is not installed, or a certificate that cannot be used.
        SinkError: it would not work.
    """
    _client(sink)
    found = await positions.check(destination(config, sink, table))
    registry = _registry(sink)
    if registry is not None:
        try:
            await asyncio.to_thread(registry.check)
        finally:
            registry.close()
    return found


async def position(config: Settings, sink: KafkaSettings, table: settings.Table) -> Position | None:
    """Where a table's delivery stands; works while a daemon delivers."""
    return await positions.read_position(destination(config, sink, table))


async def move(config: Settings, sink: KafkaSettings, table: settings.Table, to: Position | None) -> None:
    """Make a table's delivery stand elsewhere. A daemon that delivers it is fenced."""
    await positions.move_position(destination(config, sink, table), _client(sink), to)


def _registry(sink: KafkaSettings) -> SchemaRegistry | None:
    found = sink.schema_registry
    if found is None:
        return None
    password = None if found.password is None else found.password.reveal()
    return SchemaRegistry(found.url, username=found.username, password=password)


def _client(sink: KafkaSettings) -> MakeProducer:
    return _CLIENTS[sink.producer]()


def _kafka_python() -> MakeProducer:
    return KafkaPythonProducer


def _librdkafka() -> MakeProducer:
    try:
        from cdfd.sinks.kafka.librdkafka import LibrdkafkaProducer
    except ImportError as error:
        raise ConfigError(
            "sink.producer is librdkafka, and confluent-kafka is not installed",
            hint="pip install 'cdfd[librdkafka]', or leave sink.producer out",
        ) from error
    return LibrdkafkaProducer


_CLIENTS: dict[str, Callable[[], MakeProducer]] = {"kafka-python": _kafka_python, "librdkafka": _librdkafka}
