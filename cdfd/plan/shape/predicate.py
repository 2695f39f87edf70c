"""A filter as a syntax tree. Names and literals have no type yet: a schema gives them one (`cdfd.plan.shape.compiler`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal as OneOf
from typing import TypeAlias

from cdfd.errors import ConfigError

NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
"""A literal that is a number."""

Operator = OneOf["=", "<>", "<", "<=", ">", ">="]

NEGATED: dict[Operator, Operator] = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
"""The operator that is true exactly where the other one is false."""

MIRRORED: dict[Operator, Operator] = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The operator with its sides exchanged."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of a struct: its names from the outside in, and its place in the text."""

    path: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal: its text, how it is written, and its place in the text."""

    text: str
    form: OneOf["number", "text", "boolean", "null", "date", "timestamp", "binary"]
    at: int


Operand: TypeAlias = Column | Literal


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two operands, one of which is a column."""

    left: Operand
    operator: Operator
    right: Operand


@dataclass(frozen=True, slots=True)
class Membership:
    """`IN`: whether a column has one of some values."""

    column: Column
    items: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a text matches a pattern with `%` and `_`."""

    column: Column
    pattern: Literal


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a column is null. Never unknown itself."""

    column: Column


@dataclass(frozen=True, slots=True)
class Truth:
    """A column of booleans, or `TRUE`, `FALSE` or `NULL`, by itself."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """The contrary; unknown stays unknown."""

    term: Node


@dataclass(frozen=True, slots=True)
class And:
    """All terms are true."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one term is true."""

    terms: tuple[Node, ...]


Node: TypeAlias = Comparison | Membership | Like | IsNull | Truth | Not | And | Or


@dataclass(frozen=True, slots=True)
class Predicate:
    """A filter of rows: rows for which it is true are kept; those for which it is false or unknown are not.

    Attributes:
        text: as it is written.
        root: its tree.
    """

    text: str
    root: Node

    def __str__(self) -> str:
        return self.text

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns in it, in order of the text."""
        return tuple(sorted(_columns(self.root), key=lambda column: column.at))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the table's columns in it, each once."""
        return tuple(dict.fromkeys(column.path[0] for column in self.columns))

    def error(self, what: str, at: int, hint: str | None = None) -> ConfigError:
        """An error that says where in the text it is."""
        return error_at(self.text, what, at, hint)


def error_at(text: str, what: str, at: int, hint: str | None) -> ConfigError:
    """An error at a place of a filter's text."""
    near = f", at {text[at : at + 24]!r}" if at < len(text) else ", at its end"
    return ConfigError(f"the filter: {what} (character {at + 1}{near})", hint=hint)


def _columns(node: Node) -> Iterator[Column]:
    match node:
        case And(terms) | Or(terms):
            for term in terms:
                yield from _columns(term)
        case Not(term):
            yield from _columns(term)
        case Comparison(left, _, right):
            yield from (each for each in (left, right) if isinstance(each, Column))
        case Truth(operand):
            yield from (operand,) if isinstance(operand, Column) else ()
        case Membership(column) | Like(column) | IsNull(column):
            yield column
