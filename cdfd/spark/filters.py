"""Data skipping: finds files without requested rows, from the statistics in the log.

A filter can only skip files, and Spark applies it to all remaining rows. So an unsupported filter costs only time. The statistics are those
of `cdfd.delta.statistics`. Files with insufficient statistics are read:

* the maximum of strings may be truncated, and is ignored from `STRING_PREFIX` characters on;
* times are rounded to milliseconds, so bounds are widened on both sides;
* NaN is above all numbers in Spark, but not in statistics, so `>` on floats skips nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import datasource as spark

from cdfd.changes.columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from cdfd.changes.plan import ChangePlan, FileScan, LiveScans
from cdfd.delta import statistics, values
from cdfd.delta.datatypes import Primitive
from cdfd.delta.schema import StructField, TableSchema
from cdfd.delta.statistics import STRING_PREFIX, FileStatistics
from cdfd.errors import CdfdError

Value: TypeAlias = "bool | int | float | Decimal | str | date | datetime | None"
Operator = Literal["=", "<", "<=", ">", ">=", "null", "not null"]

_OPERATORS: Mapping[type[spark.Filter], Operator] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FLOATS = (Primitive("float"), Primitive("double"))


@dataclass(frozen=True, slots=True)
class Range:
    """The known range of a column's values in some rows.

    Attributes:
        low, high: bounds of the values; None: unknown.
        nulls: whether there are nulls; None: unknown.
        values: whether there are other values.
        nan: whether there may also be NaN.
    """

    low: Value = None
    high: Value = None
    nulls: bool | None = None
    values: bool = True
    nan: bool = False

    @classmethod
    def constant(cls, value: Value) -> Range:
        """The range of rows that all have one value."""
        if value is None:
            return cls(nulls=True, values=False)
        if isinstance(value, float) and math.isnan(value):
            return cls(nulls=False, nan=True)
        return cls(value, value, nulls=False)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a column: the comparison must be true for at least one operand."""

    column: str
    operator: Operator
    operands: tuple[Value, ...] = ()

    @classmethod
    def of(cls, given: spark.Filter) -> Condition | None:
        """From Spark's filter; None if it cannot skip files."""
        match given:
            case spark.IsNull((column,)):
                return cls(column, "null")
            case spark.IsNotNull((column,)) | spark.Not(spark.IsNull((column,))):
                return cls(column, "not null")
            case spark.EqualNullSafe((column,), None):
                return cls(column, "null")
            case spark.In((column,), operands):
                return cls(column, "=", tuple(operands))
            case (
                spark.EqualTo((column,), operand)
                | spark.EqualNullSafe((column,), operand)
                | spark.LessThan((column,), operand)
                | spark.LessThanOrEqual((column,), operand)
                | spark.GreaterThan((column,), operand)
                | spark.GreaterThanOrEqual((column,), operand)
            ):
                return cls(column, _OPERATORS[type(given)], (operand,))
        return None

    def possible(self, found: Range) -> bool:
        """Whether a row in a range may satisfy the condition."""
        if self.operator == "null":
            return found.nulls is not False
        if not found.values:
            return False
        return self.operator == "not null" or any(self._possible(found, operand) for operand in self.operands)

    def _possible(self, found: Range, operand: Value) -> bool:
        if operand is None:
            return False  # a comparison with null is never true
        if isinstance(operand, float) and math.isnan(operand):
            return True
        low, high = _comparable(found.low, operand), _comparable(found.high, operand)
        match self.operator:
            case "=":
                return (low is None or low <= operand) and (high is None or high >= operand)
            case "<":
                return low is None or low < operand
            case "<=":
                return low is None or low <= operand
            case ">":
                return found.nan or high is None or high > operand
        return found.nan or high is None or high >= operand


def _comparable(bound: Any, operand: Any) -> Any:
    """The bound, if it can be compared with the operand; otherwise None."""
    if isinstance(bound, bool) or isinstance(operand, bool):
        return bound if isinstance(bound, bool) and isinstance(operand, bool) else None
    numbers = (int, float, Decimal)
    if isinstance(bound, numbers) and isinstance(operand, numbers):
        return bound
    if isinstance(bound, datetime) and isinstance(operand, datetime):
        return bound if (bound.tzinfo is None) == (operand.tzinfo is None) else None
    return bound if type(bound) is type(operand) and isinstance(bound, str | date) else None


