"""Column mapping, as a writer needs it: ids and physical names of new fields, and the columns as data files have them. Pure.

Source: specification, "Column Mapping" and "Writer Requirements for Column Mapping".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import ArrayType, DataType, MapType, StructField, StructType
from cdfd.delta.types.schema import ID, MODE, PHYSICAL_NAME, ColumnMappingMode, column_id, physical_name
from cdfd.errors import LogError

MAX_ID = "delta.columnMapping.maxColumnId"
_FIELD_ID = b"PARQUET:field_id"
_DIGITS = 10
"""Of an id: it is a 32-bit integer."""


def highest_id(configuration: Mapping[str, str], struct: StructType) -> int:
    """The highest id that a column has or had; 0 if there is none.

    Raises:
        LogError: the table's property is not a number.
    """
    text = configuration.get(MAX_ID, "0")
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
        raise LogError(f"{MAX_ID} must be a 32-bit whole number, not {text!r:.80}")
    return max((int(text), *_ids(struct)))


def properties(mode: ColumnMappingMode, highest: int) -> dict[str, str]:
    """The properties of a table with this mapping."""
    return {} if mode is ColumnMappingMode.NONE else {MODE: mode.value, MAX_ID: str(highest)}


def assign_ids(struct: StructType, highest: int, name_of: Callable[[StructField], str]) -> tuple[StructType, int]:
    """The struct with an id and a physical name in each field, and the highest id. Fields that have them keep them.

    Args:
        struct: the columns.
        highest: the highest id that is taken.
        name_of: gives a field its physical name.
    """
    numbers = _Numbers(highest, name_of)
    return numbers.struct(struct), numbers.highest


def stored_schema(struct: StructType, mode: ColumnMappingMode) -> pa.Schema:
    """The columns as data files have them: by their physical names and with their ids.

    Raises:
        LogError: a physical name or an id is of a wrong type.
        UnsupportedError: a type that cdfd cannot write.
    """
    return pa.schema([_stored_field(child, mode) for child in struct])


def _stored_field(child: StructField, mode: ColumnMappingMode) -> pa.Field[Any]:
    number = None if mode is ColumnMappingMode.NONE else column_id(child)
    metadata = None if number is None else {_FIELD_ID: str(number).encode()}
    return pa.field(physical_name(child, mode), _stored_type(child.type, mode), child.nullable, metadata)


def _stored_type(kind: DataType, mode: ColumnMappingMode) -> pa.DataType:
    match kind:
        case StructType():
            return pa.struct([_stored_field(child, mode) for child in kind])
        case ArrayType(element, contains_null):
            return pa.list_(pa.field("element", _stored_type(element, mode), nullable=contains_null))
        case MapType(key, value, value_contains_null):
            item: Any = pa.field("value", _stored_type(value, mode), nullable=value_contains_null)
            return pa.map_(_stored_type(key, mode), item)
    return arrow_type(kind)


def _ids(kind: DataType) -> list[int]:
    match kind:
        case StructType():
            own = [number for child in kind if (number := column_id(child)) is not None]
            return own + [number for child in kind for number in _ids(child.type)]
        case ArrayType(element):
            return _ids(element)
        case MapType(key, value):
            return _ids(key) + _ids(value)
    return []


class _Numbers:
    """Assigns ids and physical names on one walk through a schema."""

    def __init__(self, highest: int, name_of: Callable[[StructField], str]) -> None:
        self.highest = highest
        self._name_of = name_of

    def struct(self, struct: StructType) -> StructType:
        return StructType(tuple(self._field(child) for child in struct))

    def _field(self, child: StructField) -> StructField:
        if ID not in child.metadata or PHYSICAL_NAME not in child.metadata:
            self.highest += 1
            child = replace(child, metadata={ID: self.highest, PHYSICAL_NAME: self._name_of(child), **child.metadata})
        return replace(child, type=self._type(child.type))

    def _type(self, kind: DataType) -> DataType:
        match kind:
            case StructType():
                return self.struct(kind)
            case ArrayType(element):
                return replace(kind, element=self._type(element))
            case MapType(key, value):
                return replace(kind, key=self._type(key), value=self._type(value))
        return kind
