"""The columns of files as Spark's reader gives them, and as the columns of change rows."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from itertools import count

from pyspark.sql import types as spark

from cdfd.delta.types.datatypes import StructField, StructType, map_fields
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema, column_id, physical_name
from cdfd.delta.types.schema_string import serialize
from cdfd.model.columns import CHANGE_TYPE
from cdfd.spark.records.records import quoted

FIELD_ID = "parquet.field.id"
"""Key of the metadata by which Spark's reader finds a column by its id."""


def read_schema(schema: TableSchema, wanted: Container[str], *, is_cdc: bool) -> spark.StructType:
    """The schema to read files in: wanted columns by their names in files, and the change type of change data files."""
    numbers = count()

    def in_file(child: StructField) -> StructField:
        name, metadata = physical_name(child, schema.mapping), dict[str, int]()
        if name == "\0":
            # No file has the field. Two fields of a struct need two names.
            name = f"\0{next(numbers)}"
        elif schema.mapping is ColumnMappingMode.ID and (number := column_id(child)) is not None:
            metadata[FIELD_ID] = number
        return StructField(name, child.type, True, metadata)

    struct = map_fields(StructType(tuple(child for child in schema.data_fields if child.name in wanted)), in_file)
    assert isinstance(struct, StructType)
    read = spark.StructType.fromJson(json.loads(serialize(struct))).toNullable()
    return read.add(CHANGE_TYPE, spark.StringType()) if is_cdc else read


def select_columns(
    types: Mapping[str, spark.DataType],
    schema: TableSchema,
    wanted: Sequence[tuple[str, spark.StructField]],
    constants: Mapping[str, str],
) -> list[str]:
    """The columns of change rows, as SQL expressions over a frame of files.

    Text, because each function of PySpark asks the JVM several times: for eight scans of ten columns, that took 0.2 s.

    Args:
        types: of the columns in the files.
        schema: of the files.
        wanted: for each column, its name in the table or that of a change column, and its field.
        constants: expressions by name, of those that are not in the files.
    """
    stored = {child.name: schema.physical_name(child) for child in schema.data_fields}
    columns = []
    for name, wished in wanted:
        inside = stored.get(name, name)
        if name in constants:
            text = constants[name]
        elif inside in types:
            text = quoted(inside)
            if types[inside] != wished.dataType:
                text = f"CAST({text} AS {sql_type(wished.dataType)})"
        else:
            text = f"CAST(NULL AS {sql_type(wished.dataType)})"
        columns.append(f"{text} AS {quoted(wished.name)}")
    return columns


def sql_type(kind: spark.DataType) -> str:
    """A type in SQL, with any names of fields."""
    match kind:
        case spark.StructType():
            return f"STRUCT<{', '.join(f'{quoted(child.name)}: {sql_type(child.dataType)}' for child in kind)}>"
        case spark.ArrayType():
            return f"ARRAY<{sql_type(kind.elementType)}>"
        case spark.MapType():
            return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
        case spark.TimestampType():
            return "TIMESTAMP_LTZ"  # a setting of the session says what TIMESTAMP is
    return kind.simpleString()


def sql_literal(value: bool | float | str | bytes | None) -> str:
    """A value in SQL. Settings of the session change nothing about how it is read."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value)
        case int():
            return f"CAST({value} AS BIGINT)"
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case bytes():
            return f"X'{value.hex()}'"
    return f"CAST(X'{value.encode().hex()}' AS STRING)"
