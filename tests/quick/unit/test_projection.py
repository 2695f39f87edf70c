from __future__ import annotations

import datetime
import decimal
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from cdfd.errors import ConfigError, DataError, LogError
from cdfd.scan import batch_budget, variant
from cdfd.scan.batch_budget import BatchBudget
from cdfd.scan.projection import PartitionValues, Projection

LONG, STRING, INTEGER = Primitive("long"), Primitive("string"), Primitive("integer")
TIMESTAMP, NTZ = Primitive("timestamp"), Primitive("timestamp_ntz")


def table(*fields: StructField, mapping: str = "none", by: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(StructType(fields), by, ColumnMappingMode(mapping))


def one(kind: DataType, nullable: bool = True) -> TableSchema:
    return table(StructField("x", kind, nullable))


def mapped(name: str, kind: DataType, physical: str, number: int) -> StructField:
    return StructField(
        name, kind, metadata={"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number}
    )


def identified(name: str, kind: pa.DataType, number: int) -> pa.Field[Any]:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def project(
    schema: TableSchema,
    batch: pa.RecordBatch,
    partitions: Mapping[str, pa.Scalar[Any]] | None = None,
    columns: tuple[str, ...] | None = None,
) -> pa.RecordBatch:
    projection = Projection.plan(schema if columns is None else schema.select(columns), batch.schema)
    arrays = columns_of(projection, batch, partitions)
    result = pa.RecordBatch.from_arrays(arrays, schema=projection.schema)
    result.validate(full=True)
    assert [array.type for array in arrays] == [field.type for field in projection.schema]
    return result


def columns_of(
    projection: Projection, batch: pa.RecordBatch, partitions: PartitionValues | None = None
) -> list[pa.Array[Any]]:
    ((rows, columns),) = projection.parts(batch, partitions or {})
    assert rows is batch
    return columns


def read_as(kind: DataType, array: pa.Array[Any]) -> pa.Array[Any]:
    """A column, whole and as a slice: the same values, of the table's type."""
    batch = pa.record_batch([array], names=["x"])
    whole = project(one(kind), batch).column(0)
    for start in range(min(len(array), 3)):
        assert project(one(kind), batch.slice(start, 2)).column(0).equals(whole.slice(start, 2))
    assert len(project(one(kind), batch.slice(0, 0)).column(0)) == 0
    return whole


def test_columns_come_in_the_order_of_the_table() -> None:
    batch = pa.record_batch({"b": [1], "_change_type": ["insert"], "a": ["x"]})
    schema = table(StructField("a", STRING), StructField("b", LONG))
    projection = Projection.plan(schema, batch.schema)
    assert projection.columns == ("b", "a")
    assert project(schema, batch).to_pylist() == [{"a": "x", "b": 1}]


def test_the_same_type_is_not_copied() -> None:
    column = pa.array([1, None, 3])
    nested = pa.array([[{"a": 1}], None])
    schema = table(StructField("x", LONG))
    assert project(schema, pa.record_batch({"x": column})).column(0).buffers()[1].address == column.buffers()[1].address
    kind = ArrayType(StructType((StructField("a", LONG),)))
    projection = Projection.plan(one(kind), pa.schema([("x", nested.type)]))
    (actual,) = columns_of(projection, pa.record_batch({"x": nested}))
    assert [b.address for b in actual.buffers() if b] == [b.address for b in nested.buffers() if b]


def test_only_some_columns_in_the_order_asked_for() -> None:
    schema = table(StructField("a", LONG), StructField("b", LONG), StructField("p", STRING), by=("p",))
    batch = pa.record_batch({"a": [1], "b": [2]})
    projection = Projection.plan(schema.select(("p", "B")), batch.schema)
    assert projection.columns == ("b",)
    assert projection.schema.names == ["p", "b"]
    assert project(schema, batch, {"p": pa.scalar("x")}, ("p", "B")).to_pylist() == [{"p": "x", "b": 2}]
    with pytest.raises(ConfigError):
        Projection.plan(schema.select(("z",)), batch.schema)


def test_partition_columns_come_from_the_log() -> None:
    schema = table(StructField("p", STRING), StructField("x", LONG), StructField("q", Primitive("date")), by=("p", "q"))
    batch = pa.record_batch({"p": ["in the file", "in the file"], "x": [1, 2]})
    assert Projection.plan(schema, batch.schema).columns == ("x",)
    rows = project(schema, batch, {"p": pa.scalar("in the log")}).to_pylist()
    assert rows == [{"p": "in the log", "x": 1, "q": None}, {"p": "in the log", "x": 2, "q": None}]


def test_only_partition_columns() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2, 3]}), file)
    schema = table(StructField("p", LONG), StructField("x", LONG), by=("p",))
    parquet = pq.ParquetFile(file)
    projection = Projection.plan(schema.select(("p",)), parquet.schema_arrow)
    (batch,) = parquet.iter_batches(columns=list(projection.columns))
    assert columns_of(projection, batch, {"p": pa.scalar(7)}) == [pa.array([7, 7, 7])]


