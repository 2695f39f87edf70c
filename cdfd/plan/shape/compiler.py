"""Compiles a filter for the columns of one schema, to calls of Arrow's kernels. Pure.

The kernels are called one by one. Arrow's engine for expressions would import pandas and every file system of Arrow.

The logic has three values, as in SQL: a comparison with null is unknown, and a row is kept if the filter is true. Floats compare as in Spark:
NaN equals NaN, and is greater than all numbers. A column that a version does not have yet is null.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal as Number
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import ByName, DataType, Decimal, Primitive, StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.plan.shape.literals import (
    LONG,
    MOST_DIGITS,
    WHOLE,
    is_comparable,
    is_float,
    is_number,
    nearest,
    typed_value,
)
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
    Operand,
    Operator,
    Or,
    Predicate,
    Truth,
)
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, doubles, scalar_of, to_numpy

Evaluate: TypeAlias = Callable[[pa.RecordBatch], Any]
"""Computes an array, or a scalar that stands for all rows."""

Filter: TypeAlias = Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]
"""For each row, whether a filter is true."""

_COMPARE: dict[Operator, Callable[..., Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compile_filter(predicate: Predicate, schema: TableSchema) -> Filter:
    """The filter for rows of a schema.

    Raises:
        ConfigError: a field does not exist, or types do not fit; the message says where.
    """
    evaluate = _Compiler(predicate, schema).of(predicate.root)

    def mask(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        truth = evaluate(rows)
        if isinstance(truth, pa.Scalar):
            return np.full(rows.num_rows, truth.as_py() is True)
        return np.asarray(to_numpy(pc.fill_null(truth, scalar_of(False, pa.bool_()))))

    return mask


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
        fields = ByName({child.name: child for child in kind})(name)
        if not fields:
            return None
        path.append(fields[0].name)
        kind = fields[0].type
    return tuple(path), kind


def comparable_type(predicate: Predicate, column: Column, schema: TableSchema) -> DataType | None:
    """The type of a column whose values are compared; None if the schema does not have it.

    Raises:
        ConfigError: values of that type cannot be compared, or a field of a column that has no fields.
    """
    typed = column_type(predicate, column, schema)
    if typed is None or is_comparable(typed[1]):
        return None if typed is None else typed[1]
    what = f"column {'.'.join(column.path)!r:.100} is of type {typed[1]!s:.80}, whose values cannot be compared"
    raise predicate.error(what, column.at)


def _call(kernel: Callable[..., Any], *operands: Evaluate) -> Evaluate:
    return lambda rows: kernel(*(operand(rows) for operand in operands))


def _constant(scalar: pa.Scalar[Any]) -> Evaluate:
    return lambda rows: scalar


def _cast(operand: Evaluate, kind: pa.DataType, *, safe: bool = True) -> Evaluate:
    return lambda rows: operand(rows).cast(kind, safe=safe)


def _all(*terms: Evaluate) -> Evaluate:
    return lambda rows: reduce(pc.and_kleene, (term(rows) for term in terms))


def _any(*terms: Evaluate) -> Evaluate:
    return lambda rows: reduce(pc.or_kleene, (term(rows) for term in terms))


_UNKNOWN = _constant(scalar_of(None, pa.bool_()))
_TRUE, _FALSE = (_constant(scalar_of(truth, pa.bool_())) for truth in (True, False))
_DOUBLE = pa.float64()
_PATTERN_PART = re.compile(r"\\[%_\\]|[^\\]")
_WILDCARDS = {"%": ".*", "_": "."}
_SIMPLE_PATTERN = re.compile(r"(%?)((?:\\[%_\\]|[^\\%_])*)(%?)")
_SIMPLE_KERNELS: dict[tuple[str, str], Callable[[str, Any], Any]] = {
    ("", ""): lambda text, texts: pc.equal(texts, scalar_of(text)),
    ("", "%"): lambda text, texts: pc.starts_with(texts, text),
    ("%", ""): lambda text, texts: pc.ends_with(texts, text),
    ("%", "%"): lambda text, texts: pc.match_substring(texts, text),
}


@dataclass(eq=False)
class _Compiler:
    predicate: Predicate
    schema: TableSchema

    def of(self, node: Node) -> Evaluate:
        match node:
            case And(terms):
                return _all(*map(self.of, terms))
            case Or(terms):
                return _any(*map(self.of, terms))
            case Not(term):
                return _call(pc.invert, self.of(term))
            case Comparison(left, operator, right):
                return self._comparison(left, operator, right)
            case Membership(column, items):
                return self._membership(column, items)
            case Like(column, pattern):
                matches = self._matcher(pattern)
                typed = self._column(column)
                if typed is None:
                    return _UNKNOWN
                values, kind = typed
                if kind != Primitive("string"):
                    what = f"column {'.'.join(column.path)!r:.100} is of type {kind!s:.80}; LIKE needs a string"
                    raise self.predicate.error(what, column.at)
                return lambda rows: matches(values(rows))
            case IsNull(column):
                typed = self._column(column)
                return _TRUE if typed is None else _call(pc.is_null, typed[0])
            case Truth(operand):
                return self._truth(operand)

    def _column(self, column: Column) -> tuple[Evaluate, DataType] | None:
        """A column's values and their type; None if the schema does not have it."""
        typed = column_type(self.predicate, column, self.schema)
        if typed is None:
            return None
        (name, *fields), kind = typed
        if fields:
            return lambda rows: pc.struct_field(rows.column(name), fields), kind
        return lambda rows: rows.column(name), kind

    def _matcher(self, pattern: Literal) -> Callable[[Any], Any]:
        """The comparison of texts with a pattern. Arrow's own kernel for patterns takes a backslash in several ways, by where `%` is."""
        parts = _PATTERN_PART.findall(pattern.text)
        if "".join(parts) != pattern.text:
            what = "this pattern has a backslash that is not before %, _ or a backslash"
            raise self.predicate.error(what, pattern.at, "Write two backslashes for one")
        if simple := _SIMPLE_PATTERN.fullmatch(pattern.text):
            # A regular expression takes up to seven times as long.
            text = re.sub(r"\\(.)", r"\1", simple[2])
            return partial(_SIMPLE_KERNELS[simple[1], simple[3]], text)
        regex = r"(?s)\A" + "".join(_WILDCARDS.get(part) or re.escape(part[-1]) for part in parts) + r"\z"
        return lambda texts: pc.match_substring_regex(texts, regex)

    def _truth(self, operand: Operand) -> Evaluate:
        if isinstance(operand, Literal):
            return _UNKNOWN if operand.form == "null" else _TRUE if operand.text == "true" else _FALSE
        typed = self._column(operand)
        if typed is None:
            return _UNKNOWN
        if typed[1] != Primitive("boolean"):
            raise self.predicate.error(
                f"column {'.'.join(operand.path)!r:.100} is of type {typed[1]!s:.80}, not boolean",
                operand.at,
                "Compare it with a value",
            )
        return typed[0]

    def _comparison(self, left: Operand, operator: Operator, right: Operand) -> Evaluate:
        if isinstance(left, Literal):
            return self._comparison(right, MIRRORED[operator], left)
        typed = self._comparable(left)
        if isinstance(right, Literal):
            return _UNKNOWN if typed is None else self._with_literal(*typed, operator, right)
        other = self._comparable(right)
        if typed is None or other is None:
            return _UNKNOWN
        (one, kind), (another, other_kind) = typed, other
        if not is_number(kind) or not is_number(other_kind):
            if kind != other_kind:
                what = f"a value of type {kind!s:.80} is compared with one of {other_kind!s:.80}"
                raise self.predicate.error(what, right.at)
            return _call(_COMPARE[operator], one, another)
        if is_float(kind) or is_float(other_kind):
            return _floats(_doubles(*typed), operator, _doubles(*other))
        kinds = arrow_type(kind), arrow_type(other_kind)
        scale = max(getattr(each, "scale", 0) for each in kinds)
        # Arrow casts whole numbers to decimals only if all their digits fit. One digit more than any column has: then casts need no check.
        whole = max(each.precision - each.scale if pa.types.is_decimal(each) else 19 for each in kinds)
        common = pa.decimal256(min(whole + scale, MOST_DIGITS), scale)
        sides = (_cast(_plain(*side)[0], common) for side in (typed, other))
        return _call(_COMPARE[operator], *sides)

    def _comparable(self, column: Column) -> tuple[Evaluate, DataType] | None:
        comparable_type(self.predicate, column, self.schema)
        return self._column(column)

    def _with_literal(self, column: Evaluate, kind: DataType, operator: Operator, literal: Literal) -> Evaluate:
        value = typed_value(literal, kind, self.predicate)
        if value is None:
            return _UNKNOWN
        if isinstance(value, Number):
            # The number may have more digits than whole numbers or decimals can have.
            floor, is_exact = nearest(value, kind)
            plain, _ = _plain(column, kind)
            if is_exact:
                return _call(_COMPARE[operator], plain, _constant(floor))
            if floor is None or operator in ("=", "<>"):
                # All values are above the number, or different from it. Only null is unknown.
                if operator in ("<>", ">", ">="):
                    return _any(_call(pc.is_valid, column), _UNKNOWN)
                return _all(_call(pc.is_null, column), _UNKNOWN)
            # No value equals the number: each is either at most its floor, or above the number.
            return _call(_COMPARE["<=" if operator in ("<", "<=") else ">"], plain, _constant(floor))
        if is_float(kind):
            return _floats(_cast(column, _DOUBLE), operator, _constant(value))
        return _call(_COMPARE[operator], column, _constant(value))

    def _membership(self, column: Column, items: tuple[Literal, ...]) -> Evaluate:
        typed = self._comparable(column)
        if typed is None:
            return _UNKNOWN
        kind = typed[1]
        values = [value for item in items if (value := typed_value(item, kind, self.predicate)) is not None]
        if is_float(kind):
            return _any(*(self._with_literal(*typed, "=", item) for item in items))
        plain, arrow = _plain(*typed)
        # Those of the values that the column can have.
        places = (nearest(value, kind) if isinstance(value, Number) else (value, True) for value in values)
        listed = array_of([floor for floor, is_exact in places if is_exact], arrow)
        # Arrow says false of null; SQL says unknown, also if a list has null and no other value fits.
        unknown = _TRUE if len(values) < len(items) else _call(pc.is_null, typed[0])
        return _any(lambda rows: pc.is_in(plain(rows), listed), _all(unknown, _UNKNOWN))


