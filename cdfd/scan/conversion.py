"""Converts Arrow arrays from the types of data files to the types of the table: one rule per table type.

Equal types are not converted. A cast is used where the table's type can hold every value of the file's type, and checks every value. This
covers the protocol's type widening and the types of deployed writers: INT96 and other units of timestamps, dictionaries, views, unsigned and
unannotated numbers. All other pairs of types are errors, because wrong rows are worse than none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import Decimal, Foreign, Primitive
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, scalar_of, to_numpy

Convert: TypeAlias = "Callable[[pa.Array[Any]], pa.Array[Any]]"

_MAX_DECIMAL_BYTES = 16


def conversion(source: Any, kind: Primitive | Decimal | Foreign) -> Convert | None:
    """The function that converts values of another Arrow type to a primitive table type; None if there is no safe conversion.

    The function raises `pa.ArrowInvalid` for a value that the table's type cannot hold.
    """
    target: Any = arrow_type(kind)
    if isinstance(kind, Decimal):
        if pa.types.is_fixed_size_binary(source) and 1 <= source.byte_width <= _MAX_DECIMAL_BYTES:
            return lambda array: _unscale(array, source.byte_width, kind.scale).cast(target)
        castable = _fits_decimal(source, kind)
    elif pa.types.is_timestamp(target) and pa.types.is_timestamp(source):
        # From any unit; a Parquet timestamp without time zone, INT96 among them, is in UTC.
        if source.unit == target.unit:
            return lambda array: array.view(target)
        if (source.unit, target.unit) == ("ns", "us"):
            return lambda array: _floor(array).view(target)
        scaled = pa.timestamp(target.unit, source.tz)
        return lambda array: array.cast(scaled).view(target)
    elif isinstance(kind, Foreign) and target == pa.int64() and pa.types.is_duration(source):
        castable = True
    else:
        castable = _is_castable(source, target)
    return (lambda array: array.cast(target)) if castable else None


def narrows(source: Any, target: Any) -> bool:
    """Whether a conversion between numbers of one kind raises an error for some of them."""
    if pa.types.is_integer(source) and pa.types.is_integer(target):
        return bool(source.bit_width > target.bit_width)
    return bool(pa.types.is_decimal(source) and pa.types.is_decimal(target) and source.precision > target.precision)


def _fits_decimal(source: Any, kind: Decimal) -> bool:
    whole_digits = kind.precision - kind.scale
    if pa.types.is_integer(source):
        return bool(whole_digits >= _INTEGER_DIGITS[source.bit_width])
    if not pa.types.is_decimal(source):
        return False
    # Some writers declare more digits than the table has, at the same scale. The cast checks each value.
    has_room = source.scale < kind.scale and whole_digits >= source.precision - source.scale
    return bool(source.scale == kind.scale or has_room)


def _is_castable(source: Any, target: Any) -> bool:
    """Whether a cast between these types, neither of which is a decimal, returns the same values or an error."""
    is_text = pa.types.is_string(source) or pa.types.is_large_string(source) or pa.types.is_string_view(source)
    is_bytes = pa.types.is_binary(source) or pa.types.is_large_binary(source) or pa.types.is_binary_view(source)
    if pa.types.is_string(target):
        # Old writers leave out the annotation for text. The cast verifies that the bytes are UTF-8.
        return bool(is_text or is_bytes)
    if pa.types.is_binary(target):
        return bool(is_text or is_bytes or pa.types.is_fixed_size_binary(source))
    if pa.types.is_integer(target):
        # From narrower integers, and from Parquet's INT32, the physical type of all narrower integers.
        return bool(pa.types.is_integer(source) and source.bit_width <= max(target.bit_width, 32))
    if pa.types.is_float64(target):
        return bool(pa.types.is_floating(source) or (pa.types.is_integer(source) and source.bit_width <= 32))
    return bool(
        (pa.types.is_float32(target) and pa.types.is_float16(source))
        or (pa.types.is_date32(target) and pa.types.is_date64(source))
        or (target == pa.timestamp("us") and pa.types.is_date32(source))
    )


def _floor(array: pa.Array[Any]) -> pa.Array[Any]:
    """Nanoseconds as whole microseconds, toward the past as Spark does; a cast would go toward 1970."""
    ticks = array.view(pa.int64())
    if not ticks.null_count:
        return array_of(np.floor_divide(to_numpy(ticks), 1000))
    nulls = to_numpy(ticks.is_null())
    return array_of(np.floor_divide(to_numpy(ticks.fill_null(0)), 1000), mask=nulls)


_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""Decimal digits of the widest integer of so many bits. Arrow's cast requires as many."""


def _unscale(array: pa.Array[Any], width: int, scale: int) -> pa.Array[Any]:
    """Decimals from Parquet's bytes (two's complement, big-endian) without an annotation."""
    count = len(array)
    data = array.buffers()[1]
    big_endian = np.frombuffer(data if count else b"", np.uint8, count * width, array.offset * width if count else 0)
    big_endian = big_endian.reshape(count, width)
    wide = np.empty((count, _MAX_DECIMAL_BYTES), np.uint8)
    wide[:, :width] = big_endian[:, ::-1]
    wide[:, width:] = np.where(big_endian[:, :1] & 0x80, 0xFF, 0)
    numbers = pa.Array.from_buffers(pa.decimal128(38, scale), count, [None, pa.py_buffer(wide)])
    return pc.if_else(array.is_valid(), numbers, scalar_of(None, numbers.type)) if array.null_count else numbers
