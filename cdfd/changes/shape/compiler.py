"""Filter -> Arrow expression, for the columns of one schema. Pure; Arrow evaluates the expression.

The logic has three values, as in SQL: a comparison with null is unknown, and a row is kept if the filter is true. Floats compare as in Spark:
NaN equals NaN, and is greater than all numbers. A column that a version does not have yet is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.changes.shape.literals import LONG, WHOLE, arrow_of, common_decimal, is_comparable, is_float, is_number, typed
from cdfd.changes.shape.predicate import (
    MIRRORED,
    And,
    Column,
    Comparison,
    IsNull,
    Like,
    Literal,
    Membership,
    Node,
    Not,
    Operand,
    Operator,
    Or,
    Predicate,
    Truth,
)
from cdfd.delta.datatypes import DataType, Primitive, StructType, by_name
from cdfd.delta.schema import TableSchema

Expression: TypeAlias = Any
_UNKNOWN: Expression = pc.scalar(pa.scalar(None, pa.bool_()))
_DOUBLE = pa.float64()


def compiled(predicate: Predicate, schema: TableSchema) -> Filter:
    """The filter for rows of a schema.

    Raises:
        ConfigError: a field does not exist, or types do not fit; the message says where.
    """
    return Filter(_Compiler(predicate, schema).of(predicate.root))


def column_type(predicate: Predicate, column: Column, schema: TableSchema) -> tuple[tuple[str, ...], DataType] | None:
    """The names of a column as the schema spells them, and its type; None if the schema does not have it.

    Raises:
        ConfigError: a field of a column that has no fields.
    """
    kind: DataType = schema.struct
    path: list[str] = []
    for name in column.path:
        if not isinstance(kind, StructType):
            raise predicate.error(f"{path[-1]!r:.100} is of type {kind!s:.100}, which has no fields", column.at)
        found = by_name({child.name: child for child in kind}, name)
        if not found:
            return None
        path.append(found[0].name)
        kind = found[0].type
    return tuple(path), kind


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of rows of one schema."""

    expression: Expression

    def mask(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """For each row, whether the filter is true."""
        # Arrow's engine is another library: only those who filter load it.
        import pyarrow.acero as acero

        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([rows])))
        project = acero.Declaration("project", acero.ProjectNodeOptions([self.expression], ["kept"]))
        kept = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)["kept"]
        return np.asarray(pc.fill_null(kept, False).to_numpy())


