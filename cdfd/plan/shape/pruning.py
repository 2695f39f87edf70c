"""Which files may have rows that satisfy a filter, from partition values and statistics. Pure.

A term may be true, may be false, or both. Nulls make it neither. So a negation exchanges the two, and nothing has to be rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cdfd.delta import statistics
from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles
from cdfd.delta.types import values
from cdfd.delta.types.schema import TableSchema
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.plan.shape.compiler import column_type
from cdfd.plan.shape.literals import typed_value
from cdfd.plan.shape.predicate import (
    MIRRORED,
    NEGATED,
    And,
    Column,
    Comparison,
    IsNull,
    Like,
    Literal,
    Membership,
    Node,
    Not,
    Operator,
    Or,
    Predicate,
    Truth,
)
from cdfd.plan.skipping import Columns, Condition, Range, Value
from cdfd.runtime.arrays import array_of

Outcomes: TypeAlias = "tuple[bool, bool]"
"""Whether a term may be true for a row, and whether it may be false."""

RangeOf: TypeAlias = Callable[[str], Range]
"""The range of a top-level column, by its name."""

_ANY = (True, True)
_NEITHER = (False, False)


def possible(predicate: Predicate, schema: TableSchema, range_of: RangeOf) -> bool:
    """Whether a row may satisfy the filter, whose types fit the schema. `range_of` knows what the values are."""
    return _Outcomes(predicate, schema, range_of).of(predicate.root)[0]


class _Outcomes:
    def __init__(self, predicate: Predicate, schema: TableSchema, range_of: RangeOf) -> None:
        self._predicate = predicate
        self._schema = schema
        self._range_of = range_of

    def of(self, node: Node) -> Outcomes:
        match node:
            case And(terms):
                found = [self.of(term) for term in terms]
                return all(true for true, _ in found), any(false for _, false in found)
            case Or(terms):
                found = [self.of(term) for term in terms]
                return any(true for true, _ in found), all(false for _, false in found)
            case Not(term):
                true, false = self.of(term)
                return false, true
            case Comparison(left, operator, right):
                return self._comparison(left, operator, right)
            case Membership(column, items):
                return self._membership(column, items)
            case IsNull(column):
                range = self._range(column)
                return (True, False) if range is None else (range.nulls is not False, range.values)
            case Like(column):
                return self._with_values(column)
            case Truth(operand):
                return self._truth(operand)

    def _truth(self, operand: Column | Literal) -> Outcomes:
        if isinstance(operand, Column):
            return self._with_values(operand)
        return _NEITHER if operand.form == "null" else (operand.text == "true", operand.text == "false")

    def _range(self, column: Column) -> Range | None:
        """The range of a column; None if the schema does not have it, so that it is null."""
        found = column_type(self._predicate, column, self._schema)
        if found is None:
            return None
        return self._range_of(found[0][0]) if len(found[0]) == 1 else Range()

    def _with_values(self, column: Column) -> Outcomes:
        range = self._range(column)
        return _ANY if range is not None and range.values else _NEITHER

    def _comparison(self, left: Column | Literal, operator: Operator, right: Column | Literal) -> Outcomes:
        if isinstance(left, Literal):
            left, operator, right = right, MIRRORED[operator], left
        assert isinstance(left, Column)
        if isinstance(right, Column):
            sides = self._with_values(left), self._with_values(right)
            return _ANY if _NEITHER not in sides else _NEITHER
        return self._with_literal(left, operator, right)

    def _with_literal(self, column: Column, operator: Operator, literal: Literal) -> Outcomes:
        found, range = column_type(self._predicate, column, self._schema), self._range(column)
        if found is None or range is None or not range.values:
            return _NEITHER
        literal_value = typed_value(literal, found[1], self._predicate)
        if literal_value is None:
            return _NEITHER
        value = literal_value if isinstance(literal_value, Decimal) else values.as_python(literal_value)
        if value is None or value != value:
            return _ANY  # a time beyond the year 9999, or NaN
        return _may_be(range, operator, value), _may_be(range, NEGATED[operator], value)

    def _membership(self, column: Column, items: Sequence[Literal]) -> Outcomes:
        true = any(self._with_literal(column, "=", item)[0] for item in items)
        # With a null among the values, a row is either in the list or unknown.
        false = all(item.form != "null" for item in items) and self._with_values(column)[1]
        return true, false


def _may_be(range: Range, operator: Operator, value: Value) -> bool:
    if operator == "<>":
        return not range.is_only(value)
    return Condition("", operator, (value,)).possible(range)


def prune(plan: ChangePlan, predicate: Predicate, target: TableSchema | None = None) -> ChangePlan:
    """The plan without the files that have no row for the filter. Change data files stay: rows of one file depend on those of another.

    Statistics are those that the plan's files have; partition values are known of every file.

    Args:
        plan: of a version.
        predicate: the filter.
        target: the schema that all versions are brought into, whose names the filter has. Columns may have had other names at this
            version. None: each version keeps its own names.
    """
    if plan.origin not in ("files", "snapshot"):
        return plan
    columns = Columns(plan.schema, plan.schema if target is None else target)
    if not _helps(predicate, plan, columns):
        return plan
    kept = _kept(plan, predicate, columns, plan.schema if target is None else target)
    if kept.all():
        return plan
    scans: Sequence[FileScan]
    if isinstance(plan.scans, LiveScans):
        scans = LiveScans(PackedFiles(Add, plan.scans.files.table.filter(array_of(kept))))
    else:
        scans = tuple(scan for scan, keep in zip(plan.scans, kept, strict=True) if keep)
    return replace(plan, scans=scans, origin=plan.origin if len(scans) or plan.origin == "snapshot" else "none")


def _helps(predicate: Predicate, plan: ChangePlan, columns: Columns) -> bool:
    """Whether there is anything to decide by: live files may have statistics."""
    return isinstance(plan.scans, LiveScans) or any(map(columns.is_partition, predicate.names))


def _kept(plan: ChangePlan, predicate: Predicate, columns: Columns, schema: TableSchema) -> npt.NDArray[np.bool_]:
    if isinstance(plan.scans, LiveScans):
        texts = (add.stats for add in plan.scans.files)
    else:
        texts = (None for _ in plan.scans)
    scans = zip(plan.scans, texts, strict=True)
    found = (_may_have_rows(scan, text, columns, predicate, schema) for scan, text in scans)
    return np.fromiter(found, np.bool_, len(plan.scans))


def _may_have_rows(
    scan: FileScan, stats: str | None, columns: Columns, predicate: Predicate, schema: TableSchema
) -> bool:
    if scan.schema is not None:
        return True  # rows of the schema before
    known = statistics.parse(stats, columns.schema)
    return possible(predicate, schema, lambda name: columns.range(name, scan, known))