@dataclass(frozen=True, slots=True)
class Filters:
    """The conditions that a row must satisfy."""

    conditions: tuple[Condition, ...] = ()

    @property
    def of_rows(self) -> bool:
        """Whether a condition depends on the statistics of files."""
        return any(condition.column not in (COMMIT_VERSION, COMMIT_TIMESTAMP) for condition in self.conditions)

    @classmethod
    def of(cls, given: Sequence[spark.Filter], names: Mapping[str, str]) -> Filters:
        """From Spark's filters, without unsupported ones. `names`: our column names, by Spark's names."""
        found = (Condition.of(each) for each in given)
        return cls(
            tuple(
                replace(each, column=names[each.column]) for each in found if each is not None and each.column in names
            )
        )

    def versions(self, first: int, last: int) -> tuple[int, int]:
        """The first and the last version of a range that may have requested rows."""
        while first <= last and not self._possible(COMMIT_VERSION, Range.constant(first)):
            first += 1
        while first <= last and not self._possible(COMMIT_VERSION, Range.constant(last)):
            last -= 1
        return first, last

    def has_version(self, plan: ChangePlan) -> bool:
        """Whether the version may have requested rows."""
        return self._possible(COMMIT_VERSION, Range.constant(plan.version)) and self._possible(
            COMMIT_TIMESTAMP, _at(plan.timestamp_ms)
        )

    def kept(
        self, plan: ChangePlan, conformed: ChangePlan, stats: Mapping[str, str | None]
    ) -> npt.NDArray[np.bool_] | None:
        """For each scan of a plan, whether it may have requested rows; None: all.

        Args:
            plan: of a version.
            conformed: the same in the schema of the rows: their names are those of the filters.
            stats: statistics of files, by path. The plan of a first snapshot has its own.
        """
        if not self.conditions:
            return None
        if not self.has_version(plan):
            return np.zeros(len(plan.scans), np.bool_)
        columns = _Columns(plan.schema, conformed.schema)
        if plan.origin == "snapshot" and isinstance(plan.scans, LiveScans):
            texts = (add.stats for add in plan.scans.files)
        else:
            texts = (stats.get(scan.path) for scan in plan.scans)
        scans = zip(plan.scans, texts, strict=True)
        return np.fromiter((self._keeps(scan, text, columns) for scan, text in scans), np.bool_, len(plan.scans))

    def _keeps(self, scan: FileScan, stats: str | None, columns: _Columns) -> bool:
        if scan.change_type is not None and not self._possible(CHANGE_TYPE, Range.constant(scan.change_type)):
            return False
        # Statistics do not apply to rows in another schema, or to rows that a deletion vector has deleted.
        if scan.schema is not None:
            return True
        known = statistics.parse(stats if scan.change_type == "insert" and scan.only is None else None, columns.schema)
        return all(
            condition.possible(columns.range(condition.column, scan, known))
            for condition in self.conditions
            if condition.column not in (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
        )

    def _possible(self, column: str, found: Range) -> bool:
        return all(each.possible(found) for each in self.conditions if each.column == column)


class _Columns:
    """Finds what the log says of a column, by the name that it has in the rows."""

    def __init__(self, schema: TableSchema, conformed: TableSchema) -> None:
        self.schema = schema
        by_physical = {schema.physical_name(child): child for child in schema.struct}
        self._known: dict[str, StructField] = {}
        for child in conformed.struct:
            found = by_physical.get(conformed.physical_name(child))
            if found is not None:
                self._known[child.name] = found

    def range(self, name: str, scan: FileScan, known: FileStatistics) -> Range:
        """The range of a column in a file."""
        column = self._known.get(name)
        if column is None or "__COLLATIONS" in column.metadata:
            return Range()
        if column.name in self.schema.partition_columns:
            return self._partition(column, scan)
        return _of_statistics(column, known)

    def _partition(self, column: StructField, scan: FileScan) -> Range:
        try:
            found = values.parse_partition(scan.partition_values, self.schema.select([column.name])).get(column.name)
        except CdfdError:
            return Range()  # reading the file raises the error
        if found is None or not found.is_valid:
            return Range.constant(None)
        constant = _python(found)
        return Range() if constant is None else Range.constant(constant)


def _at(milliseconds: int) -> Range:
    """The range of a commit's time. It is unknown outside of the years 1 to 9999, which Python does not support."""
    try:
        return Range.constant(_EPOCH + milliseconds * _MILLISECOND)
    except OverflowError:
        return Range(nulls=False)


def _python(scalar: pa.Scalar[Any] | None) -> Any:
    """A value as a Python object; None for null, and for times outside of the years 1 to 9999."""
    try:
        return None if scalar is None else scalar.as_py()
    except (ValueError, OverflowError):
        return None


def _of_statistics(column: StructField, known: FileStatistics) -> Range:
    path = (column.name,)
    nulls, rows = known.null_count(path), known.num_records
    if nulls is not None and nulls == rows:
        return Range(nulls=True, values=False)
    bounds = known.bounds(path)
    low, high = _python(bounds.min), _python(bounds.max)
    if isinstance(high, str) and len(high) >= STRING_PREFIX:
        high = None
    if isinstance(low, datetime):
        # Before 1970, rounding towards zero rounds up.
        low = low - _MILLISECOND if low.year > 1 else None
    return Range(low, high, None if nulls is None else nulls > 0, nan=column.type in _FLOATS)
