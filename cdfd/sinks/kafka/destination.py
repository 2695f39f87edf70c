"""The destination of one table's change rows: names, topics and delivery settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cdfd.encode.records import Origin, RecordEncoder
from cdfd.encode.values import Rules
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings
from cdfd.sinks.kafka.progress.topics import Topic, data_topic, progress_topic, side_topic
from cdfd.sinks.kafka.records.batches import Batching, Compression
from cdfd.sinks.kafka.settings import DEAD_LETTER_SUFFIX, Topics


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of the change rows of one table.

    Attributes:
        connection: of `connection.arguments`.
        pipeline: its name.
        table: the table's name in the configuration.
        topic: the topic of its rows.
        keyed: whether its records have keys.
        topics: settings of created topics.
        delivery: `exactly_once` in transactions that carry the position; `at_least_once` without either.
        compression: of records, unless the topic has a `compression.type` of its own.
        tombstones: whether a record without value follows a delete; see `topics.tombstones`.
        oversized: the handling of records that exceed the topic's limit: fail, skip, or write about them to `<topic>.dlq`.
        schema_topic: receives the table's schema at first and after every change; None: no such topic.
        transactions_topic: receives a record for the start and the end of each version; None: no such topic.
        event_key: columns of the key, where records are events with both images of an update, and END records count them; None: rows are
            counted.
        key_rules: forms of the values of `event_key`; None: those of JSON.
        timeout: longest call to the broker, in seconds.
        closing_timeout: longest step of closing a connection, in seconds.
        transaction_timeout: longest transaction in seconds; see `ProducerSettings`.
        role: `backfill`, or a part of a job; None for the daemon's own delivery. Each role has its own position and producer. The records of
            all roles name the same origin.
        since: offset of the progress topic before which this role has no records.
        shared: whether other tables write to the topic, too, so that its records say nothing about this one.
    """

    connection: Mapping[str, Any] = field(repr=False)
    pipeline: str
    table: str
    topic: str
    keyed: bool
    topics: Topics = field(default_factory=Topics)
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    compression: Compression = "lz4"
    tombstones: Literal["auto", "always", "never"] = "auto"
    oversized: Literal["fail", "skip", "dlq"] = "fail"
    schema_topic: str | None = None
    transactions_topic: str | None = None
    event_key: tuple[str, ...] | None = None
    key_rules: Rules | None = None
    timeout: float = 30.0
    closing_timeout: float = 4.0
    transaction_timeout: float = 120.0
    role: str | None = None
    since: int = 0
    shared: bool = False

    @property
    def exactly_once(self) -> bool:
        """Whether rows and position are delivered in one transaction."""
        return self.delivery == "exactly_once"

    @property
    def delivery_name(self) -> str:
        """The name of its position: the table's name, with the role if there is one."""
        return self.table if self.role is None else f"{self.table}.{self.role}"

    @property
    def transactional_id(self) -> str:
        """The transactional id, which only one process at a time can use."""
        return f"cdfd.{self.pipeline}.{self.delivery_name}"

    @property
    def progress(self) -> Topic:
        """The topic of its position."""
        return progress_topic(self.pipeline, self.topics)

    @property
    def dlq_topic(self) -> str:
        """The topic of records about oversized records."""
        return self.topic + DEAD_LETTER_SUFFIX

    def needed(self) -> list[Topic]:
        """All topics that the sink writes to."""
        needed = [data_topic(self.topic, self.topics, keyed=self.keyed)]
        if self.exactly_once:
            needed.append(self.progress)
        for name in (self.schema_topic, self.transactions_topic):
            if name is not None:
                # They may be compacted, because some consumers need only the newest schema of each table.
                needed.append(side_topic(name, self.topics, keyed=True))
        if self.oversized == "dlq":
            needed.append(side_topic(self.dlq_topic, self.topics, keyed=False))
        return needed

    def origin(self, table_id: str) -> Origin:
        """The origin that its records name."""
        return Origin(self.pipeline, self.table, table_id, self.topic)

    def producer_settings(self, batching: Batching) -> ProducerSettings:
        """The settings of its producer."""
        return ProducerSettings(
            self.connection,
            self.transactional_id if self.exactly_once else None,
            batching,
            timeout=self.timeout,
            closing_timeout=self.closing_timeout,
            transaction_timeout=self.transaction_timeout,
        )


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The properties of a table's existing topic.

    Attributes:
        partitions: number of partitions.
        tombstones: whether tombstones follow deletes.
        limit: size limit of a record batch in bytes.
        id: of the topic; see `ExistingTopic`.
        schemas: id of the schema topic; None if there is none.
    """

    partitions: int
    tombstones: bool
    limit: int
    id: str | None = None
    schemas: str | None = None


MakeProducer = Callable[[ProducerSettings], Producer]
MakeEncoder = Callable[[Origin, TopicFacts], RecordEncoder]