def _plain(column: Evaluate, kind: DataType) -> tuple[Evaluate, pa.DataType]:
    """A column as it is compared with literals, and its type there: all whole numbers are `LONG`."""
    whole = isinstance(kind, Primitive) and kind.name in WHOLE
    return (_cast(column, LONG), LONG) if whole else (column, arrow_type(kind))


def _doubles(column: Evaluate, kind: DataType) -> Evaluate:
    """A column of numbers as the nearest doubles: whole numbers above 2^53 are rounded, as in Spark."""
    return _call(doubles, column) if isinstance(kind, Decimal) else _cast(column, _DOUBLE, safe=False)


def _floats(left: Evaluate, operator: Operator, right: Evaluate) -> Evaluate:
    """The comparison of floats in an order in which NaN is the last and equals itself."""
    left_nan, right_nan = _call(pc.is_nan, left), _call(pc.is_nan, right)
    match operator:
        case ">":
            return _floats(right, "<", left)
        case "<":
            return _any(_call(pc.less, left, right), _all(_call(pc.invert, left_nan), right_nan))
        case ">=" | "<=" | "<>":
            return _call(pc.invert, _floats(left, NEGATED[operator], right))
    return _any(_call(pc.equal, left, right), _all(left_nan, right_nan))


def check_filter(predicate: Predicate, schema: TableSchema) -> None:
    """Check that a schema has all columns of a filter, and that their types fit.

    Raises:
        ConfigError: it has not, or they do not; the message says where.
    """
    for column in predicate.columns:
        if column_type(predicate, column, schema) is None:
            listed = ", ".join(schema.names[:50])
            name = ".".join(column.path)
            raise predicate.error(f"there is no column {name!r:.100}", column.at, f"The columns are: {listed:.500}")
    compile_filter(predicate, schema)