class _Compiler:
    """Compiles the tree of a filter."""

    def __init__(self, predicate: Predicate, schema: TableSchema) -> None:
        self._predicate = predicate
        self._schema = schema

    def of(self, node: Node) -> Expression:
        match node:
            case And(terms):
                return self._joined([self.of(term) for term in terms], all_of=True)
            case Or(terms):
                return self._joined([self.of(term) for term in terms], all_of=False)
            case Not(term):
                return ~self.of(term)
            case Comparison(left, operator, right):
                return self._comparison(left, operator, right)
            case Membership(column, items):
                return self._membership(column, items)
            case Like(column, pattern):
                return self._like(column, pattern)
            case IsNull(column):
                found = self._column(column)
                return pc.scalar(True) if found is None else found[0].is_null()
            case Truth(operand):
                return self._truth(operand)

    def _joined(self, terms: list[Expression], *, all_of: bool) -> Expression:
        """A balanced tree, so that its depth grows with the logarithm of the number of terms."""
        while len(terms) > 1:
            pairs = zip(terms[::2], terms[1::2], strict=False)
            joined = [left & right if all_of else left | right for left, right in pairs]
            terms = joined + ([terms[-1]] if len(terms) % 2 else [])
        return terms[0]

    def _column(self, column: Column) -> tuple[Expression, DataType] | None:
        found = column_type(self._predicate, column, self._schema)
        return None if found is None else (pc.field(*found[0]), found[1])

    def _truth(self, operand: Operand) -> Expression:
        if isinstance(operand, Literal):
            return _UNKNOWN if operand.form == "null" else pc.scalar(operand.text == "true")
        found = self._column(operand)
        if found is None:
            return _UNKNOWN
        if found[1] != Primitive("boolean"):
            raise self._predicate.error(
                f"column {'.'.join(operand.path)!r:.100} is of type {found[1]!s:.80}, not boolean",
                operand.at,
                "Compare it with a value",
            )
        return found[0]

    def _comparison(self, left: Operand, operator: Operator, right: Operand) -> Expression:
        if isinstance(left, Literal):
            return self._comparison(right, MIRRORED[operator], left)
        found = self._comparable(left)
        if isinstance(right, Literal):
            return _UNKNOWN if found is None else self._with_literal(*found, operator, right)
        other = self._comparable(right)
        if found is None or other is None:
            return _UNKNOWN
        return self._of_columns(found, operator, other, right)

    def _comparable(self, column: Column) -> tuple[Expression, DataType] | None:
        found = self._column(column)
        if found is not None and not is_comparable(found[1]):
            raise self._predicate.error(
                f"column {'.'.join(column.path)!r:.100} is of type {found[1]!s:.80}, whose values cannot be compared",
                column.at,
            )
        return found

    def _with_literal(self, column: Expression, kind: DataType, operator: Operator, literal: Literal) -> Expression:
        value = typed(literal, kind, self._predicate)
        if value is None:
            return _UNKNOWN
        if is_float(kind):
            return _floats(column.cast(_DOUBLE), operator, pc.scalar(value))
        if is_number(kind):
            if value.type == LONG:
                return _compared(column.cast(LONG), operator, pc.scalar(value))
            common = common_decimal(arrow_of(kind), value.type)
            return _compared(_as_decimal(column, kind, common), operator, pc.scalar(value.cast(common)))
        return _compared(column, operator, pc.scalar(value))

    def _of_columns(
        self, left: tuple[Expression, DataType], operator: Operator, right: tuple[Expression, DataType], at: Column
    ) -> Expression:
        (one, kind), (other, other_kind) = left, right
        if is_number(kind) and is_number(other_kind):
            if is_float(kind) or is_float(other_kind):
                return _floats(one.cast(_DOUBLE), operator, other.cast(_DOUBLE))
            common = common_decimal(arrow_of(kind), arrow_of(other_kind))
            return _compared(_as_decimal(one, kind, common), operator, _as_decimal(other, other_kind, common))
        if kind != other_kind:
            raise self._predicate.error(
                f"a value of type {kind!s:.80} is compared with one of {other_kind!s:.80}", at.at
            )
        return _compared(one, operator, other)

    def _membership(self, column: Column, items: tuple[Literal, ...]) -> Expression:
        found = self._comparable(column)
        if found is None:
            return _UNKNOWN
        kind = found[1]
        known = [value for item in items if (value := typed(item, kind, self._predicate)) is not None]
        if is_float(kind) or any(value.type != known[0].type for value in known) or not known:
            return self._joined([self._with_literal(*found, "=", item) for item in items], all_of=False)
        if pa.types.is_decimal(known[0].type):
            return self._joined([self._with_literal(*found, "=", item) for item in items], all_of=False)
        field = found[0].cast(LONG) if known[0].type == LONG else found[0]
        listed = field.isin(pa.array([value.as_py() for value in known], known[0].type))
        # Arrow says false of null; SQL says unknown, also if a list has null and no other value fits.
        unknown = pc.scalar(True) if len(known) < len(items) else found[0].is_null()
        return listed | (unknown & _UNKNOWN)

    def _like(self, column: Column, pattern: Literal) -> Expression:
        found = self._column(column)
        if found is None:
            return _UNKNOWN
        if found[1] != Primitive("string"):
            what = f"column {'.'.join(column.path)!r:.100} is of type {found[1]!s:.80}; LIKE needs a string"
            raise self._predicate.error(what, column.at)
        return pc.match_like(found[0], pattern.text)


def _as_decimal(column: Expression, kind: DataType, common: pa.DataType) -> Expression:
    # Arrow casts whole numbers to decimals only if all their digits fit.
    whole = isinstance(kind, Primitive) and kind.name in WHOLE
    return (column.cast(LONG) if whole else column).cast(common)


def _compared(left: Expression, operator: Operator, right: Expression) -> Expression:
    match operator:
        case "=":
            return left == right
        case "<>":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
    return left >= right


def _floats(left: Expression, operator: Operator, right: Expression) -> Expression:
    """The comparison of floats in an order in which NaN is the last and equals itself."""
    match operator:
        case ">":
            return _floats(right, "<", left)
        case "<":
            return (left < right) | (~pc.is_nan(left) & pc.is_nan(right))
        case ">=":
            return ~_floats(left, "<", right)
        case "<=":
            return ~_floats(right, "<", left)
        case "<>":
            return ~_floats(left, "=", right)
    return (left == right) | (pc.is_nan(left) & pc.is_nan(right))


def check_filter(predicate: Predicate, schema: TableSchema) -> None:
    """Check that a schema has all columns of a filter, and that their types fit.

    Raises:
        ConfigError: it has not, or they do not; the message says where.
    """
    for column in predicate.columns:
        if column_type(predicate, column, schema) is None:
            known = ", ".join(schema.names[:50])
            name = ".".join(column.path)
            raise predicate.error(f"there is no column {name!r:.100}", column.at, f"The columns are: {known:.500}")
    compiled(predicate, schema)
