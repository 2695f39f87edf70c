"""From change rows to a committed transaction: encodes rows, and sends their records.

Rows go in chunks, which are encoded and sent together, so that many small versions cost no more than one large version.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cdfd.encode.records import RecordEncoder, Records, SnapshotPart
from cdfd.encode.side import json_bytes
from cdfd.errors import SinkError
from cdfd.model.columns import COMMIT_VERSION
from cdfd.sinks.base import ReopenSinkError, StageTimer
from cdfd.sinks.kafka.client.producer import Producer, oversized_error, send_record
from cdfd.sinks.kafka.destination import Destination, MakeEncoder, TopicFacts
from cdfd.sinks.kafka.progress.records import Progress, key_of, value_of
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION
from cdfd.sinks.kafka.records.batches import Oversized, Partitions
from cdfd.sinks.kafka.records.murmur2 import partitions

log = logging.getLogger("cdfd.kafka")

Encoded = Sequence[tuple[Records, int]]
"""Records, and the newest version among them."""

CHUNK_BYTES = 64 * 1024
CHUNK_ROWS = 4096
_CHUNK_SIDE_RECORDS = 2048

# Bytes of the key of an oversized record that a log or an error shows.
_SHOWN = 200
# A key may have this fraction of the limit: the dead-letter record contains it twice, once with its characters escaped.
_KEY_SHARE = 8


@dataclass(slots=True)
class RowGroup:
    """Rows that are encoded together.

    Attributes:
        batches: the rows; all batches have the same schema.
        snapshot: whether they are live rows of a version.
        oldest, version: versions of the first and the last row.
        part: which ones of the live rows.
    """

    batches: list[pa.RecordBatch]
    snapshot: bool
    oldest: int
    version: int
    part: SnapshotPart = SnapshotPart.MIDDLE


@dataclass(slots=True)
class Chunk:
    """Rows, and records for side topics about their versions, by topic. Side topics have one partition.

    Attributes:
        limit: bytes of a full chunk. A batch of this size gets a row group of its own.
        groups: the rows.
        side_records: by topic. They may be sent after rows that are added later.
    """

    limit: int = CHUNK_BYTES
    groups: list[RowGroup] = field(default_factory=list)
    side_records: defaultdict[str, list[Records]] = field(default_factory=lambda: defaultdict(list))
    _bytes: int = 0
    _rows: int = 0

    @property
    def version(self) -> int | None:
        """The version of all rows; None if there is not exactly one."""
        versions = {version for group in self.groups for version in (group.oldest, group.version)}
        return versions.pop() if len(versions) == 1 else None

    @property
    def full(self) -> bool:
        """Whether it is large enough to be encoded and sent."""
        return (
            self._bytes >= self.limit
            or self._rows >= CHUNK_ROWS
            or sum(map(len, self.side_records.values())) >= _CHUNK_SIDE_RECORDS
        )

    def add(
        self, batch: pa.RecordBatch, *, snapshot: bool, version: int, part: SnapshotPart = SnapshotPart.MIDDLE
    ) -> None:
        """Append rows of a version, or of several up to it."""
        size = batch.nbytes
        last = self.groups[-1] if self.groups and size < self.limit else None
        same = last is not None and (last.snapshot, last.part) == (snapshot, part)
        if last is not None and same and last.batches[0].schema == batch.schema:
            last.batches.append(batch)
            last.version = version
        else:
            place = batch.schema.get_field_index(COMMIT_VERSION)
            oldest = version if place < 0 else int(batch.column(place)[0].as_py())
            self.groups.append(RowGroup([batch], snapshot, oldest, version, part))
        self._bytes += size
        self._rows += batch.num_rows


class RecordWriter:
    """Encodes rows, and sends records with the producer. One thread at a time may encode, and one may do the rest.

    Args:
        make: creates the encoder.
        producer: a producer that can begin a transaction.
        destination: of the table.
        facts: of its topic.
        stage: receives the durations of `encode` and `send`.

    Attributes:
        oversized: number of records that were larger than the topic takes, and are not delivered.
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
        self.oversized = 0

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
                    self._handle_oversized(records, oversized, version)
            for side_topic, several in sorted(side_records.items()):
                records = Records(
                    pa.concat_arrays([r.keys for r in several]), pa.concat_arrays([r.values for r in several])
                )
                for each in self._producer.send(side_topic, 0, records, now, more=more):
                    raise oversized_error(each.size, side_topic, topic)

    def _handle_oversized(self, records: Records, oversized: Sequence[Oversized], version: int) -> None:
        """Skip records that the producer refused, or write about each of them to the dead-letter topic. `SinkError` if it is to fail."""
        destination, keys, limit = self._destination, records.whole_keys, self._facts.limit
        key_limit = limit // _KEY_SHARE
        for item in oversized:
            key = keys[item.index]
            # A key as text of bounded length.
            if key is None:
                shown = "no key"
            else:
                text = key[: _SHOWN + 1].decode(errors="backslashreplace")
                shown = f"key {text if len(key) <= _SHOWN else text[:_SHOWN] + '...'}"
            what = (
                f"a record of {item.size} bytes, with {shown}, is too large for topic {destination.topic}, "
                f"whose limit is {limit}"
            )
            if destination.oversized == "fail":
                raise SinkError(
                    what,
                    table=destination.table,
                    version=version,
                    hint="Raise max.message.bytes of the topic, or set sink.oversized to dlq or skip",
                )
            if destination.oversized == "dlq":
                document = {
                    "reason": "the record is larger than the topic takes",
                    "pipeline": destination.pipeline,
                    "table": destination.table,
                    "topic": destination.topic,
                    "version": version,
                    "key": None if key is None else key[:key_limit].decode(errors="backslashreplace"),
                    "size": item.size,
                    "limit": limit,
                }
                value = json_bytes(document)
                key = key if len(key or b"") <= key_limit else None
                send_record(self._producer, destination.dlq_topic, 0, key, value, limited_by=destination.topic)
            if not self.oversized or destination.oversized == "skip":
                where = "skipped" if destination.oversized == "skip" else f"see topic {destination.dlq_topic}"
                log.warning("%s: %s", what, where, extra={"table": destination.table, "version": version})
            self.oversized += 1

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
                schemas = {} if self._facts.schemas is None else {"schemas": self._facts.schemas}
                progress = replace(progress, topic={"name": name, "id": id, **schemas})
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
