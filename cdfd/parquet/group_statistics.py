"""Statistics of columns in a Parquet footer, by row group: bounds of values, and nulls. For readers who skip row groups.

They are parsed here and not by pyarrow, whose access to column metadata crashes the process if that is damaged (see `cdfd.parquet.layout`).
Bounds are those of `min_value` and `max_value`, and only where the footer says that they are in the order of the column's type. The
deprecated `min` and `max` have an undefined order. Bounds that a writer has cut are bounds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from cdfd.parquet.layout import Compact

# Field ids of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, Statistics and ColumnOrder.
_ROW_GROUPS, _COLUMN_ORDERS, _COLUMNS, _META_DATA, _PATH, _VALUES, _STATISTICS = 4, 7, 1, 3, 3, 5, 12
_NULL_COUNT, _MAX, _MIN = 3, 5, 6
_TYPE_ORDER = 1
_STRUCT, _BINARY = 12, 8

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


def chunk_statistics(footer: bytes, columns: Collection[str]) -> list[dict[str, ChunkStatistics]]:
    """For each row group, the statistics of top-level columns, by name.

    Raises:
        ValueError: the footer is damaged.
    """
    try:
        return _Statistics(footer).groups(frozenset(columns))
    except (IndexError, UnicodeDecodeError, TypeError) as error:
        raise ValueError("the footer is damaged") from error


class _Statistics(Compact):
    def groups(self, columns: frozenset[str]) -> list[dict[str, ChunkStatistics]]:
        groups, typed = list[dict[str, tuple[int, ChunkStatistics]]](), list[bool]()
        for field, kind in self.fields():
            if field == _ROW_GROUPS:
                groups += [dict(self._chunks_of_group(columns)) for _ in range(self._list(kind))]
            elif field == _COLUMN_ORDERS:
                typed = [self._is_typed() for _ in range(self._list(kind))]
            else:
                self.skip(kind)
        return [
            {
                path: chunk if number < len(typed) and typed[number] else replace(chunk, low=None, high=None)
                for path, (number, chunk) in group.items()
            }
            for group in groups
        ]

    def _is_typed(self) -> bool:
        """Whether a column order is that of the column's type."""
        typed = False
        for field, kind in self.fields():
            typed = field == _TYPE_ORDER
            self.skip(kind)
        return typed

    def _chunks_of_group(self, columns: frozenset[str]) -> Iterator[tuple[str, tuple[int, ChunkStatistics]]]:
        """The chunks of these columns, each with the number of its column among all."""
        for field, kind in self.fields():
            if field != _COLUMNS:
                self.skip(kind)
                continue
            for number in range(self._list(kind)):
                path, found = self._of_column()
                if path in columns:
                    yield path, (number, found)

    def _of_column(self) -> tuple[str, ChunkStatistics]:
        path, found = "", ChunkStatistics()
        for field, kind in self.fields():
            if field == _META_DATA and kind == _STRUCT:
                path, found = self._of_meta_data()
            else:
                self.skip(kind)
        return path, found

    def _of_meta_data(self) -> tuple[str, ChunkStatistics]:
        path, values, known = "", 0, dict[int, Any]()
        for field, kind in self.fields():
            if field == _PATH:
                path = ".".join(self._binary().decode() for _ in range(self._list(kind)))
            elif field == _VALUES:
                values = self.integer(kind)
            elif field == _STATISTICS and kind == _STRUCT:
                known = dict(self._entries())
            else:
                self.skip(kind)
        return path, ChunkStatistics(known.get(_MIN), known.get(_MAX), known.get(_NULL_COUNT), values)

    def _entries(self) -> Iterator[tuple[int, Any]]:
        for field, kind in self.fields():
            if field in (_MIN, _MAX) and kind == _BINARY:
                yield field, self._binary()
            elif field == _NULL_COUNT:
                yield field, self.integer(kind)
            else:
                self.skip(kind)


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
        known = created_by.startswith(_ORDERS_DECIMALS) and not created_by.startswith(_ORDERED_THEM_AS_BYTES)
        return _decimal(kind.scale, number) if known and physical != "BYTE_ARRAY" else None
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


def _unpacked(form: str) -> Decode:
    width = struct.calcsize(form)

    def number(data: bytes) -> Any:
        if len(data) != width:
            return None
        (found,) = struct.unpack(form, data)
        return None if isinstance(found, float) and math.isnan(found) else found

    return number


_NUMBERS: Mapping[str, Decode] = {
    "INT32": _unpacked("<i"),
    "INT64": _unpacked("<q"),
    "FLOAT": _unpacked("<f"),
    "DOUBLE": _unpacked("<d"),
}


def _decimal(scale: int, number: Decode | None) -> Decode:
    def value(data: bytes) -> Decimal | None:
        unscaled = _signed(data) if number is None else number(data)
        # From text, a decimal has all digits. Arithmetic would round it to 28.
        return None if unscaled is None else Decimal(f"{unscaled}E{-scale}")

    return value


def _signed(data: bytes) -> int | None:
    return int.from_bytes(data, "big", signed=True) if 1 <= len(data) <= _DECIMAL_BYTES else None


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
        found = _EPOCH + (timedelta(microseconds=number) if kind.unit == "us" else timedelta(milliseconds=number))
    except OverflowError:
        return None
    return found if kind.tz is not None else found.replace(tzinfo=None)
