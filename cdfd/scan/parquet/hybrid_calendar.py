"""Dates and times that Spark wrote in the hybrid calendar, as in the proleptic Gregorian one, which everything else uses.

Spark 2 wrote them so, and later versions do with the rebase mode `LEGACY`: before 1582-10-15 in the Julian calendar, and before 1900 at the
present standard time of a time zone, instead of the local time of then. The footer says so, and names the time zone. Spark keeps the date and
the time of day that the writer saw, and so does this module. Times without a zone are younger than this, and never in the hybrid calendar.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.errors import UnsupportedError
from cdfd.runtime import compute as pc

UNNAMED_HINT = (
    "Set the environment variable TZ to the time zone of the table's writer, or let Spark write the rows again"
)
UNKNOWN_HINT = "Install the time zone database (tzdata) of a version that has it, or let Spark write the rows again"

_GREGORIAN = -141_427
"""The day 1582-10-15, from which on both calendars agree."""
_MARCH = -719_470
"""The day 0000-03-01 of the Julian calendar. Years that begin in March end with the leap day."""
_CYCLE, _YEAR = 1461, 365
"""Days of four Julian years, and of a year without a leap day."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MODERN = int(datetime(1900, 1, 1, tzinfo=UTC).timestamp())
"""From 1900-01-01 on, in seconds, Java's old classes know the local times of each zone."""
_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_OFFSET = r"(?:UTC|GMT|UT)?([+-])(\d{1,2}):?(\d\d)?(?::?(\d\d))?"


