"""Literals of a filter as values: each takes the type of the column that it is compared with. Pure."""

from __future__ import annotations

import decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa

from cdfd.delta.types import values
from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import DataType, Decimal, Primitive
from cdfd.errors import ConfigError, LogError
from cdfd.plan.shape.predicate import NUMBER, Literal, Predicate
from cdfd.runtime.arrays import scalar_of

WHOLE: Final = ("byte", "short", "integer", "long")
FLOATS: Final = ("float", "double")
LONG = pa.int64()

_FORMS: Final[dict[str, tuple[str, ...]]] = {
    "string": ("text",),
    "boolean": ("boolean", "text"),
    "binary": ("binary",),
    "date": ("text", "date"),
    "timestamp": ("text", "timestamp", "date"),
    "timestamp_ntz": ("text", "timestamp", "date"),
}
_EXAMPLES: Final = {
    "string": "'text'",
    "boolean": "TRUE or FALSE",
    "binary": "X'0aff'",
    "date": "'2026-01-31'",
    "timestamp": "'2026-01-31T12:00:00Z'",
    "timestamp_ntz": "'2026-01-31 12:00:00'",
}
MOST_DIGITS = 76
"""Digits of Arrow's widest decimals."""
_LONGS: Final = decimal.Decimal(-(2**63)), decimal.Decimal(2**63 - 1)
_EXACT: Final = decimal.Context(prec=MOST_DIGITS, traps=[decimal.InvalidOperation])

Value: TypeAlias = "decimal.Decimal | pa.Scalar[Any]"
"""A literal's value: a `Decimal` with all its digits for whole numbers and decimals."""


def is_number(kind: DataType) -> bool:
    """Whether values are numbers."""
    return isinstance(kind, Decimal) or (isinstance(kind, Primitive) and kind.name in (*WHOLE, *FLOATS))


def is_float(kind: DataType) -> bool:
    """Whether values are floating-point numbers."""
    return isinstance(kind, Primitive) and kind.name in FLOATS


def is_comparable(kind: DataType) -> bool:
    """Whether values can be compared with each other."""
    return is_number(kind) or (isinstance(kind, Primitive) and kind.name in _FORMS)


def typed_value(literal: Literal, kind: DataType, predicate: Predicate) -> Value | None:
    """The value of a literal that is compared with a column of a type; None for NULL.

    Numbers keep all their digits, also those that no value of the column has.

    Raises:
        ConfigError: it is not a value of that type.
    """
    if literal.form == "null":
        return None
    if is_float(kind):
        # 'NaN' and 'Infinity' are written as texts.
        if literal.form not in ("number", "text"):
            raise _refusal(literal, kind, predicate)
        return _parse(literal, Primitive("double"), predicate)
    if is_number(kind):
        # Also in quotes, as in Spark.
        if literal.form not in ("number", "text") or not NUMBER.fullmatch(literal.text):
            raise _refusal(literal, kind, predicate)
        return decimal.Decimal(literal.text)
    assert isinstance(kind, Primitive)
    if literal.form not in _FORMS[kind.name]:
        raise _refusal(literal, kind, predicate)
    if kind.name == "string":
        return scalar_of(literal.text, pa.string())
    if literal.form == "binary":
        return scalar_of(bytes.fromhex(literal.text), pa.binary())
    return _parse(literal, kind, predicate)


def _parse(literal: Literal, kind: DataType, predicate: Predicate) -> pa.Scalar[Any]:
    try:
        value = values.parse(literal.text, kind)
    except LogError:
        raise _refusal(literal, kind, predicate) from None
    if not value.is_valid:
        raise _refusal(literal, kind, predicate)
    return value


def nearest(number: decimal.Decimal, kind: DataType) -> tuple[pa.Scalar[Any] | None, bool]:
    """The largest value of a column of whole numbers or decimals that is not above a number, and whether it equals the number.

    None if all values are above it. Whole numbers are compared as `LONG`. So a comparison needs no wider type than the column's, whatever the
    digits of the number.
    """
    if isinstance(kind, Decimal):
        nines = (9,) * kind.precision
        least, largest = (decimal.Decimal((sign, nines, -kind.scale)) for sign in (1, 0))
    else:
        least, largest = _LONGS
    if number < least:
        return None, False
    step = decimal.Decimal((0, (1,), -kind.scale if isinstance(kind, Decimal) else 0))
    floor = largest if number > largest else number.quantize(step, decimal.ROUND_FLOOR, _EXACT)
    nearest = scalar_of(floor, arrow_type(kind)) if isinstance(kind, Decimal) else scalar_of(int(floor), LONG)
    return nearest, floor == number


def _refusal(literal: Literal, kind: DataType, predicate: Predicate) -> ConfigError:
    name = kind.name if isinstance(kind, Primitive) else "decimal"
    example = _EXAMPLES.get(name, "a number")
    what = f"this is not a value of type {kind!s:.80}"
    return predicate.error(what, literal.at, f"Write {example} to compare with a column of that type")
