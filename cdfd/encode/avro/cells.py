"""Cells of any Arrow type in Avro's binary encoding, as the schema that `cdfd.encode.avro.schema` makes has them."""

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from cdfd.encode.avro.binary import Cells, Short, fixed, hidden, join_cells, right_aligned, same, spans, varints
from cdfd.encode.numbers import raw_values, without_gaps
from cdfd.encode.pieces import nulls_of, parts, pool_of
from cdfd.encode.text import check_utf8
from cdfd.encode.times import microseconds
from cdfd.encode.values import with_items
from cdfd.errors import DataError, UnsupportedError
from cdfd.runtime.arrays import array_of, to_numpy

_NULL, _VALUE = b"\x00", b"\x02"
"""Branches of a union of null and another type."""

_SHORT_TEXT: Final = 8
"""Texts of a dictionary up to this length are kept in a matrix, which saves a piece to join."""


def nullable(array: pa.Array) -> list[Cells]:
    """Cells of a union of null and the type. `DataError` as `plain` says."""
    array = _decoded(array)
    if types.is_null(array.type):
        return []
    if array.null_count == len(array):
        return [same(_NULL)]
    cells, nulls = _cells(array), nulls_of(array)
    if nulls is None:
        return [same(_VALUE), *cells]
    branches = np.where(nulls, np.uint8(_NULL[0]), np.uint8(_VALUE[0]))[:, None]
    return [fixed(branches), *(hidden(each, nulls) for each in cells)]


def plain(array: pa.Array) -> list[Cells]:
    """Cells of the type alone.

    Raises:
        DataError: there is a null; a string is not UTF-8; a time in seconds or milliseconds is beyond what
            microseconds can represent.
        UnsupportedError: Avro has no form for a value of this type.
    """
    array = _decoded(array)
    if array.null_count and not types.is_null(array.type):
        raise DataError("it has a null, which its schema does not allow")
    return _cells(array)


def _decoded(array: pa.Array) -> pa.Array:
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


def _cells(array: pa.Array) -> list[Cells]:
    for matches, encode in _ENCODERS:
        if matches(array.type):
            return encode(array) if len(array) else []
    raise UnsupportedError(f"values of the type {array.type} have no Avro form")


def _integers(array: pa.Array) -> list[Cells]:
    values = raw_values(array, array.type.to_pandas_dtype())
    if values.dtype.kind == "u" or values.dtype.itemsize < 4:
        values = values.astype(np.int64 if array.type.bit_width == 32 else np.int32)
    return [varints(without_gaps(values, nulls_of(array)))]


def _booleans(array: pa.Array) -> list[Cells]:
    return [fixed(to_numpy(array.fill_null(False).cast(pa.uint8()))[:, None])]


def _floats(array: pa.Array) -> list[Cells]:
    if types.is_float16(array.type):
        array = array.cast(pa.float32())
    size = array.type.bit_width // 8
    return [fixed(raw_values(array, np.dtype((np.uint8, size))))]


def _decimals(array: pa.Array) -> list[Cells]:
    if array.type.bit_width < 128:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    size = array.type.bit_width // 8
    values = raw_values(array, np.dtype((np.uint8, size)))[:, ::-1]
    nulls = nulls_of(array)
    if nulls is not None:
        values = np.where(nulls[:, None], np.uint8(0), values)
    number = right_aligned(_without_sign_columns(values))
    return [fixed((2 * np.asarray(number.lengths)).astype(np.uint8)[:, None]), number]


def _without_sign_columns(values: np.ndarray) -> np.ndarray:
    """Half of the bytes, and half again, where the other half is nothing but sign in all rows."""
    while (half := values.shape[1] // 2) >= 4:
        sign = np.where(values[:, half] >= 0x80, np.uint8(0xFF), np.uint8(0))
        if (values[:, :half] != sign[:, None]).any():
            break
        values = values[:, half:]
    return values


def _dates(array: pa.Array) -> list[Cells]:
    return _integers(array.cast(pa.date32()).view(pa.int32()))


def _timestamps(array: pa.Array) -> list[Cells]:
    return [varints(without_gaps(microseconds(array), nulls_of(array)))]


def _strings(array: pa.Array) -> list[Cells]:
    texts = pool_of(array)
    offsets, data = parts(texts)
    check_utf8(array, data[offsets[0] : offsets[-1]])
    return _bytes(array)


def _bytes(array: pa.Array) -> list[Cells]:
    texts = pool_of(array)
    lengths = np.diff(parts(texts)[0])
    return [varints(without_gaps(lengths, nulls_of(array))), texts]


def _structs(array: pa.Array) -> list[Cells]:
    # `flatten` hides what lies beneath a null struct; it may be anything.
    return [cells for field in array.flatten() for cells in nullable(field)]


def _lists(array: pa.Array) -> list[Cells]:
    items = pc.list_flatten(array)
    return _blocks(array, join_cells(nullable(items), len(items)))


def _maps(array: pa.Array) -> list[Cells]:
    key_lists = with_items(array, array.keys)
    keys, items = pc.list_flatten(key_lists), pc.list_flatten(with_items(array, array.items))
    return _blocks(key_lists, join_cells([*plain(keys), *nullable(items)], len(items)))


def _blocks(lists: pa.Array, items: pa.Array) -> list[Cells]:
    """Arrays and maps: the number of items, the items, and 0 for no more; nothing but that 0 where there are none."""
    counts = to_numpy(pc.list_value_length(lists).fill_null(0)).astype(np.int64)
    some = counts > 0
    end = Short(np.zeros((1, 1), np.uint8), some[:, None], some.astype(np.int64))
    return [varints(counts), spans(items, counts), end]


def _dictionaries(array: pa.Array) -> list[Cells]:
    codes = raw_values(array.indices, array.indices.type.to_pandas_dtype())
    codes = without_gaps(codes, nulls_of(array))
    texts = join_cells(plain(array.dictionary), len(array.dictionary))
    if codes.min() == codes.max():
        return [same(texts[int(codes[0])].as_py())]
    offsets, data = parts(texts)
    lengths = np.diff(offsets)
    width = int(lengths.max())
    if width > _SHORT_TEXT:
        return [texts.take(array_of(codes))]
    counts = np.arange(width) < lengths[:, None]
    matrix = np.zeros(counts.shape, np.uint8)
    matrix[counts] = data[offsets[0] : offsets[-1]]
    return [Short(matrix[codes], counts[codes], lengths[codes])]


_BYTES: Final = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
_STRINGS: Final = (types.is_string, types.is_large_string, types.is_string_view)
_LISTS: Final = (
    *(types.is_list, types.is_large_list, types.is_fixed_size_list),
    *(types.is_list_view, types.is_large_list_view),
)
_ENCODERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Cells]]], ...]] = (
    (lambda kind: types.is_integer(kind) and not types.is_uint64(kind), _integers),
    *((matches, _strings) for matches in _STRINGS),
    *((matches, _bytes) for matches in _BYTES),
    (types.is_boolean, _booleans),
    (types.is_floating, _floats),
    (types.is_decimal, _decimals),
    (types.is_timestamp, _timestamps),
    (types.is_date, _dates),
    (types.is_struct, _structs),
    (types.is_map, _maps),
    *((matches, _lists) for matches in _LISTS),
    (types.is_dictionary, _dictionaries),
    (types.is_null, lambda _array: []),
)