def test_names_fit_exactly_or_else_but_for_case() -> None:
    schema = table(StructField("Id", LONG), StructField("name", STRING))
    assert project(schema, pa.record_batch({"ID": [1], "NAME": ["a"]})).to_pylist() == [{"Id": 1, "name": "a"}]
    assert project(schema, pa.record_batch({"ID": [1], "Id": [2]})).to_pylist() == [{"Id": 2, "name": None}]
    with pytest.raises(DataError, match="'Id' fits 2 columns"):
        Projection.plan(schema, pa.schema([("ID", pa.int64()), ("id", pa.int64())]))
    with pytest.raises(DataError, match="'Id' fits 2 columns"):
        Projection.plan(schema, pa.schema([("Id", pa.int64()), ("Id", pa.int64())]))


INNER = StructType((mapped("i", LONG, "p-i", 11), mapped("j", LONG, "p-j", 12)))


def mapped_table(mapping: str) -> TableSchema:
    return table(
        mapped("a", INNER, "p-a", 1),
        mapped("b", ArrayType(INNER), "p-b", 2),
        mapped("c", MapType(STRING, INNER), "p-c", 3),
        mapped("d", LONG, "p-d", 4),
        mapping=mapping,
    )


def mapped_rows(first: str, second: str) -> dict[str, Any]:
    return {"a": {first: 1, second: 2}, "b": [{first: 3, second: 4}, None], "c": [("k", {first: 5, second: 6})]}


EXPECTED = {**mapped_rows("i", "j"), "d": None}


def test_columns_are_found_by_physical_name() -> None:
    inner = pa.struct([("p-j", pa.int64()), ("p-i", pa.int64()), ("i", pa.int64())])
    schema = pa.schema(
        [("p-c", pa.map_(pa.string(), inner)), ("p-b", pa.list_(inner)), ("p-a", inner), ("d", pa.int64())]
    )
    rows = {f"p-{name}": value for name, value in mapped_rows("p-i", "p-j").items()} | {"d": 9}
    assert project(mapped_table("name"), pa.RecordBatch.from_pylist([rows], schema)).to_pylist() == [EXPECTED]


def test_columns_are_found_by_id() -> None:
    inner = pa.struct([identified("j", pa.int64(), 11), identified("i", pa.int64(), 12)])
    schema = pa.schema(
        [
            identified("d", inner, 1),
            identified("c", pa.list_(inner), 2),
            identified("b", pa.map_(pa.string(), inner), 3),
            identified("a", pa.int64(), 99),
        ]
    )
    rows = mapped_rows("j", "i")
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{"d": rows["a"], "c": rows["b"], "b": rows["c"], "a": 9}], schema), file)
    (batch,) = pq.ParquetFile(file).iter_batches()
    assert project(mapped_table("id"), batch).to_pylist() == [EXPECTED]


def test_by_id_a_struct_of_the_same_type_may_have_other_columns() -> None:
    swapped = pa.struct([identified("i", pa.int64(), 12), identified("j", pa.int64(), 11)])
    batch = pa.RecordBatch.from_pylist([{"a": {"i": 2, "j": 1}}], pa.schema([identified("a", swapped, 1)]))
    schema = table(mapped("a", INNER, "p-a", 1), mapping="id")
    assert project(schema, batch).to_pylist() == [{"a": {"i": 1, "j": 2}}]


