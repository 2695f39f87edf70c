"""Rows in Protobuf: cells of any type in its binary encoding, as the schema that `cdfd.encode.protobuf.schema` makes has them.

A field is its tag and its value. A null has neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from cdfd.encode.cells.binary import (
    booleans,
    byte_strings,
    decode,
    floats,
    from_dictionary,
    mark,
    sequences,
    varints,
    whole_numbers,
)
from cdfd.encode.cells.pieces import Cell, Column, Form, Nested, join, lengths, literal, nulls_of
from cdfd.encode.cells.times import microseconds
from cdfd.encode.kinds import CONNECT_TIMESTAMP, LISTS, Modes, kind_of_shape
from cdfd.encode.payload import Payload, Shape
from cdfd.encode.protobuf.schema import ProtobufSchema, Slot
from cdfd.encode.registered import SchemaFormat
from cdfd.encode.values import plain_text, with_items
from cdfd.encode.writer import Places, Writer
from cdfd.errors import DataError
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import to_numpy
from cdfd.trevni.avro_names import legal_path

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_WIRE_TYPES: Final = {"float32": _FIXED_32, "float64": _FIXED_64, "string": _BYTES, "bytes": _BYTES}
_NULL: Final = b""


def tag(number: int, wire_type: int) -> bytes:
    """The bytes before a value of a field."""
    (text,) = lengths(np.array([number << 3 | wire_type]), Form.PLAIN).to_pylist()
    prefix: bytes = text
    return prefix


class ProtobufWriter(Writer[Slot]):
    """Writes messages.

    Args:
        modes: forms of values.
    """

    def __init__(self, modes: Modes) -> None:
        super().__init__()
        self._modes = modes

    def fields(self, field: Slot) -> Sequence[Slot]:
        """Those of its message."""
        return field.fields

    def struct(self, field: Slot, cells: list[Cell], places: Places) -> Cell:
        """A message behind its length."""
        separators = [b""] * (len(cells) + 1)
        return Nested(separators, cells, *places, _NULL, tag(field.number, _BYTES), Form.PLAIN)

    def text(self, field: Slot, separators: Sequence[str], numbers: list[Cell], count: int) -> Cell:
        """A string behind its length."""
        texts = [each.encode() for each in separators]
        return Nested(texts, numbers, count, opening=tag(field.number, _BYTES), length=Form.PLAIN)

    def array(self, array: pa.Array, field: Slot) -> Cell:
        """The field with its tag.

        Raises:
            DataError: a string is not UTF-8; a time in seconds or milliseconds is beyond what microseconds can represent.
        """
        array = decode(array)
        if len(array) and array.null_count == len(array):
            return literal(_NULL)
        if types.is_dictionary(array.type):
            return mark(from_dictionary(array, self.array(array.dictionary, field)), b"", _NULL)
        if field.kind.name == CONNECT_TIMESTAMP:
            return self._timestamp(array, field)
        match field.kind.type:
            case "array":
                assert field.element is not None
                items = pc.list_flatten(array)
                message = self.struct(field, [self.array(items, field.element)], Places(len(items)))
                return _repeat(array, join([b"", b""], [message], len(items)))
            case "map":
                return self._map(array, field)
            case "struct":
                # `flatten` hides what lies beneath a null struct; it may be anything.
                cells = [self.array(column, child) for column, child in zip(array.flatten(), field.fields, strict=True)]
                return self.struct(field, cells, Places(len(array), None, nulls_of(array)))
            case "boolean":
                cell = booleans(array)
            case "float32" | "float64":
                cell = floats(array, field.kind)
            case "string":
                cell = byte_strings(plain_text(array, self._modes.binary), Form.PLAIN)
            case "bytes":
                cell = byte_strings(array, Form.PLAIN)
            case _:
                cell = varints(whole_numbers(array, field.kind), Form.PLAIN, nulls_of(array))
        return mark(cell, tag(field.number, _WIRE_TYPES.get(field.kind.type, _VARINT)), _NULL)

    def _timestamp(self, array: pa.Array, field: Slot) -> Cell:
        """Seconds and nanoseconds, as they are, whatever the year is."""
        seconds, fraction = np.divmod(microseconds(array), 1_000_000)
        nulls = nulls_of(array)
        parts = (
            mark(varints(each, Form.PLAIN), tag(number, _VARINT), _NULL)
            for number, each in ((1, seconds), (2, fraction * 1_000))
        )
        return self.struct(field, list(parts), Places(len(array), None, nulls))

    def _map(self, array: pa.Array, field: Slot) -> Cell:
        assert field.element is not None
        assert field.key is not None
        key_lists = with_items(array, array.keys)
        keys, items = pc.list_flatten(key_lists), pc.list_flatten(with_items(array, array.items))
        if keys.null_count:
            raise DataError("a map has a null key", hint="Protobuf cannot name it, and Delta's maps do not allow it")
        cells = [self.array(keys, field.key)]
        if field.is_entry:
            cells.append(self.array(items, field.element))
        else:
            value = Slot(field.name, 2, field.kind)
            cells.append(self.struct(value, [self.array(items, field.element)], Places(len(items))))
        message = self.struct(field, cells, Places(len(items)))
        return _repeat(key_lists, join([b"", b""], [message], len(items)))


class ProtobufKeyWriter(ProtobufWriter):
    """Writes keys: rows with different ones must not get the same bytes."""

    def rows(self, payload: Payload, fields: Sequence[Slot], prefix: bytes = b"", suffix: bytes = b"") -> pa.Array:
        """As `Writer.rows`. `DataError` if a key has a null array or map, which would be the key of the row with an empty one."""
        for value, field in zip(payload.values, fields, strict=True):
            if isinstance(value, pa.Array) and _has_null_list(value):
                raise DataError(
                    f"column {field.name}: a key has a null array or map, which Protobuf cannot distinguish from an empty one",
                    hint="Leave the column out of `key`, or choose another encoding",
                )
        return super().rows(payload, fields, prefix, suffix)


def _has_null_list(array: pa.Array) -> bool:
    array = decode(array)
    if types.is_dictionary(array.type):
        return _has_null_list(array.dictionary)
    if types.is_struct(array.type):
        return any(map(_has_null_list, array.filter(array.is_valid()).flatten()))
    if types.is_map(array.type):
        items = (pc.list_flatten(with_items(array, each)) for each in (array.keys, array.items))
        return bool(array.null_count) or any(map(_has_null_list, items))
    return any(matches(array.type) for matches in LISTS) and (
        bool(array.null_count) or _has_null_list(pc.list_flatten(array))
    )


def _repeat(lists: pa.Array, items: pa.Array) -> Cell:
    """The items of each list, which have their tags."""
    counts = to_numpy(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    return Column(sequences(items, counts), (np.arange(len(lists)),), nulls_of(lists), null=_NULL)


def protobuf_format(shape: Shape, modes: Modes, earlier: Sequence[str] = (), *, key: bool = False) -> SchemaFormat:
    """The format of records of one shape.

    Args:
        shape: of the records.
        modes: forms of values.
        earlier: the schemas of the subject, the newest last, of which fields keep their numbers.
        key: whether the records are keys.

    Raises:
        UnsupportedError: a column is of a type that Protobuf has no form for.
        DataError: one of `earlier` is not a schema of Protobuf.
    """
    schema = ProtobufSchema(kind_of_shape(shape, modes), earlier)
    writer = ProtobufKeyWriter(modes) if key else ProtobufWriter(modes)
    return SchemaFormat("PROTOBUF", schema.text, legal_path(shape.name), writer, schema.fields, continues=True)
