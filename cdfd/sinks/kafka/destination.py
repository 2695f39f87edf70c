"""Where one table's change rows go: names, topics and how they are delivered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from cdfd.encoding.arrow import RECORD_BYTES
from cdfd.encoding.avro import Register
from cdfd.encoding.formats import Format, record_encoder
from cdfd.encoding.records import Origin, RecordEncoder
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings
from cdfd.sinks.kafka.progress.topics import Topic, data_topic, progress_topic, side_topic
from cdfd.sinks.kafka.records.batches import Batching
from cdfd.sinks.kafka.records.compression import Compression
from cdfd.sinks.kafka.records.murmur2 import partitions
from cdfd.sinks.kafka.settings import Topics


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the change rows of one table of a pipeline go.

    Attributes:
        connection: of `connection.arguments`.
        pipeline: its name.
        table: the table's name in the configuration.
        topic: of its rows.
        keyed: whether its records have keys.
        topics: how topics that are missing are created.
        delivery: `exactly_once` in transactions that carry the position; `at_least_once` without either.
        compression: of records.
        tombstones: whether a delete is followed by a record without value; see `topics.tombstones`.
        oversized: what to do with a record that is larger than the topic takes: end, leave it out, or tell of it on `<topic>.dlq`.
        schema_topic: gets the table's schema, and again whenever it changes; None for none.
        transactions_topic: gets a record where each version begins, and one where it ends; None for none.
        timeout: seconds that a call to the broker may take.
        closing_timeout: seconds for each of the steps that end a connection.
        transaction_timeout: seconds that a transaction may take; see `ProducerSettings`.
        role: what of the table is delivered besides what follows its log: `backfill`, or a part of a job of Spark; none for the daemon's
            own delivery. It has a position and a producer of its own, and says the same of where its rows come from.
        since: offset of the progress topic before which there is nothing of this role.
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
    timeout: float = 30.0
    closing_timeout: float = 4.0
    transaction_timeout: float = 120.0
    role: str | None = None
    since: int = 0

    @property
    def exactly_once(self) -> bool:
        """Whether rows and position are delivered in one transaction."""
        return self.delivery == "exactly_once"

    @property
    def delivery_name(self) -> str:
        """Under which its position is kept: the table's name, and its role if it has one."""
        return self.table if self.role is None else f"{self.table}.{self.role}"

    @property
    def transactional_id(self) -> str:
        """The name under which only one process may deliver this table."""
        return f"cdfd.{self.pipeline}.{self.delivery_name}"

    @property
    def progress(self) -> Topic:
        """Where its position is."""
        return progress_topic(self.pipeline, self.topics)

    @property
    def dlq_topic(self) -> str:
        """Where it is told of records that are too large."""
        return f"{self.topic}.dlq"

    def needed(self) -> list[Topic]:
        """All topics that are written to."""
        needed = [data_topic(self.topic, self.topics, keyed=self.keyed)]
        if self.exactly_once:
            needed.append(self.progress)
        for name in (self.schema_topic, self.transactions_topic):
            if name is not None:
                # They may be compacted: the newest schema of each table is all that some want.
                needed.append(replace(side_topic(name, self.topics), keyed=True))
        if self.oversized == "dlq":
            needed.append(side_topic(self.dlq_topic, self.topics))
        return needed

    def origin(self, table_id: str) -> Origin:
        """What records say of where they come from."""
        return Origin(self.pipeline, self.table, table_id, self.topic)

    def producer_settings(self, batching: Batching) -> ProducerSettings:
        """What a producer for it is told."""
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
    """What matters of a table's topic, as it was found.

    Attributes:
        partitions: how many it has.
        tombstones: whether deletes are followed by tombstones there.
        limit: bytes of the largest record batch that it takes.
    """

    partitions: int
    tombstones: bool
    limit: int


MakeProducer = Callable[[ProducerSettings], Producer]
MakeEncoder = Callable[[Origin, TopicFacts], RecordEncoder]


def encoders(
    kind: Format, key: Sequence[str] = (), register: Register | None = None, *, longs_as_strings: bool = False
) -> MakeEncoder:
    """What makes encoders of a format; see `record_encoder`."""

    def make(origin: Origin, facts: TopicFacts) -> RecordEncoder:
        return record_encoder(
            kind,
            origin,
            key=key,
            tombstones=facts.tombstones,
            longs_as_strings=longs_as_strings,
            register=register,
            partitioner=partial(partitions, count=facts.partitions),
            record_bytes=min(RECORD_BYTES, facts.limit // 2),
        )

    return make
