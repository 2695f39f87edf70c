"""Statistics of columns in a Parquet footer, by row group: bounds of values, and nulls. For readers who skip row groups.

Bounds are those of `min_value` and `max_value`, and only where the footer says that they are in the order of the column's type. The
deprecated `min` and `max` have an undefined order. Bounds that a writer has cut are bounds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_ORDERS_DECIMALS = ("parquet-mr ", "parquet-mr-", "parquet-rs ", "delta-rs ", "parquet-cpp-arrow ", "DuckDB ")
"""Writers that put decimals in their order. Others have put them in that of their bytes, in which -1 is above 1."""
_ORDERED_THEM_AS_BYTES = "parquet-cpp-arrow version 3."
_DECIMAL_BYTES = 16
"""Bytes of a decimal of 38 digits."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """The statistics of a column in a row group.

    Attributes:
        low, high: bounds as Parquet stores them; None: unknown.
        nulls: how many nulls there are; None: unknown.
        values: values, nulls among them.
    """

    low: bytes | None = None
    high: bytes | None = None
    nulls: int | None = None
    values: int = 0


Decode = Callable[[bytes], Any]


def decoder(kind: Any, physical: str, created_by: str) -> Decode | None:
    """The function from a bound to a Python value, for a column of an Arrow type; None if bounds are of no use.

    It returns None for bytes that are no value.

    Args:
        kind: type of the column.
        physical: its type in Parquet.
        created_by: the writer, as the footer names it.
    """
    number = _NUMBERS.get(physical)
    if pa.types.is_decimal(kind):
        ordered = created_by.startswith(_ORDERS_DECIMALS) and not created_by.startswith(_ORDERED_THEM_AS_BYTES)
        return _decimal(kind.scale, number) if ordered and physical != "BYTE_ARRAY" else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda data: data.decode("utf-8", "strict") if _is_text(data) else None
    if number is None:
        return None
    if pa.types.is_signed_integer(kind) or pa.types.is_floating(kind):
        return number
    if pa.types.is_date32(kind):
        return lambda data: _date(number(data))
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ms"):
        return lambda data: _time(number(data), kind)
    return None


def _unpack(form: str) -> Decode:
    width = struct.calcsize(form)

    def number(data: bytes) -> Any:
        if len(data) != width:
            return None
        (value,) = struct.unpack(form, data)
        return None if isinstance(value, float) and math.isnan(value) else value

    return number


_NUMBERS: Mapping[str, Decode] = {
    "INT32": _unpack("<i"),
    "INT64": _unpack("<q"),
    "FLOAT": _unpack("<f"),
    "DOUBLE": _unpack("<d"),
}


def _decimal(scale: int, number: Decode | None) -> Decode:
    def value(data: bytes) -> Decimal | None:
        if number is not None:
            unscaled = number(data)
        else:
            unscaled = int.from_bytes(data, "big", signed=True) if 1 <= len(data) <= _DECIMAL_BYTES else None
        # From text, a decimal has all digits. Arithmetic would round it to 28.
        return None if unscaled is None else Decimal(f"{unscaled}E{-scale}")

    return value


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _date(days: int | None) -> date | None:
    try:
        return None if days is None else date(1970, 1, 1) + timedelta(days)
    except OverflowError:
        return None


def _time(number: int | None, kind: Any) -> datetime | None:
    try:
        if number is None:
            return None
        moment = _EPOCH + (timedelta(microseconds=number) if kind.unit == "us" else timedelta(milliseconds=number))
    except OverflowError:
        return None
    return moment if kind.tz is not None else moment.replace(tzinfo=None)
