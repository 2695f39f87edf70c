"""Positions as Kafka records: what is in them, and the newest one of a table.

    {"pipeline":"shop","table":"orders"} -> {"table_id":"5f...","version":12,"part":0,"phase":"stream","ordinal":0,"digest":"9c...",
     "writer":{...}}

A record is written in the transaction that carries the rows before its position, so it is there exactly if they are. One without a value
takes back all before it. Readers ignore fields that they do not know.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from cdfd import __version__
from cdfd.changes.position import Position
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.connection import network
from cdfd.sinks.kafka.client.failures import translated
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION

log = logging.getLogger("cdfd.kafka")

_TAIL = 4096
_FARTHER = 64
_POLL_MS = 100
_POLL_RECORDS = 10_000
_LOOK_AFTER = 0.2
_SAY_AFTER = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a table is delivered.

    Attributes:
        position: what is to be delivered next.
        counts: change rows by type of the parts of its version that are delivered; none where it is at a version's beginning. In a record of
            such a part, those of the part.
        announced: whether the table's schema was sent to the schema topic.
        job: the job that delivers the version at the position in parts; or, of such a part, the one that it is of.
        backfill: the range of a backfill; empty for the daemon's own delivery. It stays until another backfill starts.
    """

    position: Position
    counts: Mapping[str, int] = field(default_factory=dict)
    announced: bool = False
    job: Mapping[str, str | int] = field(default_factory=dict)
    backfill: Mapping[str, str | int] = field(default_factory=dict)


class _NotOurs(ValueError):
    """Content that is no position."""


def key_of(pipeline: str, table: str) -> bytes:
    """The key of a table's records."""
    return _json({"pipeline": pipeline, "table": table})


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
    return _json(document | {"writer": writer})


def progress_of(value: bytes) -> Progress:
    """What a value says. `ValueError` where it is none of ours."""
    # It is stricter than `json`: text that no UTF-8 can hold could not be written again.
    document = orjson.loads(value)
    if not isinstance(document, dict):
        raise _NotOurs("it is not a JSON object")
    phase, counts, announced = document.get("phase"), document.get("counts", {}), document.get("announced", False)
    job, backfill = (_fields(document, name) for name in ("job", "whole"))
    if phase not in ("snapshot", "stream"):
        raise _NotOurs(f"phase is {phase!r}")
    if not isinstance(counts, dict) or not isinstance(announced, bool):
        raise _NotOurs("counts or announced are not what they should be")
    position = Position(
        _text(document, "table_id"),
        _number(document, "version"),
        _number(document, "part"),
        phase,
        _number(document, "ordinal"),
        _text(document, "digest") if "digest" in document else None,
    )
    return Progress(position, {name: _number(counts, name) for name in counts}, announced, job, backfill)


def newest(
    connection: Mapping[str, Any], topic: str, key: bytes, bounds: tuple[int, int], patience: float, timeout: float
) -> Progress | None:
    """The progress of a table according to the newest committed record with its key; None where there is none.

    The end of the topic is read first, and only as much before it as is needed. Nobody else may be writing records with the key: what
    transactions of others hide is waited for only where there is one among it.

    Args:
        connection: of `connection.arguments`.
        topic: of the pipeline's progress.
        key: of the table.
        bounds: the first offset that is there, and the one to read up to.
        patience: seconds to wait while transactions that are open hide what is before that.
        timeout: seconds for anything else.

    Raises:
        SinkError: the record is not ours, or cannot be read.
    """
    start, end = bounds
    if end <= start:
        return None
    place = TopicPartition(topic, PROGRESS_PARTITION)
    with _translated(topic), network(connection) as options, closing(_consumer(options, timeout)) as consumer:
        consumer.assign([place])
        upper, size = end, _TAIL
        while upper > start:
            lower = max(upper - size, start)
            hidden = partial(_hidden, options, place, key, timeout)
            record = _last(consumer, place, key, (lower, upper), patience, hidden)
            if record is not None:
                return _read(record)
            upper, size = lower, size * _FARTHER
    return None


def _consumer(options: Mapping[str, Any], timeout: float, *, committed: bool = True) -> KafkaConsumer:
    return KafkaConsumer(
        **options,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if committed else "read_uncommitted",
        allow_auto_create_topics=False,
        max_poll_records=_POLL_RECORDS,
        bootstrap_timeout_ms=int(timeout * 1000),
        request_timeout_ms=int(timeout * 1000),
        metrics_enabled=False,
    )


def _hidden(
    options: Mapping[str, Any], place: TopicPartition, key: bytes, timeout: float, lower: int, upper: int
) -> bool:
    """Whether there is a record with that key between two offsets, committed or not."""
    with closing(_consumer(options, timeout, committed=False)) as consumer:
        consumer.assign([place])
        consumer.seek(place, lower)
        deadline = time.monotonic() + timeout
        while consumer.position(place) < upper:
            if any(record.key == key for record in consumer.poll(timeout_ms=_POLL_MS).get(place, ())):
                return True
            if time.monotonic() > deadline:
                return True  # whoever waits for it says what it waited for
    return False


def _last(
    consumer: KafkaConsumer,
    place: TopicPartition,
    key: bytes,
    bounds: tuple[int, int],
    patience: float,
    hidden: Callable[[int, int], bool],
) -> Any | None:
    """The last record with that key between two offsets; `hidden` tells whether it may be worth waiting for between two others."""
    lower, upper = bounds
    consumer.seek(place, lower)
    found, told, looked = None, False, False
    begun = moved = time.monotonic()
    position = lower
    while position < upper:
        for record in consumer.poll(timeout_ms=_POLL_MS).get(place, ()):
            if record.key == key and record.offset < upper:
                found = record
        now, before, position = time.monotonic(), position, consumer.position(place)
        if position > before:
            moved, looked = now, False
        elif now - moved > _LOOK_AFTER and not looked:
            looked = True
            if not hidden(position, upper):
                return found
        elif now - moved > patience:
            raise SinkError(
                f"the end of topic {place.topic} cannot be read: for {now - moved:.0f} seconds nothing has come after offset {position}",
                hint="Another table's transaction may be open: see `kafka-transactions.sh find-hanging`",
                retriable=True,
            )
        elif now - begun > _SAY_AFTER and not told:
            log.info(
                "waiting for transactions of other tables to end: they hide the newest positions in %s", place.topic
            )
            told = True
    return found


def _read(record: Any) -> Progress | None:
    if record.value is None:
        return None
    try:
        return progress_of(record.value)
    except (ValueError, RecursionError) as error:
        where = f"partition {record.partition}, offset {record.offset}"
        raise SinkError(
            f"the record at topic {record.topic}, {where}, is no position: {error}",
            hint="Who else writes there? `cdfd progress set` writes a new one",
        ) from error


def _fields(document: Mapping[str, Any], name: str) -> Mapping[str, str | int]:
    found = document.get(name, {})
    if not isinstance(found, dict) or not all(type(value) in (str, int) for value in found.values()):
        raise _NotOurs(f"{name} is not what it should be")
    return found


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise _NotOurs(f"{name} is {value!r}")
    return value


def _number(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _NotOurs(f"{name} is {value!r}")
    return value


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


@contextmanager
def _translated(topic: str) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise translated(error, f"read positions from topic {topic}") from error
