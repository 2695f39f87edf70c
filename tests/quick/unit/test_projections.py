"""Projections are remembered for files that are alike, and only for those."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.delta.types.schema import ColumnMappingMode, Primitive, StructField, StructType, TableSchema
from cdfd.errors import DataError
from cdfd.scan.projection import FIELD_ID, KNOWN, Projections

LONG, STRING = Primitive("long"), Primitive("string")


def table(*names: str, mapping: ColumnMappingMode = ColumnMappingMode.NONE, first_id: int = 1) -> TableSchema:
    fields = [
        StructField(name, LONG, True, {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name})
        for number, name in enumerate(names, first_id)
    ]
    return TableSchema(StructType(tuple(fields)), mapping=mapping)


def physical(schema: pa.Schema) -> pa.Schema:
    """As a file that was written with a schema says it is."""
    buffer = io.BytesIO()
    pq.write_table(schema.empty_table(), buffer)
    return pq.ParquetFile(buffer).schema_arrow


def identified(*fields: tuple[str, int]) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64(), metadata={FIELD_ID: str(number)}) for name, number in fields])


def test_files_that_are_alike_share_one() -> None:
    projections = Projections()
    first = projections.of(table("a", "b"), physical(pa.schema({"a": pa.int64(), "b": pa.int64()})))
    assert projections.of(table("a", "b"), physical(pa.schema({"a": pa.int64(), "b": pa.int64()}))) is first


@pytest.mark.parametrize(
    ("columns", "file"),
    [
        (("a", "b", "c"), {"a": pa.int64(), "b": pa.int64()}),
        (("b", "a"), {"a": pa.int64(), "b": pa.int64()}),
        (("a", "b"), {"b": pa.int64(), "a": pa.int64()}),
        (("a", "b"), {"a": pa.int64(), "b": pa.int32()}),
    ],
)
def test_files_of_other_columns_do_not_share_a_projection(
    columns: tuple[str, ...], file: dict[str, pa.DataType]
) -> None:
    projections = Projections()
    first = projections.of(table("a", "b"), physical(pa.schema({"a": pa.int64(), "b": pa.int64()})))
    other = projections.of(table(*columns), physical(pa.schema(file)))
    assert other is not first
    assert other.row_schema.names == [*columns, "_change_type"]
    assert other.names(None) == [*file, "_change_type"]


def test_files_whose_columns_have_other_ids_are_not_alike() -> None:
    projections, wanted = Projections(), table("a", "b", mapping=ColumnMappingMode.ID)
    batch = pa.record_batch({"x": pa.array([1]), "y": pa.array([2])})
    for ids, expected in (((1, 2), [1, 2]), ((2, 1), [2, 1]), ((1, 2), [1, 2])):
        projection = projections.of(wanted, physical(identified(("x", ids[0]), ("y", ids[1]))))
        ((_, columns),) = projection.parts(batch, {})
        assert [column[0].as_py() for column in columns] == expected


def test_a_column_that_is_renamed() -> None:
    projections, file = Projections(), physical(pa.schema({"a": pa.int64()}))
    assert projections.of(table("a"), file).columns == ("a",)
    assert projections.of(table("z"), file).columns == ()


def test_a_file_that_does_not_fit_does_not_fit_again() -> None:
    projections, text = Projections(), physical(pa.schema({"a": pa.struct({"x": pa.int64()})}))
    for _ in range(2):
        with pytest.raises(DataError):
            projections.of(table("a"), text)


def test_views_are_known() -> None:
    schema = TableSchema(StructType((StructField("s", STRING),)))
    assert Projections().of(schema, pa.schema({"s": pa.string_view()})).views
    assert not Projections().of(schema, pa.schema({"s": pa.string()})).views


def test_a_few_are_remembered() -> None:
    projections, file = Projections(), physical(pa.schema({"a": pa.int64()}))
    schemas = [table("a", str(number)) for number in range(KNOWN + 1)]
    made = [projections.of(schema, file) for schema in schemas]
    assert projections.of(schemas[-1], file) is made[-1]
    assert projections.of(schemas[0], file) is not made[0]
