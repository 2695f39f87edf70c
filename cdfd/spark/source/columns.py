"""Columns for Spark: Spark's types for a table's types, and Arrow arrays that Spark's readers accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as spark

from cdfd.delta.types.arrow_types import arrow_type, to_arrow
from cdfd.delta.types.datatypes import ArrayType, DataType, Decimal, Foreign, MapType, StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.schema_string import parse
from cdfd.errors import ConfigError
from cdfd.spark.records import records
from cdfd.spark.records.arrow import conform

CHANGE_FIELDS: Final = {field.name: field.dataType for field in records.CHANGE_FIELDS}
"""The types of the change columns, which a row has in addition to the table's columns."""

_PRIMITIVES: Final = {
    "string": spark.StringType(),
    "long": spark.LongType(),
    "integer": spark.IntegerType(),
    "short": spark.ShortType(),
    "byte": spark.ByteType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "boolean": spark.BooleanType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
    # As text, as everywhere in cdfd. `parse_json` converts it to a variant.
    "variant": spark.StringType(),
    "void": spark.NullType(),
}

_FOREIGN: Final = {
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.binary(): spark.BinaryType(),
    pa.timestamp("ns", "UTC"): spark.TimestampType(),
}

Convert = Callable[[Any], Any]


def spark_schema(schema: TableSchema, names: Sequence[str]) -> spark.StructType:
    """The named columns of the table or of change rows. All are nullable, because rows of older versions lack newer columns."""
    fields = []
    for name in names:
        kind: spark.DataType | None = CHANGE_FIELDS.get(name)
        column = schema.find((name,))
        if kind is None:
            assert column is not None
            kind = _spark_type(column.type)
        comment = None if column is None else column.metadata.get("comment")
        metadata = {"comment": comment} if isinstance(comment, str) else None
        fields.append(spark.StructField(name, kind, True, metadata))
    return spark.StructType(fields)


def _spark_type(kind: DataType) -> spark.DataType:
    match kind:
        case Decimal(precision, scale):
            return spark.DecimalType(precision, scale)
        case StructType():
            return spark.StructType([spark.StructField(child.name, _spark_type(child.type)) for child in kind])
        case ArrayType(element):
            return spark.ArrayType(_spark_type(element))
        case MapType(key, value):
            return spark.MapType(_spark_type(key), _spark_type(value))
        case Foreign():
            return _FOREIGN[arrow_type(kind)]
    return _PRIMITIVES[kind.name]


def chosen_names(schema: TableSchema, user_schema: spark.StructType) -> tuple[str, ...]:
    """The columns of a schema that the user gives, in the table's spelling.

    Raises:
        ConfigError: a column is missing, has another type, or may be null and is not nullable in the given schema.
    """
    by_name = {name.lower(): name for name in (*CHANGE_FIELDS, *schema.names)}
    names = []
    for field in user_schema:
        name = by_name.get(field.name.lower())
        if name is None:
            schema.select([field.name])  # raises an error that lists the columns
            continue
        (own_schema,) = spark_schema(schema, [name])
        if _nullable(field.dataType) != own_schema.dataType:
            raise ConfigError(
                f"column {name!r:.200} is {own_schema.dataType.simpleString():.200}, but the requested schema has "
                f"{field.dataType.simpleString():.200}",
                hint="Omit the schema, or cast the column after you read it",
            )
        column = schema.find((name,))
        if column is not None and _forbids_nulls(spark.StructType([field]), StructType((column,))):
            raise ConfigError(
                f"column {name!r:.200} may have nulls, but not by the requested schema",
                hint="Omit NOT NULL (`nullable=False`): Spark would read other values instead of nulls",
            )
        names.append(name)
    return tuple(names)


def _forbids_nulls(rows: spark.DataType, table: DataType) -> bool:
    """Whether a type has no nulls at a place where the same type of a table may have some."""
    match rows, table:
        case spark.StructType(), StructType():
            return any(
                (own.nullable and not child.nullable) or _forbids_nulls(child.dataType, own.type)
                for child, own in zip(rows, table, strict=True)
            )
        case spark.ArrayType(), ArrayType():
            forbidden = table.contains_null and not rows.containsNull
            return forbidden or _forbids_nulls(rows.elementType, table.element)
        case spark.MapType(), MapType():
            forbidden = table.value_contains_null and not rows.valueContainsNull
            return forbidden or _forbids_nulls(rows.valueType, table.value) or _forbids_nulls(rows.keyType, table.key)
    return False


def _nullable(kind: spark.DataType) -> spark.DataType:
    """The type without nullability and comments."""
    match kind:
        case spark.StructType():
            return spark.StructType([spark.StructField(field.name, _nullable(field.dataType)) for field in kind])
        case spark.ArrayType():
            return spark.ArrayType(_nullable(kind.elementType))
        case spark.MapType():
            return spark.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


@dataclass(frozen=True, slots=True)
class SparkBatches:
    """Converts batches to those that Spark accepts.

    Attributes:
        schema: of its batches.
        sources: for each column, its position in our batches and its conversion; None: no conversion.
    """

    schema: pa.Schema
    sources: tuple[tuple[int, Convert | None], ...]

    @classmethod
    def plan(cls, schema: pa.Schema, names: Sequence[str], wanted: spark.StructType) -> SparkBatches:
        """Plan the conversion of batches of `schema`: the columns `names`, as the columns of `wanted`.

        Spark 4.2 refuses batches of which a field is nullable at any depth where its schema is not, or the other way round.
        """
        target = to_arrow(parse(wanted.json()))
        sources = [
            (schema.get_field_index(name), _conversion(schema.field(name).type, field.type))
            for name, field in zip(names, target, strict=True)
        ]
        return cls(target, tuple(sources))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch. Columns with the right type are not copied."""
        arrays = [
            batch.column(position) if convert is None else convert(batch.column(position))
            for position, convert in self.sources
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _conversion(kind: Any, wanted: Any) -> Convert | None:
    """The conversion of arrays to the type that Spark accepts; None: no conversion."""
    if kind == wanted:
        return None
    if pa.types.is_dictionary(kind):
        return lambda array: array.dictionary_decode()
    if pa.types.is_timestamp(kind):
        # Spark has no nanoseconds.
        return lambda array: array.cast(wanted, safe=False)
    return lambda array: conform(array, wanted, strict=False)
