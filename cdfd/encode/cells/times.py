"""Cells of dates, timestamps and times of day.

Each distinct day is converted once, not each row. Years have four digits. Those before 0 and after 9999 have a sign and at least six, as
expanded representations of ISO 8601: `2026-01-01`, `+010000-01-01`, `-000001-12-31`.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.delta.types.values import format_row_date
from cdfd.encode.cells.numbers import dense, raw_values, without_gaps
from cdfd.encode.cells.pieces import Column, Index, Integers, nulls_of, pool_from_parts, pool_of
from cdfd.errors import DataError
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, to_numpy

_QUOTE = b'"'
_SECOND = 1_000_000
DAY = 86_400 * _SECOND
FIRST_DAY, LAST_DAY = -719_528, 2_932_896  # 0000-01-01 and 9999-12-31


_TIME = np.dtype([("T", np.uint8), ("clock", np.uint64), ("milliseconds", np.uint32), ("microseconds", np.uint32)])


# Texts of one width, each seen as one integer: to look one up and to store it are single moves. They are made when they are needed, because
# that takes as long as importing a large module.
@cache
def _clock() -> npt.NDArray[np.uint64]:
    two = [f"{n:02}" for n in range(60)]
    return np.frombuffer("".join(f"{h}:{m}:{s}" for h in two[:24] for m in two for s in two).encode(), np.uint64)


@cache
def _thousands(before: str, after: str) -> npt.NDArray[np.uint32]:
    """Three digits, after or before one more character."""
    return np.frombuffer("".join(f"{before}{n:03}{after}" for n in range(1_000)).encode(), np.uint32)


def dates(array: pa.Array) -> Column:
    """`YYYY-MM-DD` in quotes."""
    nulls = nulls_of(array)
    texts, index = _printed_days(without_gaps(days_of(array), nulls))
    return Column(texts, (index,), nulls, _QUOTE, _QUOTE)


def days_of(array: pa.Array) -> Integers:
    """A date array as days since 1970."""
    if pa.types.is_date64(array.type):
        return raw_values(array, np.int64) // 86_400_000
    return raw_values(array, np.int32).astype(np.int64)


def timestamps(array: pa.Array) -> Column:
    """`YYYY-MM-DDTHH:MM:SS.ffffff` in quotes, with a `Z` where the type has a time zone.

    The value of a type with a zone is UTC; the zone is for display only. Nanoseconds are cut off. `DataError` where a
    time in seconds or milliseconds is out of the range of microseconds.
    """
    nulls, zone = nulls_of(array), array.type.tz is not None
    times = without_gaps(microseconds(array), nulls)
    if times.min() == times.max():
        times = times[:1]
    days, times_of_day = np.divmod(times, DAY)
    texts, index = _printed_days(days)
    seconds, fraction = np.divmod(times_of_day, _SECOND)
    thousands, units = np.divmod(fraction, 1_000)
    clocks = np.empty(len(times), _TIME)
    clocks["T"] = ord("T")
    clocks["clock"] = _clock()[seconds]
    clocks["milliseconds"] = _thousands(".", "")[thousands]
    # Without a zone the quote is part of the text: that makes both sixteen bytes after the T.
    clocks["microseconds"] = _thousands("", "Z" if zone else '"')[units]
    closing = _QUOTE if zone else b""
    clock = pool_from_parts(np.arange(len(clocks) + 1) * _TIME.itemsize, clocks.view(np.uint8))
    if isinstance(index, int):
        opening = _QUOTE + texts[index].as_py()
        return Column(clock, (0 if len(times) == 1 else np.arange(len(times)),), nulls, opening, closing)
    return Column(pa.concat_arrays([texts, clock]), (index, len(texts) + np.arange(len(times))), nulls, _QUOTE, closing)


def times_of_day(array: pa.Array) -> Column:
    """`HH:MM:SS` in quotes, with as many digits after the point as the type's unit has."""
    return Column(pool_of(array.cast(pa.large_string())), (np.arange(len(array)),), nulls_of(array), _QUOTE, _QUOTE)


def microseconds(array: pa.Array) -> Integers:
    """A timestamp array as microseconds since 1970."""
    if array.type.unit == "us":
        return raw_values(array, np.int64)
    if array.type.unit == "ns":
        return raw_values(array, np.int64) // 1_000
    try:
        exact = array.cast(pa.timestamp("us", array.type.tz))
    except pa.ArrowInvalid as error:
        hint = "Times have to be within 292,000 years of 1970"
        raise DataError(f"a time is out of range: {error}", hint=hint) from error
    return raw_values(exact, np.int64)


def _printed_days(days: Integers) -> tuple[pa.Array, Index]:
    """The texts of the days that occur, and for each row which of them it has."""
    distinct = dense(days)
    if distinct is None:
        encoded = pc.dictionary_encode(array_of(days))
        distinct = to_numpy(encoded.dictionary), to_numpy(encoded.indices).astype(np.int64)
    days, index = distinct
    if days.min() >= FIRST_DAY and days.max() <= LAST_DAY:
        return pool_of(array_of(days.astype(np.int32)).cast(pa.date32()).cast(pa.large_string())), index
    # Arrow prints "out of range" for years beyond 16 bits.
    return pool_of(array_of(map(format_row_date, days.tolist()), pa.large_string())), index
