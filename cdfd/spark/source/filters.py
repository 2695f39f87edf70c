"""Spark's filters as conditions on files: finds files without requested rows, from the statistics in the log.

A filter can only skip files, and Spark applies it to all remaining rows. So an unsupported filter costs only time. See
`cdfd.plan.skipping`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, DefaultContext

import numpy as np
import numpy.typing as npt
from pyspark.sql import datasource as spark

from cdfd.delta import statistics
from cdfd.model.columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.plan.skipping import Columns, Condition, Operator, Range

_OPERATORS: Mapping[type[spark.Filter], Operator] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def condition_of(given: spark.Filter) -> Condition | None:
    """The condition of Spark's filter; None if it cannot skip files."""
    condition = _condition_of(given)
    return None if condition is None or any(map(_may_be_rounded, condition.operands)) else condition


def _may_be_rounded(operand: object) -> bool:
    """Whether an operand is a decimal with as many digits as PySpark leaves: those of Python's arithmetic."""
    return isinstance(operand, Decimal) and len(operand.as_tuple().digits) >= DefaultContext.prec


def _condition_of(given: spark.Filter) -> Condition | None:
    match given:
        case spark.IsNull((column,)):
            return Condition(column, "null")
        case spark.IsNotNull((column,)) | spark.Not(spark.IsNull((column,))):
            return Condition(column, "not null")
        case spark.EqualNullSafe((column,), None):
            return Condition(column, "null")
        case spark.In((column,), operands):
            return Condition(column, "=", tuple(operands))
        case (
            spark.EqualTo((column,), operand)
            | spark.EqualNullSafe((column,), operand)
            | spark.LessThan((column,), operand)
            | spark.LessThanOrEqual((column,), operand)
            | spark.GreaterThan((column,), operand)
            | spark.GreaterThanOrEqual((column,), operand)
        ):
            return Condition(column, _OPERATORS[type(given)], (operand,))
    return None


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
        found = (condition_of(each) for each in given)
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
        if plan.refinement is not None:
            # A bucket has rows of all files.
            return None
        columns = Columns(plan.schema, conformed.schema)
        if plan.origin == "snapshot" and isinstance(plan.scans, LiveScans):
            texts = (add.stats for add in plan.scans.files)
        else:
            texts = (stats.get(scan.path) for scan in plan.scans)
        scans = zip(plan.scans, texts, strict=True)
        return np.fromiter((self._keeps(scan, text, columns) for scan, text in scans), np.bool_, len(plan.scans))

    def _keeps(self, scan: FileScan, stats: str | None, columns: Columns) -> bool:
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


def _at(milliseconds: int) -> Range:
    """The range of a commit's time. It is unknown outside of the years 1 to 9999, which Python does not support."""
    try:
        return Range.constant(_EPOCH + timedelta(milliseconds=milliseconds))
    except OverflowError:
        return Range(nulls=False)
