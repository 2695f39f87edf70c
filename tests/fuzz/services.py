"""What people, services and earlier runs hand over: configuration, options, answers of registries, persisted positions, requests; and rows
that encoders are given."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import tempfile
from decimal import Decimal
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from fuzz import mutate
from fuzz.cases import Case, Target, Violation, check_text, guarded
from statuses import NOW_MS, configuration

from cdfd.changes.columns import change_schema
from cdfd.config import Listen
from cdfd.config import parse as parse_config
from cdfd.daemon.backfill_job import Job
from cdfd.daemon.http import serve
from cdfd.daemon.status import Status
from cdfd.encoding.formats import record_encoder
from cdfd.encoding.json import LineEncoder
from cdfd.encoding.records import Origin
from cdfd.encoding.registry import SchemaRegistry
from cdfd.errors import CdfdError
from cdfd.sinks import delivery_folder
from cdfd.sinks.kafka import parts, progress_records
from cdfd.spark.checkpoints import snapshot_version
from cdfd.spark.offsets import Offset
from cdfd.spark.options import SourceOptions
from cdfd.spark.sink_options import SinkOptions
from cdfd.tail import s3_events, start
from cdfd.tail.clock import ManualClock

CONFIGS = Path(__file__).parents[2] / "config"
SECRET = "a-secret-nobody-may-see"


def check_config(case: Case) -> str:
    """A configuration's text: settings, or what is wrong with it, and never a secret."""

    def parse() -> str:
        try:
            repr(parse_config(case.files["text"].decode("utf-8", "replace"), {"KAFKA_PASSWORD": SECRET, "HOME": "/"}))
        except CdfdError as error:
            if SECRET in str(error):
                raise Violation("secret shown", str(error)[:500]) from None
            # One problem a line: each is bounded by itself.
            for line in str(error).split("; "):
                check_text(line[:4000])
            return "refused: ConfigError"
        return "value"

    return parse()


_TOKENS = (
    *(
        b"&a ",
        b"*a",
        b"<<: *a",
        b"!!python/object:os.system ",
        b"!!binary ",
        b"? ",
        b"- ",
        b": ",
        b"|\n",
        b"\t",
        b"---\n",
    ),
    *(b"%YAML 9.9\n", b"...\n", b"${KAFKA_PASSWORD}", b"${", b"${NOPE}", b"${NOPE:-${X}}", b"{" * 500, b"[" * 500),
    *(
        b"\xff",
        b"1e999",
        b"0x7fffffffffffffffff",
        b"9" * 5000,
        b"12:30:45",
        b"2026-13-45",
        b"~",
        b"yes",
        b"'",
        b'"',
        b"#",
    ),
)


def _make_config(random: Random) -> Case:
    text = random.choice([path.read_bytes() for path in sorted(CONFIGS.glob("*.yaml"))])
    for _ in range(mutate.times(random)):
        kind = random.randrange(4)
        lines = text.split(b"\n")
        at = random.randrange(len(lines))
        if kind == 0:
            text = mutate.content(random, text)
        elif kind == 1:
            place = random.randrange(len(text) + 1)
            text = text[:place] + random.choice(_TOKENS) + text[place:]
        elif kind == 2:
            lines[at] = (
                lines[at].partition(b":")[0]
                + b": "
                + random.choice((*_TOKENS, *(t.encode("utf-8", "replace") for t in mutate.TEXTS)))
            )
            text = b"\n".join(lines)
        else:
            lines.insert(at, random.choice(lines))
            text = b"\n".join(lines)
    return Case("config", {"text": text})


OPTIONS = (
    *(
        "path",
        "startingVersion",
        "startingTimestamp",
        "endingVersion",
        "endingTimestamp",
        "maxFilesPerTrigger",
        "maxBytesPerTrigger",
    ),
    *(
        "changes",
        "columns",
        "ignoreMissingFiles",
        "maxPartitionBytes",
        "allowedRoots",
        "readChangeFeed",
        "storage.region",
        "nope",
    ),
    *(
        "pipeline",
        "uri",
        "table",
        "topic",
        "key",
        "kafka.bootstrap.servers",
        "bootstrap_servers",
        "topics.config.x",
        "security.password",
    ),
    *("snapshotVersion", "job", "format", "topics.prefix", "topics", "storage.s3.region", "storage"),
)
WORDS = (
    "0",
    "7",
    "latest",
    "earliest",
    "snapshot",
    "64m",
    "1k",
    "true",
    "cdf",
    "id,v",
    "2026-01-01",
    "2026-01-01T00:00:00+02:00",
    "a:9092",
)


def check_options(case: Case) -> str:
    options = case.args["options"]
    outcome = guarded(lambda: str(SourceOptions.parse(options)) and "value")
    other = guarded(lambda: str(SinkOptions.parse(options, {})) and "value")
    guarded(lambda: str(start.parsed(options.get("startingversion", "0"))))
    return outcome if other.startswith("refused") else other


