"""Versions with different schemas read as one: through real files, because that is where names and types meet."""

import asyncio
import datetime
import io
import json
from decimal import Decimal as Number
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd import changes
from cdfd.cli.commands.diff import State, difference
from cdfd.delta.types.datatypes import DataType
from cdfd.delta.types.schema import (
    ArrayType,
    ColumnMappingMode,
    Decimal,
    MapType,
    Primitive,
    StructField,
    StructType,
    TableSchema,
)
from cdfd.errors import GapError, SchemaChangedError
from cdfd.log.table import Table
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.plan.reconciliation import SchemaReconciler, with_replaced
from cdfd.scan.execute import Execution
from cdfd.scan.table_files import TableFiles
from cdfd.spark.engine.target import resolve_target
from cdfd.spark.source.options import SourceOptions
from tests.support.checkpoint_layout import single
from tests.support.memory_storage import MemoryStorage

LONG, INTEGER, STRING = Primitive("long"), Primitive("integer"), Primitive("string")


def table(*fields: StructField, mapping: str = "none", by: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(StructType(fields), by, ColumnMappingMode(mapping))


def col(name: str, kind: DataType = LONG, physical: str | None = None, number: int | None = None) -> StructField:
    metadata = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number}
    return StructField(name, kind, metadata={key: value for key, value in metadata.items() if value is not None})


def reconciled(
    earlier: TableSchema, target: TableSchema, file: pa.Table, values: dict[str, str | None] | None = None
) -> list[dict[str, Any]]:
    """The rows of a file of the earlier version in the target's schema."""
    storage = MemoryStorage()
    buffer = io.BytesIO()
    pq.write_table(file, buffer)
    asyncio.run(storage.put("f", buffer.getvalue()))
    reconciler = SchemaReconciler(target)
    execution = Execution(TableFiles(storage, lambda root: storage), select=reconciler.select, workers=1)
    plan = ChangePlan(7, 1_000, earlier, (FileScan("f", "insert", values or {}, 0),), "files")
    rows = [reconciler.reconcile(batch) for batch in execution.batches([plan])]
    assert all(batch.schema.equals(reconciler.schema) for batch in rows)
    assert reconciler.schema.names[-4:] == ["_change_type", "_commit_version", "_commit_timestamp", "_change_ordinal"]
    return pa.Table.from_batches(rows, reconciler.schema).drop_columns(reconciler.schema.names[-4:]).to_pylist()


@pytest.mark.parametrize(
    ("kind", "earlier", "file"),
    [
        (STRING, Primitive("void"), pa.nulls(1)),
        (ArrayType(STRING), ArrayType(Primitive("void")), pa.array([[None]], pa.list_(pa.null()))),
    ],
)
@pytest.mark.parametrize("mapping", ["none", "name"])
def test_void_is_null_in_any_type(kind: DataType, earlier: DataType, file: Any, mapping: str) -> None:
    """A writer had only nulls so far."""
    before, after = (table(col("a", each, "a", 1), mapping=mapping) for each in (earlier, kind))
    assert reconciled(before, after, pa.table({"a": file})) == [{"a": file.to_pylist()[0]}]