def test_a_file_without_ids_is_refused_by_id() -> None:
    with pytest.raises(DataError, match="no field ids"):
        Projection.plan(mapped_table("id"), pa.schema([("d", pa.int64())]))
    only_partitions = table(mapped("d", LONG, "p-d", 4), mapping="id", by=("d",))
    assert Projection.plan(only_partitions, pa.schema([("x", pa.int64())])).columns == ()


def test_ids_that_do_not_identify() -> None:
    with pytest.raises(DataError, match="'d' fits 2 columns"):
        Projection.plan(
            table(mapped("d", LONG, "p-d", 4), mapping="id"),
            pa.schema([identified("x", pa.int64(), 4), identified("y", pa.int64(), 4)]),
        )
    with pytest.raises(LogError, match="'d' has no id"):
        Projection.plan(table(StructField("d", LONG), mapping="id"), pa.schema([identified("x", pa.int64(), 4)]))
    for text in ("9" * 5000, "--5", "-", "x"):
        broken = pa.schema([pa.field("x", pa.int64(), metadata={"PARQUET:field_id": text})])
        with pytest.raises(DataError, match="no field ids"):
            Projection.plan(mapped_table("id"), broken)


def test_missing_columns_are_null_and_null_structs_stay_null() -> None:
    kind = StructType((StructField("a", LONG), StructField("new", ArrayType(STRING))))
    actual = read_as(kind, pa.array([{"a": 1, "z": 0}, None, {"a": None, "z": 0}]))
    assert actual.to_pylist() == [{"a": 1, "new": None}, None, {"a": None, "new": None}]
    none = read_as(StructType((StructField("new", LONG),)), pa.array([{"a": 1}, None]))
    assert none.to_pylist() == [{"new": None}, None]


def test_nulls_where_the_table_has_none_are_passed_on() -> None:
    batch = pa.record_batch({"x": pa.array([1, None])})
    assert project(one(LONG, nullable=False), batch).column(0).to_pylist() == [1, None]
    kind = ArrayType(StructType((StructField("a", LONG, nullable=False),)), contains_null=False)
    assert read_as(kind, pa.array([[{"a": None}, None], None])).to_pylist() == [[{"a": None}, None], None]


def utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


def number(text: str) -> decimal.Decimal:
    return decimal.Decimal(text)


