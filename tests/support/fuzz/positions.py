"""Targets that read the state of earlier runs and the answers of services, and encoders of rows."""

import io
import json
import math
import tempfile
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.cli.commands.backfill import Job
from cdfd.encode.json import LineEncoder
from cdfd.encode.records import Origin
from cdfd.model.columns import change_schema
from cdfd.sinks.base import Backfill
from cdfd.sinks.files import folder as delivery_folder
from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry
from cdfd.sinks.kafka.progress import records as progress_records
from cdfd.sinks.kafka.transactions.sink import job_of
from cdfd.spark.engine.kafka_sink import snapshot_version
from cdfd.spark.source.offsets import Offset
from cdfd.storage.queues.events import parse_azure_event, parse_s3_event
from tests.support.change_rows import record_encoder
from tests.support.fuzz import mutate
from tests.support.fuzz.cases import Case, Target, Violation, guarded
from tests.support.schemas import Catalog

# --- persisted positions ---

PROGRESS = {
    "table_id": "5f",
    "version": 12,
    "part": 0,
    "phase": "stream",
    "ordinal": 3,
    "counts": {"insert": 3},
    "announced": True,
    "writer": {},
}
JOB = {
    "job": {"id": "x", "version": 12, "phase": "stream", "parts": 3, "bytes": 9, "digest": "d", "since": 0},
    "whole": {"first": 1, "last": 5, "snapshot": 1, "from": "1", "until": "5"},
}
OFFSET = {
    "table_id": "5f",
    "version": 8,
    "part": 0,
    "phase": "stream",
    "ordinal": 0,
    "first_version": 7,
    "first_phase": "snapshot",
}
FOLDER = {"format": 1, "table_id": "5f", "version": 3, "part": 0, "phase": "stream", "ordinal": 0, "delivered": True}
DELIVERIES = (
    "00000000000000000003.jsonl",
    "00000000000000000003.0000000000.to.00000000000000000003.0000000001.7.jsonl",
    "00000000000000000004.parquet",
    "00000000000000000002-snapshot.0000000000.jsonl",
)


def check_position(case: Case) -> str:
    """Positions in Kafka's records, in Spark's checkpoints, in a folder of deliveries."""
    data = case.files["position"]
    record = SimpleNamespace(value=data, topic="t", partition=0, offset=5)

    def progress() -> str:
        newest = progress_records.NewestRecord({}, "t", b"", 0, 0)
        newest._record = record
        verdict = newest.read((0, 0), progress_records.progress_of)
        job_of(verdict)
        job = Job.stored(None if verdict is None else Backfill(verdict.position, verdict.backfill))
        str(job)
        if verdict is not None:
            again = progress_records.progress_of(progress_records.value_of(verdict))
            if again != verdict:
                raise Violation("written otherwise", f"{again} {verdict}"[:500])
        return "value"

    def offset() -> str:
        verdict = json.loads(data)
        if isinstance(verdict, dict):
            again = Offset.from_json(verdict)
            if Offset.from_json(json.loads(json.dumps(again.to_json()))) != again:
                raise Violation("written otherwise", repr(again)[:500])
        return "value"

    outcome = guarded(progress)
    guarded(offset, allowed=(ValueError, RecursionError))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        Path(folder, "_position.json").write_bytes(data)
        for name in case.args["names"]:
            Path(folder, name).write_bytes(b"")
        verdict = guarded(lambda: f"value {delivery_folder.read_position(folder)}"[:5])
        Path(folder, "offsets").mkdir()
        Path(folder, "offsets", "7").write_bytes(b"v1\n{}\n" + data)
        snapshot_version(folder)
    return outcome if verdict.startswith("refused") else verdict


def _make_position(random: Random) -> Case:
    seed: Any = random.choice((PROGRESS, PROGRESS | JOB, OFFSET, FOLDER))
    data = mutate.repeated(random, json.dumps(seed).encode(), mutate.document, mutate.document, mutate.content)
    names = [
        name if random.random() < 0.7 else mutate.text(random, name)
        for name in random.sample(DELIVERIES, random.randrange(4))
    ]
    usable = [
        n
        for n in names
        if n.isprintable() and "/" not in n and n not in ("", ".", "..") and len(n) < 200 and n.isascii()
    ]
    return Case("position", {"position": data}, {"names": usable})


# --- answers and events ---

