"""Columns as Spark wants them: its types for a table's, and Arrow arrays that its readers take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from cdfd.changes.columns import CHANGE_ORDINAL, CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from cdfd.delta.datatypes import ArrayType, DataType, Decimal, MapType, StructType
from cdfd.delta.schema import TableSchema
from cdfd.errors import ConfigError

CHANGE_FIELDS: Final = {
    CHANGE_TYPE: spark.StringType(),
    COMMIT_VERSION: spark.LongType(),
    COMMIT_TIMESTAMP: spark.TimestampType(),
    CHANGE_ORDINAL: spark.LongType(),
}
"""The columns that a change row has beside the table's."""

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
    # The text of it, as everywhere in cdfd: `parse_json` makes a variant of it.
    "variant": spark.StringType(),
}

Convert = Callable[[Any], Any]


def spark_schema(schema: TableSchema, names: Sequence[str]) -> spark.StructType:
    """The columns of that name, of the table or of change rows. Everything may be null: a row of an older version lacks what came later."""
    fields = []
    for name in names:
        kind: spark.DataType | None = CHANGE_FIELDS.get(name)
        found = schema.find((name,))
        if kind is None:
            assert found is not None
            kind = _spark_type(found.type)
        comment = None if found is None else found.metadata.get("comment")
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
    return _PRIMITIVES[kind.name]


def chosen_names(schema: TableSchema, given: spark.StructType) -> tuple[str, ...]:
    """The columns of a schema that the user gives, as the table spells them.

    Raises:
        ConfigError: a column that is not there, or that is of another type.
    """
    known = {name.lower(): name for name in (*CHANGE_FIELDS, *schema.names)}
    names = []
    for field in given:
        name = known.get(field.name.lower())
        if name is None:
            schema.select([field.name])  # says which columns there are
            continue
        (found,) = spark_schema(schema, [name])
        if _nullable(field.dataType) != _nullable(found.dataType):
            raise ConfigError(
                f"column {name!r:.200} is {found.dataType.simpleString():.200}, and the schema that is asked for says "
                f"{field.dataType.simpleString():.200}",
                hint="Leave the schema out, or cast the column after it is read",
            )
        names.append(name)
    return tuple(names)


def _nullable(kind: spark.DataType) -> spark.DataType:
    """The type without what it says of nulls and comments."""
    match kind:
        case spark.StructType():
            return spark.StructType([spark.StructField(field.name, _nullable(field.dataType)) for field in kind])
        case spark.ArrayType():
            return spark.ArrayType(_nullable(kind.elementType))
        case spark.MapType():
            return spark.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


@dataclass(frozen=True, slots=True)
class ForSpark:
    """Makes Spark's batches of ours.

    Attributes:
        schema: of its batches.
        sources: for each column, the position in ours and how it is converted; None for as it is.
    """

    schema: pa.Schema
    sources: tuple[tuple[int, Convert | None], ...]

    @classmethod
    def plan(cls, schema: pa.Schema, names: Sequence[str], wanted: Sequence[str]) -> ForSpark:
        """For batches of `schema`: those of the columns `names`, under the names that are `wanted`."""
        fields, sources = [], list[tuple[int, Convert | None]]()
        for name, called in zip(names, wanted, strict=True):
            position = schema.get_field_index(name)
            target, convert = _conversion(schema.field(position).type)
            fields.append(pa.field(called, target))
            sources.append((position, convert))
        return cls(pa.schema(fields), tuple(sources))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch as Spark takes it. What is of the right type already is not copied."""
        arrays = [
            batch.column(position) if convert is None else convert(batch.column(position))
            for position, convert in self.sources
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _conversion(kind: Any) -> tuple[pa.DataType, Convert | None]:
    """The type that Spark takes, and how a column becomes that; None where it is that already."""
    if pa.types.is_dictionary(kind):
        return kind.value_type, lambda array: array.dictionary_decode()
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        target = pa.timestamp("us", kind.tz)
        return target, lambda array: array.cast(target)
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type, lambda array: array.storage
    plain = _plain(kind)
    return plain, None if plain == kind else lambda array: _as_plain(array, plain)


def _plain(kind: Any) -> pa.DataType:
    """A type without extension types, at any depth."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), kind.item_field.with_type(_plain(kind.item_type)))
    return kind


def _as_plain(array: Any, target: Any) -> Any:
    kind = array.type
    if kind == target:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return array.storage
    if not len(array):
        return pa.nulls(0, target)
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        fields = list(target)
        children = [_as_plain(array.field(number), field.type) for number, field in enumerate(fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    offsets, start, count = _window(array)
    if pa.types.is_list(kind):
        elements = _as_plain(array.values.slice(start, count), target.value_type)
        return pa.ListArray.from_arrays(offsets, elements, type=target, mask=mask)
    keys = _as_plain(array.keys.slice(start, count), target.key_type)
    items = _as_plain(array.items.slice(start, count), target.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)


def _window(array: Any) -> tuple[Any, int, int]:
    """Offsets from 0 on, and which elements they are in (start and count): a batch is often a slice of a larger one."""
    offsets = array.offsets
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    return pc.subtract(offsets, pa.scalar(start, offsets.type)), start, end - start
