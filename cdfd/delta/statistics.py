"""Statistics of a data file (specification, "Per-file Statistics"): hints, never needed to read rows.

The rule for what is broken: a document that is not a JSON object says nothing at all; an entry that is not of the JSON
form or not a value of its column's type says nothing about that column. Reading goes on either way.

Deployed writers cut strings to 32 characters (a minimum to a prefix, a maximum to a prefix and a tie-breaker) and
timestamps to milliseconds, and leave NaN out. `FileStatistics.bounds` makes up for that; `min` and `max` give what was
written.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.delta import values
from cdfd.delta.actions import NO_VALUES
from cdfd.delta.datatypes import DataType, Primitive, StructType
from cdfd.delta.schema import TableSchema
from cdfd.errors import LogError

MOST_ROWS = 1 << 40
"""Rows of a file, at most: the sum over eight million files is still a long."""
STRING_PREFIX = 32
"""Characters that a writer keeps of a string."""

_MILLISECOND_US = 1000
_INEXACT = {Primitive("float"), Primitive("double")}
_TIMESTAMPS = {Primitive("timestamp"), Primitive("timestamp_ntz")}

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
    counts = pc.if_else(pc.less_equal(counts, MOST_ROWS), counts, None)
    rest = pc.and_(pc.is_valid(texts), pc.is_null(counts))
    if not pc.any(rest).as_py():
        return counts
    # A hundred thousand documents at a time, for the memory that Python's objects take.
    documents = texts.filter(rest).cast(pa.large_binary())
    parts = (documents.slice(start, _DOCUMENTS) for start in range(0, len(documents), _DOCUMENTS))
    found = pa.array((_record_count(document) for part in parts for document in part.to_pylist()), pa.int64())
    return pc.replace_with_mask(counts, rest, found)


def counts_only(stats: pa.Array) -> pa.Array:
    """Documents, as text, that say `numRecords` and nothing else: of a million files they take a tenth of the memory."""
    counts = record_counts(stats).cast(pa.large_string())
    return pc.binary_join_element_wise(
        pa.scalar('{"numRecords":', pa.large_string()),
        counts,
        pa.scalar("}", pa.large_string()),
        pa.scalar("", pa.large_string()),
    )


def record_count(stats: str | None) -> int | None:
    """`numRecords` of one file; None as in `record_counts`."""
    if stats is None:
        return None
    if (match := _COUNT_FIRST_PATTERN.match(stats)) is not None and (count := int(match["count"])) <= MOST_ROWS:
        return count
    return _record_count(stats)


def count_only(stats: str | None) -> str | None:
    """A document with `numRecords` and nothing else; None if there is none."""
    count = record_count(stats)
    return None if count is None else f'{{"numRecords":{count}}}'


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
class Bounds:
    """The bounds of a column's values: no value is below `min` or above `max`; None if unknown.

    `tight` says that both are values of rows that are still there. NaN, which compares with nothing, is not counted.
    """

    min: pa.Scalar[Any] | None
    max: pa.Scalar[Any] | None
    tight: bool


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
        count = _whole(self._entry(self.null_counts, path))
        if count is None or self.tight_bounds or count in (0, self.num_records):
            return count
        return None

    def bounds(self, path: Path) -> Bounds:
        """A minimum and a maximum that hold for every row of the file."""
        lower, upper = self.min(path), self.max(path)
        child = self.schema.find(path)
        kind = None if child is None else child.type
        tight = self.tight_bounds and lower is not None and upper is not None and kind not in _INEXACT
        if kind == Primitive("string"):
            tight = tight and not any(_may_be_cut(bound) for bound in (lower, upper))
        if kind in _TIMESTAMPS and upper is not None:
            upper, tight = _last_of_its_millisecond(upper), False
        return Bounds(lower, upper, tight)

    def _value(self, tree: Mapping[str, Any], path: Path) -> pa.Scalar[Any] | None:
        child = self.schema.find(path)
        return None if child is None else _typed(self._entry(tree, path), child.type)

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
    document = _document(stats)
    return FileStatistics(
        schema,
        _whole(document.get("numRecords")),
        document.get("tightBounds") is not False,
        _object(document.get("minValues")),
        _object(document.get("maxValues")),
        _object(document.get("nullCount")),
    )


def _document(stats: str | None) -> Mapping[str, Any]:
    if not stats:
        return NO_VALUES
    try:
        # Numbers as they are written: a decimal has digits that a float would lose.
        return _object(json.loads(stats, parse_float=decimal.Decimal, parse_int=decimal.Decimal))
    except (ValueError, decimal.DecimalException, RecursionError):
        return NO_VALUES


def _object(entry: object) -> Mapping[str, Any]:
    return entry if isinstance(entry, dict) else NO_VALUES


def _whole(entry: object) -> int | None:
    if not isinstance(entry, decimal.Decimal) or not 0 <= entry < 2**63:
        return None
    number = int(entry)
    return number if number == entry else None


def _typed(entry: object, kind: DataType) -> pa.Scalar[Any] | None:
    """A JSON value as one of the column's type, None if it is not."""
    if kind == Primitive("string"):
        return pa.scalar(entry, pa.string()) if isinstance(entry, str) and _is_unicode(entry) else None
    if not isinstance(kind, StructType) and isinstance(entry, str | bool | float | decimal.Decimal):
        try:
            scalar = values.parse(str(entry), kind)
        except LogError:
            return None
        return scalar if scalar.is_valid and scalar.equals(scalar) else None  # NaN, equal to nothing, bounds nothing
    return None


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _may_be_cut(bound: pa.Scalar[Any] | None) -> bool:
    return bound is not None and len(bound.as_py()) >= STRING_PREFIX


def _last_of_its_millisecond(bound: pa.Scalar[Any]) -> pa.Scalar[Any] | None:
    microseconds = bound.cast(pa.int64()).as_py()
    last = microseconds - microseconds % _MILLISECOND_US + _MILLISECOND_US - 1
    return pa.scalar(last, pa.int64()).cast(bound.type) if last < 2**63 else None
