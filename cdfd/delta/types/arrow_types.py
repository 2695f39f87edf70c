"""Delta types <-> Arrow types.

Columns of type void are nulls. A variant is `arrow.json`: text, whatever it was in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from cdfd.delta.types.datatypes import (
    MAX_PRECISION,
    ArrayType,
    DataType,
    Decimal,
    Foreign,
    MapType,
    Primitive,
    PrimitiveName,
    StructField,
    StructType,
)
from cdfd.errors import UnsupportedError

_ARROW: dict[PrimitiveName, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "variant": pa.json_(pa.string()),
    "void": pa.null(),
}
_DELTA: dict[pa.DataType, PrimitiveName] = {arrow: name for name, arrow in _ARROW.items()} | {
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date64(): "date",
    pa.json_(pa.large_string()): "variant",
    pa.json_(pa.string_view()): "variant",
}


def to_arrow(struct: StructType) -> pa.Schema:
    """The Arrow schema of a table's rows.

    Raises:
        UnsupportedError: a column is of a type that cdfd cannot read.
    """
    return pa.schema([_arrow_field(child) for child in struct])


def from_arrow(schema: pa.Schema) -> StructType:
    """The Delta schema for Arrow data that we are about to write.

    Raises:
        UnsupportedError: a type that Delta does not have: unsigned integers, times, durations, unions.
    """
    return StructType(tuple(_delta_field(field) for field in schema))


def arrow_type(kind: DataType, arrow_field: Callable[[StructField], pa.Field[Any]] | None = None) -> pa.DataType:
    """The Arrow type of one column's values.

    Args:
        kind: the type in the schema.
        arrow_field: of a struct's field; None: it has the field's name.

    Raises:
        UnsupportedError: cdfd cannot read the type.
    """
    match kind:
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case StructType():
            return pa.struct(list(map(arrow_field or _arrow_field, kind)))
        case ArrayType(element, contains_null):
            return pa.list_(pa.field("element", arrow_type(element, arrow_field), nullable=contains_null))
        case MapType(key, value, value_contains_null):
            item: Any = pa.field("value", arrow_type(value, arrow_field), nullable=value_contains_null)
            return pa.map_(arrow_type(key, arrow_field), item)
        case Foreign(name, arrow):
            if arrow is None:
                raise UnsupportedError(f"the type {name!r:.80} cannot be read", hint=_LEAVE_OUT)
            return arrow
    return _ARROW[kind.name]


_LEAVE_OUT = "Leave the column out with `columns`, or store it as a string or a number"


def _arrow_field(child: StructField) -> pa.Field[Any]:
    try:
        return pa.field(child.name, arrow_type(child.type), nullable=child.nullable)
    except UnsupportedError as error:
        raise UnsupportedError(f"column {child.name!r:.200}: {error.what}", hint=error.hint) from None


def _delta_field(field: pa.Field[Any]) -> StructField:
    return StructField(field.name, _delta_type(field.type, field.name), field.nullable)


def _delta_type(arrow: Any, name: str) -> DataType:
    if (primitive := _DELTA.get(arrow)) is not None:
        return Primitive(primitive)
    if pa.types.is_decimal(arrow):
        if arrow.precision > MAX_PRECISION or not 0 <= arrow.scale <= arrow.precision:
            raise UnsupportedError(f"column {name!r:.200}: Delta has no {arrow}", hint="cast it to at most 38 digits")
        return Decimal(arrow.precision, arrow.scale)
    if pa.types.is_timestamp(arrow):
        return Primitive("timestamp_ntz" if arrow.tz is None else "timestamp")
    if pa.types.is_fixed_size_binary(arrow):
        return Primitive("binary")
    if is_any_list(arrow):
        element = arrow.value_field
        return ArrayType(_delta_type(element.type, f"{name}.element"), element.nullable)
    if pa.types.is_map(arrow):
        key, value = _delta_type(arrow.key_type, f"{name}.key"), _delta_type(arrow.item_type, f"{name}.value")
        return MapType(key, value, arrow.item_field.nullable)
    if pa.types.is_struct(arrow):
        return StructType(tuple(_delta_field(arrow.field(i)) for i in range(arrow.num_fields)))
    if pa.types.is_dictionary(arrow):
        return _delta_type(arrow.value_type, name)
    raise UnsupportedError(
        f"column {name!r:.200} is of Arrow type {arrow!s:.200}, which has no counterpart in Delta",
        hint="cast it to a type that Delta has",
    )


def is_any_list(arrow: pa.DataType) -> bool:
    """Whether values are lists in one of the layouts that Parquet readers give."""
    # Not list views: Arrow's cast of one to a list allocates too few offsets (seen in 26.0).
    return bool(pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow))
