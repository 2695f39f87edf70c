"""Every column of a checkpoint with values and types of every kind: rows, or an error with the table, the version and the file."""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cdfd.delta import paths
from cdfd.errors import CdfdError
from cdfd.log.log import DeltaLog
from tests.support import checkpoint_layout as layout
from tests.support.memory_storage import MemoryStorage
from tests.support.sampling import sample

VERSION = 4
VECTOR = {"storageType": "i", "pathOrInlineDv": "^Bg9^0rr91", "offset": 1, "sizeInBytes": 4, "cardinality": 1}
FILE = {"path": "a", "partitionValues": [("p", "1")], "size": 1, "deletionVector": VECTOR, "dataChange": True}
SCHEMA = '{"type":"struct","fields":[{"name":"p","type":"string","nullable":true,"metadata":{}}]}'
ACTIONS: list[dict[str, Any]] = [
    {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": [],
        }
    },
    {
        "metaData": {
            "id": "T",
            "format": {"provider": "parquet", "options": []},
            "schemaString": SCHEMA,
            "partitionColumns": ["p"],
            "configuration": [("a", "b")],
            "createdTime": 1,
        }
    },
    {"add": {**FILE, "modificationTime": 1, "stats": '{"numRecords":3}'}},
    {"add": {**FILE, "path": "b", "modificationTime": 1, "stats": None, "deletionVector": None}},
    {"remove": {**FILE, "path": "c", "deletionTimestamp": 1}},
    {"txn": {"appId": "a", "version": 1, "lastUpdated": 1}},
    {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
]


def not_utf8(count: int) -> pa.Array:
    data = b"\xff\xfe" * count
    offsets = struct.pack(f"<{count + 1}i", *range(0, 2 * count + 1, 2))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def values(count: int) -> Iterator[pa.Array]:
    """Columns of so many rows, none of them what the specification has there; not all at least."""
    yield pa.nulls(count, pa.int32())
    yield pa.array([-1] * count, pa.int8())
    yield pa.array([2**63 - 1] * count, pa.int64())
    yield pa.array([-(2**63)] * count, pa.int64())
    yield pa.array([2**64 - 1] * count, pa.uint64())
    yield pa.array([1e300] * count, pa.float64())
    yield pa.array([True] * count)
    yield pa.array([""] * count)
    yield pa.array(["9" * 5_000] * count)
    yield pa.array(["%zz\0\x1b/../.."] * count)
    yield not_utf8(count)
    yield pa.array([b"\xff"] * count, pa.binary())
    yield pa.array(["null"] * count).dictionary_encode()
    yield pa.array([None] * count, pa.list_(pa.string()))
    yield pa.array([[]] * count, pa.list_(pa.string()))
    yield pa.array([[None]] * count, pa.list_(pa.string()))
    yield pa.ListArray.from_arrays(pa.array([*range(count + 1)], pa.int32()), not_utf8(count))
    yield pa.array([{"a": 1}] * count)
    yield pa.array([[("a", None)]] * count, layout.PAIRS)
    yield pa.array([[("a", "b"), ("a", "c")]] * count, layout.PAIRS)
    yield pa.MapArray.from_arrays(pa.array([*range(count + 1)], pa.int32()), pa.array(["p"] * count), not_utf8(count))


Place = tuple[str, ...]


def places(table: pa.Table) -> Iterator[Place]:
    """Of every column, and of everything in it."""

    def below(field: pa.Field, where: Place) -> Iterator[Place]:
        yield where
        if pa.types.is_struct(field.type):
            for child in field.type:
                yield from below(child, (*where, child.name))

    for field in table.schema:
        yield from below(field, (field.name,))


def replaced(column: pa.Array, where: Place, replacement: pa.Array) -> pa.Array:
    """A column with another one in its place, or in that of one of its parts."""
    if not where:
        return replacement
    names = [field.name for field in column.type]
    children = [
        replaced(column.field(name), where[1:], replacement) if name == where[0] else column.field(name)
        for name in names
    ]
    return pa.StructArray.from_arrays(children, names, mask=column.is_null())


TABLE = layout.table(ACTIONS).combine_chunks()


async def read(data: bytes) -> None:
    storage = MemoryStorage("memory://t")
    await storage.put(f"{paths.LOG}/{paths.checkpoint_name(VERSION)}", data)
    await storage.put(f"{paths.LOG}/{paths.commit_name(VERSION)}", b'{"commitInfo":{}}')
    log = DeltaLog(storage)
    await log.header()
    for some in ({}, {"with_stats": True, "with_tombstones": True}, {"with_counts": True}):
        state = await log.snapshot(**some)
        # Columns whose type is text contain text.
        assert all(isinstance(file.path, str) for file in [*state.live(), *state.tombstones(0)])  # type: ignore[attr-defined]
        state.live().table.validate(full=True)
        state.live().by_path()
        state.find([("a", None)])


def refused(data: bytes) -> CdfdError | None:
    try:
        asyncio.run(read(data))
    except CdfdError as error:
        return error
    return None


def test_the_checkpoint_itself_is_read() -> None:
    assert refused(layout.parquet(TABLE)) is None


@pytest.mark.parametrize("where", sample(places(TABLE), 8), ids=".".join)
def test_column_of_another_type_gives_rows_or_an_error_with_its_place(where: Place) -> None:
    wrong = []
    number = TABLE.schema.get_field_index(where[0])
    for wrong_values in values(len(TABLE)):
        column = replaced(TABLE.column(number).combine_chunks(), where[1:], wrong_values)
        error = refused(layout.parquet(TABLE.set_column(number, where[0], column)))
        if error is not None and error.what.startswith("a file is in the table twice"):
            continue  # `live` says so, of a state; its caller knows the table
        if error is not None and (error.family, error.table, error.version) not in (
            ("log", "memory://t", VERSION),
            ("unsupported", "memory://t", VERSION),
        ):
            wrong.append(
                (wrong_values.type, wrong_values[0], error.family, error.version, error.path, error.what[:200])
            )
        elif (
            error is not None
            and error.path != f"{paths.LOG}/{paths.checkpoint_name(VERSION)}"
            and not error.what.startswith("the log has no ")  # which no file of it has
        ):
            wrong.append((wrong_values.type, wrong_values[0], error.path, error.what[:200]))
    assert wrong == []