@dataclass(frozen=True, slots=True)
class HybridCalendar:
    """The calendar of a file.

    Attributes:
        dates: whether dates, and timestamps of 64 bits, are in it.
        int96: whether timestamps of 96 bits are.
        zone: the writer's time zone; None: the footer names none. Then the one that the environment variable TZ names counts, as in Spark.
    """

    dates: bool
    int96: bool
    zone: str | None

    @classmethod
    def of(cls, value: Callable[[str], str | None]) -> HybridCalendar | None:
        """The calendar of a file; None if it is the proleptic Gregorian one.

        Args:
            value: returns what the footer has for a key; None: nothing.
        """
        version = value("org.apache.spark.version")
        if version is None:
            return None
        dates = version < "3.0.0" or value("org.apache.spark.legacyDateTime") is not None
        int96 = version < "3.1.0" or value("org.apache.spark.legacyINT96") is not None
        return cls(dates, int96, value("org.apache.spark.timeZone")) if dates or int96 else None

    def converts(self, kind: pa.DataType, physical: str) -> bool:
        """Whether a column of an Arrow type, and of a type in Parquet, is in this calendar."""
        if pa.types.is_timestamp(kind):
            return self.int96 if physical == "INT96" else self.dates and kind.tz is not None
        return self.dates and pa.types.is_date32(kind)

    def convert(self, batches: Iterator[pa.RecordBatch], physical: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The same rows in the proleptic Gregorian calendar.

        Args:
            batches: columns of the file.
            physical: the type in Parquet of each of their leaves.

        Raises:
            UnsupportedError: a time from before 1900, if neither the footer nor TZ names a time zone, or one that is not known here.
        """
        for batch in batches:
            remaining = iter(physical)
            arrays = [self._array(each, remaining) for each in batch.columns]
            # Batches without columns have rows, too.
            yield pa.RecordBatch.from_arrays(arrays, schema=batch.schema) if arrays else batch

    def _array(self, array: Any, leaves: Iterator[str]) -> Any:
        kind = array.type
        if pa.types.is_struct(kind):
            children = [self._array(array.field(number), leaves) for number in range(kind.num_fields)]
            return pa.StructArray.from_arrays(
                children, fields=list(kind), mask=array.is_null() if array.null_count else None
            )
        if pa.types.is_map(kind):
            entries = [self._array(each, leaves) for each in (array.keys, array.items)]
            return _with(array, pa.StructArray.from_arrays(entries, fields=[kind.key_field, kind.item_field]))
        if kind.num_fields:
            return _with(array, self._array(array.values, leaves))
        if not self.converts(kind, next(leaves)):
            return array
        if pa.types.is_date32(kind):
            return _replaced(array, pa.int32(), _GREGORIAN, _gregorian)
        ticks, zone = _TICKS[kind.unit], self.zone or os.environ.get("TZ", "").removeprefix(":")
        return _replaced(array, pa.int64(), _MODERN * ticks, lambda values: _instants(values, ticks, zone))


def leaves_of(leaves: Iterable[tuple[str, str]], columns: Sequence[str]) -> list[tuple[str, str]]:
    """Of the leaves of a file, each with its dotted name and its type in Parquet, those of columns, which may be dotted names, too."""
    prefixes = tuple(f"{name}." for name in columns)
    return [(path, physical) for path, physical in leaves if f"{path}.".startswith(prefixes)]


def _with(array: Any, child: Any) -> Any:
    """A list or a map with other elements."""
    kind = array.type
    buffers = array.buffers()[: kind.num_buffers]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, [child])


def _replaced(
    array: Any, plain: Any, end: int, convert: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
) -> Any:
    """An array whose values before `end` are converted. `plain` is the type of its values in memory."""
    least = pc.min(array.view(plain)).as_py()
    if least is None or least >= end:
        return array
    validity, data = array.buffers()
    numbers = np.frombuffer(data, plain.to_pandas_dtype()).copy()
    early = numbers < end
    numbers[early] = convert(numbers[early].astype(np.int64))
    return pa.Array.from_buffers(
        array.type, len(array), [validity, pa.py_buffer(numbers)], array.null_count, array.offset
    )


def _gregorian(days: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Days of the Julian calendar -> the days of the same dates. February 29 of a year without it is March 1."""
    cycle, day = np.divmod(days - _MARCH, _CYCLE)
    year = 4 * cycle + np.minimum(day // _YEAR, 3)
    return np.where(days < _GREGORIAN, days + 2 - year // 100 + year // 400, days)


def _instants(values: npt.NDArray[np.int64], ticks: int, zone: str) -> npt.NDArray[np.int64]:
    """Instants from before 1900 -> those at which clocks of the time zone showed the same date and time. `ticks` are in a second."""
    times = _local_times(zone)
    day = 86_400 * ticks
    days, within = np.divmod(values, day)
    # A day at a time: the instant itself could be the first that 64 bits hold.
    carried, within = np.divmod(within + times.standard * ticks, day)
    local = _gregorian(days + carried) * day + within
    starts = np.array([start for start, _ in times.offsets[1:]], np.int64) * ticks
    offsets = np.array([offset for _, offset in times.offsets], np.int64) * ticks
    return local - offsets[np.searchsorted(starts, local, side="right")]


class _LocalTimes(NamedTuple):
    """Local times of a zone, in seconds.

    Attributes:
        standard: offset of its present standard time.
        offsets: until 1900, the local time from which on each offset has been in force, and the offset. The first has no beginning.
    """

    standard: int
    offsets: Sequence[tuple[int, int]]


@lru_cache(maxsize=32)
def _local_times(name: str) -> _LocalTimes:
    """The local times of a zone, by its name or as an offset, as Java knows both. UnsupportedError if it is not known."""
    if not name:
        what = "the file has times before 1900 in the calendar of Spark 2, and names no time zone"
        raise UnsupportedError(what, hint=UNNAMED_HINT)
    if match := re.fullmatch(_OFFSET, name):
        sign, *parts = match.groups()
        hours, minutes, seconds = (int(part or 0) for part in parts)
        offset = (3600 * hours + 60 * minutes + seconds) * (-1 if sign == "-" else 1)
        return _LocalTimes(offset, [(0, offset)])
    # Imported here: few files are as old.
    from zoneinfo import ZoneInfo

    try:
        zone = ZoneInfo("UTC" if name in ("Z", "UT") else name)
    except (LookupError, ValueError, OSError) as error:
        what = f"the file has times before 1900 in the calendar of Spark 2, and of an unknown time zone, {name!r:.100}"
        raise UnsupportedError(what, hint=UNKNOWN_HINT) from error

    def offset_at(second: int) -> int:
        moment = (_EPOCH + timedelta(seconds=second)).astimezone(zone)
        return round((moment.utcoffset() or timedelta()).total_seconds())

    def differs(known: int, second: int) -> bool:
        return offset_at(second) != known

    # The least of a year: Ireland and Morocco call their summer time the standard one. Spark's own table is of about 2021.
    standard = min(offset_at(int(datetime(2021, month, 1, tzinfo=UTC).timestamp())) for month in range(1, 13))
    # No zone has had another time than that of its sun before 1800.
    step, before = 7 * 86_400, int(datetime(1800, 1, 1, tzinfo=UTC).timestamp())
    offsets = [(0, offset_at(before))]
    for after in range(before + step, _MODERN + 1, step):
        known = offsets[-1][1]
        if offset_at(after) != known:
            week = range(after - step, after + 1)
            changed = week[bisect_left(week, True, key=partial(differs, known))]
            offsets.append((changed + offset_at(changed), offset_at(changed)))
    return _LocalTimes(standard, offsets)
