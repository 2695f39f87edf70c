"""docs/protocol.md and docs/protocol-rules.md: each rule of the specification has a test that exists, or a reason."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from cdfd.delta import protocol
from cdfd.delta.actions import Protocol
from cdfd.errors import UnsupportedError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
RULES_PAGE = (ROOT / "docs" / "protocol-rules.md").read_text()
DRAFTS = sorted((ROOT.parent / "shared" / "spec").glob("*.txt"))
TESTS = re.findall(r"`(tests/[^`]+)`", RULES_PAGE)
_TABLE = RULES_PAGE.split("## Every rule of the specification")[1]
RULES = [line.strip("| ").split(" | ") for line in _TABLE.splitlines() if line.startswith("| ")][1:]
NORMATIVE = re.compile(
    r"\b(must|should|shall|may not|cannot|requires?|required|needs? to|need not|not allowed|at most|encouraged|recommended"
    r"|valid|invalid|legal|illegal|wins|always|never|reserved|enforce|respect|translates|expires|free to)\b",
    re.IGNORECASE,
)
IN_FULL = re.compile(
    r"(The requirements of the writers according to|actions can optionally contain statistics).*?(?=Example Table Schema)",
    re.DOTALL,
)
"""From the requirements of writer versions to the schemas, the drafts state rules without such words: each line has a row."""
_NO_RULE = re.compile(
    r"\W*\|?\W*--|```|<br>|<start of|\W*\||description|field name|bytes\W+name|type name|name\W+description|type\W+serialization"
    r"|(requirements|add)$|if the if the|cannot retrieve",
    re.IGNORECASE,
)
"""Headings of tables, pictures of schemas, and the words of the page that a draft was copied from."""


def words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of a module's tests, with their classes."""
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}::{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return frozenset(names)


@pytest.mark.parametrize("name", sorted(set(TESTS)))
def test_a_test_that_the_page_names_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert test in names_in(path)


def features(answer: str) -> frozenset[str]:
    """The reader features that the page has an answer for."""
    rows = re.findall(r"^\| ([\w, -]+) \| " + answer, PAGE, re.MULTILINE)
    return frozenset(name for row in rows for name in row.split(", "))


def test_the_features_that_are_read_are_those_of_the_page() -> None:
    assert features("reads it") == protocol.READER_FEATURES


@pytest.mark.parametrize("name", sorted(features("refuses it") - {"any other"}))
def test_a_feature_that_the_page_calls_refused_has_a_hint_of_its_own(name: str) -> None:
    hints = []
    for asked in (name, "fromTheFuture"):
        with pytest.raises(UnsupportedError, match=asked) as caught:
            protocol.check_readable(Protocol(3, 7, frozenset({asked}), frozenset()))
        hints.append(caught.value.hint)
    assert hints[0] != hints[1]


def test_each_rule_has_a_test_or_a_reason() -> None:
    assert len(RULES) > 150
    for rule in RULES:
        assert len(rule) == 4, rule
        assert "`tests/" in rule[3] or len(rule[3].split()) >= 4, rule


KNOWN = [words(part) for rule in RULES for part in rule[2].split(" / ")]
TEXTS = [text for text in (path.read_text() for path in DRAFTS) if "Delta" in text]


@pytest.mark.skipif(not DRAFTS, reason="the specification is not there")
def test_no_sentence_of_the_specification_is_left_out() -> None:
    assert len(TEXTS) == 4
    for text in TEXTS:
        for line in text.splitlines():
            for sentence in re.split(r"(?<=[.:;])\s+(?=[A-Z`\-])", line):
                if NORMATIVE.search(sentence) and not _NO_RULE.match(sentence):
                    assert any(each in words(sentence) for each in KNOWN), sentence


@pytest.mark.skipif(not DRAFTS, reason="the specification is not there")
def test_no_line_of_a_section_without_such_words_is_left_out() -> None:
    headings = {words(rule[1]) for rule in RULES}
    for text in TEXTS:
        [actual] = [each.group() for each in IN_FULL.finditer(text)]
        for line in actual.splitlines():
            said = words(line)
            if len(said.split()) > 2 and said not in headings and not _NO_RULE.match(line.strip("*• ")):
                assert any(each in said for each in KNOWN), line


@pytest.mark.skipif(not DRAFTS, reason="the specification is not there")
def test_each_rule_is_in_the_drafts_that_it_names() -> None:
    oldest_first = sorted(
        map(words, TEXTS), key=lambda text: ("deletion vector" in text, "json string containing" in text, len(text))
    )
    for rule in RULES:
        parts = [words(part) for part in rule[2].split(" / ")]
        named = [number for number, text in enumerate(oldest_first, 1) if any(part in text for part in parts)]
        assert rule[0] == ", ".join(map(str, named)), rule[2]
        assert all(any(part in text for text in oldest_first) for part in parts), rule[2]
