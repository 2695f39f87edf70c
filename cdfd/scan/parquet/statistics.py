"""Statistics of columns in a Parquet footer, by row group: bounds of values, and nulls. For readers who skip row groups.

Bounds are those of `min_value` and `max_value`, and only where the footer says that they are in the order of the column's type. The
deprecated `min` and `max` have an undefined order. Bounds that a writer has cut are bounds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
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

_NUMBERS = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}
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
    form, is_decimal = _NUMBERS.get(physical), pa.types.is_decimal(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_date, is_time = pa.types.is_date32(kind), pa.types.is_timestamp(kind) and kind.unit in ("us", "ms")
    is_number = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)
    if is_decimal:
        ordered = created_by.startswith(_ORDERS_DECIMALS) and not created_by.startswith(_ORDERED_THEM_AS_BYTES)
        if not ordered or physical == "BYTE_ARRAY":
            return None
    elif not is_text and (form is None or not (is_date or is_time or is_number)):
        return None

    def decode(data: bytes) -> Any:
        try:
            if is_text:
                return str(data, "utf-8")
            if form is None and not 1 <= len(data) <= _DECIMAL_BYTES:
                return None
            value = int.from_bytes(data, "big", signed=True) if form is None else struct.unpack(form, data)[0]
            if is_decimal:
                # From text, a decimal has all digits. Arithmetic would round it to 28.
                return Decimal(f"{value}E{-kind.scale}")
            if is_date:
                return date(1970, 1, 1) + timedelta(value)
            if is_time:
                moment = _EPOCH + (
                    timedelta(microseconds=value) if kind.unit == "us" else timedelta(milliseconds=value)
                )
                return moment if kind.tz is not None else moment.replace(tzinfo=None)
            return None if math.isnan(value) else value
        except (struct.error, OverflowError, UnicodeDecodeError):
            return None

    return decode
