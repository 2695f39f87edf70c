"""Settings to a Kafka sink: destinations, clients, encoders. The same in the daemon, and in executors of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from cdfd.config import settings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.encoding.registry import SchemaRegistry
from cdfd.errors import ConfigError
from cdfd.sinks.kafka.client.connection import arguments
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.destination import Destination, MakeProducer, encoders
from cdfd.sinks.kafka.transactions.sink import KafkaSink
from cdfd.sinks.kafka.transactions.stages import StageTimer

CLOSING_SECONDS = 2.0
"""How long each step of closing a sink may take: all of them together less than a daemon has to stop."""


def destination(config: Settings, sink: KafkaSettings, table: settings.Table, role: str | None = None) -> Destination:
    """Where the rows of a table go.

    Args:
        config: the pipeline.
        sink: its cluster.
        table: of it.
        role: see `Destination`.

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
        role=role,
    )


@asynccontextmanager
async def opened(
    sink: KafkaSettings, table: settings.Table, place: Destination, stage: StageTimer = lambda name, seconds: None
) -> AsyncIterator[KafkaSink]:
    """The sink of a table, closed at the end.

    Args:
        sink: the format, the client.
        table: its key.
        place: where its rows go; of `destination`.
        stage: is told what `encode` and `send` took, from other threads.

    Raises:
        ConfigError: a client that is not installed.
        SinkError, FencedError: as `KafkaSink.open` says.
    """
    with registry(sink) as found:
        encoder = encoders(
            sink.format,
            table.key,
            None if found is None else found.register,
            longs_as_strings=sink.longs == "string",
        )
        made = await KafkaSink.open(place, client(sink), encoder, stage)
        try:
            yield made
        finally:
            await made.close()


@contextmanager
def registry(sink: KafkaSettings) -> Iterator[SchemaRegistry | None]:
    """The schema registry, closed at the end; None where there is none."""
    found = sink.schema_registry
    if found is None:
        yield None
        return
    password = None if found.password is None else found.password.reveal()
    opened = SchemaRegistry(found.url, username=found.username, password=password)
    try:
        yield opened
    finally:
        opened.close()


def client(sink: KafkaSettings) -> MakeProducer:
    """What makes producers. `ConfigError` for a client that is not installed."""
    return _CLIENTS[sink.producer]()


def _kafka_python() -> MakeProducer:
    return KafkaPythonProducer


def _librdkafka() -> MakeProducer:
    try:
        from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
    except ImportError as error:
        raise ConfigError(
            "sink.producer is librdkafka, and confluent-kafka is not installed",
            hint="pip install 'cdfd[librdkafka]', or leave sink.producer out",
        ) from error
    return LibrdkafkaProducer


_CLIENTS: dict[str, Callable[[], MakeProducer]] = {"kafka-python": _kafka_python, "librdkafka": _librdkafka}
