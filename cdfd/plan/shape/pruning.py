"""Which files may have rows that satisfy a filter, from partition values and statistics. Pure.

A term may be true, may be false, or both. Nulls make it neither. So a negation exchanges the two, and nothing has to be rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
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
from cdfd.plan.shape.compiler import check_filter, column_type, comparable_type
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
from cdfd.plan.shape.ranges import Columns, Range
from cdfd.runtime.arrays import array_of

Outcomes: TypeAlias = "tuple[bool, bool]"
"""Whether a term may be true for a row, and whether it may be false."""

RangeOf: TypeAlias = Callable[[str], Range]
"""The range of a top-level column, by its name."""

_Term: TypeAlias = Callable[[RangeOf], Outcomes]

_ANY = (True, True)
_NEITHER = (False, False)


def compile_pruning(predicate: Predicate, schema: TableSchema) -> Callable[[RangeOf], bool]:
    """The function that tells from the ranges of columns whether a row may satisfy a filter.

    Raises:
        ConfigError: a literal is not a value of its column's type.
    """
    term = _Compiler(predicate, schema).of(predicate.root)
    # A list of 1000 values is as many comparisons with one range.
    return lambda range_of: term(cache(range_of))[0]


@dataclass(eq=False)
class _Compiler:
    predicate: Predicate
    schema: TableSchema

    def of(self, node: Node) -> _Term:
        match node:
            case And(terms):
                return _conjunction([self.of(term) for term in terms])
            case Or(terms):
                return _negation(_conjunction([_negation(self.of(term)) for term in terms]))
            case Not(term):
                return _negation(self.of(term))
            case Comparison(left, operator, right):
                return self._comparison(left, operator, right)
            case Membership(column, items):
                equal = [self._with_literal(column, "=", item) for item in items]
                of_values = self._of_values(column)
                # With a null among the values, a row is either in the list or unknown.
                may_be_false = all(item.form != "null" for item in items)
                return lambda range_of: (
                    any(term(range_of)[0] for term in equal),
                    may_be_false and of_values(range_of)[1],
                )
            case IsNull(column):
                return self._of_range(column, lambda range: (range.nulls is not False, range.values), (True, False))
            case Like(column):
                return self._of_values(column)
            case Truth(operand):
                if isinstance(operand, Column):
                    return self._of_values(operand)
                outcomes = _NEITHER if operand.form == "null" else (operand.text == "true", operand.text == "false")
                return lambda range_of: outcomes

    def _of_range(self, column: Column, outcomes: Callable[[Range], Outcomes], without: Outcomes = _NEITHER) -> _Term:
        """A term that depends on the range of a column. `without`: its outcomes if the schema does not have the column."""
        typed = column_type(self.predicate, column, self.schema)
        if typed is None:
            return lambda range_of: without
        name, *fields = typed[0]
        if fields:
            unknown = outcomes(Range())
            return lambda range_of: unknown
        return lambda range_of: outcomes(range_of(name))

    def _of_values(self, column: Column) -> _Term:
        return self._of_range(column, lambda range: _ANY if range.values else _NEITHER)

    def _comparison(self, left: Column | Literal, operator: Operator, right: Column | Literal) -> _Term:
        if isinstance(left, Literal):
            left, operator, right = right, MIRRORED[operator], left
        assert isinstance(left, Column)
        if isinstance(right, Column):
            sides = self._of_values(left), self._of_values(right)
            return lambda range_of: _ANY if _NEITHER not in (side(range_of) for side in sides) else _NEITHER
        return self._with_literal(left, operator, right)

    def _with_literal(self, column: Column, operator: Operator, literal: Literal) -> _Term:
        kind = comparable_type(self.predicate, column, self.schema)
        literal_value = None if kind is None else typed_value(literal, kind, self.predicate)
        if literal_value is None:
            return lambda range_of: _NEITHER
        value = literal_value if isinstance(literal_value, Decimal) else values.as_python(literal_value)
        if value is None:
            return self._of_values(column)  # a time beyond the year 9999
        negated = NEGATED[operator]
        return self._of_range(column, lambda range: (range.may_be(operator, value), range.may_be(negated, value)))


def _conjunction(terms: Sequence[_Term]) -> _Term:
    def outcomes(range_of: RangeOf) -> Outcomes:
        each = [term(range_of) for term in terms]
        return all(true for true, _ in each), any(false for _, false in each)

    return outcomes


def _negation(term: _Term) -> _Term:
    return lambda range_of: term(range_of)[::-1]


def select_files(predicate: Predicate, scans: LiveScans, schema: TableSchema) -> npt.NDArray[np.bool_]:
    """For each file, whether it may have rows that satisfy a filter. The files must have their statistics.

    Raises:
        ConfigError: a column does not exist, or a literal is not a value of its type.
    """
    check_filter(predicate, schema)
    return _keep(scans, (add.stats for add in scans.files), predicate, Columns(schema, schema), schema)


def prune(plan: ChangePlan, predicate: Predicate, target: TableSchema | None) -> ChangePlan:
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
    texts: Iterable[str | None]
    if isinstance(plan.scans, LiveScans):
        texts = (add.stats for add in plan.scans.files)
    elif any(map(columns.is_partition, predicate.names)):
        texts = (None for _ in plan.scans)
    else:
        return plan  # nothing to decide by
    kept = _keep(plan.scans, texts, predicate, columns, plan.schema if target is None else target)
    if kept.all():
        return plan
    scans: Sequence[FileScan]
    if isinstance(plan.scans, LiveScans):
        scans = LiveScans(PackedFiles(Add, plan.scans.files.table.filter(array_of(kept))))
    else:
        scans = tuple(scan for scan, keep in zip(plan.scans, kept, strict=True) if keep)
    origin = plan.origin if len(scans) or plan.origin == "snapshot" else "none"
    return replace(plan, scans=scans, origin=origin, where=predicate.text)


def _keep(
    scans: Sequence[FileScan], texts: Iterable[str | None], predicate: Predicate, columns: Columns, schema: TableSchema
) -> npt.NDArray[np.bool_]:
    if not len(scans):
        return np.ones(0, np.bool_)
    may_have_rows = compile_pruning(predicate, schema)
    kept = np.ones(len(scans), np.bool_)
    for number, (scan, text) in enumerate(zip(scans, texts, strict=True)):
        if scan.schema is None:  # otherwise its rows are of the schema before
            stats = statistics.parse(text, columns.schema)
            kept[number] = may_have_rows(lambda name: columns.range(name, scan, stats))  # noqa: B023 # called at once
    return kept
