"""docs/protocol.md: each rule of the specification has a test that exists, or a reason."""

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
DRAFTS = sorted((ROOT.parent / "shared" / "spec").glob("*.txt"))
TESTS = re.findall(r"`(tests/[^`]+)`", PAGE)
_TABLE = PAGE.split("## Every rule of the specification")[1]
RULES = [line.strip("| ").split(" | ") for line in _TABLE.splitlines() if line.startswith("| ")][1:]
NORMATIVE = re.compile(r"\b(must|should|shall|required to|may not)\b", re.IGNORECASE)


def words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of a module's tests, with their classes."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return frozenset(found)


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
    assert len(RULES) > 80
    for rule in RULES:
        assert len(rule) == 4, rule
        assert "`tests/" in rule[3] or len(rule[3].split()) >= 4, rule


@pytest.mark.skipif(not DRAFTS, reason="the specification is not there")
def test_no_sentence_of_the_specification_is_left_out() -> None:
    known = [words(rule[2]) for rule in RULES]
    for draft in DRAFTS:
        text = draft.read_text()
        if "Delta" not in text:
            continue  # of another format
        for line in text.splitlines():
            for sentence in re.split(r"(?<=[.:;])\s+(?=[A-Z`\-])", line):
                if NORMATIVE.search(sentence):
                    assert any(each in words(sentence) for each in known), sentence