class TestWithoutMapping:
    def test_the_same_schema_costs_nothing(self) -> None:
        schema = table(col("a"))
        reconciler = SchemaReconciler(schema)
        assert reconciler.select(table(col("a"))) == schema
        assert reconciled(schema, schema, pa.table({"a": [1]})) == [{"a": 1}]

    def test_a_column_that_was_not_there_yet_is_null(self) -> None:
        assert reconciled(table(col("a")), table(col("b", STRING), col("a")), pa.table({"a": [1]})) == [
            {"b": None, "a": 1}
        ]

    def test_not_even_where_the_file_has_it(self) -> None:
        """A column that the schema of that version does not have is none of the table's."""
        file = pa.table({"a": [1], "b": ["x"]})
        assert reconciled(table(col("a")), table(col("a"), col("b", STRING)), file) == [{"a": 1, "b": None}]

    def test_a_column_that_is_there_no_more_is_left_out(self) -> None:
        file = pa.table({"a": [1], "b": [2]})
        assert reconciled(table(col("a"), col("b")), table(col("b")), file) == [{"b": 2}]

    def test_file_without_a_column_of_the_schema_has_nulls(self) -> None:
        file = pa.table({"a": [1, 2]})
        assert reconciled(table(col("a")), table(col("b", STRING)), file) == [{"b": None}] * 2

    def test_the_order_is_that_of_the_target(self) -> None:
        file = pa.table({"a": [1], "b": [2]})
        rows = reconciled(table(col("a"), col("b")), table(col("b"), col("a")), file)
        assert [list(row.items()) for row in rows] == [[("b", 2), ("a", 1)]]

    def test_case_does_not_count(self) -> None:
        assert reconciled(table(col("Id")), table(col("id")), pa.table({"Id": [1]})) == [{"id": 1}]

    def test_what_becomes_a_partition_column(self) -> None:
        file = pa.table({"a": [1], "p": [2]})
        assert reconciled(table(col("a"), col("p")), table(col("a"), col("p"), by=("p",)), file) == [{"a": 1, "p": 2}]

    def test_what_was_a_partition_column(self) -> None:
        earlier, target = table(col("a"), col("p", INTEGER), by=("p",)), table(col("p", LONG), col("a"))
        assert reconciled(earlier, target, pa.table({"a": [1]}), {"p": "5"}) == [{"p": 5, "a": 1}]


class TestMapping:
    OLD = table(col("a", LONG, "p1", 1), col("b", STRING, "p2", 2), mapping="name")
    FILE = pa.table({"p1": [1], "p2": ["x"]})

    def test_a_renamed_column_is_followed(self) -> None:
        target = table(col("c", LONG, "p1", 1), col("b", STRING, "p2", 2), mapping="name")
        assert reconciled(self.OLD, target, self.FILE) == [{"c": 1, "b": "x"}]

    def test_names_that_were_exchanged(self) -> None:
        target = table(col("b", LONG, "p1", 1), col("a", STRING, "p2", 2), mapping="name")
        assert reconciled(self.OLD, target, self.FILE) == [{"b": 1, "a": "x"}]

    def test_a_new_column_does_not_take_the_values_of_a_dropped_one_of_its_name(self) -> None:
        target = table(col("a", STRING, "p3", 3), col("b", STRING, "p2", 2), mapping="name")
        assert reconciled(self.OLD, target, self.FILE) == [{"a": None, "b": "x"}]

    def test_renamed_column_is_found_by_its_id(self) -> None:
        old = table(col("a", LONG, "p1", 1), mapping="id")
        target = table(col("c", LONG, "p1", 1), col("d", STRING, "p4", 4), mapping="id")
        file = pa.table([[1]], schema=pa.schema([pa.field("whatever", pa.int64(), metadata={"PARQUET:field_id": "1"})]))
        assert reconciled(old, target, file) == [{"c": 1, "d": None}]

    def test_mapping_switched_on_and_a_column_renamed_since(self) -> None:
        """Physical names are the names that columns had then."""
        old = table(col("a"), col("b", STRING))
        target = table(col("c", LONG, "a", 1), col("a", STRING, "p3", 3), col("b", STRING, "b", 2), mapping="name")
        assert reconciled(old, target, pa.table({"a": [1], "b": ["x"]})) == [{"c": 1, "a": None, "b": "x"}]

    def test_mapping_switched_off_since(self) -> None:
        """Files are rewritten then, those of before are not."""
        target = table(col("a"), col("b", STRING))
        assert reconciled(self.OLD, target, self.FILE) == [{"a": 1, "b": "x"}]

    def test_mapping_switched_off_and_on_again_since(self) -> None:
        """The physical name of a renamed column became that of another one, or all columns have other physical names."""
        target = table(col("b", STRING, "b", 1), col("a", STRING, "a", 2), mapping="name")
        for columns in (target, target.select(["a"]), target.select(["b"])):
            for physical in (("a", "p2"), ("p1", "p2")):
                old = table(
                    *(
                        col(name, STRING, key, 1 + at)
                        for at, (name, key) in enumerate(zip("ba", physical, strict=True))
                    ),
                    mapping="name",
                )
                file = pa.table({physical[0]: ["of b"], physical[1]: ["of a"]})
                assert reconciled(old, columns, file) == [{name: f"of {name}" for name in columns.names}]
        dropped = table(col("b", STRING, "a", 5), mapping="name")
        assert reconciled(dropped, target, pa.table({"a": ["of b"]})) == [{"b": "of b", "a": None}]

    def test_a_renamed_partition_column(self) -> None:
        old = table(col("a", LONG, "p1", 1), col("p", STRING, "p2", 2), mapping="name", by=("p",))
        target = table(col("a", LONG, "p1", 1), col("q", STRING, "p2", 2), mapping="name", by=("q",))
        assert reconciled(old, target, pa.table({"p1": [1]}), {"p2": "x"}) == [{"a": 1, "q": "x"}]


