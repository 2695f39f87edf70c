"""Parses filters such as `region = 'de' AND (amount > 10 OR urgent)`. Pure.

filter     = conjunction { OR conjunction }
conjunction = term { AND term }
term       = NOT term | ( filter ) | test
test       = operand [ comparison operand | [NOT] IN ( literal {, literal} ) | [NOT] BETWEEN operand AND operand
                     | [NOT] LIKE text | IS [NOT] NULL ]
operand    = column | literal
column     = name { . name }        a name with other characters stands in `...`
literal    = number | 'text' | TRUE | FALSE | NULL | DATE 'text' | TIMESTAMP 'text' | X'hex digits'
comparison = = | == | <> | != | < | <= | > | >=
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn

from cdfd.errors import ConfigError
from cdfd.escaping import UNICODE_HINT, is_unicode
from cdfd.plan.shape.predicate import (
    NUMBER,
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
    error_at,
)

MOST_CHARACTERS = 65_536
"""Longest filter."""
MOST_LITERALS = 1000
"""Most literals of a filter."""
DEEPEST = 64
"""Deepest nesting of parentheses and NOT."""

_TOKEN = re.compile(
    rf"""\s*(?:
        (?P<binary>[xX]'(?:[0-9a-fA-F]{{2}})*')
      | (?P<text>'(?:[^']|'')*')
      | (?P<number>{NUMBER.pattern}(?![\w]))
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<word>[^\W\d]\w*)
      | (?P<mark><=|>=|<>|!=|==|=|<|>|\(|\)|,|\.)
    )""",
    re.VERBOSE,
)
_OPERATORS: Final[dict[str, Operator]] = {
    "=": "=",
    "==": "=",
    "<>": "<>",
    "!=": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_RESERVED = frozenset({"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS"})
_HINT = "Write terms such as region = 'de', amount > 10 or note IS NOT NULL, joined by AND and OR"


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


@lru_cache(maxsize=64)
def parse_filter(text: str) -> Predicate:
    """The filter in a text.

    Raises:
        ConfigError: the text is no filter; the message says where. Or it is too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"the filter has {len(text)} characters; at most {MOST_CHARACTERS} are allowed")
    if not is_unicode(text):
        raise ConfigError("the filter is not Unicode text", hint=UNICODE_HINT)
    return Predicate(text, _Parser(text).whole())


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = self._literals = self._depth = 0

    def whole(self) -> Node:
        node = self._any()
        if self._token.kind != "end":
            self._fail("AND, OR or the end is expected")
        return node

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _any(self) -> Node:
        terms = [self._all()]
        while self._accept("OR"):
            terms.append(self._all())
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def _all(self) -> Node:
        terms = [self._term()]
        while self._accept("AND"):
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else And(tuple(terms))

    def _term(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            self._fail(f"it is nested deeper than {DEEPEST} levels")
        try:
            if self._accept("NOT"):
                return Not(self._term())
            if self._accept("("):
                node = self._any()
                self._expect(")")
                return node
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Node:
        left = self._operand()
        operator = _OPERATORS.get(self._token.text) if self._token.kind == "mark" else None
        if operator is not None:
            self._next += 1
            return self._comparison(left, operator, self._operand())
        if self._accept("IS"):
            negated = self._accept("NOT")
            self._expect("NULL")
            return _negate(IsNull(self._column(left)), negated)
        negated = self._accept("NOT")
        if self._accept("IN"):
            column = self._column(left)
            self._expect("(")
            items = [self._literal()]
            while self._accept(","):
                items.append(self._literal())
            self._expect(")")
            return _negate(Membership(column, tuple(items)), negated)
        if self._accept("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            high = self._operand()
            between = And((self._comparison(left, ">=", low), self._comparison(left, "<=", high)))
            return _negate(between, negated)
        if self._accept("LIKE"):
            if self._token.kind != "text":
                self._fail("a pattern in '...' is expected")
            return _negate(Like(self._column(left), self._literal()), negated)
        if negated:
            self._fail("IN, BETWEEN or LIKE is expected")
        if isinstance(left, Literal) and left.form not in ("boolean", "null"):
            self._fail("a comparison is expected")
        return Truth(left)

    def _comparison(self, left: Operand, operator: Operator, right: Operand) -> Comparison:
        if isinstance(left, Literal) and isinstance(right, Literal):
            self._fail("a comparison needs a column", left.at)
        return Comparison(left, operator, right)

    def _column(self, operand: Operand) -> Column:
        if isinstance(operand, Literal):
            self._fail("a column is expected", operand.at)
        return operand

    def _operand(self) -> Operand:
        kind, text, at = self._token
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        constant = text.upper() in ("TRUE", "FALSE", "NULL") and following.text != "."
        typed = text.upper() in ("DATE", "TIMESTAMP") and following.kind == "text"
        if kind in ("number", "text", "binary") or (kind == "word" and (constant or typed)):
            return self._literal()
        path = [self._part()]
        while self._accept("."):
            path.append(self._part())
        return Column(tuple(path), at)

    def _part(self) -> str:
        kind, text, _ = self._token
        if kind == "quoted":
            self._next += 1
            return text[1:-1].replace("``", "`")
        if kind != "word" or text.upper() in _RESERVED:
            self._fail("a column or a literal is expected")
        self._next += 1
        return text

    def _literal(self) -> Literal:
        kind, text, at = self._token
        word = text.upper()
        self._literals += 1
        if self._literals > MOST_LITERALS:
            self._fail(f"it has more than {MOST_LITERALS} literals")
        self._next += 1
        if kind == "word" and word in ("DATE", "TIMESTAMP") and self._token.kind == "text":
            quoted = self._token.text[1:-1].replace("''", "'")
            self._next += 1
            return Literal(quoted, "date" if word == "DATE" else "timestamp", at)
        if kind == "text":
            return Literal(text[1:-1].replace("''", "'"), "text", at)
        if kind == "number":
            return Literal(text, "number", at)
        if kind == "binary":
            return Literal(text[2:-1], "binary", at)
        if kind == "word" and word in ("TRUE", "FALSE"):
            return Literal(word.lower(), "boolean", at)
        if kind != "word" or word != "NULL":
            self._fail("a literal is expected: a number, 'text', TRUE, FALSE or NULL", at)
        return Literal("", "null", at)

    def _accept(self, wanted: str) -> bool:
        # A quoted name or text has its quotes, so it is no keyword.
        if self._token.text.upper() == wanted:
            self._next += 1
            return True
        return False

    def _expect(self, wanted: str) -> None:
        if not self._accept(wanted):
            self._fail(f"{wanted} is expected")

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        raise error_at(self._text, what, self._token.at if at is None else at, _HINT)


def _tokens(text: str) -> list[_Token]:
    tokens, place, end = [], 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            at = place + len(text[place:]) - len(text[place:].lstrip())
            raise error_at(text, "this is not a name, number, text or sign", at, _HINT)
        tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        place = match.end()
    return [*tokens, _Token("end", "", len(text))]


def _negate(node: Node, negated: bool) -> Node:
    return Not(node) if negated else node
