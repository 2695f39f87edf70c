"""The two stages of a delivery, encoding and sending: from change rows to a committed transaction. They run in worker threads.

Only one thread at a time may use a stage, because the encoder buffers rows and the producer keeps an order.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa

from cdfd.encode.records import RecordEncoder, Records
from cdfd.errors import SinkError
from cdfd.sinks.base import ReopenSinkError, StageTimer
from cdfd.sinks.kafka.client.producer import Producer, send_record
from cdfd.sinks.kafka.destination import Destination, MakeEncoder, TopicFacts
from cdfd.sinks.kafka.progress.records import Progress, key_of, value_of
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION
from cdfd.sinks.kafka.records.batches import Partitions
from cdfd.sinks.kafka.records.murmur2 import partitions
from cdfd.sinks.kafka.records.oversized import OversizedRecords
from cdfd.sinks.kafka.transactions.accumulator import Chunk, SideRecord


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRecords:
    """Records, and the newest version among them."""

    records: Records
    version: int


class EncodeStage:
    """Encodes rows as records.

    Args:
        make: creates the encoder.
        destination: of the table.
        facts: of its topic.
        stage: receives the duration of `encode`.
    """

    def __init__(self, make: MakeEncoder, destination: Destination, facts: TopicFacts, stage: StageTimer) -> None:
        self._make = make
        self._destination = destination
        self._facts = facts
        self._stage = stage
        self._encoder: RecordEncoder | None = None

    def encode(self, chunk: Chunk, table_id: str) -> list[EncodedRecords]:
        """The records of a chunk's rows, in order."""
        if not chunk.groups:
            return []
        if self._encoder is None:
            self._encoder = self._make(self._destination.origin(table_id), self._facts)
        with _timed(self._stage, "encode"):
            return [
                EncodedRecords(records, group.version)
                for group in chunk.groups
                for batch in group.rows()
                for records in self._encoder.encode(batch, snapshot=group.snapshot)
            ]


class SendStage:
    """Sends records with the producer.

    Args:
        producer: a producer that can begin a transaction.
        destination: of the table.
        facts: of its topic.
        stage: receives the duration of `send`.
    """

    def __init__(self, producer: Producer, destination: Destination, facts: TopicFacts, stage: StageTimer) -> None:
        self._producer = producer
        self._destination = destination
        self._partitions = facts.partitions
        self._stage = stage
        self._topic_id = facts.id
        self._key = key_of(destination.pipeline, destination.delivery_name)
        self._in_transaction = False
        self._last_partition = 0
        self.oversized = OversizedRecords(destination, facts.limit)

    def send(
        self, encoded: Iterable[EncodedRecords], side_records: Iterable[SideRecord], *, last: bool = False
    ) -> None:
        """Send records, then side records. After the last ones, `commit` has to follow at once.

        Their timestamp is the current time. A commit's time may be long past, so that the topic's retention would delete its records at
        once. It may also be in the future, which brokers refuse.
        """
        now = time.time_ns() // 1_000_000
        # Where an error comes before `commit`, the end of a transaction also sends or drops records that wait. Without one nothing would.
        more = last and self._destination.exactly_once
        with _timed(self._stage, "send"):
            for each in encoded:
                self._begin()
                topic, records = self._destination.topic, each.records
                oversized = self._producer.send(topic, self._partitions_of(records), records, now, more=more)
                if oversized:
                    self.oversized.handle(self._producer, records, oversized, each.version)
            for side in _merge(side_records):
                self._send_side_record(side, now, more=more)

    def commit(self, progress: Progress) -> None:
        """Send the progress record, if delivery is exactly once, and commit.

        Raises:
            ReopenSinkError: the topic is not the one that the sink was opened for, and its partitions or settings may be others.
        """
        self._begin()
        name, id = self._destination.topic, self._topic_id
        if id is not None and self._producer.topic_id(name) not in (id, None):
            raise ReopenSinkError(f"topic {name} was deleted and created again", retriable=True)
        if self._destination.exactly_once:
            topic = self._destination.progress.name
            if id is not None:
                progress = replace(progress, topic={"name": name, "id": id})
            send_record(self._producer, topic, PROGRESS_PARTITION, self._key, value_of(progress), more=True)
        self._producer.commit()
        self._in_transaction = False

    def abort(self) -> None:
        """Abort the open transaction."""
        if self._in_transaction:
            self._in_transaction = False
            self._producer.abort()

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()

    def _send_side_record(self, side: SideRecord, timestamp: int, *, more: bool) -> None:
        self._begin()
        for oversized in self._producer.send(side.topic, 0, side.record, timestamp, more=more):
            raise SinkError(
                f"a record of {oversized.size} bytes is too large for topic {side.topic}",
                hint=f"Raise max.message.bytes of it and of topic {self._destination.topic}, whose limit holds for both",
            )

    def _begin(self) -> None:
        if not self._in_transaction:
            self._producer.begin()
            self._in_transaction = True

    def _partitions_of(self, records: Records) -> Partitions:
        """The partitions of records. Without keys, all records of one call share a partition, and the next call uses the next one."""
        if records.partition is not None:
            return records.partition
        if records.keys is None:
            self._last_partition = (self._last_partition + 1) % self._partitions
            return self._last_partition
        return 0 if self._partitions == 1 else partitions(records.keys, self._partitions)


def _merge(side_records: Iterable[SideRecord]) -> Iterator[SideRecord]:
    """Merge the side records of each topic."""
    for topic, records_of_topic in groupby(
        sorted(side_records, key=lambda side: side.topic), key=lambda side: side.topic
    ):
        same = list(records_of_topic)
        keys = pa.concat_arrays([side.record.keys for side in same])
        values = pa.concat_arrays([side.record.values for side in same])
        yield SideRecord(topic, Records(keys, values))


@contextmanager
def _timed(stage: StageTimer, name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    stage(name, time.perf_counter() - began)