MICROSECOND, BEFORE = utc("1970-01-01T00:00:00.000001"), utc("1969-12-31T23:59:59.999998")
LISTS = [[["a"], None], None, [["b", None]]]
NAIVE = datetime.datetime.fromisoformat("2020-01-01T00:00:00.000001")
CONVERTED: list[tuple[DataType, pa.Array[Any], list[Any]]] = [
    # Type widening.
    (Primitive("short"), pa.array([1, None, -128], pa.int8()), [1, None, -128]),
    (LONG, pa.array([1, None], pa.int32()), [1, None]),
    (Primitive("double"), pa.array([1.5, None], pa.float32()), [1.5, None]),
    (Primitive("double"), pa.array([2**31 - 1], pa.int32()), [2.0**31 - 1]),
    (NTZ, pa.array([datetime.date(2020, 1, 1)]), [NAIVE.replace(microsecond=0)]),
    (Decimal(12, 4), pa.array([number("1.25")], pa.decimal128(10, 2)), [number("1.2500")]),
    (Decimal(10, 0), pa.array([7], pa.int32()), [number("7")]),
    (Decimal(22, 2), pa.array([-7, None], pa.int64()), [number("-7.00"), None]),
    # Integers that Parquet has no physical type for, or that another writer stored unsigned.
    (Primitive("byte"), pa.array([127], pa.int32()), [127]),
    (LONG, pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
    (Primitive("byte"), pa.array([5], pa.uint8()), [5]),
    # Text and bytes.
    (STRING, pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
    (STRING, pa.array(["a", None], pa.large_string()), ["a", None]),
    (STRING, pa.array(["a", None], pa.string_view()), ["a", None]),
    (STRING, pa.array([b"a", None]), ["a", None]),
    (STRING, pa.array(["{}"], pa.json_()), ["{}"]),
    (Primitive("binary"), pa.array([b"ab", None], pa.binary(2)), [b"ab", None]),
    (Primitive("binary"), pa.array([b"ab", None], pa.large_binary()), [b"ab", None]),
    # Timestamps of other units and zones, INT96 among them; toward the past before 1970.
    (TIMESTAMP, pa.array([1001, None, -1001], pa.timestamp("ns")), [MICROSECOND, None, BEFORE]),
    (NTZ, pa.array([1001], pa.timestamp("ns")), [MICROSECOND.replace(tzinfo=None)]),
    (TIMESTAMP, pa.array([1, None], pa.timestamp("ms", "UTC")), [utc("1970-01-01T00:00:00.001"), None]),
    (TIMESTAMP, pa.array([NAIVE], pa.timestamp("us")), [NAIVE.replace(tzinfo=datetime.UTC)]),
    (TIMESTAMP, pa.array([1, None], pa.timestamp("us", "Europe/Paris")), [MICROSECOND, None]),
    (NTZ, pa.array([NAIVE], pa.timestamp("us", "UTC")), [NAIVE]),
    (Primitive("date"), pa.array([datetime.date(2020, 1, 1)], pa.date64()), [datetime.date(2020, 1, 1)]),
    # Decimals in other widths, or without annotation.
    (Decimal(5, 2), pa.array([number("1.25")], pa.decimal32(5, 2)), [number("1.25")]),
    (Decimal(5, 2), pa.array([number("1.25")], pa.decimal256(50, 2)), [number("1.25")]),
    (Decimal(5, 2), pa.array([b"\x00\x7d", None, b"\xff\x83"], pa.binary(2)), [number("1.25"), None, number("-1.25")]),
    # Nothing but nulls.
    (LONG, pa.nulls(2), [None, None]),
    (ArrayType(STRING), pa.nulls(2), [None, None]),
    # Inside of other types.
    (ArrayType(LONG), pa.array([[1, 2], None, [], [3]], pa.large_list(pa.int32())), [[1, 2], None, [], [3]]),
    (ArrayType(LONG), pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2)), [[1, 2], None, [3, 4]]),
    (ArrayType(ArrayType(STRING)), pa.array(LISTS, pa.list_(pa.list_(pa.large_string()))), LISTS),
    (
        MapType(INTEGER, TIMESTAMP),
        pa.array([[(1, 1000)], None, [(2, None)], []], pa.map_(pa.int16(), pa.timestamp("ns"))),
        [[(1, MICROSECOND)], None, [(2, None)], []],
    ),
    (
        StructType((StructField("b", LONG), StructField("a", STRING))),
        pa.array([{"a": "x", "b": 1}, None], pa.struct([("a", pa.large_string()), ("b", pa.int8())])),
        [{"b": 1, "a": "x"}, None],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "array", "expected"), CONVERTED, ids=lambda case: str(case)[:40])
def test_what_is_stored_as_another_type(kind: DataType, array: pa.Array[Any], expected: list[Any]) -> None:
    assert read_as(kind, array).to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (LONG, pa.string()), (INTEGER, pa.int64()), (STRING, pa.int64()), (Primitive("float"), pa.float64()),
        (Primitive("double"), pa.int64()), (LONG, pa.float64()), (LONG, pa.bool_()), (LONG, pa.timestamp("us")),
        (TIMESTAMP, pa.int64()), (TIMESTAMP, pa.date32()), (Primitive("date"), pa.timestamp("us")),
        (Primitive("boolean"), pa.int8()), (Decimal(10, 2), pa.decimal128(10, 3)),
        (Decimal(10, 3), pa.decimal128(10, 2)),
        (Decimal(9, 0), pa.int32()), (Decimal(18, 0), pa.int64()), (Decimal(10, 2), pa.float64()),
        (Decimal(38, 2), pa.binary(17)), (ArrayType(LONG), pa.int64()), (MapType(STRING, LONG), pa.list_(pa.int64())),
        (StructType(()), pa.int64()), (LONG, pa.struct([("a", pa.int64())])), (Primitive("variant"), pa.string()),
        (STRING, pa.dictionary(pa.int8(), pa.int64())),
    ],
    ids=str,
)  # fmt: skip
def test_types_that_do_not_match(kind: DataType, source: pa.DataType) -> None:
    with pytest.raises(DataError, match=r"column 'x': file has .*, table says"):
        Projection.plan(one(kind), pa.schema([("x", source)]))


