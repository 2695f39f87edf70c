"""Filter -> Arrow expression, for the columns of one schema. Pure; Arrow evaluates the expression.

The logic has three values, as in SQL: a comparison with null is unknown, and a row is kept if the filter is true. Floats compare as in Spark:
NaN equals NaN, and is greater than all numbers. A column that a version does not have yet is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal as Number
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.delta.types.datatypes import DataType, Primitive, StructType, by_name
from cdfd.delta.types.schema import TableSchema
from cdfd.plan.shape.literals import (
    LONG,
    WHOLE,
    Nearest,
    Value,
    arrow_of,
    common_decimal,
    is_comparable,
    is_float,
    is_number,
    nearest,
    typed_value,
)
from cdfd.plan.shape.predicate import (
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
from cdfd.runtime.arrays import array_of, scalar_of, to_numpy

Expression: TypeAlias = Any
_UNKNOWN: Expression = pc.scalar(scalar_of(None, pa.bool_()))
_DOUBLE = pa.float64()


def compile_filter(predicate: Predicate, schema: TableSchema) -> Filter:
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
        return np.asarray(to_numpy(pc.fill_null(kept, False)))


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
        value = typed_value(literal, kind, self._predicate)
        if value is None:
            return _UNKNOWN
        if isinstance(value, Number):
            return _with_number(column, kind, operator, value)
        if is_float(kind):
            return _floats(column.cast(_DOUBLE), operator, pc.scalar(value))
        return _compared(column, operator, pc.scalar(value))

    def _of_columns(
        self, left: tuple[Expression, DataType], operator: Operator, right: tuple[Expression, DataType], at: Column
    ) -> Expression:
        (one, kind), (other, other_kind) = left, right
        if is_number(kind) and is_number(other_kind):
            if is_float(kind) or is_float(other_kind):
                # Whole numbers above 2^53 are rounded, as in Spark.
                return _floats(one.cast(_DOUBLE, safe=False), operator, other.cast(_DOUBLE, safe=False))
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
        values = [value for item in items if (value := typed_value(item, kind, self._predicate)) is not None]
        if is_float(kind):
            return self._joined([self._with_literal(*found, "=", item) for item in items], all_of=False)
        plain, arrow = _plain(*found)
        listed = plain.isin(array_of(_scalars(values, kind), arrow))
        # Arrow says false of null; SQL says unknown, also if a list has null and no other value fits.
        unknown = pc.scalar(True) if len(values) < len(items) else found[0].is_null()
        return listed | (unknown & _UNKNOWN)

    def _like(self, column: Column, pattern: Literal) -> Expression:
        found = self._column(column)
        if found is None:
            return _UNKNOWN
        if found[1] != Primitive("string"):
            what = f"column {'.'.join(column.path)!r:.100} is of type {found[1]!s:.80}; LIKE needs a string"
            raise self._predicate.error(what, column.at)
        return pc.match_like(found[0], pattern.text)


def _plain(column: Expression, kind: DataType) -> tuple[Expression, pa.DataType]:
    """A column as it is compared with literals, and its type there: all whole numbers are `LONG`."""
    whole = isinstance(kind, Primitive) and kind.name in WHOLE
    return (column.cast(LONG), LONG) if whole else (column, arrow_of(kind))


def _scalars(values: list[Value], kind: DataType) -> list[pa.Scalar[Any]]:
    """Those of the values that a column can have."""
    places = (nearest(value, kind) if isinstance(value, Number) else Nearest(value, True) for value in values)
    return [place.floor for place in places if place.floor is not None and place.exact]


def _with_number(column: Expression, kind: DataType, operator: Operator, number: Number) -> Expression:
    """The comparison of whole numbers or decimals with a number that may have more digits than they can have."""
    place = nearest(number, kind)
    plain, _ = _plain(column, kind)
    if place.exact:
        return _compared(plain, operator, pc.scalar(place.floor))
    if operator in ("=", "<>"):
        return _of_any_value(column, operator == "<>")
    # No value equals the number: each is either at most its floor, or above the number.
    below = operator in ("<", "<=")
    if place.floor is None:
        return _of_any_value(column, not below)
    return _compared(plain, "<=" if below else ">", pc.scalar(place.floor))


def _of_any_value(column: Expression, truth: bool) -> Expression:
    """A comparison that has the same result for all values. It is unknown for null."""
    return column.is_valid() | _UNKNOWN if truth else column.is_null() & _UNKNOWN


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
    compile_filter(predicate, schema)
