"""A column that was widened and dropped, and that RESTORE brings back as it was before."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.api import changes, follow

PLAIN = pa.array([7], pa.int32())
WIDE = pa.array([1 << 40], pa.int64())
NARROW, INTEGER = pa.array([7], pa.int8()), pa.array([300], pa.int32())
FIELDS = [pa.field("p3", pa.int32()), pa.field("p4", pa.string())]
STRUCT = pa.StructArray.from_arrays([PLAIN, pa.array(["x"])], fields=FIELDS)
WIDE_STRUCT = pa.StructArray.from_arrays([WIDE, pa.array(["x"])], fields=[FIELDS[0].with_type(pa.int64()), FIELDS[1]])


def field(name: str, kind: Any, number: int) -> dict[str, Any]:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"p{number}"}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def metadata(*columns: dict[str, Any]) -> dict[str, Any]:
    settings = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "4"}
    schema = json.dumps({"type": "struct", "fields": columns})
    described = {"id": "T", "format": {"provider": "parquet"}, "schemaString": schema, "partitionColumns": []}
    return {"metaData": {**described, "configuration": settings}}


def struct(*children: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": children}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)


def maps(keys: pa.Array, values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), keys, values)


KEY, TEXT = field("k", "long", 1), field("t", "string", 4)


def write_restored(folder: Path, values: tuple[Any, Any], schemas: list[dict[str, Any]]) -> None:
    """Version 2 widens a column, version 4 drops it, and version 6 restores the type and replaces the rows 2 and 3."""

    def file(path: str, key: int, value: Any = None) -> dict[str, Any]:
        columns = {"p1": [key]} if value is None else {"p1": [key], "p2": value}
        pq.write_table(pa.table(columns), folder / path)
        size = (folder / path).stat().st_size
        return {"add": {"path": path, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}}

    (folder / "_delta_log").mkdir()
    narrow, wide, dropped = (metadata(KEY, *columns) for columns in schemas)
    restored = [{"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}} for path in "bc"]
    restored.append(file("d", 2, values[0]))
    versions = [
        [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, narrow],
        [file("a", 1, values[0])],
        [wide],
        [file("b", 2, values[1])],
        [dropped],
        [file("c", 3)],
        [narrow, *restored],
    ]
    for version, actions in enumerate(versions):
        entry = folder / "_delta_log" / f"{version:020}.json"
        entry.write_text("\n".join(map(json.dumps, actions)))


COLUMNS = {
    "long": ((PLAIN, WIDE), [[field("v", "integer", 2)], [field("v", "long", 2)], []], None),
    "decimal": (
        (pa.array([Decimal(7)], pa.decimal128(9, 0)), pa.array([Decimal(10**9)], pa.decimal128(10, 0))),
        [[field("v", "decimal(9,0)", 2)], [field("v", "decimal(10,0)", 2)], []],
        None,
    ),
    "integer": ((NARROW, INTEGER), [[field("v", "byte", 2)], [field("v", "integer", 2)], []], None),
    "struct": (
        (STRUCT, WIDE_STRUCT),
        [
            [field("v", struct(field("n", "integer", 3), TEXT), 2)],
            [field("v", struct(field("n", "long", 3), TEXT), 2)],
            [field("v", struct(TEXT), 2)],
        ],
        {"n": None, "t": "x"},
    ),
    "whole struct": (
        (STRUCT, WIDE_STRUCT),
        [
            [field("v", struct(field("n", "integer", 3), TEXT), 2)],
            [field("v", struct(field("n", "long", 3), TEXT), 2)],
            [],
        ],
        {"n": None, "t": "x"},
    ),
    "whole struct of an integer": (
        tuple(pa.StructArray.from_arrays([value], names=["p3"]) for value in (NARROW, INTEGER)),
        [[field("v", struct(field("n", "byte", 3)), 2)], [field("v", struct(field("n", "integer", 3)), 2)], []],
        {"n": None},
    ),
    "array": (
        (lists(NARROW), lists(INTEGER)),
        [[field("v", array("byte"), 2)], [field("v", array("integer"), 2)], []],
        None,
    ),
    "array of structs": (
        (lists(STRUCT), lists(WIDE_STRUCT)),
        [
            [field("v", array(struct(field("n", "integer", 3), TEXT)), 2)],
            [field("v", array(struct(field("n", "long", 3), TEXT)), 2)],
            [],
        ],
        [{"n": None, "t": "x"}],
    ),
    "key of a map": (
        (maps(NARROW, PLAIN), maps(INTEGER, PLAIN)),
        [[field("v", mapping("byte", "integer"), 2)], [field("v", mapping("integer", "integer"), 2)], []],
        None,
    ),
    "value of a map": (
        (maps(PLAIN, NARROW), maps(PLAIN, INTEGER)),
        [[field("v", mapping("integer", "byte"), 2)], [field("v", mapping("integer", "integer"), 2)], []],
        None,
    ),
}


RESTORED: dict[str, Any] = {
    "struct": {"n": 7, "t": "x"},
    "whole struct": {"n": 7, "t": "x"},
    "whole struct of an integer": {"n": 7},
    "array": [7],
    "array of structs": [{"n": 7, "t": "x"}],
    "key of a map": [(7, 7)],
    "value of a map": [(7, 7)],
}


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("column", COLUMNS)
def test_value_that_the_restored_type_cannot_hold_is_null(tmp_path: Path, column: str, key: str | None) -> None:
    values, schemas, deleted = COLUMNS[column]
    write_restored(tmp_path, values, schemas)
    rows = changes(tmp_path, 5, key=key).read_all().to_pylist()
    actual = [(row["_commit_version"], row["_change_type"], row["k"], row["v"]) for row in rows]
    restored = (6, "insert", 2, RESTORED.get(column, 7))
    assert actual == [(5, "insert", 3, None), (6, "delete", 2, deleted), (6, "delete", 3, None), restored]
    if deleted is None:
        nulls = changes(tmp_path, 5, key=key, where="v IS NULL").read_all()
        assert nulls["k"].to_pylist() == [3, 2, 3]


def test_reader_without_a_range_passes_the_restore(tmp_path: Path) -> None:
    values, schemas, _ = COLUMNS["long"]
    write_restored(tmp_path, values, schemas)

    async def read() -> list[Any]:
        async with aclosing(follow(tmp_path, 6)) as batches:
            return (await anext(batches)).to_pylist()

    (row, *_) = asyncio.run(asyncio.wait_for(read(), 30))
    assert (row["_change_type"], row["k"], row["v"]) == ("delete", 2, None)