class TestInside:
    """The same rules in structs, lists and maps, where Arrow's own cast would take names for what they seem."""

    def nest(self, kind: str, struct: StructType) -> DataType:
        return {"struct": struct, "list": ArrayType(struct), "map": MapType(STRING, struct)}[kind]

    def file(self, kind: str, name: str, inner: pa.DataType, value: dict[str, Any]) -> pa.Table:
        arrow = {"struct": inner, "list": pa.list_(inner), "map": pa.map_(pa.string(), inner)}[kind]
        rows: dict[str, list[Any]] = {
            "struct": [value, None],
            "list": [[value, None], None],
            "map": [[("k", value)], None],
        }
        return pa.table({name: pa.array(rows[kind], arrow)})

    def values(self, kind: str, rows: list[dict[str, Any]]) -> Any:
        (first, second) = (row["s"] for row in rows)
        assert second is None
        return {"struct": lambda: first, "list": lambda: first[0], "map": lambda: first[0][1]}[kind]()

    @pytest.mark.parametrize("kind", ["struct", "list", "map"])
    def test_field_added_inside_a_column_is_null(self, kind: str) -> None:
        old = table(col("s", self.nest(kind, StructType((col("x"),)))))
        target = table(col("s", self.nest(kind, StructType((col("y", STRING), col("x"))))))
        file = self.file(kind, "s", pa.struct([("x", pa.int64())]), {"x": 1})
        assert self.values(kind, reconciled(old, target, file)) == {"y": None, "x": 1}

    @pytest.mark.parametrize("kind", ["struct", "list", "map"])
    def test_a_field_renamed_dropped_and_added_anew(self, kind: str) -> None:
        inner = StructType((col("x", LONG, "q1", 2), col("y", STRING, "q2", 3)))
        later = StructType((col("y", LONG, "q1", 2), col("x", STRING, "q3", 4)))
        old = table(col("s", self.nest(kind, inner), "p1", 1), mapping="name")
        target = table(col("s", self.nest(kind, later), "p1", 1), mapping="name")
        file = self.file(kind, "p1", pa.struct([("q1", pa.int64()), ("q2", pa.string())]), {"q1": 1, "q2": "z"})
        assert self.values(kind, reconciled(old, target, file)) == {"y": 1, "x": None}

    @pytest.mark.parametrize("kind", ["struct", "list", "map"])
    def test_field_widened_inside_a_column_is_converted(self, kind: str) -> None:
        old = table(col("s", self.nest(kind, StructType((col("x", INTEGER),)))))
        target = table(col("s", self.nest(kind, StructType((col("x"),)))))
        file = self.file(kind, "s", pa.struct([("x", pa.int32())]), {"x": 1})
        assert self.values(kind, reconciled(old, target, file)) == {"x": 1}

    def test_a_field_that_changed_is_named(self) -> None:
        old = table(col("s", ArrayType(StructType((col("x", STRING),)))))
        target = table(col("s", ArrayType(StructType((col("x"),)))))
        with pytest.raises(
            SchemaChangedError,
            match=r"column s\.element\.x has type string at this version, and cannot be read as long",
        ):
            SchemaReconciler(target).select(old)


