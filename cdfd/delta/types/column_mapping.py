"""Column mapping, as a writer needs it: ids and physical names of new fields, and the columns as data files have them. Pure.

Source: specification, "Column Mapping" and "Writer Requirements for Column Mapping".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import StructField, StructType, fields_in, map_fields
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
    ids = [number for child in fields_in(struct) if (number := column_id(child)) is not None]
    return max(int(text), *ids) if ids else int(text)


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

    def assign(child: StructField) -> StructField:
        nonlocal highest
        if ID in child.metadata and PHYSICAL_NAME in child.metadata:
            return child
        highest += 1
        return replace(child, metadata={ID: highest, PHYSICAL_NAME: name_of(child), **child.metadata})

    mapped = map_fields(struct, assign)
    assert isinstance(mapped, StructType)
    return mapped, highest


def stored_schema(struct: StructType, mode: ColumnMappingMode) -> pa.Schema:
    """The columns as data files have them: by their physical names and with their ids.

    Raises:
        LogError: a physical name or an id is of a wrong type.
        UnsupportedError: a type that cdfd cannot write.
    """

    def stored_field(child: StructField) -> pa.Field[Any]:
        number = None if mode is ColumnMappingMode.NONE else column_id(child)
        metadata = None if number is None else {_FIELD_ID: str(number).encode()}
        return pa.field(physical_name(child, mode), arrow_type(child.type, stored_field), child.nullable, metadata)

    return pa.schema(map(stored_field, struct))
