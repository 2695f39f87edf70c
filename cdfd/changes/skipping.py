"""Data skipping: which files may have rows that satisfy conditions, from partition values and statistics in the log. Pure.

The statistics are those of `cdfd.delta.statistics`. A file with insufficient statistics may have such rows:

* the maximum of strings may be truncated, and is ignored from `STRING_PREFIX` characters on;
* times are rounded to milliseconds, so bounds are widened on both sides;
* NaN is above all numbers in Spark, but not in statistics, so `>` on floats skips nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from cdfd.changes.plan import FileScan
from cdfd.delta import values
from cdfd.delta.datatypes import Primitive
from cdfd.delta.schema import StructField, TableSchema
from cdfd.delta.statistics import STRING_PREFIX, FileStatistics
from cdfd.errors import CdfdError

Value: TypeAlias = "bool | int | float | Decimal | str | date | datetime | None"
Operator = Literal["=", "<", "<=", ">", ">=", "null", "not null"]

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


class Columns:
    """Finds what the log says of a column, by the name that it has in the rows.

    Args:
        schema: of the table.
        conformed: the schema of the rows, whose names may differ.
    """

    def __init__(self, schema: TableSchema, conformed: TableSchema) -> None:
        self.schema = schema
        by_physical = {schema.physical_name(child): child for child in schema.struct}
        self._known: dict[str, StructField] = {}
        for child in conformed.struct:
            found = by_physical.get(conformed.physical_name(child))
            if found is not None:
                self._known[child.name] = found

    def is_partition(self, name: str) -> bool:
        """Whether a column is one that files have one value of; case does not count."""
        partitions = set(self.schema.partition_columns)
        return any(known.lower() == name.lower() and column.name in partitions for known, column in self._known.items())

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
        constant = as_python(found)
        return Range() if constant is None else Range.constant(constant)


def as_python(scalar: pa.Scalar[Any] | None) -> Any:
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
    low, high = as_python(bounds.min), as_python(bounds.max)
    if isinstance(high, str) and len(high) >= STRING_PREFIX:
        high = None
    if isinstance(low, datetime):
        # Before 1970, rounding towards zero rounds up.
        low = low - _MILLISECOND if low.year > 1 else None
    return Range(low, high, None if nulls is None else nulls > 0, nan=column.type in _FLOATS)
