"""Documents of one line each: their values, today's writer and today's reader. A golden file has a line for each value, in order."""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from rpds import HashTrieMap

from cdfd.cli.commands.backfill import Job as BackfillRange
from cdfd.delta.actions import Metadata, Protocol, Txn
from cdfd.delta.types import schema as schemas
from cdfd.delta.types import schema_string
from cdfd.delta.types.schema import TableSchema
from cdfd.encode.records import Origin
from cdfd.encode.side import schema_record
from cdfd.model.control import Control, Pause, Resnapshot
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.sinks.base import Backfill
from cdfd.sinks.delta import positions as delta_positions
from cdfd.sinks.files.folder import DeliveryFolder
from cdfd.sinks.files.names import CHUNK, chunk_name, delivery_name, parse_delivery_name
from cdfd.sinks.kafka.progress.records import NextSignal, Progress, offset_of, offset_value, progress_of, value_of
from cdfd.sinks.ledger.ledger import app_id
from cdfd.sinks.ledger.txn_state import TxnState
from cdfd.spark.source.backlog import Backlog
from cdfd.spark.source.offsets import Offset

DIGEST = "9c5d7f00e1a2b3c4d5e6f708192a3b4c"
TABLE_ID = "5f0c8a9e-6d2b-4b55-9a60-0d5c1f7e2a11"
APP = app_id("golden", "orders")

POSITIONS = (
    Position(TABLE_ID, 0),
    Position(TABLE_ID, 12, digest=DIGEST),
    Position(TABLE_ID, 12, 3, "stream", 4711, DIGEST),
    Position(TABLE_ID, 12, 2, "stream", 2 << 40, DIGEST),
    Position(TABLE_ID, 7, phase="snapshot", digest="f" * 32),
    Position(TABLE_ID, 7, 1000, "snapshot", 123_456_789),
    Position(TABLE_ID, 2**53, 0, "stream", 0, "0" * 31 + "1"),
)
"""Start, between versions, within one by files, within one by buckets of a refined version, at and within a snapshot, large."""

PLANNED = (
    Position(TABLE_ID, 12, 3, "stream", 4711, DIGEST, 105_617_727_350_824),
    Position(TABLE_ID, 7, 1000, "snapshot", 123_456_789, plan=1),
)
"""Positions that say how their parts were planned. Those of 0.2.0 do not."""

CONTROLS = (
    Control(Pause("ops-7", 1_767_225_600_000), recent=("ops-7",)),
    Control(None, Resnapshot("ops-8", where="region = 'de'", ordinal=1 << 40), 1, ("ops-7", "ops-8")),
    Control(None, Resnapshot("ops-8", 41, 12, (1 << 40) + 12_288, 12_288, "", 44, 3), 4097, ("ops-8",)),
    Control(snapshots=2, recent=tuple(f"r{number}" for number in range(16))),
)
"""Paused, an incremental snapshot that waits, one under way before a version that removes files, and neither."""

_JOB = {
    "id": "0" * 32,
    "version": 12,
    "phase": "stream",
    "parts": 5,
    "bytes": 1 << 30,
    "digest": "1234567890abcdef",
    "since": 77,
}
_SNAPSHOT_JOB = _JOB | {"version": 7, "phase": "snapshot", "digest": "paths-1234567890abcdef"}
_RANGE = BackfillRange(3, 9, True, "2026-01-01T00:00:00Z", "now")
PROGRESS = (
    *(Progress(position) for position in POSITIONS),
    Progress(POSITIONS[2], {"insert": 4000, "update_preimage": 1}, True),
    Progress(POSITIONS[1], announced=True, job=_JOB),
    Progress(POSITIONS[4], announced=True, job=_SNAPSHOT_JOB),
    Progress(POSITIONS[1], {"insert": 5, "delete": 2}, job={"id": "0" * 32}),
    Progress(POSITIONS[1], {"insert": 5}, job={"id": "5b2d8f0e-0000-4000-8000-1f2e3d4c5b6a/17"}),
    Progress(POSITIONS[1], backfill=_RANGE.record()),
    *(Progress(POSITIONS[1], control=control) for control in CONTROLS),
    Progress(POSITIONS[1], topic={"name": "orders", "id": "AAECAwQFBgcICQoLDA0ODw"}),
)
"""Positions; a version partly delivered; jobs by files and by paths; a part of a job, and of a query of Spark; a backfill; controls."""

OFFSETS = (
    *(Offset(position, 7, "snapshot") for position in POSITIONS),
    Offset(POSITIONS[2], 3, "stream", ("id", "address.Zip")),
    Offset(POSITIONS[1], 3, "stream", (), Backlog(19, 1_767_225_600_000, 3520)),
    Offset(POSITIONS[1], 3, "stream", (), Backlog(19, 1_767_225_600_000)),
)

STEPS = (
    (POSITIONS[1], POSITIONS[1].after_version()),
    (POSITIONS[1], Position(TABLE_ID, 15)),
    (POSITIONS[1], POSITIONS[2]),
    (POSITIONS[2], POSITIONS[2].after_version()),
    (POSITIONS[2], Position(TABLE_ID, 12, 9, "stream", 9000)),
    (POSITIONS[3], Position(TABLE_ID, 12, 3, "stream", 3 << 40)),
    (POSITIONS[4], POSITIONS[5]),
    (POSITIONS[5], POSITIONS[5].after_version()),
    (POSITIONS[4], POSITIONS[4].after_version()),
    (POSITIONS[1], Position(TABLE_ID, 20, phase="snapshot")),
)
"""Deliveries: the first position, and the following one."""


