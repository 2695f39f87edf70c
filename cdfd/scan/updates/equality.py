"""Which values and rows are equal: exactly, by Arrow's kernels, and without a Python object per row.

Equal means: the same value, at any depth. Null equals null, and NaN equals NaN. In keys, 0.0 equals -0.0 too, as Delta compares them. Maps
are equal if their entries are equal in the same order.

`codes` gives numbers that are equal exactly where rows are equal. A list becomes the bytes of its elements' codes, and a struct those of its
fields' codes, so nesting costs one dictionary a level.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, to_numpy

Integers: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"
Column: TypeAlias = Any
"""An array or a chunked array."""

_SPARSE = 4
"""Numbers are codes as they are, if their range is at most so many times their count."""


def codes(columns: Sequence[Column], rows: int, *, key: bool = False) -> Integers:
    """Numbers from 0 on for rows of these columns: equal if and only if the rows are. They are dense: a table of them is small.

    Args:
        columns: of the rows; without any, all rows are equal.
        rows: their number.
        key: whether 0.0 equals -0.0.
    """
    return dense(_combine([_column(column, key=key) for column in columns], rows))


def same(left: Column, right: Column) -> Mask:
    """For each row, whether two columns of the same type have the same value."""
    left, right = to_plain(left), to_plain(right)
    if pa.types.is_nested(left.type):
        # The type says whether nulls are allowed, which does not matter here; both come from one schema.
        chunks = [chunk for side in (left, right) for chunk in getattr(side, "chunks", [side])]
        both = _column(pa.chunked_array(chunks, left.type), key=False)
        return np.asarray(both[: len(left)] == both[len(left) :])
    if pa.types.is_null(left.type):
        return np.ones(len(left), np.bool_)
    if pa.types.is_floating(left.type):
        same_number = np.asarray(_floats(left, key=False) == _floats(right, key=False))
        if left.null_count or right.null_count:
            same_number &= _booleans(pc.is_null(left)) == _booleans(pc.is_null(right))
        return same_number
    equal = pc.equal(left, right)
    if left.null_count or right.null_count:
        return _booleans(pc.fill_null(equal, False)) | (_booleans(pc.is_null(left)) & _booleans(pc.is_null(right)))
    return _booleans(equal)


def hashes(columns: Sequence[Column], rows: int) -> npt.NDArray[np.uint64]:
    """A hash of each row's key, the same in any process: equal keys have equal hashes."""
    total = np.zeros(rows, np.uint64)
    for column in columns:
        plain = to_plain(column)
        total = _mix(total ^ _hash(plain.combine_chunks() if isinstance(plain, pa.ChunkedArray) else plain))
    return total


def _hash(column: Column) -> npt.NDArray[np.uint64]:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind):
        texts = column.cast(pa.string()) if pa.types.is_decimal(kind) else column
        numbers = _hash_of_bytes(texts.cast(pa.large_binary()))
    elif pa.types.is_nested(kind):
        # Only the number of elements: keys are rarely nested, and any function of the value is right.
        numbers = np.zeros(len(column), np.uint64)
    else:
        numbers = _numbers(column, key=True).view(np.uint64)
    return np.where(_booleans(column.is_valid()), _mix(numbers), np.uint64(0)) if column.null_count else _mix(numbers)


_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def _mix(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64."""
    mixed = numbers + _FACTOR
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def _hash_of_bytes(texts: pa.LargeBinaryArray) -> npt.NDArray[np.uint64]:
    """A polynomial of each value's bytes, modulo 2^64: a difference of running sums, divided by the power at the start."""
    if not len(texts):
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    start, end = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[start:end]
    powers = np.ones(len(data) + 1, np.uint64)
    np.multiply.accumulate(np.full(len(data), _FACTOR), out=powers[1:])
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[:-1], out=sums[1:])
    inverse = np.ones(len(data) + 1, np.uint64)
    np.multiply.accumulate(np.full(len(data), _INVERSE), out=inverse[1:])
    first, last = offsets[:-1] - start, offsets[1:] - start
    return np.asarray((sums[last] - sums[first]) * inverse[first])


_INVERSE = np.uint64(pow(int(_FACTOR), -1, 1 << 64))
"""The factor is odd, so it has an inverse modulo 2^64."""