class TestTypes:
    @pytest.mark.parametrize(
        ("old", "new", "arrow", "value", "wide"),
        [
            ("byte", "short", pa.int8(), 1, 1),
            ("short", "integer", pa.int16(), 1, 1),
            ("integer", "long", pa.int32(), -(2**31), -(2**31)),
            ("integer", "double", pa.int32(), 2**31 - 1, 2147483647.0),
            ("float", "double", pa.float32(), 0.5, 0.5),
            (
                "date",
                "timestamp_ntz",
                pa.date32(),
                datetime.date(2020, 1, 2),
                datetime.datetime(2020, 1, 2),  # noqa: DTZ001 - the reading of a wall clock
            ),
        ],
    )
    def test_value_of_a_widened_type_is_converted(
        self, old: Any, new: Any, arrow: pa.DataType, value: Any, wide: Any
    ) -> None:
        file = pa.table({"a": pa.array([value, None], arrow)})
        rows = reconciled(table(col("a", Primitive(old))), table(col("a", Primitive(new))), file)
        assert rows == [{"a": wide}, {"a": None}]

    def test_widening_of_decimals(self) -> None:
        file = pa.table({"a": pa.array([Number("1.5")], pa.decimal128(5, 1))})
        rows = reconciled(table(col("a", Decimal(5, 1))), table(col("a", Decimal(10, 3))), file)
        assert rows == [{"a": Number("1.500")}]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (LONG, STRING),
            (LONG, INTEGER),
            (STRING, LONG),
            (Decimal(10, 3), Decimal(5, 1)),
            (STRING, ArrayType(STRING)),
            (StructType((col("x"),)), STRING),
            (Primitive("timestamp"), Primitive("timestamp_ntz")),
        ],
    )
    def test_any_other_change_is_refused(self, old: DataType, new: DataType) -> None:
        with pytest.raises(SchemaChangedError, match="column a has type ") as caught:
            reconciled(table(col("a", old)), table(col("a", new)), pa.table({"a": ["x"]}))
        assert caught.value.version == 7
        assert caught.value.table == "memory://"
        assert caught.value.hint

    def test_of_a_column_that_nobody_asks_for_it_is_not(self) -> None:
        target = table(col("a", STRING), col("b")).select(["b"])
        assert reconciled(table(col("a"), col("b")), target, pa.table({"a": [1], "b": [2]})) == [{"b": 2}]


