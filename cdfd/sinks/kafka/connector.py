"""The configured Kafka sink: destination, client and encoder. Used in the daemon and in Spark's executors."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from cdfd.config.certificates import warn_of_expiry
from cdfd.config.settings import Settings, Table
from cdfd.encode.arrow import RECORD_BYTES
from cdfd.encode.formats import EncoderOptions, FormatChoice
from cdfd.encode.records import Origin, RecordEncoder, SnapshotPart
from cdfd.encode.registered import Kind, Registration, Schemas
from cdfd.encode.side import EVENTS
from cdfd.errors import ConfigError, SchemaChangedError, SinkError
from cdfd.model.position import Position
from cdfd.sinks.base import Backfill, Connector, Sample, SampleRecord, SampleSchema, StageTimer, Write, unmeasured
from cdfd.sinks.jobs import Delivered, Job
from cdfd.sinks.kafka.announcements import Announcer
from cdfd.sinks.kafka.client.connection import arguments
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.client.token_endpoint import sent_in_the_clear
from cdfd.sinks.kafka.client.worker import Worker, wait_for_result
from cdfd.sinks.kafka.destination import Destination, MakeEncoder, MakeProducer, TopicFacts
from cdfd.sinks.kafka.lease import KafkaLease
from cdfd.sinks.kafka.progress import positions
from cdfd.sinks.kafka.progress.topics import PROGRESS_PREFIX, own_topic, progress_topic
from cdfd.sinks.kafka.records.batches import rows as rows_of
from cdfd.sinks.kafka.records.murmur2 import partitions
from cdfd.sinks.kafka.settings import KafkaSettings
from cdfd.sinks.kafka.signals import KafkaSignals, signal_topic
from cdfd.sinks.kafka.transactions import parts
from cdfd.sinks.kafka.transactions.sink import Connected, KafkaSink, discard, prepare
from cdfd.sinks.own_topics import Announce, Signals

if TYPE_CHECKING:
    from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry

logger = logging.getLogger("cdfd.kafka")

CLOSING_SECONDS = 2.0
"""Longest step of closing a sink. All steps together must fit into the time that a daemon has to stop."""


class KafkaConnector(Connector):
    """The `Connector` of topics of a Kafka cluster.

    Args:
        config: all settings.
        sink: the settings of the sink.
    """

    takes_backfills = True

    def __init__(self, config: Settings, sink: KafkaSettings) -> None:
        self._config = config
        self._sink = sink
        self._prepared: dict[tuple[str, str, bool], Future[Connected | None]] = {}
        self.takes_parts = self.takes_queries = sink.keeps_positions
        if sink.keeps_positions:
            self.place = f"the topic {PROGRESS_PREFIX}{config.pipeline}"

    def preflight(self) -> None:
        """Check the client and the files of `sink.security`; see the port."""
        client(self._sink)
        options = arguments(self._sink)
        schemas = self._sink.schema_registry
        if schemas is not None:
            from cdfd.sinks.kafka.client.schema_registry import tls_of

            tls_of(schemas)
        for section, settings in (("security", self._sink.security), ("schema_registry", schemas)):
            oauth = None if settings is None else settings.oauth
            if oauth is not None and oauth.token_url is not None and sent_in_the_clear(oauth.token_url):
                logger.warning("sink.%s.oauth.token_url has no TLS: the client's secret is sent in the clear", section)
        if (certificate := options.get("ssl_certfile")) is not None:
            password = str(options.get("ssl_password") or "")
            warn_of_expiry("sink.security.certificate_path", certificate, options["ssl_keyfile"], password)

    def destination(self, table: Table, role: str | None = None) -> Destination:
        """The destination of a table, in a role. Only the daemon's own delivery writes to the side topics, and counts events for them.

        Raises:
            ConfigError: a certificate or key cannot be used.
        """
        sink, config = self._sink, self._config
        return Destination(
            arguments(sink),
            config.pipeline,
            table.name,
            table.topic,
            keyed=bool(table.key),
            topics=sink.topics,
            delivery=sink.delivery,
            compression=sink.compression,
            tombstones=sink.tombstone_rule,
            oversized=sink.oversized,
            schema_topic=sink.schema_topic(config.pipeline) if role is None else None,
            transactions_topic=sink.transactions_topic(config.pipeline) if role is None else None,
            event_key=self._event_key(table) if role is None else None,
            key_rules=sink.format.choice.rules if isinstance(sink.format.choice, FormatChoice) else None,
            closing_timeout=CLOSING_SECONDS,
            transaction_timeout=sink.transaction_timeout,
            role=role,
            shared=any(each.topic == table.topic and each.name != table.name for each in config.tables),
        )

    def _event_key(self, table: Table) -> tuple[str, ...] | None:
        sink = self._sink
        counts = sink.topics.transactions and sink.format.record_format.has_events
        return tuple(table.rows.published_key) if counts else None

    def open(self, table: Table, stage: StageTimer = unmeasured) -> AbstractAsyncContextManager[KafkaSink]:
        """The sink of a table; see the port.

        Raises:
            ConfigError: the client is not installed, or a certificate cannot be used.
            SinkError, FencedError: as in `KafkaSink.open`.
        """
        return self.open_at(self.destination(table), table, stage)

    @asynccontextmanager
    async def open_at(
        self, place: Destination, table: Table, stage: StageTimer = unmeasured
    ) -> AsyncIterator[KafkaSink]:
        """Open the sink of a table in any role, and close it at the end of the block. Raises the errors of `open`."""
        sink, prepared = self._sink, self._prepared.pop(_key(place), None)
        with registry(sink) as schemas:
            kafka_sink = await KafkaSink.open(place, client(sink), self._encoders(table, schemas), stage, prepared)
            try:
                yield kafka_sink
            finally:
                await kafka_sink.close()

    async def prepare(self, table: Table) -> None:
        """Connect, and read what `open` reads. Creates no topic; see the port."""
        place = self.destination(table)
        before = self._prepared.get(_key(place))
        if before is not None and not before.done():
            return
        worker = Worker(f"cdfd-prepare-{table.name}")
        preparing = worker.submit(partial(prepare, place, client(self._sink), before))
        worker.close()
        self._prepared[_key(place)] = preparing
        await wait_for_result(preparing)

    async def retain(self, tables: Sequence[Table]) -> None:
        """Disconnect from the topics of other tables, without waiting for it; see the port."""
        kept = {_key(self.destination(table)) for table in tables}
        for key in self._prepared.keys() - kept:
            discard(self._prepared.pop(key))

    def _encoders(self, table: Table, schemas: Schemas | None) -> MakeEncoder:
        sink = self._sink
        registration = None
        if schemas is not None and sink.schema_registry is not None:
            registration = Registration(schemas, sink.schema_registry.subject, sink.schema_registry.framing)

        def make(origin: Origin, facts: TopicFacts) -> RecordEncoder:
            options = EncoderOptions(
                origin,
                table.rows.published_key,
                facts.tombstones,
                longs_as_strings=sink.longs == "string",
                registration=registration,
                partitioner=partial(partitions, count=facts.partitions),
                record_bytes=min(RECORD_BYTES, facts.limit // 2),
                headers=table.published_headers,
                clock=time.time_ns,
                transactions=sink.topics.transactions,
            )
            return sink.format.record_format.encoder(options)

        return make

    def check_columns(self, table: Table, table_id: str, schema: pa.Schema) -> None:
        """Encode no rows; see the port."""
        self.sample(table, table_id, pa.RecordBatch.from_pylist([], schema), snapshot=False)

    def sample(self, table: Table, table_id: str, rows: pa.RecordBatch, *, snapshot: bool) -> Sample:
        """The records of change rows; see the port. The registry is asked for ids, and need not answer."""
        sink, topics = self._sink, self._sink.topics
        compacted = "compact" in topics.config.get("cleanup.policy", "")
        tombstones = sink.tombstone_rule == "always" or (sink.tombstone_rule == "auto" and compacted)
        facts = TopicFacts(topics.partitions, tombstones and bool(table.key), 1 << 20)
        with registry(sink, auto_register=False) as schemas:
            lookup = None if schemas is None else KnownSchemas(schemas)
            origin = Origin(self._config.pipeline, table.name, table_id, table.topic)
            encoder = self._encoders(table, lookup)(origin, facts)
            part = SnapshotPart.END if snapshot else SnapshotPart.MIDDLE
            batches = encoder.encode(rows, snapshot=snapshot, part=part)
        records = tuple(
            SampleRecord(key, value, tuple(headers)) for each in batches for key, value, headers in rows_of(each)
        )
        return Sample(table.topic, records, () if lookup is None else tuple(lookup.samples))

    def dataset(self, table: Table) -> tuple[str, str]:
        """The topic; see the port."""
        return f"kafka://{self._sink.bootstrap_servers[0]}", table.topic

    @asynccontextmanager
    async def announcing(self, topic: str, *, compacted: bool = True) -> AsyncIterator[Announce]:
        """A producer of its own, without transactions; see the port."""
        sink = self._sink
        place = own_topic(topic, sink.topics, compacted=compacted)
        with closing(Announcer(arguments(sink), place, client(sink), sink.compression)) as announcer:
            yield announcer.write

    @asynccontextmanager
    async def signals(self, reader: str = "") -> AsyncIterator[Signals]:
        """A consumer of its own; see the port."""
        sink, pipeline, connection = self._sink, self._config.pipeline, arguments(self._sink)
        hidden = sink.transaction_timeout + positions.MARGIN
        with (
            closing(Announcer(connection, progress_topic(pipeline, sink.topics), client(sink), "none")) as announcer,
            closing(KafkaSignals(connection, pipeline, sink.topics, reader, announcer.write, hidden)) as signals,
        ):
            await signals.open()
            yield signals

    async def backfill(self, table: Table, role: str) -> Backfill | None:
        """The backfill in the newest progress record; see the port."""
        progress = await positions.read_progress(self.destination(table, role))
        return None if progress is None else Backfill(progress.position, progress.backfill)

    def open_for_backfill(self, table: Table, role: str) -> AbstractAsyncContextManager[KafkaSink]:
        """The sink of a backfill; see the port."""
        return self.open_at(self.destination(table, role), table)

    @asynccontextmanager
    async def lease(self, patience: float) -> AsyncIterator[KafkaLease]:
        """An offset of a consumer group; see the port."""
        pipeline = self._config.pipeline
        progress = progress_topic(pipeline, self._sink.topics)
        with closing(KafkaLease(arguments(self._sink), pipeline, progress, max(1.0, patience / 2))) as lease:
            yield lease

    async def reach(self) -> None:
        """Connect to the cluster; see the port."""
        client(self._sink)
        await positions.reach(arguments(self._sink))

    async def check_own_topics(self) -> str | None:
        """Check the topics of heartbeats, notifications and signals, if they are asked for; see the port."""
        config, sink, own, needed = self._config, self._sink, self._config.own_topics, []
        if own.has_heartbeats:
            needed.append(own_topic(own.heartbeats, sink.topics, compacted=True))
        if config.controls.notifications:
            needed.append(own_topic(own.notifications, sink.topics, compacted=False))
        if config.controls.signals:
            needed.append(signal_topic(config.pipeline, sink.topics))
            if not sink.keeps_positions:
                needed.append(progress_topic(config.pipeline, sink.topics))
        return await positions.check_topics(arguments(sink), needed) if needed else None

    async def check(self, table: Table) -> str:
        """Check the broker, the topics and the schema registry; see the port.

        Raises:
            ConfigError: the client is not installed, or a certificate cannot be used.
            SinkError: the sink cannot be used.
        """
        client(self._sink)
        state = await positions.check(self.destination(table))
        with registry(self._sink) as schemas:
            kind = self._sink.format.record_format.schemas
            if schemas is not None and kind is not None:
                await asyncio.to_thread(schemas.check, kind)
        return state

    async def position(self, table: Table) -> Position | None:
        """The position of the newest progress record; see the port."""
        progress = await positions.read_progress(self.destination(table))
        return None if progress is None else progress.position

    async def move(self, table: Table, to: Position | None) -> None:
        """Write a progress record; see the port. Fences a daemon that delivers the table."""
        await positions.move_position(self.destination(table), client(self._sink), to)

    async def deliver_part(
        self, table: Table, number: int, job: Job, position: Position, write: Write, role: str | None = None
    ) -> Delivered:
        """Deliver a part in its own transaction; see the port. The receipt has the number of its events, if those are counted."""
        event_key = self._event_key(table) if role is None else None
        place = replace(self.destination(table, parts.role(number, role)), since=job.since, event_key=event_key)
        counts = dict(await parts.deliver(place, lambda: self.open_at(place, table), job.id, position, write))
        events = counts.pop(EVENTS, None)
        return Delivered(counts, b"" if events is None else str(events).encode())


def _key(place: Destination) -> tuple[str, str, bool]:
    """The same for all destinations of one configuration that have the same connections."""
    return place.transactional_id, place.topic, place.keyed


@contextmanager
def registry(sink: KafkaSettings, *, auto_register: bool = True) -> Iterator["SchemaRegistry | None"]:
    """A client of the schema registry, closed at the end of the block; None if there is no registry."""
    settings = sink.schema_registry
    if settings is None:
        yield None
        return
    # urllib3 takes 4 % of a start, which needs neither a registry nor a token.
    from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry, login_of, tls_of

    schemas = SchemaRegistry(
        settings.url,
        login=login_of(settings),
        tls=tls_of(settings),
        timeout=settings.timeout,
        auto_register=auto_register and settings.auto_register,
        attempts=5 if auto_register else 1,
    )
    with closing(schemas):
        yield schemas


def client(sink: KafkaSettings) -> MakeProducer:
    """The class of the configured producer. `ConfigError` if its client is not installed."""
    if sink.producer == "kafka-python":
        return KafkaPythonProducer
    try:
        from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
    except ImportError as error:
        raise ConfigError(
            "sink.producer is librdkafka, but confluent-kafka is not installed",
            hint="Run pip install 'cdfd[librdkafka]', or remove sink.producer",
        ) from error
    return LibrdkafkaProducer


@dataclass(eq=False)
class KnownSchemas:
    """A registry that is asked for ids alone. A schema without an id has 0 in its frame.

    Attributes:
        schemas: the registry, which looks schemas up and registers none.
        samples: the schemas that were asked for.
    """

    schemas: Schemas
    samples: list[SampleSchema] = field(default_factory=list, init=False)

    def register(self, subject: str, schema: str, kind: Kind) -> int:
        """The id of a schema; 0 if the registry does not have it, or does not answer."""
        number = 0
        try:
            number = self.schemas.register(subject, schema, kind)
            state = f"id {number}"
        except SchemaChangedError:
            state = "not registered yet"
        except SinkError as error:
            state = f"id unknown: {error.what}"
        self.samples.append(SampleSchema(subject, kind, schema, state))
        return number

    def history(self, subject: str) -> Sequence[str]:
        """The schemas of a subject; none if the registry does not answer."""
        try:
            return self.schemas.history(subject)
        except SinkError:
            return ()