def test_the_message_names_the_nested_column() -> None:
    kind = ArrayType(StructType((StructField("a", LONG),)))
    with pytest.raises(DataError, match=r"column 'x.element.a': file has string, table says long"):
        Projection.plan(one(kind), pa.schema([("x", pa.list_(pa.struct([("a", pa.string())])))]))


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (Primitive("byte"), pa.array([128], pa.int32())),
        (LONG, pa.array([2**63], pa.uint64())),
        (STRING, pa.array([b"\xff"])),
        (TIMESTAMP, pa.array([2**62], pa.timestamp("s"))),
        (Decimal(3, 2), pa.array([number("12.25")], pa.decimal128(10, 2))),
        (Decimal(3, 2), pa.array([b"\x7f\xff"], pa.binary(2))),
        (ArrayType(Primitive("byte")), pa.array([[300]])),
    ],
)  # fmt: skip
def test_a_value_that_the_type_does_not_hold(kind: DataType, array: pa.Array[Any]) -> None:
    if pa.types.is_list(array.type):
        array = array.cast(pa.list_(pa.int32()))
    with pytest.raises(DataError, match="column 'x' has a value"):
        project(one(kind), pa.record_batch({"x": array}))


def test_a_batch_of_another_file_is_refused() -> None:
    projection = Projection.plan(one(LONG), pa.schema([("x", pa.int64())]))
    for batch in (pa.record_batch({"y": [1]}), pa.record_batch({"x": ["1"]})):
        with pytest.raises(DataError, match="'x' of a batch"):
            columns_of(projection, batch)


def test_an_empty_struct_keeps_its_validity() -> None:
    assert read_as(StructType(()), pa.array([{"a": 1}, None])).to_pylist() == [{}, None]


def test_variants_become_json_at_any_depth() -> None:
    stored = pa.array([{"metadata": b"\x01\x00\x00", "value": b"\x00"}, None])  # a variant null, and no variant
    nested = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), stored)
    schema = table(StructField("x", Primitive("variant")))
    projection = Projection.plan(schema, pa.schema([("x", stored.type)]))
    (actual,) = columns_of(projection, pa.record_batch({"x": stored}))
    assert actual.type == pa.json_()
    assert actual.to_pylist() == ["null", None]
    inside = Projection.plan(one(ArrayType(Primitive("variant"))), pa.schema([("x", nested.type)]))
    (lists,) = columns_of(inside, pa.record_batch({"x": nested}))
    assert lists.type == pa.list_(pa.json_())
    assert lists.to_pylist() == [["null", None]]
    assert project(schema, pa.record_batch({"y": [1]})).column(0).type == pa.json_()


def test_a_slice_converts_only_its_own_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def to_json(array: pa.Array[Any], budget: BatchBudget) -> pa.Array[Any]:
        seen.append(len(array))
        return pa.nulls(len(array), pa.string())

    stored = pa.array([[{"metadata": b"", "value": b""}] * 10] * 100)
    monkeypatch.setattr(variant, "to_json", to_json)
    projection = Projection.plan(one(ArrayType(Primitive("variant"))), pa.schema([("x", stored.type)]))
    columns_of(projection, pa.record_batch({"x": stored}).slice(50, 2))
    assert seen == [20]


A_STRUCT = pa.struct({"a": pa.int64()})
WIDE = StructType((StructField("a", LONG), *(StructField(f"b{number}", LONG) for number in range(9))))
BY_TEXT = table(StructField("x", LONG), StructField("p", STRING), by=("p",))
VARIANTS = pa.array([{"metadata": b"\x01\x00\x00", "value": b"\x00"}] * 60)
DIFFERENT = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["v" * 60, None]))


