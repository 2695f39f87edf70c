"""Conditions of operators on the files of a table, such as `country = 'de' AND day >= '2026-01-01'`. Pure.

A condition selects whole files: those whose partition values and statistics do not exclude it. Terms are joined by AND. Each compares a
column with literals: `=`, `<`, `<=`, `>`, `>=`, `IN (...)`, `IS NULL`, `IS NOT NULL`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal as Number

import numpy as np
import numpy.typing as npt

from cdfd.delta import statistics
from cdfd.delta.types import values
from cdfd.delta.types.datatypes import Decimal, Primitive, by_name
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import ConfigError, LogError
from cdfd.model.plan import LiveScans
from cdfd.plan.skipping import Columns, Condition, Operator, Value

MOST_CHARACTERS = 4096
"""Longest condition."""
MOST_OPERANDS = 256
"""Most literals of a condition."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>{_NUMBER.pattern})
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<word>[^\W\d]\w*)
      | (?P<mark><=|>=|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_HINT = "Write terms such as country = 'de' or day >= '2026-01-01', joined by AND"
_COMPARISONS: tuple[Operator, ...] = ("=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class Term:
    """A term, whose literals have no type yet.

    Attributes:
        column: name of a column.
        operator: of the comparison, which must be true for one operand.
        operands: the literals: (text, whether it was quoted).
    """

    column: str
    operator: Operator
    operands: tuple[tuple[str, bool], ...] = ()


def parse_where(text: str) -> tuple[Term, ...]:
    """The terms of a condition.

    Raises:
        ConfigError: the text is not a condition, or is too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"the condition has {len(text)} characters; at most {MOST_CHARACTERS} are allowed")
    return tuple(_Parser(text).terms())


def select_files(terms: Sequence[Term], scans: LiveScans, schema: TableSchema) -> npt.NDArray[np.bool_]:
    """For each file, whether it may have rows that satisfy all terms. The files must have their statistics.

    Raises:
        ConfigError: a column does not exist, or a literal is not a value of its type.
    """
    conditions = [_condition(term, schema) for term in terms]
    columns = Columns(schema, schema)

    def kept() -> Sequence[bool]:
        found = []
        for scan, add in zip(scans, scans.files, strict=True):
            known = statistics.parse(add.stats, schema)
            found.append(all(each.possible(columns.range(each.column, scan, known)) for each in conditions))
        return found

    return np.fromiter(kept(), np.bool_, len(scans))


def check_where(terms: Sequence[Term], schema: TableSchema) -> None:
    """Check that terms fit a table. `ConfigError` as `selected` says."""
    for term in terms:
        _condition(term, schema)


def _condition(term: Term, schema: TableSchema) -> Condition:
    names = by_name({name: name for name in schema.names}, term.column)
    if len(names) != 1:
        listed = ", ".join(schema.names[:50])
        raise ConfigError(f"there is no column {term.column!r:.200}", hint=f"The columns are: {listed}")
    child = schema.find((names[0],))
    assert child is not None
    if not isinstance(child.type, Primitive | Decimal):
        raise ConfigError(f"column {child.name!r:.200} has no simple type, and cannot be compared")
    operands = [value for text, quoted in term.operands for value in _values(text, quoted, child.type, child.name)]
    return Condition(child.name, term.operator, tuple(operands))


def _values(text: str, quoted: bool, kind: Primitive | Decimal, column: str) -> Sequence[Value]:
    """The values of a literal, one of which must fulfil the condition."""
    if kind == Primitive("string") and quoted:
        return [text]
    if isinstance(kind, Decimal) and _NUMBER.fullmatch(text):
        return [Number(text)]
    # A number that is no float is compared as it is, and as the float that a file may have in its place.
    kinds = (kind, Primitive("double")) if kind == Primitive("float") else (kind,)
    try:
        found = [values.as_python(values.parse(text, each, column)) for each in kinds]
    except LogError:
        found = [None]
    if kind == Primitive("string") or None in found:
        raise ConfigError(f"{text!r:.100} is not a value of column {column!r:.200}, which is of type {kind}")
    return found


class _Parser:
    """A recursive-descent parser. The grammar does not nest, so neither do its calls."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise ConfigError(f"the condition cannot be read at {text[place : place + 20]!r}", hint=_HINT)
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()
        self._next = self._operands = 0

    def terms(self) -> list[Term]:
        found = [self._term()]
        while self._next < len(self._tokens):
            self._expect("AND")
            found.append(self._term())
        return found

    def _term(self) -> Term:
        kind, text = self._take("a column")
        if kind == "quoted":
            column = text[1:-1].replace("``", "`")
        elif kind == "word":
            column = text
        else:
            raise self._unexpected("a column", text)
        kind, text = self._take("a comparison")
        if kind == "mark" and text in _COMPARISONS:
            return Term(column, _COMPARISONS[_COMPARISONS.index(text)], (self._literal(),))
        match text.upper() if kind == "word" else "":
            case "IN":
                return Term(column, "=", self._list())
            case "IS":
                negated = self._accept("NOT")
                self._expect("NULL")
                return Term(column, "not null" if negated else "null")
        raise self._unexpected("=, <, <=, >, >=, IN, IS NULL or IS NOT NULL", text)

    def _list(self) -> tuple[tuple[str, bool], ...]:
        self._expect("(")
        found = [self._literal()]
        while self._accept(","):
            found.append(self._literal())
        self._expect(")")
        return tuple(found)

    def _literal(self) -> tuple[str, bool]:
        kind, text = self._take("a literal")
        self._operands += 1
        if self._operands > MOST_OPERANDS:
            raise ConfigError(f"the condition has more than {MOST_OPERANDS} literals")
        if kind == "text":
            return text[1:-1].replace("''", "'"), True
        if kind == "number" or (kind == "word" and text.lower() in ("true", "false")):
            return text.lower(), False
        raise self._unexpected("a number, true, false or a text in '...'", text)

    def _take(self, wanted: str) -> tuple[str, str]:
        if self._next == len(self._tokens):
            raise ConfigError(f"the condition ends where {wanted} is expected", hint=_HINT)
        self._next += 1
        return self._tokens[self._next - 1]

    def _accept(self, word: str) -> bool:
        found = self._next < len(self._tokens) and self._tokens[self._next][0] in ("word", "mark")
        if found and self._tokens[self._next][1].upper() == word:
            self._next += 1
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            _, text = self._take(word)
            raise self._unexpected(word, text)

    def _unexpected(self, wanted: str, found: str) -> ConfigError:
        return ConfigError(f"the condition has {found!r:.50} where {wanted} is expected", hint=_HINT)
