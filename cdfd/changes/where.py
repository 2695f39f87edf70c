"""Conditions of operators on the files of a table, such as `country = 'de' AND day >= '2026-01-01'`. Pure.

A condition selects whole files: those whose partition values and statistics do not exclude it. Terms are joined by AND. Each compares a
column with literals: `=`, `<`, `<=`, `>`, `>=`, `IN (...)`, `IS NULL`, `IS NOT NULL`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdfd.changes.plan import LiveScans
from cdfd.changes.skipping import Columns, Condition, Operator, Value, as_python
from cdfd.delta import statistics, values
from cdfd.delta.datatypes import Primitive, by_name
from cdfd.delta.schema import TableSchema
from cdfd.errors import ConfigError, LogError

MOST_CHARACTERS = 4096
"""Longest condition."""
MOST_OPERANDS = 256
"""Most literals of a condition."""

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)
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


def selected(terms: Sequence[Term], scans: LiveScans, schema: TableSchema) -> npt.NDArray[np.bool_]:
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
    if not isinstance(child.type, Primitive):
        raise ConfigError(f"column {child.name!r:.200} has no simple type, and cannot be compared")
    operands = tuple(_literal(text, quoted, child.type, child.name) for text, quoted in term.operands)
    return Condition(child.name, term.operator, operands)


def _literal(text: str, quoted: bool, kind: Primitive, column: str) -> Value:
    is_text = kind == Primitive("string")
    if is_text and quoted:
        return text
    try:
        found = None if is_text else as_python(values.parse(text, kind, column))
    except LogError:
        found = None
    if found is None:
        raise ConfigError(f"{text!r:.100} is not a value of column {column!r:.200}, which is of type {kind}")
    literal: Value = found
    return literal


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