@pytest.mark.parametrize(
    ("schema", "column", "partition", "parts"),
    [
        (BY_TEXT, pa.array([1, 2, 3, 4]), pa.scalar("v" * 60), [1, 1, 1, 1]),
        (BY_TEXT, pa.array([1, 2, 3, 4]), pa.scalar("v" * 40), [2, 2]),
        (BY_TEXT, pa.array([1, 2, 3, 4]), DIFFERENT, [1, 1, 2]),
        (BY_TEXT, pa.array([1, 2, 3, 4]), pa.scalar(None, pa.string()), [4]),
        (table(*(StructField(name, LONG) for name in "xabcd")), pa.array([1, 2, 3, 4, 5]), None, [2, 3]),
        (one(LONG), pa.array([1] * 20, pa.int8()), None, [10, 10]),
        (one(WIDE), pa.array([{"a": 1}, {"a": 2}, None], A_STRUCT), None, [1, 1, 1]),
        (
            one(ArrayType(WIDE)),
            pa.array([[], [{"a": 1}], [], None, [{"a": 2}] * 3], pa.list_(A_STRUCT)),
            None,
            [2, 1, 1, 1],
        ),
        (
            one(MapType(STRING, WIDE)),
            pa.array([[("k", {"a": 1})], [], [("k", {"a": 3})]], pa.map_(pa.string(), A_STRUCT)),
            None,
            [1, 2],
        ),
        (one(Primitive("variant")), VARIANTS, None, [15, 15, 15, 15]),
    ],
)
def test_rows_are_divided_where_they_get_more_than_the_file_has(
    schema: TableSchema,
    column: pa.Array[Any],
    partition: pa.Scalar[Any] | pa.RunEndEncodedArray | None,
    parts: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = pa.record_batch([column], names=["x"])
    constants = {} if partition is None else {"p": partition}
    projection = Projection.plan(schema, batch.schema)
    whole = columns_of(projection, batch, constants)
    monkeypatch.setattr(batch_budget, "BATCH_BYTES", 100)
    divided = list(projection.parts(batch, constants))
    assert [rows.num_rows for rows, _ in divided] == parts
    assert pa.concat_arrays([rows.column(0) for rows, _ in divided]).equals(column)
    actual = pa.Table.from_batches([pa.record_batch(columns, schema=projection.schema) for _, columns in divided])
    assert actual.equals(pa.Table.from_arrays(whole, schema=projection.schema))


def test_a_row_that_gets_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_budget, "BATCH_BYTES", 100)
    monkeypatch.setattr(batch_budget, "ROW_BYTES", 200)
    batch = pa.record_batch({"x": [1, 2]})
    parts = Projection.plan(BY_TEXT, batch.schema).parts(batch, {"p": pa.scalar("v" * 200)})
    with pytest.raises(DataError, match="more than 200 bytes"):
        next(parts)


TICKS = st.lists(st.none() | st.integers(-(2**63) + 1000, 2**63 - 1), max_size=5)


@given(TICKS)
def test_nanoseconds_become_microseconds_toward_the_past(ticks: list[int | None]) -> None:
    array = pa.array(ticks, pa.int64()).view(pa.timestamp("ns"))
    actual = read_as(TIMESTAMP, array).view(pa.int64()).to_pylist()
    assert actual == [None if tick is None else tick // 1000 for tick in ticks]


@given(st.lists(st.none() | st.integers(-(2**39), 2**39 - 1), max_size=5), st.integers(5, 16))
def test_decimals_without_annotation(unscaled: list[int | None], width: int) -> None:
    stored = [None if each is None else each.to_bytes(width, "big", signed=True) for each in unscaled]
    actual = read_as(Decimal(20, 3), pa.array(stored, pa.binary(width))).to_pylist()
    assert actual == [None if each is None else number(str(each)).scaleb(-3) for each in unscaled]


@given(st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64()]), st.data())
def test_wider_integers_have_the_same_values(source: pa.DataType, data: st.DataObject) -> None:
    limit = 2 ** (np.dtype(source.to_pandas_dtype()).itemsize * 8 - 1)
    column = data.draw(st.lists(st.none() | st.integers(-limit, limit - 1), max_size=5))
    assert read_as(LONG, pa.array(column, source)).to_pylist() == column