class TestReplacedColumns:
    """An overwrite gives columns new physical names."""

    FIRST = table(col("a", INTEGER, "p1", 1), col("b", STRING, "p2", 2), mapping="name")
    SECOND = table(col("A", LONG, "p3", 3), col("b", STRING, "p2", 2), mapping="name")
    THIRD = table(col("c", LONG, "p3", 3), col("b", STRING, "p4", 4), mapping="name")
    FILE = pa.table({"p1": pa.array([1], pa.int32()), "p2": ["x"]})

    def test_a_column_that_is_replaced_again_and_again_keeps_its_values(self) -> None:
        """Also if it is renamed meanwhile."""
        target = with_replaced([self.FIRST, self.SECOND, self.THIRD])
        assert reconciled(self.FIRST, target, self.FILE) == [{"c": 1, "b": "x"}]
        assert reconciled(self.SECOND, target, pa.table({"p3": [2], "p2": ["y"]})) == [{"c": 2, "b": "y"}]
        assert reconciled(self.THIRD, target, pa.table({"p3": [3], "p4": ["z"]})) == [{"c": 3, "b": "z"}]

    def test_a_column_that_is_added_after_one_was_dropped_replaces_none(self) -> None:
        dropped = table(col("b", STRING, "p2", 2), mapping="name")
        added = table(col("b", STRING, "p2", 2), col("a", STRING, "p5", 5), mapping="name")
        target = with_replaced([self.FIRST, dropped, added])
        assert target == added
        assert reconciled(self.FIRST, target, self.FILE) == [{"b": "x", "a": None}]

    def test_a_column_that_is_restored_has_both_values(self) -> None:
        target = with_replaced([self.SECOND, self.FIRST, self.SECOND])
        assert reconciled(self.FIRST, target, self.FILE) == [{"A": 1, "b": "x"}]
        assert reconciled(self.SECOND, target, pa.table({"p3": [2], "p2": ["y"]})) == [{"A": 2, "b": "y"}]

    def test_fields_of_a_replaced_struct_keep_their_values_by_name(self) -> None:
        old = table(
            col("s", ArrayType(StructType((col("x", INTEGER, "q1", 2), col("y", LONG, "q2", 3)))), "p1", 1),
            mapping="name",
        )
        new = table(
            col("s", ArrayType(StructType((col("X", LONG, "q3", 5), col("z", LONG, "q4", 6)))), "p2", 4), mapping="name"
        )
        inner = pa.list_(pa.struct([("q1", pa.int32()), ("q2", pa.int64())]))
        file = pa.table({"p1": pa.array([[{"q1": 1, "q2": 2}]], inner)})
        assert reconciled(old, with_replaced([old, new]), file) == [{"s": [{"X": 1, "z": None}]}]

    def test_a_partition_column(self) -> None:
        old = table(col("a", LONG, "p1", 1), col("p", INTEGER, "p2", 2), mapping="name", by=("p",))
        new = table(col("a", LONG, "p1", 1), col("p", LONG, "p3", 3), mapping="name", by=("p",))
        assert reconciled(old, with_replaced([old, new]), pa.table({"p1": [1]}), {"p2": "7"}) == [{"a": 1, "p": 7}]

    def test_columns_by_id(self) -> None:
        old = table(col("a", INTEGER, "p1", 1), mapping="id")
        new = table(col("a", LONG, "p2", 2), mapping="id")
        file = pa.table([[1]], schema=pa.schema([pa.field("x", pa.int32(), metadata={"PARQUET:field_id": "1"})]))
        assert reconciled(old, with_replaced([old, new]), file) == [{"a": 1}]


def write_overwritten(folder: Path, *, restores: bool = False) -> None:
    """A table as delta-spark's `overwriteSchema` leaves it: version 1 replaces an integer key by a long one.

    With `restores`, both are long, and version 3 restores version 0.
    """

    def commit(version: int, *actions: dict[str, Any]) -> None:
        (folder / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))

    def metadata(number: int, kind: str) -> dict[str, Any]:
        mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"p{number}"}
        text = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "p2"}
        fields = [
            {"name": "id", "type": kind, "nullable": True, "metadata": mapped},
            {"name": "s", "type": "string", "nullable": True, "metadata": text},
        ]
        settings = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(max(number, 2))}
        schema = json.dumps({"type": "struct", "fields": fields})
        return {
            "metaData": {
                "id": "T",
                "format": {"provider": "parquet"},
                "schemaString": schema,
                "partitionColumns": [],
                "configuration": settings,
            }
        }

    def file(path: str, rows: pa.Table) -> dict[str, Any]:
        pq.write_table(rows, folder / path)
        size = (folder / path).stat().st_size
        return {"path": path, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}

    (folder / "_delta_log").mkdir()
    stored, kind = (pa.int64(), "long") if restores else (pa.int32(), "integer")
    old = file("old", pa.table({"p1": pa.array([1, 2, 3], stored), "p2": ["x", "y", "z"]}))
    new = file("new", pa.table({"p3": [1, 2, 4], "p2": ["x", "Y", "w"]}))
    commit(0, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, metadata(1, kind), {"add": old})
    commit(1, metadata(3, "long"), {"remove": {"path": "old", "dataChange": True}}, {"add": new})
    commit(2, {"add": file("more", pa.table({"p3": [5], "p2": ["v"]}))})
    if restores:
        (restored,) = metadata(1, kind).values()
        restored["configuration"]["delta.columnMapping.maxColumnId"] = "3"
        removes = [{"remove": {"path": path, "dataChange": True}} for path in ("new", "more")]
        commit(3, {"metaData": restored}, *removes, {"add": old})


