"""Random filters over two columns of numbers, each with a function that knows its truth."""

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

NUMBERS = pa.schema([("a", pa.int64()), ("b", pa.int64())])
Values = dict[str, int | None]


def texts() -> st.SearchStrategy[tuple[str, Any]]:
    """A filter over `a` and `b`, and a function with its three-valued truth."""
    column, number = st.sampled_from(["a", "b"]), st.integers(-2, 2)

    def compare(name: str, operator: str, value: int | None) -> tuple[str, Any]:
        test = {"=": "__eq__", "<>": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[operator]

        def truth(row: Values) -> bool | None:
            operand = row[name]
            return None if operand is None or value is None else bool(getattr(operand, test)(value))

        return f"{name} {operator} {'NULL' if value is None else value}", truth

    def is_in(name: str, some: list[int | None], negated: bool) -> tuple[str, Any]:
        def truth(row: Values) -> bool | None:
            if row[name] is None:
                return None
            outcome = (
                True if row[name] in [each for each in some if each is not None] else None if None in some else False
            )
            return outcome if not negated or outcome is None else not outcome

        listed = ", ".join("NULL" if each is None else str(each) for each in some)
        return f"{name} {'NOT ' if negated else ''}IN ({listed})", truth

    leaves = st.one_of(
        st.builds(compare, column, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), st.none() | number),
        st.builds(is_in, column, st.lists(st.none() | number, min_size=1, max_size=3), st.booleans()),
        column.map(lambda name: (f"{name} IS NULL", lambda row: row[name] is None)),
    )

    def extended(inner: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[tuple[str, Any]]:
        return st.one_of(
            inner.map(lambda one: (f"NOT ({one[0]})", lambda row: _not(one[1](row)))),
            st.tuples(inner, inner).map(lambda two: (f"({two[0][0]}) AND ({two[1][0]})", lambda row: _all(two, row))),
            st.tuples(inner, inner).map(
                lambda two: (f"({two[0][0]}) OR ({two[1][0]})", lambda row: _not(_all(two, row, negated=True)))
            ),
        )

    return st.recursive(leaves, extended, max_leaves=6)


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _all(terms: tuple[Any, ...], row: Values, *, negated: bool = False) -> bool | None:
    outcomes = [_not(each[1](row)) if negated else each[1](row) for each in terms]
    return False if False in outcomes else None if None in outcomes else True
