"""Statistics of a data file (specification, "Per-file Statistics"): hints, never needed to read rows.

The rule for what is broken: a document that is not a JSON object says nothing at all; an entry that is not of the JSON
form or not a value of its column's type says nothing about that column. Reading goes on either way.

Deployed writers put values there that are no bounds. `min` and `max` give what was written, and `FileStatistics.bounds` what holds for
every row:

| type | what writers do | bounds |
|---|---|---|
| string | cut to a prefix. Spark used to add U+FFFD to a maximum, which is below characters of four bytes | a minimum |
| decimal of more than 15 digits | delta-rs computes a double, and at scale 0 writes it as a long | as wide as the error |
| timestamp | cut to milliseconds | a millisecond wider |
| timestamp before 1972 | zones had offsets of seconds, which text leaves out | a day wider |
| date and timestamp before 1582-10-15 | Spark 2 wrote Julian dates | none |
| double that was a float | the digits of the float: 0.1 for 0.100000001490116 | as wide as the float |
| binary | no form is specified | none |
| float, double | some leave out NaN | those of all other values |
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from cdfd.delta.actions import NO_VALUES
from cdfd.delta.types import values
from cdfd.delta.types.datatypes import DataType, Decimal, Primitive, StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.delta.types.schema_merge import TYPE_CHANGES
from cdfd.errors import LogError
from cdfd.escaping import is_unicode
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, scalar_of

MOST_ROWS = 1 << 40
"""Rows of a file, at most: the sum over eight million files is still a long."""
STRING_PREFIX = 32
"""Characters that a writer keeps of a string."""

_TIE_BREAKER = "\ufffd"
_CUT_US = 999
"""Microseconds by which whole milliseconds may be wrong."""
_DAY_US = 86_400_000_000
_GREGORIAN = datetime.date(1582, 10, 15)
_GREGORIAN_US = -141_426 * _DAY_US
"""The day after, for all time zones."""
_WHOLE_MINUTES_US = 737 * _DAY_US
"""1972-01-08: since then, all offsets of time zones are whole minutes."""
_DOUBLE_DIGITS = 15
"""Digits of a decimal that survive as a double."""
_DIGITS_OF_A_DOUBLE = 17
"""Digits of a double as it is written, at most."""
_ERROR = -14
"""A power of ten: more than the relative error of a decimal that was computed with doubles."""
_TIMESTAMPS = {Primitive("timestamp"), Primitive("timestamp_ntz")}
_EXACT = decimal.Context(prec=100)

Path = Sequence[str]
"""Logical names through structs, from the top."""


def record_counts(stats: pa.Array) -> pa.Array:
    """`numRecords` of many files, int64; null where it is not there, where no file can have so many, or the document says nothing.

    Not by `pyarrow.json`: a document that is no object ends the process (seen in 26.0 with `null`).

    Args:
        stats: documents, as text; null where there is none.
    """
    texts = stats.cast(pa.large_string())
    # Writers put the count first, so most documents need no parser.
    counts = pc.cast(pc.struct_field(pc.extract_regex(texts, _COUNT_FIRST), "count"), pa.int64())
    # Of two counts, the last one would hold.
    is_only = pc.equal(pc.count_substring(texts, _COUNT), 1)
    counts = pc.if_else(pc.and_(pc.less_equal(counts, MOST_ROWS), is_only), counts, None)
    unknown = pc.and_(pc.is_valid(texts), pc.is_null(counts))
    if not pc.any(unknown).as_py():
        return counts
    # A hundred thousand documents at a time, for the memory that Python's objects take.
    documents = texts.filter(unknown).cast(pa.large_binary())
    parts = (documents.slice(start, _DOCUMENTS) for start in range(0, len(documents), _DOCUMENTS))
    parsed = array_of((_record_count(document) for part in parts for document in part.to_pylist()), pa.int64())
    return pc.replace_with_mask(counts, unknown, parsed)


def counts_only(stats: pa.Array) -> pa.Array:
    """Documents, as text, that say `numRecords` and nothing else: of a million files they take a tenth of the memory."""
    counts = record_counts(stats).cast(pa.large_string())
    return pc.binary_join_element_wise(
        scalar_of('{"numRecords":', pa.large_string()),
        counts,
        scalar_of("}", pa.large_string()),
        scalar_of("", pa.large_string()),
    )


def record_count(stats: str | None) -> int | None:
    """`numRecords` of one file; None as in `record_counts`."""
    if stats is None:
        return None
    match = _COUNT_FIRST_PATTERN.match(stats)
    if match is not None and stats.count(_COUNT) == 1 and int(match["count"]) <= MOST_ROWS:
        return int(match["count"])
    return _record_count(stats)


def count_only(stats: str | None) -> str | None:
    """A document with `numRecords` and nothing else; None if there is none."""
    count = record_count(stats)
    return None if count is None else f'{{"numRecords":{count}}}'


_COUNT = '"numRecords"'
# A document that was cut does not end as an object does.
_COUNT_FIRST = r'(?s)^\{"numRecords":(?P<count>[0-9]{1,18})(?:,.*)?\}$'
_COUNT_FIRST_PATTERN = re.compile(_COUNT_FIRST)
_DOCUMENTS = 100_000


def _record_count(document: bytes | str) -> int | None:
    try:
        statistics = orjson.loads(document)
    except orjson.JSONDecodeError:
        return None
    count = statistics.get("numRecords") if isinstance(statistics, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MOST_ROWS else None


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """The statistics of one file; values are typed on access.

    Attributes:
        num_records: rows in the file, those included that its deletion vector removes; None if unknown.
        tight_bounds: whether minima, maxima and null counts are those of the rows that a deletion vector leaves.
    """

    schema: TableSchema
    num_records: int | None = None
    tight_bounds: bool = True
    minima: Mapping[str, Any] = field(default_factory=lambda: NO_VALUES, repr=False)
    maxima: Mapping[str, Any] = field(default_factory=lambda: NO_VALUES, repr=False)
    null_counts: Mapping[str, Any] = field(default_factory=lambda: NO_VALUES, repr=False)

    def min(self, path: Path) -> pa.Scalar[Any] | None:
        """The minimum as written: of a string perhaps only a prefix, of a timestamp its millisecond."""
        return self._value(self.minima, path)

    def max(self, path: Path) -> pa.Scalar[Any] | None:
        """The maximum as written: of a timestamp its millisecond, which later microseconds of it are above."""
        return self._value(self.maxima, path)

    def null_count(self, path: Path) -> int | None:
        """The number of nulls. Without tight bounds, it is known only if all rows of the file are null, or none."""
        count = whole(self._entry(self.null_counts, path))
        if count is None or self.tight_bounds or count in (0, self.num_records):
            return count
        return None

    def bounds(self, path: Path) -> tuple[Any, Any]:
        """A minimum and a maximum that hold for every row of the file, as Python objects; None if unknown.

        NaN, which compares with nothing, is not counted.
        """
        child = self.schema.find(path)
        if child is None:
            return None, None
        low = self.min(path)
        high = self.max(path)
        if child.type == Primitive("binary"):
            return None, None
        if child.type in _TIMESTAMPS:
            low, high = _wider(low, -1), _wider(high, 1)
        least, most = values.as_python(low), values.as_python(high)
        match child.type:
            case Primitive("string"):
                may_be_cut = most is None or most.endswith(_TIE_BREAKER) or len(most) >= STRING_PREFIX
                return least, None if may_be_cut else most
            case Primitive("date"):
                least, most = (None if day is None or day < _GREGORIAN else day for day in (least, most))
            case Decimal(digits) if digits > _DOUBLE_DIGITS:
                least = None if least is None or least == -(2**63) else _move(least, -1)
                most = None if most is None or most == 2**63 - 1 else _move(most, 1)
            case Primitive("double") if child.metadata.get(TYPE_CHANGES):
                least = None if least is None else min(least, _single(least))
                most = None if most is None else max(most, _single(most))
        return least, most

    def _value(self, tree: Mapping[str, Any], path: Path) -> pa.Scalar[Any] | None:
        child = self.schema.find(path)
        return None if child is None else typed_scalar(self._entry(tree, path), child.type)

    def _entry(self, tree: Mapping[str, Any], path: Path) -> object:
        """The entry under the physical names of a path."""
        entry: object = tree
        for depth in range(1, len(path) + 1):
            child = self.schema.find(path[:depth])
            if child is None or not isinstance(entry, Mapping):
                return None
            entry = entry.get(self.schema.physical_name(child))
        return entry


def parse(stats: str | None, schema: TableSchema) -> FileStatistics:
    """The statistics of an `add`, without any where the text is missing or broken."""
    document: Mapping[str, Any] = NO_VALUES
    if stats:
        with suppress(ValueError, decimal.DecimalException, RecursionError):
            # Numbers as they are written: a decimal has digits that a float would lose.
            document = _object(json.loads(stats, parse_float=decimal.Decimal, parse_int=decimal.Decimal))
    return FileStatistics(
        schema,
        whole(document.get("numRecords")),
        document.get("tightBounds") is not False,
        _object(document.get("minValues")),
        _object(document.get("maxValues")),
        _object(document.get("nullCount")),
    )


def _object(entry: object) -> Mapping[str, Any]:
    return entry if isinstance(entry, dict) else NO_VALUES


def whole(entry: object) -> int | None:
    """A number of rows; None if it is none."""
    if not isinstance(entry, decimal.Decimal) or not 0 <= entry < 2**63:
        return None
    number = int(entry)
    return number if number == entry else None


def typed_scalar(entry: object, kind: DataType) -> pa.Scalar[Any] | None:
    """A JSON value as one of the column's type, None if it is not."""
    if kind == Primitive("string"):
        return scalar_of(entry, pa.string()) if isinstance(entry, str) and is_unicode(entry) else None
    if not isinstance(kind, StructType) and isinstance(entry, str | bool | float | decimal.Decimal):
        try:
            parsed = values.parse(str(entry), kind)
        except LogError:
            return None
        return parsed if parsed.is_valid and parsed.equals(parsed) else None  # NaN, equal to nothing, bounds nothing
    return None


def _wider(bound: pa.Scalar[Any] | None, sign: int) -> pa.Scalar[Any] | None:
    """A bound of timestamps, moved down (-1) or up (1) by more than writers may have moved it the other way."""
    if bound is None:
        return None
    microseconds = bound.cast(pa.int64()).as_py() + sign * _CUT_US
    if microseconds < _GREGORIAN_US:
        return None
    if bound.type.tz is not None and microseconds < _WHOLE_MINUTES_US:
        microseconds += sign * _DAY_US
    return scalar_of(microseconds, pa.int64()).cast(bound.type) if -(2**63) <= microseconds < 2**63 else None


def _move(number: decimal.Decimal, sign: int) -> decimal.Decimal:
    """A bound of decimals, moved down (-1) or up (1) if it may be a double that was computed from the decimal."""
    digits = len(number.normalize(_EXACT).as_tuple().digits)
    if digits > _DIGITS_OF_A_DOUBLE and number != float(number):
        return number
    return _EXACT.add(number, _EXACT.multiply(number.copy_abs(), decimal.Decimal((sign < 0, (1,), _ERROR))))


def _single(number: float) -> float:
    nearest: float = scalar_of(number, pa.float32()).as_py()
    return nearest