OVERWRITTEN = [
    *((0, "insert", *row) for row in ((1, "x"), (2, "y"), (3, "z"))),
    *((1, "delete", *row) for row in ((1, "x"), (2, "y"), (3, "z"))),
    *((1, "insert", *row) for row in ((1, "x"), (2, "Y"), (4, "w"))),
    (2, "insert", 5, "v"),
]


@pytest.mark.parametrize("key", [None, "id"])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_an_overwrite_with_column_mapping_deletes_the_rows_that_there_were(
    tmp_path: Path, first: int, key: str | None
) -> None:
    write_overwritten(tmp_path)
    rows = changes(tmp_path, first, key=key).read_all().to_pylist()
    actual = [(row["_commit_version"], row["_change_type"], row["id"], row["s"]) for row in rows]
    assert actual == [row for row in OVERWRITTEN if row[0] >= first]


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_restore_of_what_an_overwrite_replaced_deletes_the_rows_that_there_were(tmp_path: Path, first: int) -> None:
    write_overwritten(tmp_path, restores=True)
    rows = changes(tmp_path, first).read_all().to_pylist()
    actual = [(row["_commit_version"], row["_change_type"], row["id"], row["s"]) for row in rows]
    deletes = [(3, "delete", *row) for row in ((5, "v"), (1, "x"), (2, "Y"), (4, "w"))]
    inserts = [(3, "insert", *row) for row in ((1, "x"), (2, "y"), (3, "z"))]
    assert actual == [row for row in (*OVERWRITTEN, *deletes, *inserts) if row[0] >= first]
    before, after = (asyncio.run(State.at(Table.open(tmp_path), version)) for version in (2, 3))
    different = pa.Table.from_batches(difference(before, after, ("id",), None))
    assert sorted(different["id"].to_pylist()) == [2, 2, 3, 4, 5]


def test_difference_over_entries_that_are_gone_is_refused(tmp_path: Path) -> None:
    write_overwritten(tmp_path)
    before, after = (asyncio.run(State.at(Table.open(tmp_path), version)) for version in (0, 2))
    entries, header = [tmp_path / "_delta_log" / f"{version:020}.json" for version in (0, 1)], dict[str, Any]()
    for entry, version in zip(entries, (0, 2), strict=True):
        for action in map(json.loads, entry.read_text().splitlines()):
            header |= {kind: fields for kind, fields in action.items() if kind in ("protocol", "metaData")}
        header["metaData"]["configuration"] = list(header["metaData"]["configuration"].items())
        for name, data in single(version, [{kind: fields} for kind, fields in header.items()]).items():
            (tmp_path / "_delta_log" / name).write_bytes(data)
        entry.unlink()
    with pytest.raises(GapError, match=r"version 1 is no longer in the log.*read from version 2 on"):
        list(difference(before, after, ("id",), None))


def test_net_changes_and_differences_over_an_overwrite_with_column_mapping(tmp_path: Path) -> None:
    write_overwritten(tmp_path)
    net = changes(tmp_path, 1, key="id", net=True).read_all()
    before, after = (asyncio.run(State.at(Table.open(tmp_path), version)) for version in (0, 2))
    compared = pa.Table.from_batches(difference(before, after, ("id",), None))
    for rows in (net, compared):
        actual = [(row["_change_type"], row["id"], row["s"]) for row in rows.to_pylist()]
        assert sorted(actual) == [
            ("delete", 3, "z"),
            ("insert", 4, "w"),
            ("insert", 5, "v"),
            ("update_postimage", 2, "Y"),
            ("update_preimage", 2, "y"),
        ]


