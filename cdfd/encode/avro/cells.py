"""Cells of any type in Avro's binary encoding, as the schema that `cdfd.encode.avro.schema` makes has them."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from cdfd.encode.cells.binary import booleans, byte_strings, decimals, fixed_width, mark, sequences, varints
from cdfd.encode.cells.numbers import doubles, raw_values, without_gaps
from cdfd.encode.cells.pieces import Cell, Column, Form, Nested, join, literal, nulls_of, pool
from cdfd.encode.cells.times import days_of, microseconds
from cdfd.encode.kinds import CONNECT_TIMESTAMP, DECIMAL, Kind, KindField, Modes
from cdfd.encode.values import plain_text, with_items
from cdfd.encode.writer import Places, Writer
from cdfd.errors import DataError
from cdfd.runtime.arrays import to_numpy

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

    def separators(self, fields: Sequence[KindField]) -> list[bytes]:
        """Nothing stands between fields."""
        return [b""] * (len(fields) + 1)

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
            nulls = nulls_of(array)
            codes = without_gaps(raw_values(array.indices, array.indices.type.to_pandas_dtype()), nulls)
            texts = join([b"", b""], [self._plain(array.dictionary, kind)], len(array.dictionary))
            same = nulls is None and len(codes) > 0 and codes.min() == codes.max()
            return Column(texts, (int(codes[0]) if same else codes.astype(np.int64),), nulls)
        return _ENCODERS[kind.type](self, array, kind)

    def integers(self, array: pa.Array, kind: Kind) -> Cell:
        """Numbers, days and times."""
        return varints(whole_numbers(array, kind), Form.ZIGZAG, nulls_of(array))

    def texts(self, array: pa.Array, _kind: Kind) -> Cell:
        """Strings, and texts of other values."""
        return byte_strings(plain_text(array, self._modes.binary), Form.ZIGZAG)

    def bytes(self, array: pa.Array, kind: Kind) -> Cell:
        """Bytes and decimals."""
        return decimals(array, Form.ZIGZAG) if kind.name == DECIMAL else byte_strings(array, Form.ZIGZAG)

    def structs(self, array: pa.Array, kind: Kind) -> Cell:
        """The fields one after the other."""
        # `flatten` hides what lies beneath a null struct; it may be anything.
        columns = zip(array.flatten(), kind.fields, strict=True)
        cells = [self._nullable(column, field.kind) for column, field in columns]
        return Nested(self.separators(kind.fields), cells, len(array), None, nulls_of(array))

    def lists(self, array: pa.Array, kind: Kind) -> Cell:
        """Items in a block."""
        assert kind.items is not None
        items = pc.list_flatten(array)
        return _blocks(array, join([b"", b""], [self._nullable(items, kind.items)], len(items)))

    def maps(self, array: pa.Array, kind: Kind) -> Cell:
        """Keys and values in a block."""
        assert kind.keys is not None
        assert kind.items is not None
        key_lists = with_items(array, array.keys)
        keys, items = decode(pc.list_flatten(key_lists)), pc.list_flatten(with_items(array, array.items))
        if keys.null_count:
            raise DataError("a map has a null key", hint="Avro cannot name it, and Delta's maps do not allow it")
        cells = [self._plain(keys, kind.keys), self._nullable(items, kind.items)]
        return _blocks(key_lists, join([b"", b"", b""], cells, len(items)))


def decode(array: pa.Array) -> pa.Array:
    """The array in a form that knows its nulls itself; dictionaries stay where they save work."""
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        elif types.is_dictionary(array.type) and (array.dictionary.null_count or len(array.dictionary) > len(array)):
            array = array.dictionary_decode()
        else:
            return array


def whole_numbers(array: pa.Array, kind: Kind) -> np.ndarray:
    """Integers, days since 1970, and microseconds or milliseconds since 1970. Entries under nulls are arbitrary."""
    if types.is_timestamp(array.type):
        times = microseconds(array)
        return times // 1_000 if kind.name == CONNECT_TIMESTAMP else times
    if types.is_date(array.type):
        return days_of(array)
    return raw_values(array, array.type.to_pandas_dtype())


def floats(array: pa.Array, kind: Kind) -> Cell:
    """Numbers of four or eight bytes, and decimals as the nearest of these."""
    size = pa.float64() if kind.type == "float64" else pa.float32()
    if types.is_decimal(array.type):
        array = doubles(array)
    array = array if array.type == size else array.cast(size)
    return fixed_width(raw_values(array, size.to_pandas_dtype()), nulls_of(array))


def _blocks(lists: pa.Array, items: pa.Array) -> Cell:
    """Arrays and maps: the number of items, the items, and 0 for no more; nothing but that 0 where there are none."""
    counts = to_numpy(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    every, nulls = np.arange(len(lists)), nulls_of(lists)
    end = Column(_MORE, ((counts > 0).astype(np.int64),))
    cells: list[Cell] = [varints(counts, Form.ZIGZAG), Column(sequences(items, counts), (every,)), end]
    return Nested([b""] * 4, cells, len(lists), None, nulls)


_ENCODERS: Final[dict[str, Callable[[AvroWriter, pa.Array, Kind], Cell]]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), AvroWriter.integers),
    "boolean": lambda _writer, array, _kind: booleans(array),
    **dict.fromkeys(("float32", "float64"), lambda _writer, array, kind: floats(array, kind)),
    "string": AvroWriter.texts,
    "bytes": AvroWriter.bytes,
    "struct": AvroWriter.structs,
    "array": AvroWriter.lists,
    "map": AvroWriter.maps,
    "null": lambda _writer, _array, _kind: literal(b""),
}
