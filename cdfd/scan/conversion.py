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
import pyarrow.compute as pc

from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import Decimal, Foreign, Primitive
from cdfd.runtime.arrays import array_of, scalar_of, to_numpy
from cdfd.scan.parquet.text import is_text

Convert: TypeAlias = "Callable[[pa.Array[Any]], pa.Array[Any]]"

_MAX_DECIMAL_BYTES = 16


def identity(array: pa.Array[Any]) -> pa.Array[Any]:
    """The array itself."""
    return array


def conversion(source: Any, kind: Primitive | Decimal | Foreign) -> Convert | None:
    """The function that converts values of an Arrow type to a primitive table type; None if there is no safe conversion.

    The function raises `pa.ArrowInvalid` for a value that the table's type cannot hold.
    """
    target = arrow_type(kind)
    if source == target:
        return identity
    if pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if isinstance(kind, Decimal):
        target = arrow_type(kind)
        if pa.types.is_decimal(source):
            # Some writers declare more digits than the table has, at the same scale. The cast checks each value.
            room = kind.precision - kind.scale >= source.precision - source.scale
            readable = source.scale == kind.scale or (source.scale < kind.scale and room)
            return _cast_to(target) if readable else None
        if pa.types.is_integer(source):
            return _cast_to(target) if kind.precision - kind.scale >= _INTEGER_DIGITS[source.bit_width] else None
        if pa.types.is_fixed_size_binary(source) and 1 <= source.byte_width <= _MAX_DECIMAL_BYTES:
            return lambda array: _unscale(array, source.byte_width, kind.scale).cast(target)
        return None
    if isinstance(kind, Foreign):
        rule = _FOREIGN_RULES.get(target)
        return None if rule is None else rule(source, target)
    rule = _RULES.get(kind.name)
    return None if rule is None else rule(source, target)


def _cast_to(target: pa.DataType) -> Convert:
    return lambda array: array.cast(target)


def _to_text(source: pa.DataType, target: pa.DataType) -> Convert | None:
    # Old writers leave out the annotation for text. The cast verifies that the bytes are UTF-8.
    return _cast_to(target) if is_text(source) or _is_bytes(source) else None


def _to_bytes(source: pa.DataType, target: pa.DataType) -> Convert | None:
    readable = is_text(source) or _is_bytes(source) or pa.types.is_fixed_size_binary(source)
    return _cast_to(target) if readable else None


def _to_whole(source: Any, target: Any) -> Convert | None:
    """From narrower integers, and from Parquet's INT32, the physical type of all narrower integers."""
    if not pa.types.is_integer(source):
        return None
    readable = source.bit_width <= max(target.bit_width, 32)
    return _cast_to(target) if readable else None


def _to_double(source: Any, target: pa.DataType) -> Convert | None:
    whole = pa.types.is_integer(source) and source.bit_width <= 32
    return _cast_to(target) if whole or pa.types.is_floating(source) else None


def _to_float(source: pa.DataType, target: pa.DataType) -> Convert | None:
    return _cast_to(target) if pa.types.is_float16(source) else None


def _to_date(source: pa.DataType, target: pa.DataType) -> Convert | None:
    return _cast_to(target) if pa.types.is_date64(source) else None


def _to_instant(source: Any, target: pa.DataType) -> Convert | None:
    """From any unit; a Parquet timestamp without time zone, INT96 among them, is in UTC."""
    if not pa.types.is_timestamp(source):
        return None
    if source.unit == "us":
        return lambda array: array.view(target)
    if source.unit == "ns":
        return lambda array: _floor(array).view(target)
    scaled = pa.timestamp("us", source.tz)
    return lambda array: array.cast(scaled).view(target)


def _to_wall_clock(source: pa.DataType, target: pa.DataType) -> Convert | None:
    return _cast_to(target) if pa.types.is_date32(source) else _to_instant(source, target)


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


def _is_bytes(source: pa.DataType) -> bool:
    return bool(pa.types.is_binary(source) or pa.types.is_large_binary(source) or pa.types.is_binary_view(source))


def _to_nanoseconds(source: Any, target: pa.DataType) -> Convert | None:
    if not pa.types.is_timestamp(source):
        return None
    scaled = pa.timestamp("ns", source.tz)
    return lambda array: array.cast(scaled).view(target)


_FOREIGN_RULES: dict[pa.DataType, Callable[[Any, Any], Convert | None]] = {
    pa.int32(): _to_whole,
    pa.int64(): lambda source, target: _cast_to(target) if pa.types.is_duration(source) else _to_whole(source, target),
    pa.binary(): _to_bytes,
    pa.timestamp("ns", "UTC"): _to_nanoseconds,
}

_RULES: dict[str, Callable[[Any, Any], Convert | None]] = {
    "string": _to_text,
    "binary": _to_bytes,
    "long": _to_whole,
    "integer": _to_whole,
    "short": _to_whole,
    "byte": _to_whole,
    "double": _to_double,
    "float": _to_float,
    "date": _to_date,
    "timestamp": _to_instant,
    "timestamp_ntz": _to_wall_clock,
}
