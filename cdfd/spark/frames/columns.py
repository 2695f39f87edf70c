"""The columns of files as Spark's reader gives them, and as the columns of change rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from cdfd.delta.types.datatypes import ArrayType, DataType, MapType, StructField, StructType
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema, column_id, physical_name
from cdfd.model.columns import CHANGE_TYPE
from cdfd.spark.records.records import quoted
from cdfd.spark.source.columns import spark_schema

FIELD_ID = "parquet.field.id"
"""Key of the metadata by which Spark's reader finds a column by its id."""


def read_schema(schema: TableSchema, *, is_cdc: bool) -> spark.StructType:
    """The schema to read files in: columns by their names in files, and the change type of change data files."""
    numbers = count()
    fields = [_field(child, schema.mapping, numbers) for child in schema.data_fields]
    if is_cdc:
        fields.append(spark.StructField(CHANGE_TYPE, spark.StringType()))
    return spark.StructType(fields)


def _field(child: StructField, mode: ColumnMappingMode, numbers: count[int]) -> spark.StructField:
    name, metadata = physical_name(child, mode), dict[str, int]()
    if name == "\0":
        # No file has the field. Two fields of a struct need two names.
        name = f"\0{next(numbers)}"
    elif mode is ColumnMappingMode.ID and (number := column_id(child)) is not None:
        metadata[FIELD_ID] = number
    return spark.StructField(name, _type(child.type, mode, numbers), True, metadata)


def _type(kind: DataType, mode: ColumnMappingMode, numbers: count[int]) -> spark.DataType:
    match kind:
        case StructType():
            return spark.StructType([_field(child, mode, numbers) for child in kind])
        case ArrayType(element):
            return spark.ArrayType(_type(element, mode, numbers))
        case MapType(key, value):
            return spark.MapType(_type(key, mode, numbers), _type(value, mode, numbers))
    return spark_schema(TableSchema(StructType((StructField("_", kind),))), ["_"])[0].dataType


def select_columns(
    frame: DataFrame,
    schema: TableSchema,
    wanted: Sequence[tuple[str, spark.StructField]],
    constants: Mapping[str, Column],
) -> list[Column]:
    """The columns of change rows, of a frame of files.

    Args:
        frame: in `read_schema`, and joined with what is not constant.
        schema: of the files.
        wanted: for each column, its name in the table or that of a change column, and its field.
        constants: by name: those that are not in the files.
    """
    stored = {child.name: schema.physical_name(child) for child in schema.data_fields}
    types = {child.name: child.dataType for child in frame.schema}
    columns = []
    for name, wished in wanted:
        if name in constants:
            column = constants[name]
        elif name in stored or name == CHANGE_TYPE:
            inside = stored.get(name, name)
            column = frame[quoted(inside)]
            if types[inside] != wished.dataType:
                column = column.cast(wished.dataType)
        else:
            column = F.lit(None).cast(wished.dataType)
        columns.append(
            column.alias(wished.name, metadata=wished.metadata) if wished.metadata else column.alias(wished.name)
        )
    return columns
