"""Rows in Avro: cells of any type in its binary encoding, as the schema that `cdfd.encode.avro.schema` makes has them."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from cdfd.encode.avro.schema import AvroSchema
from cdfd.encode.cells.binary import (
    booleans,
    byte_strings,
    decimals,
    decode,
    floats,
    from_dictionary,
    mark,
    sequences,
    varints,
    whole_numbers,
)
from cdfd.encode.cells.pieces import Cell, Column, Form, Nested, join, literal, nulls_of, pool
from cdfd.encode.kinds import DECIMAL, Kind, KindField, Modes, kind_of_shape
from cdfd.encode.payload import Shape
from cdfd.encode.registered import SchemaFormat
from cdfd.encode.values import plain_text, with_items
from cdfd.encode.writer import Places, Writer
from cdfd.errors import DataError
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import to_numpy
from cdfd.trevni.avro_names import legal_path

NULL, VALUE = b"\x00", b"\x02"
"""Branches of a union of null and another type."""

_MORE: Final = pool(b"", b"\x00")


class AvroWriter(Writer[KindField]):
    """Writes records of Avro.

    Args:
        modes: forms of values.
    """

    def __init__(self, modes: Modes) -> None:
        super().__init__()
        self._modes = modes

    def fields(self, field: KindField) -> Sequence[KindField]:
        """Those of its type."""
        return field.kind.fields

    def struct(self, field: KindField, cells: list[Cell], places: Places) -> Cell:
        """The fields one after the other."""
        cell = Nested(self.separators(field.kind.fields), cells, *places)
        return mark(cell, VALUE, NULL) if field.nullable else cell

    def text(self, field: KindField, separators: Sequence[str], numbers: list[Cell], count: int) -> Cell:
        """A string behind its length."""
        cell = Nested([each.encode() for each in separators], numbers, count, length=Form.ZIGZAG)
        return mark(cell, VALUE, NULL) if field.nullable else cell

    def array(self, array: pa.Array, field: KindField) -> Cell:
        """A union of null and the type, or the type alone. `DataError` as `_plain` says, or where a null is in a field that has none."""
        if field.nullable:
            return self._nullable(array, field.kind)
        array = decode(array)
        if array.null_count:
            raise DataError("it has a null, which its schema does not allow")
        return self._plain(array, field.kind)

    def _nullable(self, array: pa.Array, kind: Kind) -> Cell:
        array = decode(array)
        if kind.type == "null":
            return literal(b"")
        if len(array) and array.null_count == len(array):
            return literal(NULL)
        return mark(self._plain(array, kind), VALUE, NULL)

    def _plain(self, array: pa.Array, kind: Kind) -> Cell:
        """Cells of the type alone.

        Raises:
            DataError: a string is not UTF-8; a time in seconds or milliseconds is beyond what microseconds can represent.
        """
        if types.is_dictionary(array.type):
            return from_dictionary(array, self._plain(array.dictionary, kind))
        match kind.type:
            case "boolean":
                return booleans(array)
            case "float32" | "float64":
                return floats(array, kind)
            case "string":
                return byte_strings(plain_text(array, self._modes.binary), Form.ZIGZAG)
            case "bytes":
                return decimals(array, Form.ZIGZAG) if kind.name == DECIMAL else byte_strings(array, Form.ZIGZAG)
            case "struct":
                # `flatten` hides what lies beneath a null struct; it may be anything.
                columns = zip(array.flatten(), kind.fields, strict=True)
                cells = [self._nullable(column, field.kind) for column, field in columns]
                return Nested(self.separators(kind.fields), cells, len(array), None, nulls_of(array))
            case "array":
                assert kind.items is not None
                items = pc.list_flatten(array)
                return _blocks(array, join([b"", b""], [self._nullable(items, kind.items)], len(items)))
            case "map":
                assert kind.keys is not None
                assert kind.items is not None
                key_lists = with_items(array, array.keys)
                keys, items = decode(pc.list_flatten(key_lists)), pc.list_flatten(with_items(array, array.items))
                if keys.null_count:
                    hint = "Avro cannot name it, and Delta's maps do not allow it"
                    raise DataError("a map has a null key", hint=hint)
                cells = [self._plain(keys, kind.keys), self._nullable(items, kind.items)]
                return _blocks(key_lists, join([b"", b"", b""], cells, len(items)))
            case "null":
                return literal(b"")
        return varints(whole_numbers(array, kind), Form.ZIGZAG, nulls_of(array))


def _blocks(lists: pa.Array, items: pa.Array) -> Cell:
    """Arrays and maps: the number of items, the items, and 0 for no more; nothing but that 0 where there are none."""
    counts = to_numpy(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    every, nulls = np.arange(len(lists)), nulls_of(lists)
    end = Column(_MORE, ((counts > 0).astype(np.int64),))
    cells: list[Cell] = [varints(counts, Form.ZIGZAG), Column(sequences(items, counts), (every,)), end]
    return Nested([b""] * 4, cells, len(lists), None, nulls)


def avro_format(shape: Shape, modes: Modes, earlier: Sequence[str] = (), *, names: bool = True) -> SchemaFormat:
    """The format of records of one shape.

    Args:
        shape: of the records.
        modes: forms of values.
        earlier: the schemas of the subject, the newest last, whose names columns keep.
        names: whether the schema has Kafka Connect's names of types.

    Raises:
        UnsupportedError: a column is of a type that Avro has no form for.
    """
    kind = kind_of_shape(shape, modes)
    schema = AvroSchema(kind, names=names, earlier=earlier)
    writer = AvroWriter(modes)
    return SchemaFormat("AVRO", schema.text, legal_path(shape.name), writer, kind.fields, continues=schema.folded)