EVENTS = (
    {
        "Records": [
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": "b"}, "object": {"key": "t/_delta_log/1.json"}},
            }
        ]
    },
    {"source": "aws.s3", "detail-type": "Object Created", "detail": {"bucket": {"name": "b"}, "object": {"key": "k"}}},
    {"Type": "Notification", "Message": '{"Records":[{"eventSource":"aws:s3"}]}'},
    {"Event": "s3:TestEvent"},
)
FIELDS = {"id": ["null", "long"], "_change_type": "string", "_commit_version": "long", "_change_ordinal": "long"}
TIME = {"name": "_commit_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}}
_fields: list[Any] = [{"name": name, "type": kind} for name, kind in FIELDS.items()]
SCHEMA = json.dumps({"type": "record", "name": "r", "fields": [*_fields[:3], TIME, _fields[3]]})
ANSWERS = ({"id": 7}, [1, 2], {"id": 1, "schema": SCHEMA}, ["AVRO", "JSON"], {"error_code": 409, "message": "no"})


def check_answer(case: Case) -> str:
    """An event of a queue; what a schema registry says."""
    data = case.files["answer"]
    parse_s3_event(data.decode("utf-8", "replace"))
    parse_azure_event(data.decode("utf-8", "replace"))

    class Pool:
        def request(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(status=case.args["status"], read1=io.BytesIO(data).read1, close=lambda: None)

    def registry() -> SchemaRegistry:
        made = SchemaRegistry("http://127.0.0.1:1")
        made._pool = Pool()  # type: ignore[assignment]
        return made

    asked = [
        guarded(lambda: f"value {registry().register('s', SCHEMA)}"[:5]),
        guarded(lambda: registry().check() or "value"),
    ]
    asked.append(guarded(lambda: f"value {avro(data)}"[:5]))
    return next((word for word in asked if word == "value"), asked[0])


def avro(data: bytes) -> Any:
    """The table that an Avro schema is of."""
    from cdfd.spark.records import avro as topic_avro

    return topic_avro.table_type(data.decode("utf-8", "replace"))


def _make_answer(random: Random) -> Case:
    seed: Any = random.choice((*EVENTS, *ANSWERS, json.loads(SCHEMA), json.loads(SCHEMA)))
    data = mutate.repeated(random, json.dumps(seed).encode(), mutate.document, mutate.document, mutate.content)
    return Case("answer", {"answer": data}, {"status": random.choice((200, 200, 200, 404, 409, 422, 500))})


# --- rows for encoders ---


def check_encode(case: Case) -> str:
    """Rows of any values become records that can be parsed, or are refused."""
    random = Random(case.args["seed"])
    columns = [_column(random, case.args["rows"]) for _ in range(case.args["columns"])]
    fields = [
        pa.field(f"c{n}" if random.random() < 0.8 else random.choice(('"', "é", "a.b", "x\ny", "_op")) + str(n), c.type)
        for n, c in enumerate(columns)
    ]
    schema = change_schema(pa.schema(fields))
    count = case.args["rows"]
    kinds = pa.array([random.choice(("insert", "delete", "update_preimage", "update_postimage")) for _ in range(count)])
    times = pa.array([random.choice((0, 10**12, -(10**14), 2**62)) for _ in range(count)], pa.timestamp("ms", "UTC"))
    change = [kinds.dictionary_encode(), pa.array([3] * count, pa.int64()), times, pa.array(range(count), pa.int64())]
    batch = pa.RecordBatch.from_arrays(
        [c.cast(f.type) for c, f in zip([*columns, *change], schema, strict=True)], schema=schema
    )
    kind = case.args["format"]

    def encode() -> str:
        if kind == "lines":
            for line in LineEncoder()(batch).to_pybytes().splitlines():
                json.loads(line)
            return "value"
        key = [schema.names[0]] if case.args["key"] else []
        encoder = record_encoder(
            kind,
            Origin("p", "t", "id", "topic"),
            key=key,
            tombstones=bool(key),
            registration=Catalog(7).registration,
            partitioner=lambda keys: np.zeros(len(keys), np.int32),
        )  # type: ignore[arg-type, misc]
        for records in encoder.encode(batch):
            len(records)
        return "value"

    return guarded(encode)


def _column(random: Random, count: int) -> pa.Array:
    odd: list[tuple[pa.DataType, list[Any]]] = [
        (pa.int64(), [0, 2**63 - 1, -(2**63), None]),
        (pa.int8(), [-128, 127, None]),
        (pa.float64(), [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e308, None]),
        (pa.float32(), [0.1, math.nan, None]),
        (pa.string(), ["", "\0", "\u2028", "😀", "\ufeff", '"\\', "x" * 3000, None]),
        (pa.binary(), [b"", b"\xff\0", None]),
        (pa.bool_(), [True, False, None]),
        (pa.decimal128(38, 10), [Decimal(0), Decimal("-1e27"), None]),
        (pa.decimal128(38, 38), [Decimal("0." + "9" * 38), None]),
        (pa.date32(), [0, -719_162, 2**31 - 1, -(2**31), None]),
        (pa.timestamp("us", "UTC"), [0, -1, 253_402_300_799_999_999, 2**63 - 1, -(2**63), None]),
        (pa.timestamp("us"), [0, -62_135_596_800_000_001, 2**62, None]),
        (pa.list_(pa.int32()), [[], [1, None], None]),
        (pa.map_(pa.string(), pa.float64()), [[], [("a", math.nan)], [("", None), ("a", 1.0)], None]),
        (
            pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
            [{"a": 1, "b": None}, {"a": None, "b": [None, ""]}, None],
        ),
        (pa.null(), [None]),
    ]
    kind, values = random.choice(odd)
    return pa.array([random.choice(values) for _ in range(count)], kind)


def _make_encode(random: Random) -> Case:
    kind = random.choice(("lines", "flat", "debezium", "avro", "arrow", "cloudevents"))
    args = {"seed": random.getrandbits(40), "rows": random.choice((0, 1, 2, 7)), "columns": random.randrange(1, 5)}
    return Case("encode", {}, {**args, "format": kind, "key": random.random() < 0.5})


TARGETS = (
    Target("position", _make_position, check_position, 25),
    Target("answer", _make_answer, check_answer, 50),
    Target("encode", _make_encode, check_encode, 25),
)
