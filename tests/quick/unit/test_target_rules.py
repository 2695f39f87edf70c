"""Rules of the specification for writers, in the log and the files of a target that cdfd writes."""

import json
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.delta.types.datatypes import Primitive, StructField, StructType
from cdfd.delta.types.schema_merge import SOURCE
from cdfd.errors import SchemaChangedError, SinkError
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.delta.columns import columns_of_extended, columns_of_new
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.ledger.ledger import app_id
from cdfd.storage.local import LocalStorage


async def open_sink(folder: Path, layout: Layout | None = None) -> DeltaSink:
    storage = LocalStorage(folder, sync=False)
    target = Target(storage, app_id("shop", "orders"), layout or Layout(), SystemClock(), owner=7)
    return await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1 << 20))


async def deliver(sink: DeltaSink, version: int, **columns: Any) -> None:
    delivery = await sink.begin(Position("T", version))
    await delivery.write(pa.record_batch(columns))
    await delivery.commit(Position("T", version + 1))


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def actions(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in entries(folder) for line in path.read_text().splitlines()]
    return [line[name] for line in lines if name in line]


async def test_columns_of_rows_that_replace_all_others_replace_those_of_the_target(tmp_path: Path) -> None:
    sink = await open_sink(tmp_path)
    assert not await sink.target.exists()
    with pytest.raises(SinkError, match="the target was deleted"):
        await sink.target.state()
    await deliver(sink, 0, x=[1], y=["a"])
    assert await sink.target.exists()
    rows = StructType((StructField("x", Primitive("string")),))
    before = sink.columns
    assert [child.name for child in before.struct] == ["x", "y"]
    after = sink.target.merged(before, rows, replaces=True)
    assert [(child.name, str(child.type)) for child in after.struct] == [("x", "string")]
    with pytest.raises(SchemaChangedError, match="x"):
        sink.target.merged(before, rows)


def set_rule(folder: Path, properties: dict[str, str], of_column: dict[str, str]) -> None:
    """Give a target a property, and its first column metadata, in a version of another writer."""
    metadata = actions(folder, "metaData")[-1]
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] |= of_column
    changed = metadata | {"schemaString": json.dumps(schema), "configuration": metadata["configuration"] | properties}
    (folder / "_delta_log" / f"{len(entries(folder)):020}.json").write_text(json.dumps({"metaData": changed}))


X_ABOVE_3 = '{"expression": { "expression": "x > 3"} }'
BIRTH_DATE = {"delta.constraints.birthDateCheck": "birthDate > '1900-01-01'"}


@pytest.mark.parametrize(
    ("properties", "of_column", "right", "wrong"),
    [
        ({}, {"delta.invariants": X_ABOVE_3}, {"x": [4, 5]}, [{"x": [4, 3]}, {"x": [4, None]}]),
        (
            BIRTH_DATE,
            {},
            {"birthDate": [date(1900, 1, 2)]},
            [{"birthDate": [date(1900, 1, 1)]}, {"birthDate": pa.array([None], pa.date32())}],
        ),
    ],
    ids=["invariant", "CHECK"],
)
async def test_a_row_that_does_not_satisfy_a_rule_aborts_the_version(
    tmp_path: Path,
    properties: dict[str, str],
    of_column: dict[str, str],
    right: dict[str, Any],
    wrong: list[dict[str, Any]],
) -> None:
    """The examples of the specification. A condition that is null is not satisfied either."""
    await deliver(await open_sink(tmp_path), 0, **right)
    set_rule(tmp_path, properties, of_column)
    await deliver(await open_sink(tmp_path), 1, **right)
    before = entries(tmp_path)
    for rows in wrong:
        with pytest.raises(SinkError, match=r"(birthDateCheck|invariant).* of the target is not true of a row"):
            await deliver(await open_sink(tmp_path), 2, **rows)
    assert entries(tmp_path) == before
    assert actions(tmp_path, "metaData")[-1]["configuration"].items() >= properties.items()


@pytest.mark.parametrize("condition", ["other > 3", "x + 1", "x"])
async def test_a_condition_over_no_column_or_without_a_truth_value_is_refused(tmp_path: Path, condition: str) -> None:
    await deliver(await open_sink(tmp_path), 0, x=[4])
    set_rule(tmp_path, {"delta.constraints.odd": condition}, {})
    with pytest.raises(SinkError, match="the CHECK constraint 'odd' cannot be checked"):
        await open_sink(tmp_path)


@pytest.mark.parametrize("key", ["delta.generationExpression", "delta.identity.start"])
async def test_a_target_whose_values_a_writer_generates_is_refused(tmp_path: Path, key: str) -> None:
    await deliver(await open_sink(tmp_path), 0, x=[4])
    set_rule(tmp_path, {}, {key: "1"})
    before = entries(tmp_path)
    with pytest.raises(SinkError, match=r"(generated|identity)Columns in column 'x'"):
        await open_sink(tmp_path)
    assert entries(tmp_path) == before


