"""From change rows to a committed transaction: the two stages of a delivery, encoding and sending. Called in worker threads.

The encoder holds rows back and the producer keeps an order, so each stage is used by one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from cdfd.encoding.records import RecordEncoder, Records
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.producer import Producer, send_record
from cdfd.sinks.kafka.destination import Destination, MakeEncoder, TopicFacts
from cdfd.sinks.kafka.progress.records import Progress, key_of, value_of
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION
from cdfd.sinks.kafka.records.batches import Partitions
from cdfd.sinks.kafka.records.murmur2 import partitions
from cdfd.sinks.kafka.records.oversized import OversizedRecords
from cdfd.sinks.kafka.transactions.gathering import Note, Parcel

Stage = Callable[[str, float], None]
"""Is told what took how many seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Records, and the newest version that they are of."""

    records: Records
    version: int


class Encoding:
    """Rows to records.

    Args:
        make: makes an encoder.
        destination: of the table.
        facts: of its topic.
        stage: is told of `encode`.
    """

    def __init__(self, make: MakeEncoder, destination: Destination, facts: TopicFacts, stage: Stage) -> None:
        self._make = make
        self._destination = destination
        self._facts = facts
        self._stage = stage
        self._encoder: RecordEncoder | None = None
        self._newest = 0

    def encode(self, parcel: Parcel, table_id: str, *, last: bool) -> list[Encoded]:
        """Records of a parcel's rows, in order. What is held back comes with the next ones, or at once where they are the last."""
        if self._encoder is None:
            if not parcel.lots:
                return []
            self._encoder = self._make(self._destination.origin(table_id), self._facts)
        encoder, encoded = self._encoder, []
        with _timed(self._stage, "encode"):
            for lot in parcel.lots:
                self._newest = lot.version
                for batch in lot.rows():
                    records = encoder.encode(batch, snapshot=lot.snapshot)
                    encoded += [Encoded(each, self._newest) for each in records]
            if last:
                encoded += [Encoded(each, self._newest) for each in encoder.flush()]
        return encoded

    def forget(self) -> None:
        """Rows that are held back are of a delivery that was dropped."""
        self._encoder = None


class Sending:
    """Records to the producer.

    Args:
        producer: ready to begin a transaction.
        destination: of the table.
        facts: of its topic.
        stage: is told of `send`.
    """

    def __init__(self, producer: Producer, destination: Destination, facts: TopicFacts, stage: Stage) -> None:
        self._producer = producer
        self._destination = destination
        self._partitions = facts.partitions
        self._stage = stage
        self._key = key_of(destination.pipeline, destination.delivery_name)
        self._begun = False
        self._turn = 0
        self.oversized = OversizedRecords(destination, facts.limit)

    def send(self, encoded: Iterable[Encoded], notes: Iterable[Note]) -> None:
        """Send records, then notes.

        Their time is now. Their commit's may be long past, and a topic with a retention would lose them as soon as they are there; or yet to
        come, which brokers refuse.
        """
        now = time.time_ns() // 1_000_000
        with _timed(self._stage, "send"):
            for each in encoded:
                self._begin()
                topic, records = self._destination.topic, each.records
                oversized = self._producer.send(topic, self._partitions_of(records), records, now)
                if oversized:
                    self.oversized.handle(self._producer, records, oversized, each.version)
            for note in _together(notes):
                self._note(note, now)

    def commit(self, progress: Progress) -> None:
        """Send the progress along, if it goes that way, and commit."""
        self._begin()
        if self._destination.exactly_once:
            topic = self._destination.progress.name
            send_record(self._producer, topic, PROGRESS_PARTITION, self._key, value_of(progress))
        self._producer.commit()
        self._begun = False

    def abort(self) -> None:
        """Drop what was sent since the last commit."""
        if self._begun:
            self._begun = False
            self._producer.abort()

    def close(self) -> None:
        """Let go of the producer."""
        self._producer.close()

    def _note(self, note: Note, timestamp: int) -> None:
        self._begin()
        for oversized in self._producer.send(note.topic, 0, note.record, timestamp):
            raise SinkError(
                f"a record of {oversized.size} bytes is too large for topic {note.topic}",
                hint=f"Raise max.message.bytes of it and of topic {self._destination.topic}, whose limit holds for both",
            )

    def _begin(self) -> None:
        if not self._begun:
            self._producer.begin()
            self._begun = True

    def _partitions_of(self, records: Records) -> Partitions:
        """Where records go. Without keys each lot goes to one partition, and the next lot to the next."""
        if records.partition is not None:
            return records.partition
        if records.keys is None:
            self._turn = (self._turn + 1) % self._partitions
            return self._turn
        return 0 if self._partitions == 1 else partitions(records.keys, self._partitions)


def _together(notes: Iterable[Note]) -> Iterator[Note]:
    """Notes of one topic as one."""
    for topic, some in groupby(sorted(notes, key=lambda note: note.topic), key=lambda note: note.topic):
        same = list(some)
        keys = pa.concat_arrays([note.record.keys for note in same])
        values = pa.concat_arrays([note.record.values for note in same])
        yield Note(topic, Records(keys, values))


@contextmanager
def _timed(stage: Stage, name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    stage(name, time.perf_counter() - began)
