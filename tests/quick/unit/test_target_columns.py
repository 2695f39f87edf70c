"""Columns of a Delta target: by which it can be partitioned, and how its data files name them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.delta.types.column_mapping import assign_ids
from cdfd.delta.types.schema import (
    ArrayType,
    ColumnMappingMode,
    MapType,
    Primitive,
    StructField,
    StructType,
    TableSchema,
    from_arrow,
)
from cdfd.delta.types.schema_merge import SOURCE
from cdfd.errors import SchemaChangedError, SinkError
from cdfd.model.columns import CHANGE_TYPE, change_schema
from cdfd.plan.shape.masks import Mask
from cdfd.plan.shape.shape import Shape
from cdfd.sinks.delta.columns import Columns, columns_of_extended, columns_of_new, with_sources
from cdfd.sinks.delta.data_files import DataFiles

LONG = Primitive("long")
ROWS = StructType(
    (
        StructField("id", LONG),
        StructField("s", StructType((StructField("x", LONG),))),
        StructField("a", ArrayType(LONG)),
        StructField("m", MapType(LONG, LONG)),
    )
)


@pytest.mark.parametrize("name", ["s", "a", "m", "nope"])
def test_table_cannot_be_partitioned_by_a_nested_or_missing_column(name: str) -> None:
    with pytest.raises(SinkError, match=f"no column '{name}' by which a table can be partitioned"):
        columns_of_new(ROWS, ("id", name), follow=False)


@pytest.mark.parametrize("follow", [True, False])
def test_new_table_has_a_mapping_if_it_follows_the_names_of_the_source(follow: bool) -> None:
    columns = columns_of_new(ROWS, ("id",), follow=follow)
    assert columns.partition_by == ("id",)
    assert columns.mapping is (ColumnMappingMode.NAME if follow else ColumnMappingMode.NONE)
    assert [child.name for child in columns.struct] == ["id", "s", "a", "m"]


@pytest.mark.parametrize("mode", ["keep", "follow"])
def test_changelog_cannot_take_a_column_with_the_name_of_a_change_column_in_another_case(mode: str) -> None:
    rows = from_arrow(change_schema(pa.schema([("id", pa.int64()), ("_CHANGE_TYPE", pa.string())])))
    changelog = Columns(from_arrow(change_schema(pa.schema([]))))
    with pytest.raises(SchemaChangedError, match="two columns '_change_type', if case does not count"):
        columns_of_extended(changelog, rows, mode)


@pytest.mark.parametrize("masked", [False, True])
def test_fields_of_a_masked_column_have_no_source(masked: bool) -> None:
    source = TableSchema(ROWS)
    rows = with_sources(ROWS, (source, None), Shape(masks=(("s", Mask("nullify")),) if masked else ()))
    assert [child.metadata for child in rows] == [{SOURCE: name} for name in ("id", "s", "a", "m")]
    column = rows.fields[1].type
    assert isinstance(column, StructType)
    assert [child.metadata for child in column] == [{} if masked else {SOURCE: "x"}]


def test_data_files_have_physical_names_also_inside_of_columns() -> None:
    rows = pa.schema({"id": pa.int64(), CHANGE_TYPE: pa.string(), "s": pa.struct({"x": pa.int64()})})
    struct, highest = assign_ids(from_arrow(rows), 0, lambda field: f"p-{field.name}")
    columns = Columns(struct, ("id",), ColumnMappingMode.NAME, highest)
    types = pa.array(["insert"]).cast(pa.dictionary(pa.int8(), pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.array([7]), types, pa.array([{"x": 1}])], ["id", CHANGE_TYPE, "s"])
    files = DataFiles(columns, batch.schema, "snappy", 1 << 20)
    [(file, data)] = [*files.write(batch), *files.finish()]
    assert file.partition == ("7",)
    assert pq.read_table(pa.BufferReader(data)).to_pylist() == [{"p-_change_type": "insert", "p-s": {"p-x": 1}}]