async def test_a_target_whose_positions_expire_is_refused(tmp_path: Path) -> None:
    """A checkpoint of delta-spark leaves out transaction identifiers of that age, and a delivery writes only those that changed."""
    sink = await open_sink(tmp_path)
    await deliver(sink, 0, x=[4])
    set_rule(tmp_path, {"delta.setTransactionRetentionDuration": "interval 1 day"}, {})
    before = entries(tmp_path)
    with pytest.raises(SinkError, match="its other writers forget the position") as caught:
        await deliver(sink, 1, x=[5])
    assert "Unset that property" in str(caught.value.hint)
    assert entries(tmp_path) == before


async def test_a_row_whose_time_python_cannot_show_is_named_all_the_same(tmp_path: Path) -> None:
    year_10000 = pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))
    await deliver(await open_sink(tmp_path), 0, x=[4], at=year_10000)
    set_rule(tmp_path, {"delta.constraints.positive": "x > 0"}, {})
    with pytest.raises(SinkError, match=r"'positive' of the target is not true of a row: \{'x': -1, 'at': None\}"):
        await deliver(await open_sink(tmp_path), 1, x=[-1], at=year_10000)


@pytest.mark.parametrize("follow", [False, True])
async def test_the_log_and_the_files_agree_on_columns(tmp_path: Path, follow: bool) -> None:
    """Each file has values for all partition columns, and no column that the table does not have, by physical names."""
    sink = await open_sink(tmp_path, Layout(("day", "kind"), "follow" if follow else "keep"))
    for version in range(2):
        await deliver(
            sink,
            version,
            x=[1, 2, 3],
            day=pa.array([date(2026, 1, 1), None, None]),
            kind=["a", None, "a"],
            s=[{"y": 1}] * 3,
        )
    metadata = actions(tmp_path, "metaData")[-1]
    fields = json.loads(metadata["schemaString"])["fields"]
    physical = {each["name"]: each["metadata"].get("delta.columnMapping.physicalName", each["name"]) for each in fields}
    assert all((name != stored) is follow for name, stored in physical.items())
    assert len(set(physical.values())) == len(physical)
    data = {stored for name, stored in physical.items() if name not in ("day", "kind")}
    adds = actions(tmp_path, "add")
    assert len(adds) == 6
    for add in adds:
        assert add["partitionValues"].keys() == {physical["day"], physical["kind"]}
        assert set(pq.read_schema(tmp_path / add["path"]).names) <= data
        stats = json.loads(add["stats"])
        assert (stats["numRecords"], stats["nullCount"][physical["x"]]) == (1, 0)
        assert stats["minValues"][physical["x"]] == stats["maxValues"][physical["x"]]
        assert set(stats["minValues"]) <= data
    assert {json.dumps(add["partitionValues"]) for add in adds} == {
        json.dumps({physical["day"]: day, physical["kind"]: kind})
        for day, kind in (("2026-01-01", "a"), (None, None), (None, "a"))
    }


async def test_data_files_have_names_of_their_own_and_stay(tmp_path: Path) -> None:
    """Also with the same rows, and in an append-only table."""
    sink = await open_sink(tmp_path)
    content: dict[Path, bytes] = {}
    for version in range(3):
        await deliver(sink, version, x=[1])
        files = list(tmp_path.glob("*.parquet"))
        assert len(files) == version + 1
        assert all(path.read_bytes() == data for path, data in content.items())
        content = {path: path.read_bytes() for path in files}
        if version == 1:
            set_rule(tmp_path, {"delta.appendOnly": "true"}, {})
            sink = await open_sink(tmp_path)
    assert {add["path"] for add in actions(tmp_path, "add")} == {path.name for path in content}
    assert actions(tmp_path, "remove") == []


def test_no_id_and_no_physical_name_is_given_twice() -> None:
    """Also not that of a column that was dropped: its values are still in files."""

    def source(**columns: str) -> StructType:
        """Columns by name, with the physical names that they have in the source."""
        return StructType(
            tuple(StructField(name, Primitive("long"), True, {SOURCE: stored}) for name, stored in columns.items())
        )

    table = columns_of_new(source(a="1", b="2"), (), follow=True)
    contents: dict[object, object] = {}
    for columns in ({"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "3"}, {"a": "1", "b": "3", "c": "4"}):
        highest = table.highest_id
        table = columns_of_extended(table, source(**columns), "follow")
        actual = {
            child.metadata["delta.columnMapping.physicalName"]: child.metadata["delta.columnMapping.id"]
            for child in table.struct
        }
        assert [child.name for child in table.struct] == list(columns)
        assert table.highest_id >= highest
        contents |= actual
    assert sorted(map(str, contents.values())) == ["1", "2", "3", "4"]
    assert table.highest_id == 4
