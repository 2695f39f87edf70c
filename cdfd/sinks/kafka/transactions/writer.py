"""From change rows to a committed transaction: encodes rows, and sends their records."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import pyarrow as pa

from cdfd.encode.records import RecordEncoder, Records, SnapshotPart
from cdfd.sinks.base import ReopenSinkError, StageTimer
from cdfd.sinks.kafka.client.producer import Producer, oversized_error, send_record
from cdfd.sinks.kafka.destination import Destination, MakeEncoder, TopicFacts
from cdfd.sinks.kafka.progress.records import Progress, key_of, value_of
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION
from cdfd.sinks.kafka.records.batches import Partitions
from cdfd.sinks.kafka.records.murmur2 import partitions
from cdfd.sinks.kafka.records.oversized import OversizedRecords
from cdfd.sinks.kafka.transactions.chunk import Chunk

Encoded = Sequence[tuple[Records, int]]
"""Records, and the newest version among them."""


class RecordWriter:
    """Encodes rows, and sends records with the producer. One thread at a time may encode, and one may do the rest.

    Args:
        make: creates the encoder.
        producer: a producer that can begin a transaction.
        destination: of the table.
        facts: of its topic.
        stage: receives the durations of `encode` and `send`.
    """

    def __init__(
        self, make: MakeEncoder, producer: Producer, destination: Destination, facts: TopicFacts, stage: StageTimer
    ) -> None:
        self._make = make
        self._producer = producer
        self._destination = destination
        self._facts = facts
        self._stage = stage
        self._encoder: RecordEncoder | None = None
        self._key = key_of(destination.pipeline, destination.delivery_name)
        self._in_transaction = False
        self._last_partition = 0
        self.oversized = OversizedRecords(destination, facts.limit)

    def encode(self, chunk: Chunk, table_id: str) -> Encoded:
        """The records of a chunk's rows, in order."""
        if not chunk.groups:
            return ()
        if self._encoder is None:
            self._encoder = self._make(self._destination.origin(table_id), self._facts)
        encoded: list[tuple[Records, int]] = []
        with _timer(self._stage, "encode"):
            for group in chunk.groups:
                batches = group.batches
                # Arrow cannot concatenate dictionaries that differ within lists, or too many of them.
                with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                    batches = batches if len(batches) == 1 else [pa.concat_batches(batches)]
                for batch in batches:
                    last = group.part is not SnapshotPart.END or batch is batches[-1]
                    part = group.part if last else SnapshotPart.MIDDLE
                    records = self._encoder.encode(batch, snapshot=group.snapshot, part=part)
                    encoded += [(each, group.version) for each in records]
        return encoded

    def send(self, encoded: Encoded, side_records: Mapping[str, Sequence[Records]], *, last: bool = False) -> None:
        """Send records, then those of side topics. After the last ones, `commit` has to follow at once.

        Their timestamp is the current time. A commit's time may be long past, so that the topic's retention would delete its records at
        once. It may also be in the future, which brokers refuse.
        """
        now, topic = time.time_ns() // 1_000_000, self._destination.topic
        # Where an error comes before `commit`, the end of a transaction also sends or drops records that wait. Without one nothing would.
        more = last and self._destination.exactly_once
        with _timer(self._stage, "send"):
            if encoded or side_records:
                self._begin()
            for records, version in encoded:
                places: Partitions = 0
                if records.partition is not None:
                    places = records.partition
                elif records.keys is None:
                    # All records of one call share a partition, and the next call uses the next one.
                    self._last_partition = places = (self._last_partition + 1) % self._facts.partitions
                elif self._facts.partitions > 1:
                    places = partitions(records.keys, self._facts.partitions, records.key_wrapping)
                oversized = self._producer.send(topic, places, records, now, more=more)
                if oversized:
                    self.oversized.handle(self._producer, records, oversized, version)
            for side_topic, several in sorted(side_records.items()):
                records = Records(
                    pa.concat_arrays([r.keys for r in several]), pa.concat_arrays([r.values for r in several])
                )
                for each in self._producer.send(side_topic, 0, records, now, more=more):
                    raise oversized_error(each.size, side_topic, topic)

    def commit(self, progress: Progress) -> None:
        """Send the progress record, if delivery is exactly once, and commit.

        Raises:
            ReopenSinkError: the topic is not the one that the sink was opened for, and its partitions or settings may be others.
        """
        self._begin()
        self._check_topic()
        name, id = self._destination.topic, self._facts.id
        if self._destination.exactly_once:
            topic = self._destination.progress.name
            if id is not None:
                progress = replace(progress, topic={"name": name, "id": id})
            send_record(
                self._producer,
                topic,
                PROGRESS_PARTITION,
                self._key,
                value_of(progress),
                more=True,
                limited_by=name,
            )
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

    def _begin(self) -> None:
        if not self._in_transaction:
            # If the client has to ask for the topic, it does so now. Between the records and the progress record, it would send the
            # records meanwhile, and the transaction would take two requests more.
            self._check_topic()
            self._producer.begin()
            self._in_transaction = True

    def _check_topic(self) -> None:
        name, id = self._destination.topic, self._facts.id
        if id is not None and self._producer.topic_id(name) not in (id, None):
            raise ReopenSinkError(f"topic {name} was deleted and created again", retriable=True)


@contextmanager
def _timer(stage: StageTimer, name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    stage(name, time.perf_counter() - began)