@dataclass(frozen=True)
class Documents:
    """A format.

    Attributes:
        name: of its golden file.
        values: one for each line.
        write: makes a line of a value.
        read: makes a value of a line.
    """

    name: str
    values: Sequence[Any]
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def written_progress(progress: Progress) -> bytes:
    """The value of a record, by one writer. Readers ignore it."""
    writer = rb'"host":"daemon-0","pid":1,"cdfd":"0.1.0"'
    return re.sub(rb'"host":"[^"]+","pid":\d+,"cdfd":"[^"]+"', writer, value_of(progress))


def _position_file(value: tuple[Position, Control]) -> bytes:
    position, control = value
    with tempfile.TemporaryDirectory() as folder:
        delivery = DeliveryFolder(folder, sync=False)
        try:
            delivery.commit(None, "", position, position, control)
        finally:
            delivery.close()
        return Path(folder, "_position.json").read_bytes().removesuffix(b"\n")


def _position_in(line: bytes) -> tuple[Position | None, Control]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "_position.json").write_bytes(line + b"\n")
        delivery = DeliveryFolder(folder, sync=False)
        try:
            return delivery.position, delivery.control
        finally:
            delivery.close()


def _txns(position: Position) -> bytes:
    actions = delta_positions.position_actions(_target(), APP, position, 1_767_225_600_000)
    return orjson.dumps([dict([action]) for action in actions])


def _of_txns(line: bytes) -> Position | None:
    txns = [action["txn"] for action in orjson.loads(line)]
    known = {each["appId"]: Txn(each["appId"], each["version"], each["lastUpdated"]) for each in txns}
    return delta_positions.stored_position(_target(known), APP).position


def _target(txns: dict[str, Txn] | None = None) -> TxnState:
    properties = {delta_positions.CHANGELOG: APP, delta_positions.SOURCE: TABLE_ID}
    return TxnState(5, Protocol(1, 2), Metadata("i", "{}", (), properties), HashTrieMap(txns or {}))


def _with_properties(properties: Mapping[str, str]) -> bytes:
    return orjson.dumps({**_target().metadata.configuration, **properties})


def _target_with(line: bytes) -> TxnState:
    return TxnState(5, Protocol(1, 2), Metadata("i", "{}", (), orjson.loads(line)), HashTrieMap())


def _range_of(line: bytes) -> Any:
    return BackfillRange.stored(Backfill(POSITIONS[0], delta_positions.stored_range(_target_with(line), "backfill")))


def _step_of(line: bytes) -> tuple[Position, Position]:
    delivery = parse_delivery_name(line.decode(), TABLE_ID)
    assert delivery is not None
    return delivery.first, delivery.following


def _chunk_of(line: bytes) -> tuple[int, int]:
    name = line.decode()
    assert CHUNK.fullmatch(name)
    assert parse_delivery_name(name, TABLE_ID) is None
    version, _, ordinal, _ = name.split(".")
    return int(version), int(ordinal)


def _bare(step: tuple[Position, Position]) -> tuple[Position, Position]:
    """A step as far as a file's name has it."""
    first, following = step
    return replace(first, ordinal=0, digest=None), replace(following, digest=None)


SCHEMA = schemas.serialize(schemas.from_arrow(pa.schema([("id", pa.int64()), ("at", pa.struct([("n", pa.string())]))])))


def _schema_record(at: tuple[str, int, str]) -> bytes:
    topic, version, schema = at
    plan = ChangePlan(version, 1_767_225_600_000, TableSchema(schema_string.parse(schema)), (), "files")
    (value,) = schema_record(Origin("golden", "orders", TABLE_ID, topic), plan, None).values.to_pylist()
    return bytes(value)


def _of_schema_record(line: bytes) -> tuple[str, int, str]:
    """The fields by which `cdfd.spark.records.schemas` finds a table's newest schema."""
    document = orjson.loads(line)
    schema = schema_string.parse(orjson.dumps(document["schema"]).decode())
    return document["topic"], document["version"], schemas.serialize(schema)


DOCUMENTS = (
    Documents("kafka/progress.jsonl", PROGRESS, written_progress, progress_of),
    Documents("kafka/planned.jsonl", list(map(Progress, PLANNED)), written_progress, progress_of),
    Documents("kafka/schemas.jsonl", [("shop.orders", 12, SCHEMA)], _schema_record, _of_schema_record),
    Documents("kafka/signals.jsonl", (NextSignal(0), NextSignal(2**40)), offset_value, offset_of),
    Documents(
        "files/positions.jsonl",
        [
            *((position, Control()) for position in POSITIONS),
            *((POSITIONS[1], control) for control in CONTROLS),
        ],
        _position_file,
        _position_in,
    ),
    Documents(
        "files/names.txt",
        list(map(_bare, STEPS)),
        lambda step: delivery_name(*step, ".jsonl").encode(),  # type: ignore[call-arg]
        _step_of,
    ),
    Documents(
        "files/chunks.txt",
        [(12, 1 << 40), (12, 4097 << 40)],
        lambda at: chunk_name(*at, ".jsonl").encode(),  # type: ignore[call-arg]
        _chunk_of,
    ),
    Documents("delta/positions.jsonl", POSITIONS, _txns, _of_txns),
    Documents("delta/planned.jsonl", PLANNED, _txns, _of_txns),
    Documents(
        "delta/controls.jsonl",
        CONTROLS,
        lambda control: _with_properties(delta_positions.control_properties(control)),
        lambda line: delta_positions.stored_control(_target_with(line)),
    ),
    Documents(
        "delta/backfills.jsonl",
        [_RANGE],
        lambda job: _with_properties(delta_positions.range_properties("backfill", job.record() | {"run": "r"})),
        _range_of,
    ),
    Documents(
        "spark/offsets.jsonl",
        OFFSETS,
        lambda offset: orjson.dumps(offset.to_json()),
        lambda line: Offset.from_json(orjson.loads(line)),
    ),
)
