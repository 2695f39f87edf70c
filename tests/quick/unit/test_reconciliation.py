"""Versions with different schemas read as one: through real files, because that is where names and types meet."""

import asyncio
import datetime
import io
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
from cdfd.errors import SchemaChangedError
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.plan.reconciliation import SchemaReconciler
from cdfd.scan.execute import Execution
from cdfd.scan.table_files import TableFiles
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
        with pytest.raises(SchemaChangedError, match=r"column s\.element\.x has type string at this version and long"):
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
