"""Spark's filters as predicates: finds files without requested rows, from the statistics in the log.

A filter can only skip files, and Spark applies it to all remaining rows. So an unsupported filter costs only time. See
`cdfd.plan.shape.pruning`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, DefaultContext

import numpy as np
import numpy.typing as npt
from pyspark.sql import datasource as spark

from cdfd.delta import statistics
from cdfd.delta.types.datatypes import Primitive, StructField, StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import ConfigError
from cdfd.model.columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.plan.shape.predicate import (
    And,
    Column,
    Comparison,
    IsNull,
    Literal,
    Membership,
    Node,
    Not,
    Operator,
    Predicate,
)
from cdfd.plan.shape.pruning import RangeOf, compile_pruning
from cdfd.plan.shape.ranges import Columns, Range

_OPERATORS: Mapping[type[spark.Filter], Operator] = {
    spark.EqualTo: "=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHANGE_FIELDS = (
    StructField(CHANGE_TYPE, Primitive("string"), False),
    StructField(COMMIT_VERSION, Primitive("long"), False),
    StructField(COMMIT_TIMESTAMP, Primitive("timestamp"), False),
)
_VERSION_COLUMNS = (COMMIT_VERSION, COMMIT_TIMESTAMP)


class _Unsupported(Exception):
    """A filter that cannot skip files."""


def _node(filter: spark.Filter, names: Mapping[str, str]) -> Node:
    """A filter of Spark as a node. `names`: our column names, by Spark's names."""
    match filter:
        case spark.Not(child):
            return Not(_node(child, names))
        case spark.IsNull(path) | spark.EqualNullSafe(path, None):
            return IsNull(_column(path, names))
        case spark.IsNotNull(path):
            return Not(IsNull(_column(path, names)))
        case spark.EqualNullSafe(path, value):
            column = _column(path, names)
            return And((Not(IsNull(column)), Comparison(column, "=", _literal(value))))
        case spark.In(path, values):
            return Membership(_column(path, names), tuple(map(_literal, values)))
    if type(filter) not in _OPERATORS:
        raise _Unsupported
    column, value = _column(filter.attribute, names), filter.value  # type: ignore[attr-defined]  # all of these have both
    return Comparison(column, _OPERATORS[type(filter)], _literal(value))


def _column(path: Sequence[str], names: Mapping[str, str]) -> Column:
    if len(path) != 1 or path[0] not in names:
        raise _Unsupported
    return Column((names[path[0]],), 0)


def _literal(value: object) -> Literal:
    match value:
        case None:
            return Literal("", "null", 0)
        case bool():
            return Literal(str(value).lower(), "boolean", 0)
        case Decimal() if len(value.as_tuple().digits) >= DefaultContext.prec:
            # PySpark rounds decimals to as many digits as Python's arithmetic leaves.
            raise _Unsupported
        case int() | Decimal():
            return Literal(str(value), "number", 0)
        case float():
            return Literal(str(value), "number" if math.isfinite(value) else "text", 0)
        case str():
            return Literal(value, "text", 0)
        case bytes() | bytearray():
            return Literal(value.hex(), "binary", 0)
        case datetime():
            return Literal(value.isoformat(" "), "timestamp", 0)
        case date():
            return Literal(value.isoformat(), "date", 0)
    raise _Unsupported


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters that a row must satisfy, each of one column."""

    predicates: tuple[Predicate, ...] = ()

    @property
    def of_rows(self) -> bool:
        """Whether a filter depends on the statistics of files."""
        return any(each.names[0] not in _VERSION_COLUMNS for each in self.predicates)

    @classmethod
    def of(cls, filters: Sequence[spark.Filter], names: Mapping[str, str]) -> Filters:
        """From Spark's filters, without unsupported ones. `names`: our column names, by Spark's names."""
        predicates = []
        for each in filters:
            with contextlib.suppress(_Unsupported):
                predicates.append(Predicate(str(each), _node(each, names)))
        return cls(tuple(predicates))

    def versions(self, first: int, last: int) -> tuple[int, int]:
        """The first and the last version of a range that may have requested rows."""
        may_have_rows = self._pruning((COMMIT_VERSION,))

        def is_possible(version: int) -> bool:
            return may_have_rows(lambda _: Range.constant(version))

        while first <= last and not is_possible(first):
            first += 1
        while first <= last and not is_possible(last):
            last -= 1
        return first, last

    def has_version(self, plan: ChangePlan) -> bool:
        """Whether the version may have requested rows."""
        ranges = {COMMIT_VERSION: Range.constant(plan.version), COMMIT_TIMESTAMP: _at(plan.timestamp_ms)}
        return self._pruning(_VERSION_COLUMNS)(ranges.__getitem__)

    def _pruning(self, names: Sequence[str], columns: Sequence[StructField] = ()) -> Callable[[RangeOf], bool]:
        """Whether a row may satisfy the filters of some columns, by the ranges of these columns."""
        fields = [child for child in columns if child.name not in (each.name for each in _CHANGE_FIELDS)]
        table, compiled = TableSchema(StructType((*fields, *_CHANGE_FIELDS))), []
        for predicate in self.predicates:
            # Spark would cast a value of another type, and cdfd keeps the file.
            if predicate.names[0] in names:
                with contextlib.suppress(ConfigError):
                    compiled.append(compile_pruning(predicate, table))
        return lambda range_of: all(may_have_rows(range_of) for may_have_rows in compiled)

    def kept(
        self, plan: ChangePlan, conformed: ChangePlan, stats: Mapping[str, str | None]
    ) -> npt.NDArray[np.bool_] | None:
        """For each scan of a plan, whether it may have requested rows; None: all.

        Args:
            plan: of a version.
            conformed: the same in the schema of the rows: their names are those of the filters.
            stats: statistics of files, by path. The plan of a first snapshot has its own.
        """
        if not self.predicates:
            return None
        if not self.has_version(plan):
            return np.zeros(len(plan.scans), np.bool_)
        if plan.refinement is not None:
            # A bucket has rows of all files.
            return None
        columns = Columns(plan.schema, conformed.schema)
        if plan.origin == "snapshot" and isinstance(plan.scans, LiveScans):
            texts = (add.stats for add in plan.scans.files)
        else:
            texts = (stats.get(scan.path) for scan in plan.scans)
        may_have_rows = self._pruning((CHANGE_TYPE, *conformed.schema.names), conformed.schema.struct.fields)

        def keeps(scan: FileScan, stats: str | None) -> bool:
            # Statistics do not apply to rows in another schema, or to rows that a deletion vector has deleted.
            certain = scan.change_type == "insert" and scan.only is None and scan.schema is None
            parsed = statistics.parse(stats if certain else None, columns.schema)

            def range_of(name: str) -> Range:
                if name == CHANGE_TYPE:
                    return Range() if scan.change_type is None else Range.constant(scan.change_type)
                return Range() if scan.schema is not None else columns.range(name, scan, parsed)

            return may_have_rows(range_of)

        return np.fromiter(map(keeps, plan.scans, texts), np.bool_, len(plan.scans))


def _at(milliseconds: int) -> Range:
    """The range of a commit's time. It is unknown outside of the years 1 to 9999, which Python does not support."""
    try:
        return Range.constant(_EPOCH + timedelta(milliseconds=milliseconds))
    except OverflowError:
        return Range(nulls=False)
