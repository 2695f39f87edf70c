"""Data skipping: what partition values and statistics in the log say of the values in a file. Pure.

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
from typing import Any, TypeAlias

from cdfd.delta.statistics import FileStatistics
from cdfd.delta.types import values
from cdfd.delta.types.datatypes import Primitive
from cdfd.delta.types.schema import ColumnMappingMode, StructField, TableSchema, physical_name
from cdfd.delta.types.schema_change import common_mapping
from cdfd.errors import CdfdError
from cdfd.model.file_scan import FileScan
from cdfd.plan.shape.predicate import Operator

Value: TypeAlias = "bool | int | float | Decimal | str | bytes | date | datetime | None"

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

    def may_be(self, operator: Operator, value: Value) -> bool:
        """Whether a comparison with `value` may be true for a row."""
        if not self.values or value is None:
            return False  # a comparison with null is never true
        if isinstance(value, float) and math.isnan(value):
            return True
        low, high = _comparable(self.low, value), _comparable(self.high, value)
        match operator:
            case "=":
                return (low is None or low <= value) and (high is None or high >= value)
            case "<>":
                return self.nan or low is None or not low == value == high
            case "<":
                return low is None or low < value
            case "<=":
                return low is None or low <= value
            case ">":
                return self.nan or high is None or high > value
        return self.nan or high is None or high >= value


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
        # Without a mapping, a physical name may be the name of another column; see `SchemaReconciler`.
        mode = ColumnMappingMode.NONE if conformed.mapping is ColumnMappingMode.NONE else schema.mapping
        stored = {physical_name(child, mode): child for child in schema.struct}
        self._columns: dict[str, StructField] = {}
        # If the mapping was off meanwhile, a physical name may be that of another column.
        for child in conformed.struct if common_mapping(schema, conformed) is conformed.mapping else ():
            column = stored.get(conformed.physical_name(child))
            if column is not None:
                self._columns[child.name] = column

    def is_partition(self, name: str) -> bool:
        """Whether a column is one that files have one value of; case does not count."""
        partitions = set(self.schema.partition_columns)
        return any(each.lower() == name.lower() and column.name in partitions for each, column in self._columns.items())

    def range(self, name: str, scan: FileScan, stats: FileStatistics) -> Range:
        """The range of a column in a file."""
        column = self._columns.get(name)
        if column is None or "__COLLATIONS" in column.metadata:
            return Range()
        if column.name in self.schema.partition_columns:
            try:
                schema = self.schema.select([column.name])
                value = values.parse_partition(scan.partition_values, schema).get(column.name)
            except CdfdError:
                return Range()  # reading the file raises the error
            if value is None or not value.is_valid:
                return Range.constant(None)
            constant = values.as_python(value)
            return Range() if constant is None else Range.constant(constant)
        path = (column.name,)
        nulls, rows = stats.null_count(path), stats.num_records
        if nulls is not None and nulls == rows:
            return Range(nulls=True, values=False)
        low, high = stats.bounds(path)
        some_nulls = None if nulls is None else nulls > 0
        return Range.between(low, high, nulls=some_nulls, nan=column.type in _FLOATS)
