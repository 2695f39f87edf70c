"""Data skipping: which files may have rows that satisfy conditions, from partition values and statistics in the log. Pure.

The statistics are those of `cdfd.delta.statistics`. A file with insufficient statistics may have such rows. NaN is above all numbers in
Spark, but not in statistics, so `>` on floats skips nothing.

Numbers of all types are compared exactly: Python compares integers, floats and decimals by value, without rounding. Arithmetic with decimals
is another matter. It rounds to 28 digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from cdfd.delta.statistics import FileStatistics
from cdfd.delta.types import values
from cdfd.delta.types.datatypes import Primitive
from cdfd.delta.types.schema import StructField, TableSchema
from cdfd.errors import CdfdError
from cdfd.model.file_scan import FileScan

Value: TypeAlias = "bool | int | float | Decimal | str | bytes | date | datetime | None"
Operator = Literal["=", "<", "<=", ">", ">=", "null", "not null"]

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

    @classmethod
    def between(cls, low: Any, high: Any, *, nulls: bool | None, nan: bool) -> Range:
        """The range of rows whose values are at least `low` and at most `high`, where these are known.

        Bounds in the wrong order say nothing: their writer compared the values in another order.
        """
        if low is not None and high is not None and low > high:
            low = high = None
        return cls(low, high, nulls, nan=nan)

    def is_only(self, value: Value) -> bool:
        """Whether all values are known to be equal to one that is neither null nor NaN."""
        low, high = _comparable(self.low, value), _comparable(self.high, value)
        return not self.nan and low is not None and bool(low == value == high)


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
    return bound if type(bound) is type(operand) else None


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
        constant = values.as_python(found)
        return Range() if constant is None else Range.constant(constant)


def _of_statistics(column: StructField, known: FileStatistics) -> Range:
    path = (column.name,)
    nulls, rows = known.null_count(path), known.num_records
    if nulls is not None and nulls == rows:
        return Range(nulls=True, values=False)
    bounds = known.bounds(path)
    some_nulls = None if nulls is None else nulls > 0
    return Range.between(bounds.min, bounds.max, nulls=some_nulls, nan=column.type in _FLOATS)