@pytest.mark.parametrize("start", [{}, {"startingVersion": "0"}, {"startingVersion": "1"}, {"startingVersion": "2"}])
def test_spark_reads_replaced_columns_from_the_start_on(tmp_path: Path, start: dict[str, str]) -> None:
    write_overwritten(tmp_path)
    options = SourceOptions.parse({"path": str(tmp_path), **start})
    target = asyncio.run(resolve_target(Table.open(tmp_path), options))
    first = asyncio.run(Table.open(tmp_path).log.header(0)).schema
    chosen = SchemaReconciler(target.schema).select(first)
    expected = ("s",) if start == {"startingVersion": "2"} else ("id", "s")
    names = tuple(child.name for child in chosen.struct if chosen.physical_name(child) in ("p1", "p2"))
    assert (target.names[:2], names) == (("id", "s"), expected)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_that_restore_brings_back_has_its_values_meanwhile(tmp_path: Path, mode: str) -> None:
    """Rows that are deleted while it is dropped are those that were inserted: net changes and filters see both."""

    def field(name: str, kind: Any, number: int) -> dict[str, Any]:
        metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"p{number}"}
        return {"name": name, "type": kind, "nullable": True, "metadata": metadata}

    def metadata(*columns: dict[str, Any]) -> dict[str, Any]:
        settings = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "5"}
        schema = json.dumps({"type": "struct", "fields": columns})
        form = {"provider": "parquet", "options": {}}
        return {
            "metaData": {
                "id": "t",
                "format": form,
                "schemaString": schema,
                "partitionColumns": [],
                "configuration": settings,
            }
        }

    def stored(name: str, kind: Any) -> Any:
        return pa.field(name, kind, metadata={"PARQUET:field_id": name.removeprefix("p")})

    def struct(*fields: dict[str, Any]) -> dict[str, Any]:
        return {"type": "struct", "fields": list(fields)}

    inside = pa.struct([stored("p4", pa.int64()), stored("p5", pa.int64())])
    rows = pa.schema([stored("p1", pa.int64()), stored("p2", pa.string()), stored("p3", inside)])
    key, value, kept, lost = (
        field("k", "long", 1),
        field("v", "string", 2),
        field("a", "long", 4),
        field("b", "long", 5),
    )
    for number in (1, 2):
        file = pa.table([[number], ["x"], [{"p4": 7, "p5": 8}]], schema=rows)
        pq.write_table(file, tmp_path / f"{number}")
    (tmp_path / "_delta_log").mkdir()
    added = [
        {"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}}
        for path in "12"
    ]
    removed = [{"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}} for path in "12"]
    whole, less = metadata(key, value, field("s", struct(kept, lost), 3)), metadata(key, field("s", struct(kept), 3))
    versions = [
        [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, whole],
        added,
        [less],
        removed,
        [whole, added[0]],
    ]
    for version, actions in enumerate(versions):
        entry = tmp_path / "_delta_log" / f"{version:020}.json"
        entry.write_text("\n".join(map(json.dumps, actions)))
    expected = [(1, "insert", 1), (1, "insert", 2), (3, "delete", 1), (3, "delete", 2), (4, "insert", 1)]
    for where in (None, "v = 'x'", "s.b = 8"):
        actual = changes(tmp_path, where=where).read_all().to_pylist()
        assert [(row["_commit_version"], row["_change_type"], row["k"]) for row in actual] == expected
        assert {(row["v"], str(row["s"])) for row in actual} == {("x", "{'a': 7, 'b': 8}")}
    (net,) = changes(tmp_path, key="k", net=True).read_all().to_pylist()
    assert (net["_change_type"], net["k"], net["v"]) == ("insert", 1, "x")
