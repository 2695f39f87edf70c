"""Cells of the types that `cdfd.runtime.native` prints: numbers, times, strings. Others are left to `cdfd.encode.values`."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from pyarrow import types

from cdfd.encode import kinds
from cdfd.encode.cells import text
from cdfd.encode.cells.native_rows import (
    BOOLEANS,
    DATES,
    DECIMALS,
    INTEGERS,
    STRINGS,
    THOUSANDTHS,
    TIMESTAMPS,
    UNSIGNED,
    Cells,
)
from cdfd.encode.cells.numbers import limbs, raw_values, without_gaps
from cdfd.encode.cells.pieces import FEW_ROWS, Booleans, is_literal, nulls_of, text_parts
from cdfd.encode.cells.times import DAY, FIRST_DAY, LAST_DAY, days_of, microseconds
from cdfd.runtime import native

_LARGEST_SCALE = 38


def cells(array: pa.Array) -> Cells | None:
    """The cells of an array, without the quotes of names and of long numbers.

    Returns:
        None if `cdfd.runtime.native` is missing or does not print them, or all of them are the same, which is cheaper as a literal.

    Raises:
        DataError: a string is not UTF-8, a time out of range.
    """
    if not native.built or array.null_count == len(array):
        return None
    for matches, make in _CELLS:
        if matches(array.type):
            return make(array, nulls_of(array))
    return None


def _integers(array: pa.Array, nulls: Booleans | None) -> Cells | None:
    values = raw_values(array, array.type.to_pandas_dtype())
    if is_literal(values, nulls):
        return None
    kind = np.uint64 if types.is_unsigned_integer(array.type) else np.int64
    return Cells(UNSIGNED if kind is np.uint64 else INTEGERS, values.astype(kind, copy=False), nulls)


def _floats(array: pa.Array, nulls: Booleans | None) -> Cells | None:
    if not types.is_float64(array.type):
        array = array.cast(pa.float64())
    values = raw_values(array, np.float64)
    mask = None if nulls is None else nulls.view(np.uint8)
    return Cells(THOUSANDTHS, values, nulls) if native.json_rows.are_thousandths(values, mask) else None


def _decimals(array: pa.Array, nulls: Booleans | None) -> Cells | None:
    scale = array.type.scale
    if not 0 <= scale <= _LARGEST_SCALE:
        return None
    parts = limbs(array)
    if parts is None:
        return None
    return Cells(DECIMALS, np.ascontiguousarray(parts), nulls, number=scale).quote()


def _strings(array: pa.Array, nulls: Booleans | None) -> Cells | None:
    offsets, data = text_parts(array)
    used = data[offsets[0] : offsets[-1]]
    text.check_utf8(array, used)
    if nulls is None and len(array) >= FEW_ROWS and text.same_everywhere(array, offsets, used):
        return None
    return Cells(STRINGS, data, nulls, np.ascontiguousarray(offsets)).quote()


def _times(array: pa.Array, nulls: Booleans | None) -> Cells | None:
    is_date = types.is_date(array.type)
    values, day = (days_of(array), 1) if is_date else (microseconds(array), DAY)
    if is_literal(values, nulls):
        return None
    present = without_gaps(values, nulls)
    if present.min() < FIRST_DAY * day or present.max() >= (LAST_DAY + 1) * day:
        return None  # not all years have four digits
    if is_date:
        return Cells(DATES, values, nulls).quote()
    return Cells(TIMESTAMPS, values, nulls, number=array.type.tz is not None).quote()


_CELLS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, Booleans | None], Cells | None]], ...] = (
    (types.is_integer, _integers),
    *((matches, _strings) for matches in kinds.STRINGS),
    (types.is_timestamp, _times),
    (types.is_decimal, _decimals),
    (types.is_floating, _floats),
    (
        types.is_boolean,
        lambda array, nulls: Cells(BOOLEANS, np.frombuffer(array.buffers()[1], np.uint8), nulls, number=array.offset),
    ),
    (types.is_date, _times),
)
