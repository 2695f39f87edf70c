"""A Kafka sink as the configuration asks for it: destinations, clients, encoders. The same in the daemon and in executors of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace

from cdfd.changes.position import Position
from cdfd.config.settings import Settings, Table
from cdfd.encoding.registry import SchemaRegistry
from cdfd.errors import ConfigError
from cdfd.sinks.base import Connector, Counts, Job, StageTimer, Write, unmeasured
from cdfd.sinks.kafka.client.connection import arguments, check_files
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.destination import Destination, MakeProducer, encoders
from cdfd.sinks.kafka.progress import positions
from cdfd.sinks.kafka.progress.topics import PROGRESS_PREFIX
from cdfd.sinks.kafka.settings import KafkaSettings
from cdfd.sinks.kafka.transactions import parts
from cdfd.sinks.kafka.transactions.sink import KafkaSink

CLOSING_SECONDS = 2.0
"""How long each step of closing a sink may take: all of them together less than a daemon has to stop."""


class KafkaConnector(Connector):
    """The `Connector` of topics of a Kafka cluster.

    Args:
        config: the pipeline.
        sink: its cluster.
    """

    def __init__(self, config: Settings, sink: KafkaSettings) -> None:
        self._config = config
        self._sink = sink
        self.takes_parts = sink.keeps_positions
        if sink.keeps_positions:
            self.place = f"the topic {PROGRESS_PREFIX}{config.pipeline}"

    def preflight(self) -> None:
        """Look for the client and for the files of `sink.security`; see the port."""
        client(self._sink)
        check_files(self._sink.security)

    def destination(self, table: Table, role: str | None = None) -> Destination:
        """Where the rows of a table go; `role` is that of the `Destination`. Only the table's own delivery tells of versions and schemas.

        Raises:
            ConfigError: a certificate or key cannot be used.
        """
        sink, config = self._sink, self._config
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
            schema_topic=f"{prefix}.schema" if sink.topics.schemas and role is None else None,
            transactions_topic=f"{prefix}.transactions" if sink.topics.transactions and role is None else None,
            closing_timeout=CLOSING_SECONDS,
            transaction_timeout=sink.transaction_timeout,
            role=role,
        )

    def opened(self, table: Table, stage: StageTimer = unmeasured) -> AbstractAsyncContextManager[KafkaSink]:
        """The sink of a table; see the port.

        Raises:
            ConfigError: a client that is not installed, or a certificate that cannot be used.
            SinkError, FencedError: as `KafkaSink.open` says.
        """
        return self.opened_at(self.destination(table), table, stage)

    @asynccontextmanager
    async def opened_at(
        self, place: Destination, table: Table, stage: StageTimer = unmeasured
    ) -> AsyncIterator[KafkaSink]:
        """The sink of a table in any role, closed at the end. Raises what `opened` does."""
        sink = self._sink
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

    async def check(self, table: Table) -> str:
        """What the broker, the topics and the schema registry allow; see the port.

        Raises:
            ConfigError: a client that is not installed, or a certificate that cannot be used.
            SinkError: it would not work.
        """
        client(self._sink)
        found = await positions.check(self.destination(table))
        with registry(self._sink) as schemas:
            if schemas is not None:
                await asyncio.to_thread(schemas.check)
        return found

    async def position(self, table: Table) -> Position | None:
        """The position of the newest progress record; see the port."""
        return await positions.read_position(self.destination(table))

    async def move(self, table: Table, to: Position | None) -> None:
        """Write another progress record; see the port. A daemon that delivers the table is fenced."""
        await positions.move_position(self.destination(table), client(self._sink), to)

    async def deliver_part(
        self, table: Table, number: int, job: Job, position: Position, write: Write, role: str | None = None
    ) -> Counts:
        """Deliver a part in a transaction of its own; see the port."""
        place = replace(self.destination(table, parts.role(number, role)), since=job.since)
        return await parts.deliver(place, lambda: self.opened_at(place, table), job.id, position, write)


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