def _column(column: Column, *, key: bool) -> Integers:
    """Codes of one column, at least 0; they may be far apart."""
    column = to_plain(column)
    if pa.types.is_nested(column.type):
        return _nested_codes(column, key=key)
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_temporal)
    if any(check(column.type) for check in numeric) and not pa.types.is_interval(column.type):
        return _with_nulls(dense(_numbers(column, key=key)), column)
    return _with_nulls(_indices(column), column)


def _nested_codes(column: Column, *, key: bool) -> Integers:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_struct(array.type):
        # Fields of a null struct are null here, whatever is stored below it.
        children = [_column(child, key=key) for child in array.flatten()]
        return _with_nulls(_combine(children, len(array)), array)
    if pa.types.is_map(array.type):
        elements = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    else:
        elements = array.values
    inner = _column(elements, key=key)
    offsets = to_numpy(array.offsets).astype(np.int64)
    lists = pa.Array.from_buffers(
        pa.large_binary(), len(array), [None, pa.py_buffer(offsets * 8), pa.py_buffer(np.ascontiguousarray(inner))]
    )
    return _with_nulls(_indices(lists), array)


def _combine(columns: Sequence[Integers], rows: int) -> Integers:
    """Codes of rows of several columns of codes."""
    if not columns:
        return np.zeros(rows, np.int64)
    if len(columns) == 1:
        return columns[0]
    width = 8 * len(columns)
    data = np.ascontiguousarray(np.stack(columns, axis=1))
    rows_as_bytes = pa.Array.from_buffers(pa.binary(width), rows, [None, pa.py_buffer(data)])
    return _indices(rows_as_bytes)


def _with_nulls(numbers: Integers, column: Column) -> Integers:
    """The same codes. If there are nulls, null is 0 and the others are one higher."""
    if not column.null_count:
        return numbers
    return np.where(_booleans(pc.is_valid(column)), numbers + 1, 0)


def dense(numbers: Integers) -> Integers:
    """Numbers from 0 on, that are equal where these are."""
    if not len(numbers):
        return numbers
    least, most = int(numbers.min()), int(numbers.max())
    if most - least < _SPARSE * len(numbers) + 1024:
        return numbers - least
    return _indices(array_of(numbers))


def _indices(column: Column) -> Integers:
    """Positions of the values in a dictionary; 0 for null."""
    encoded = column.dictionary_encode()
    chunks = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
    indices = [to_numpy(pc.fill_null(chunk.indices, 0)) for chunk in chunks]
    return np.concatenate(indices).astype(np.int64) if indices else np.zeros(0, np.int64)


def _numbers(column: Column, *, key: bool) -> Integers:
    """Numbers that are equal where the values of a column of fixed width are; arbitrary for null."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _floats(column, key=key)
    if pa.types.is_boolean(kind):
        return _booleans(pc.fill_null(column, False)).astype(np.int64)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif not pa.types.is_integer(kind):
        column = column.cast(pa.int64())
    filled = pc.fill_null(column, 0) if column.null_count else column
    return np.asarray(to_numpy(filled)).astype(np.int64)


def _floats(column: Column, *, key: bool) -> Integers:
    """The bits of each number. Some NaN stands for all of them."""
    values = np.asarray(to_numpy(pc.fill_null(column, 0.0) if column.null_count else column)).astype(np.float64)
    values = np.where(np.isnan(values), np.float64(np.nan), values)
    # The sum makes -0.0 to 0.0.
    return (values + 0.0 if key else values).view(np.int64)


def to_plain(column: Column) -> Column:
    """A column in plain Arrow types: the storage of extension types, such as variants; the values of dictionaries."""
    unwrap: Callable[[Any], Any]
    while True:
        if isinstance(column.type, pa.BaseExtensionType):
            kind, unwrap = column.type.storage_type, lambda array: array.storage
        elif pa.types.is_dictionary(column.type):
            # Arrow's cast does not decode structs and lists.
            kind, unwrap = column.type.value_type, lambda array: array.dictionary_decode()
        else:
            return column
        is_chunked = isinstance(column, pa.ChunkedArray)
        column = pa.chunked_array(map(unwrap, column.chunks), kind) if is_chunked else unwrap(column)


def _booleans(column: Column) -> Mask:
    return np.asarray(to_numpy(column))
