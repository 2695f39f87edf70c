"""Cells of columns as Avro and Protobuf write them: varints, bytes behind their length, numbers of a fixed size.

`cdfd.runtime.native` writes them where they stand. Without it, each is a text of its own (`cdfd.encode.cells.pieces`).
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from cdfd.encode.cells.native_rows import BYTES, FIXED, UNSCALED, VARINTS, Cells
from cdfd.encode.cells.numbers import limbs, raw_values, without_gaps
from cdfd.encode.cells.pieces import (
    Booleans,
    Cell,
    Column,
    Form,
    Integers,
    is_literal,
    join,
    lengths,
    nulls_of,
    parts,
    pool_from_parts,
    pool_of,
    prefix,
    press,
    text_parts,
)
from cdfd.encode.cells.text import check_utf8
from cdfd.encode.cells.times import days_of, microseconds
from cdfd.encode.kinds import BYTES as BYTE_TYPES
from cdfd.encode.kinds import CONNECT_TIMESTAMP, Kind
from cdfd.runtime import compute as pc
from cdfd.runtime import native
from cdfd.runtime.arrays import doubles


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


def from_dictionary(array: pa.Array, values: Cell) -> Cell:
    """The cells of an array with a dictionary, whose values have cells of their own."""
    nulls = nulls_of(array)
    codes = without_gaps(raw_values(array.indices, array.indices.type.to_pandas_dtype()), nulls)
    texts = join([b"", b""], [values], len(array.dictionary))
    same = nulls is None and len(codes) > 0 and codes.min() == codes.max()
    return Column(texts, (int(codes[0]) if same else codes.astype(np.int64),), nulls)


def whole_numbers(array: pa.Array, kind: Kind) -> np.ndarray:
    """Integers, days since 1970, and microseconds or milliseconds since 1970. Entries under nulls are arbitrary."""
    if types.is_timestamp(array.type):
        times = microseconds(array)
        return times // 1_000 if kind.name == CONNECT_TIMESTAMP else times
    if types.is_date(array.type):
        return days_of(array)
    return raw_values(array, array.type.to_pandas_dtype())


def mark(cell: Cell, opening: bytes, null: bytes) -> Cell:
    """The cell with this before each value, and this for null."""
    return replace(cell, opening=opening + cell.opening, null=null)


def varints(values: Integers, form: Form, nulls: Booleans | None = None) -> Cell:
    """Integers of any width. Entries under nulls are arbitrary."""
    if not len(values):
        return _every(pool_from_parts(np.zeros(1, np.int64), None), nulls)
    if is_literal(values, nulls):
        return Column(lengths(values[:1], form), (0,))
    if native.built:
        return Cells(VARINTS, np.ascontiguousarray(values, np.int64), nulls, number=form)
    return _every(lengths(without_gaps(values, nulls), form), nulls)


def fixed_width(values: npt.NDArray[np.generic], nulls: Booleans | None) -> Cell:
    """Values of a fixed size, as they are in memory, the lowest byte first."""
    size = values.dtype.itemsize
    data = np.ascontiguousarray(values).view(np.uint8)
    if native.built:
        return Cells(FIXED, data, nulls, number=size)
    return _every(pool_from_parts(np.arange(len(values) + 1) * size, data), nulls)


def booleans(array: pa.Array) -> Cell:
    """A byte each, 0 or 1."""
    return fixed_width(raw_values(array.fill_null(False).cast(pa.uint8()), np.uint8), nulls_of(array))


def floats(array: pa.Array, kind: Kind) -> Cell:
    """Numbers of four or eight bytes, and decimals as the nearest of these."""
    size = pa.float64() if kind.type == "float64" else pa.float32()
    if types.is_decimal(array.type):
        array = doubles(array)
    array = array if array.type == size else array.cast(size)
    return fixed_width(raw_values(array, size.to_pandas_dtype()), nulls_of(array))


def byte_strings(array: pa.Array, form: Form) -> Cell:
    """Strings and bytes behind their length. `DataError` where a string is not UTF-8."""
    offsets, data = text_parts(array)
    if not any(is_bytes(array.type) for is_bytes in BYTE_TYPES):
        check_utf8(array, data[offsets[0] : offsets[-1]])
    nulls = nulls_of(array)
    if native.built:
        return Cells(BYTES, data, nulls, np.ascontiguousarray(offsets), number=form)
    texts = pool_of(array)
    return _every(prefix(texts, lengths(np.diff(offsets), form)), nulls)


def decimals(array: pa.Array, form: Form) -> Cell:
    """Decimals as the bytes of their unscaled integers behind their length, as Java's `BigInteger.toByteArray` writes them."""
    nulls, short = nulls_of(array), limbs(array)
    if native.built and short is not None:
        return Cells(UNSCALED, np.ascontiguousarray(short), nulls, number=form)
    texts = unscaled_bytes(array)
    return _every(prefix(texts, lengths(np.diff(parts(texts)[0]), form)), nulls)


def unscaled_bytes(array: pa.Array) -> pa.Array:
    """The unscaled integers of decimals, big-endian, of as few bytes as their sign allows; of 0 beneath nulls. `large_binary`, none null."""
    if array.type.bit_width < 128:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    if not len(array):
        return pool_from_parts(np.zeros(1, np.int64), None)
    size = array.type.bit_width // 8
    data = raw_values(array, np.dtype((np.uint8, size)))[:, ::-1]
    nulls = nulls_of(array)
    if nulls is not None:
        data = np.where(nulls[:, None], np.uint8(0), data)
    sign = (data[:, :1] >> 7).astype(np.uint8) * 0xFF
    # A leading byte is needless where it is all sign and the next one begins with the sign.
    needless = (data[:, :-1] == sign) & ((data[:, 1:] ^ sign) < 0x80)
    counts = np.ones(data.shape, np.bool_)
    np.logical_not(np.logical_and.accumulate(needless, axis=1), out=counts[:, :-1])
    return press(data, counts)


def sequences(items: pa.Array, counts: Integers) -> pa.Array:
    """Items put together: as many as each count says, one after the other, without a copy."""
    offsets, data = parts(items)
    return pool_from_parts(offsets[np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))], data)


def _every(texts: pa.Array, nulls: Booleans | None) -> Column:
    """A text for each row."""
    return Column(texts, (np.arange(len(texts)),), nulls)