def _make_options(random: Random) -> Case:
    sink = {"pipeline": "p", "uri": "/x", "bootstrap_servers": "a:9092"} if random.random() < 0.4 else {"path": "/x"}
    for name in random.sample(OPTIONS, random.randrange(1, 5)):
        word = random.choice(WORDS)
        sink[name.upper() if random.random() < 0.1 else name] = (
            word if random.random() < 0.5 else mutate.text(random, word)
        )
    return Case("options", {}, {"options": sink})


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
        found = progress_records._read(record)
        parts.Job.of(found)
        job = Job.found(found)
        str(job)
        if found is not None:
            again = progress_records.progress_of(progress_records.value_of(found))
            if again != found:
                raise Violation("written otherwise", f"{again} {found}"[:500])
        return "value"

    def offset() -> str:
        found = json.loads(data)
        if isinstance(found, dict):
            again = Offset.from_json(found)
            if Offset.from_json(json.loads(json.dumps(again.to_json()))) != again:
                raise Violation("written otherwise", repr(again)[:500])
        return "value"

    outcome = guarded(progress)
    guarded(offset, allowed=(ValueError, RecursionError))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        Path(folder, "_position.json").write_bytes(data)
        for name in case.args["names"]:
            Path(folder, name).write_bytes(b"")
        found = guarded(lambda: f"value {delivery_folder.peek(folder)}"[:5])
        Path(folder, "offsets").mkdir()
        Path(folder, "offsets", "7").write_bytes(b"v1\n{}\n" + data)
        snapshot_version(folder)
    return outcome if found.startswith("refused") else found


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
    s3_events.parse(data.decode("utf-8", "replace"))

    class Pool:
        def request(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(status=case.args["status"], read=lambda most: data[:most], release_conn=lambda: None)

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
    from cdfd.spark import topic_avro

    return topic_avro.table_type(data.decode("utf-8", "replace"))


def _make_answer(random: Random) -> Case:
    seed: Any = random.choice((*EVENTS, *ANSWERS, json.loads(SCHEMA), json.loads(SCHEMA)))
    data = mutate.repeated(random, json.dumps(seed).encode(), mutate.document, mutate.document, mutate.content)
    return Case("answer", {"answer": data}, {"status": random.choice((200, 200, 200, 404, 409, 422, 500))})


# --- requests ---

REQUEST = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def check_request(case: Case) -> str:
    """Whatever comes, the server answers the next request."""

    async def ask() -> str:
        status = Status(configuration(), ManualClock(NOW_MS))
        async with serve(Listen("127.0.0.1", 0), status) as address:
            assert address is not None
            await asyncio.to_thread(_exchange, address.port, case.files["request"], 0.02)
            answer = await asyncio.to_thread(_exchange, address.port, REQUEST, 10.0)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise Violation("no answer any more", repr(answer[:300]))
        if b"correct-horse-battery" in answer or b"Traceback" in answer:
            raise Violation("secret shown", repr(answer[:300]))
        return "value"

    return asyncio.run(asyncio.wait_for(ask(), 20))


def _exchange(port: int, data: bytes, seconds: float) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        found = b""
        connection.settimeout(seconds)
        try:
            connection.sendall(data)
            while some := connection.recv(65536):
                found += some
        except OSError:
            pass
        return found


_HEADERS = (
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: \r\n"),
    *(b"Expect: 100-continue\r\n", b"Range: bytes=0-\r\n", b"X: " + b"a" * 9000 + b"\r\n", b"Upgrade: websocket\r\n"),
)


def _make_request(random: Random) -> Case:
    path = random.choice(
        (
            b"/",
            b"/metrics",
            b"/healthz",
            b"/readyz",
            b"/status",
            b"/../etc/passwd",
            b"*",
            b"http://x/status",
            b"/%00",
            b"/status?a=" + b"b" * 9000,
        )
    )
    data = random.choice((b"GET ", b"HEAD ", b"POST ", b"OPTIONS ", b"TRACE ", b"X ")) + path + REQUEST[11:]
    for _ in range(random.randrange(3)):
        data = data.replace(b"\r\n", b"\r\n" + random.choice(_HEADERS), 1)
    return Case("request", {"request": mutate.content(random, data) if random.random() < 0.7 else data})


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
            register=lambda subject, text: 7,
            partitioner=lambda keys: np.zeros(len(keys), np.int32),
        )  # type: ignore[arg-type, misc]
        for records in (*encoder.encode(batch), *encoder.flush()):
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
    Target("config", _make_config, check_config, 15),
    Target("options", _make_options, check_options, 15),
    Target("position", _make_position, check_position, 30),
    Target("answer", _make_answer, check_answer, 40),
    Target("request", _make_request, check_request, 2),
    Target("encode", _make_encode, check_encode, 25),
)
