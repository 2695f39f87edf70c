"""Every field of every action with every value that JSON has: rows, or an error with the table, the version and the file."""

import asyncio
import copy
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import orjson
import pytest

from cdfd.delta import paths
from cdfd.errors import CdfdError
from cdfd.log.log import DeltaLog
from cdfd.log.start import start_version
from cdfd.log.stream import PlanStream
from cdfd.log.tailer import Tailer
from cdfd.log.watch import Backoff, PollWatch
from cdfd.model.version import Version
from cdfd.runtime.clock import SystemClock
from tests.support.memory_storage import MemoryStorage
from tests.support.sampling import sample

Fields = dict[str, Any]

DEEP = "[" * 900 + "]" * 900
VALUES = [
    "null",
    "true",
    "0",
    "-1",
    "1.5",
    "1e400",
    "-0.0",
    "NaN",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "9" * 5_000,
    "00",
    '""',
    '"' + "9" * 5_000 + '"',
    '"-1"',
    r'"\u0000"',
    r'"\ud800"',
    '"\xff"',
    '"\\u001b[31m"',
    '"../../x"',
    '"%"',
    "[]",
    "[null]",
    "[[]]",
    DEEP,
    "{}",
    '{"":null}',
    '{"a":' + DEEP + "}",
    '{"a":{"a":{}}}',
    '{"a":"b","a":"c"}',
    '{"a":"' + "9" * 5_000 + '"}',
    '"',
]
"""JSON texts, and some that are none."""

COLUMNS = [
    {"name": "p", "type": "string", "nullable": True, "metadata": {}},
    {
        "name": "d",
        "type": "decimal(10,2)",
        "nullable": False,
        "metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "d"},
    },
    {"name": "s", "type": {"type": "struct", "fields": []}, "nullable": True, "metadata": {}},
    {"name": "a", "type": {"type": "array", "elementType": "long", "containsNull": True}},
    {"name": "m", "type": {"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True}},
]
VECTOR = {"storageType": "i", "pathOrInlineDv": "^Bg9^0rr91", "offset": 1, "sizeInBytes": 4, "cardinality": 1}
FILE = {"path": "a", "partitionValues": {"p": "1"}, "size": 1, "deletionVector": VECTOR, "tags": {}}
ENTRIES: list[list[Fields]] = [
    [
        {"commitInfo": {"timestamp": 1, "inCommitTimestamp": 5, "operation": "CREATE TABLE"}},
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["columnMapping", "deletionVectors"],
                "writerFeatures": ["columnMapping", "deletionVectors", "inCommitTimestamp"],
            }
        },
        {
            "metaData": {
                "id": "T",
                "name": "t",
                "description": "d",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": {"type": "struct", "fields": COLUMNS},
                "partitionColumns": ["p"],
                "configuration": {
                    "delta.columnMapping.mode": "name",
                    "delta.columnMapping.maxColumnId": "1",
                    "delta.enableInCommitTimestamps": "true",
                    "delta.inCommitTimestampEnablementVersion": "0",
                    "delta.inCommitTimestampEnablementTimestamp": "0",
                    "delta.deletedFileRetentionDuration": "interval 1 week",
                },
                "createdTime": 1,
            }
        },
    ],
    [
        {
            "commitInfo": {
                "timestamp": 1,
                "inCommitTimestamp": 6,
                "operation": "MERGE",
                "operationMetrics": {
                    "numTargetRowsInserted": "1",
                    "numTargetRowsUpdated": "1",
                    "numTargetRowsDeleted": "1",
                },
                "engineInfo": "x",
            }
        },
        {"add": {**FILE, "modificationTime": 1, "dataChange": True, "stats": "{}"}},
        {"remove": {**FILE, "path": "b", "deletionTimestamp": 1, "dataChange": True, "extendedFileMetadata": True}},
        {"txn": {"appId": "a", "version": 1, "lastUpdated": 1}},
        {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
        {"sidecar": {"path": "x", "sizeInBytes": 1, "modificationTime": 1}},
    ],
    [
        {"commitInfo": {"inCommitTimestamp": 7}},
        {"cdc": {"path": "c", "partitionValues": {"p": None}, "size": 1, "dataChange": False}},
    ],
]

Place = tuple[int | str, ...]


def places(value: object, where: Place = ()) -> Iterator[Place]:
    """Of everything in the entries: of each action, each field, each member."""
    if len(where) > 1:
        yield where
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*where, key))


def mutated(where: Place, value: str) -> list[bytes]:
    """The entries with another text in one place."""
    entries = copy.deepcopy(ENTRIES)
    parent: Any = entries
    for key in where[:-1]:
        parent = parent[key]
    mark = "\x01here\x01"
    parent[where[-1]] = mark
    text = value.encode("latin-1")
    written = []
    for actions in entries:
        lines = []
        for action in actions:
            if "metaData" in action and isinstance(action["metaData"], dict):
                schema = action["metaData"].get("schemaString")
                if isinstance(schema, dict):
                    # A text in a text.
                    inner = orjson.dumps(schema).replace(orjson.dumps(mark), text)
                    action["metaData"]["schemaString"] = inner.decode("latin-1")
            lines.append(orjson.dumps(action).replace(orjson.dumps(mark), text))
        written.append(b"\n".join(lines))
    return written


async def read(entries: list[bytes]) -> list[Version]:
    """All that a log is read for: planned changes, states, where to start by time."""
    storage = MemoryStorage("memory://t", now_ms=lambda: 1_700_000_000_000)
    for version, entry in enumerate(entries):
        await storage.put(f"{paths.LOG}/{paths.commit_name(version)}", entry)
    log = DeltaLog(storage)
    stream, clock = PlanStream(log), SystemClock()
    tailer = Tailer(log, PollWatch(clock), clock, Backoff(0.01, 0.01))
    listed = []
    async with aclosing(stream.versions(tailer, 0, len(entries) - 1)) as versions:
        async for version in versions:
            listed.append(version)
    state = await log.snapshot(with_stats=True, with_counts=True, with_tombstones=True)
    state.tombstones(0)
    assert len(state.live()) == len(state.compact().live())
    assert state.live().total_size() == pytest.approx(sum(add.size for add in state.live()))
    await log.header(1)
    await start_version(log, "2026-01-01T00:00:00Z")
    return listed


def test_the_entries_themselves_are_read() -> None:
    actual = asyncio.run(read(mutated((0, 0, "commitInfo", "x"), "null")))
    assert [len(version.plan.scans) for version in actual] == [0, 2, 1]


@pytest.mark.parametrize(
    "where",
    sample([place for place in places(ENTRIES) if len(place) > 2], 16),
    ids=lambda w: ".".join(map(str, w)),
)
def test_value_of_another_type_gives_rows_or_an_error_with_its_place(where: Place) -> None:
    wrong = []
    for value in VALUES:
        error = refused(mutated(where, value))
        if error is not None and not is_placed(error):
            wrong.append((value[:40], error.family, error.version, error.path, error.what[:200]))
    assert wrong == []


def refused(entries: list[bytes]) -> CdfdError | None:
    try:
        asyncio.run(read(entries))
    except CdfdError as error:
        return error
    return None


def is_placed(error: CdfdError) -> bool:
    """Whether the error names the table, the version and the file, as docs/errors.md promises."""
    # A property that is in force may be from any earlier file.
    in_force = error.what.startswith("delta.inCommitTimestampEnablementVersion")
    where = (error.table == "memory://t", error.version in range(len(ENTRIES)), error.path is not None or in_force)
    return error.family in ("log", "unsupported", "path") and all(where)
