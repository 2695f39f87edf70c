"""Progress records in Kafka: their format, and the newest one of a table.

    {"pipeline":"shop","table":"orders"} -> {"table_id":"5f...","version":12,"part":0,"phase":"stream","ordinal":0,"digest":"9c...",
     "writer":{...}}

A record is written in the transaction with the rows before its position, so that both or neither are committed. A record without a value
deletes the position. Readers ignore unknown fields.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from kafka import KafkaConsumer, TopicPartition

from cdfd import __version__
from cdfd.encode.side import json_bytes
from cdfd.errors import SinkError
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Position
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.failures import translating
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION

log = logging.getLogger("cdfd.kafka")

T = TypeVar("T")
_TAIL = 4096
_GROWTH = 64
_POLL_MS = 100
_RETRY_BACKOFF_MS = 10
_FETCH_WAIT_MS = 10
_POLL_RECORDS = 10_000
_CHECK_HIDDEN_AFTER = 0.2
_LOG_AFTER = 1.0
_RECONNECT_AFTER = 5.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a table.

    Attributes:
        position: the next position to deliver.
        counts: change rows by type, of the delivered parts of the position's version; empty at the start of a version. In the record of a
            part of a job, the rows of that part.
        announced: whether the table's schema was sent to the schema topic.
        job: the job that delivers the position's version in parts. In the record of a part, its job.
        backfill: the range of a backfill; empty for the daemon's own delivery. It stays until another backfill starts.
        control: whether the table is paused or published again.
        topic: name and id of the topic that has the rows, and `schemas`, the id of the schema topic; empty if the id is unknown.
    """

    position: Position
    counts: Mapping[str, int] = field(default_factory=dict)
    announced: bool = False
    job: Mapping[str, str | int] = field(default_factory=dict)
    backfill: Mapping[str, str | int] = field(default_factory=dict)
    control: Control = EMPTY
    topic: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NextSignal:
    """The place of the next signal.

    Attributes:
        offset: in the topic of signals.
        topic: id of the topic; None if it is unknown.
        recreated: whether another topic of that name had signals before, whose offsets repeat.
    """

    offset: int
    topic: str | None = None
    recreated: bool = False


class _InvalidRecord(ValueError):
    """A record without a valid position."""


def key_of(pipeline: str, table: str) -> bytes:
    """The key of a table's records."""
    return json_bytes({"pipeline": pipeline, "table": table})


def signals_key(pipeline: str, reader: str) -> bytes:
    """The key of the place of the next signal; see `Connector.signals`."""
    return json_bytes({"pipeline": pipeline, "signals": reader})


def offset_value(signal: NextSignal) -> bytes:
    """The value of a record with the place of the next signal."""
    document: dict[str, Any] = {"offset": signal.offset}
    if signal.topic is not None:
        document["topic"] = signal.topic
    if signal.recreated:
        document["recreated"] = True
    return json_bytes(document)


def value_of(progress: Progress) -> bytes:
    """The value of a record."""
    writer = {"host": socket.gethostname(), "pid": os.getpid(), "cdfd": __version__}
    document: dict[str, Any] = progress.position.fields()
    if progress.counts:
        document["counts"] = dict(progress.counts)
    if progress.announced:
        document["announced"] = True
    if progress.job:
        document["job"] = dict(progress.job)
    if progress.backfill:
        document["whole"] = dict(progress.backfill)
    if progress.control != EMPTY:
        document["control"] = progress.control.document()
    if progress.topic:
        document["topic"] = dict(progress.topic)
    return json_bytes(document | {"writer": writer})


def progress_of(value: bytes) -> Progress:
    """The progress in a record's value. `ValueError` if it is invalid."""
    # orjson refuses text that cannot be encoded as UTF-8, which `json` accepts and which could not be written again.
    document = orjson.loads(value)
    if not isinstance(document, dict):
        raise _InvalidRecord("it is not a JSON object")
    counts, announced = document.get("counts", {}), document.get("announced", False)
    job, backfill, topic = (_fields(document, name) for name in ("job", "whole", "topic"))
    if not isinstance(counts, dict) or not isinstance(announced, bool):
        raise _InvalidRecord("counts or announced have the wrong type")
    control = Control.parse(document["control"]) if "control" in document else EMPTY
    return Progress(
        Position.parse(document),
        {name: _number(counts, name) for name in counts},
        announced,
        job,
        backfill,
        control,
        topic,
    )


def offset_of(value: bytes) -> NextSignal:
    """The place in a record's value. `ValueError` if it is invalid."""
    document = orjson.loads(value)
    if not isinstance(document, dict):
        raise _InvalidRecord("it is not a JSON object")
    topic, recreated = document.get("topic"), document.get("recreated", False)
    if not isinstance(topic, str | None) or not isinstance(recreated, bool):
        raise _InvalidRecord("topic or recreated have the wrong type")
    return NextSignal(_number(document, "offset"), topic, recreated)


class NewestRecord:
    """The newest committed record with a key. It is read again and again, and each time only what is new.

    Reading goes backwards in growing steps. It waits for an open transaction only if that hides a record with the key.

    Args:
        connection: of `connection.arguments`.
        topic: the progress topic of the pipeline.
        key: of the record.
        hidden_timeout: seconds to wait for open transactions that hide a record.
        timeout: seconds for any other operation.

    Attributes:
        end: the offset up to which the topic is read.
    """

    def __init__(
        self, connection: Mapping[str, Any], topic: str, key: bytes, hidden_timeout: float, timeout: float
    ) -> None:
        self._connection = connection
        self._partition = TopicPartition(topic, PROGRESS_PARTITION)
        self._key = key
        self._hidden_timeout = hidden_timeout
        self._timeout = timeout
        self._consumer: KafkaConsumer | None = None
        self._record: Any = None
        self.end = 0

    def read(self, bounds: tuple[int, int], parse: Callable[[bytes], T]) -> T | None:
        """The value of the record; None if there is none. No other producer may write records with the key before the end.

        Args:
            bounds: the first offset of the topic, and its end.
            parse: parses a value. `ValueError` if it is invalid.

        Raises:
            SinkError: the record is invalid, or cannot be read.
        """
        first, end = bounds
        if end < self.end:  # another topic of that name
            self._record, self.end = None, 0
        first = max(first, self.end)
        if end > first:
            with (
                translating(f"read positions from topic {self._partition.topic}"),
                network(self._connection) as options,
            ):
                self._record = self._newest(options, first, end) or self._record
            self.end = end
        record = self._record
        if record is None or record.value is None:
            return None
        try:
            return parse(record.value)
        except (ValueError, RecursionError) as error:
            where = f"partition {record.partition}, offset {record.offset}"
            raise SinkError(
                f"the record in topic {record.topic}, {where}, has no valid position: {error}",
                hint="Check for other programs that write to this topic. `cdfd progress set` writes a new position",
            ) from error

    @property
    def exists(self) -> bool:
        """Whether there is a record, also one without a value."""
        return self._record is not None

    def close(self) -> None:
        """Release the connection."""
        if self._consumer is not None:
            self._consumer.close()

    def _newest(self, options: Mapping[str, Any], start: int, end: int) -> Any | None:
        upper, size = end, _TAIL
        while upper > start:
            lower = max(upper - size, start)
            record = self._last(options, lower, upper)
            if record is not None:
                return record
            upper, size = lower, size * _GROWTH
        return None

    def _last(self, options: Mapping[str, Any], position: int, end: int) -> Any | None:
        """The last record with the key between two offsets."""
        if self._consumer is None:
            self._consumer = self._connect(options)
        self._consumer.seek(self._partition, position)
        newest, logged, checked = None, False, False
        started = advanced = connected = time.monotonic()
        while position < end:
            records = self._consumer.poll(timeout_ms=_POLL_MS).get(self._partition, ())
            reached = self._consumer.position(self._partition)
            ours = (r for r in reversed(records) if r.key == self._key and position <= r.offset < end)
            newest = next(ours, newest)
            now = time.monotonic()
            if reached > position:
                position, advanced, connected, checked = reached, now, now, False
            elif now - advanced > _CHECK_HIDDEN_AFTER and not checked:
                checked = True
                if not self._has_hidden(options, position, end):
                    return newest
            elif now - advanced > self._hidden_timeout:
                raise SinkError(
                    f"the end of topic {self._partition.topic} cannot be read: "
                    f"no record after offset {position} for {now - advanced:.0f} seconds",
                    hint="Another table's transaction may be open: run `kafka-transactions.sh find-hanging`",
                    retriable=True,
                )
            elif now - started > _LOG_AFTER and not logged:
                log.info(
                    "waiting for transactions of other tables to end: from offset %d they hide the newest positions in %s",
                    position,
                    self._partition.topic,
                )
                logged = True
            elif now - connected > _RECONNECT_AFTER:
                # A consumer may wait for an answer that never comes, or return to an earlier offset again and again.
                self._consumer.close()
                self._consumer = self._connect(options)
                self._consumer.seek(self._partition, position)
                connected = time.monotonic()
        return newest

    def _has_hidden(self, options: Mapping[str, Any], lower: int, upper: int) -> bool:
        """Whether there is a record with the key between two offsets, committed or not."""
        with closing(self._connect(options, committed=False)) as consumer:
            consumer.seek(self._partition, lower)
            deadline = time.monotonic() + self._timeout
            while consumer.position(self._partition) < upper:
                records = consumer.poll(timeout_ms=_POLL_MS).get(self._partition, ())
                if any(record.key == self._key for record in records):
                    return True
                if time.monotonic() > deadline:
                    return True  # the caller then waits, and reports a timeout
        return False

    def _connect(self, options: Mapping[str, Any], *, committed: bool = True) -> KafkaConsumer:
        consumer = KafkaConsumer(
            **options,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if committed else "read_uncommitted",
            allow_auto_create_topics=False,
            max_poll_records=_POLL_RECORDS,
            # A consumer asks for the next records in advance. Until the broker answers that, it answers nothing else on the connection.
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            bootstrap_timeout_ms=int(self._timeout * 1000),
            request_timeout_ms=int(self._timeout * 1000),
            metrics_enabled=False,
            # A reader asks for metadata twice before its first record: for the brokers, and for the partition's leader.
            retry_backoff_ms=_RETRY_BACKOFF_MS,
        )
        consumer.assign([self._partition])
        return consumer


def _fields(document: Mapping[str, Any], name: str) -> Mapping[str, str | int]:
    fields = document.get(name, {})
    if not isinstance(fields, dict) or not all(type(value) in (str, int) for value in fields.values()):
        raise _InvalidRecord(f"{name} has the wrong type")
    return fields


def _number(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _InvalidRecord(f"{name} is {value!r}")
    return value
