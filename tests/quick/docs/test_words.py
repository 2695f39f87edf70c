"""The check for words finds what it names, and nothing in code, questions and paths."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.docs.words import (
    MOST_WORDS,
    Finding,
    findings,
    in_comments,
    in_module,
    in_names,
    in_page,
    long_sentences,
)


@pytest.mark.parametrize(
    "text",
    [
        "You mend it.",
        "It begins anew.",
        "A queue is held up.",
        "What is a choice is in the configuration.",
        "It stops. What is left is dropped.",
        "- What is left is dropped.",
        "1. What is left is dropped.",
        "**What is left** is dropped.",
        "| a | Who needs it waits. |",
    ],
)
def test_a_page_with_one(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n")
    assert [line for _, line, _ in in_page(page)] == [3]


@pytest.mark.parametrize(
    "text", ["`mend`", "```\nanew\n```", "What is lag?", "## What stays", "[a](told.md)", "recommended"]
)
def test_plain_page_has_no_findings(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{text}\n")
    assert list(in_page(page)) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "."), ("- ", "."), ("1. ", ": more."), ("Short. ", ".\n"), ("Two\nlines, and then ", ".")],
)
def test_a_page_with_a_long_sentence(before: str, after: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{before}{' '.join(['word'] * (MOST_WORDS + 1))}{after}\n")
    assert [line for _, line, _ in long_sentences(page)] == [3]


@pytest.mark.parametrize(
    "text", ["{}.", "| a | {} and {} |", "```\n{} {}\n```", "{}. {}.", "- {}\n- {}", "`{} {}`", "{} [a]({})."]
)
def test_a_page_of_short_sentences(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    words = " ".join(["word"] * (MOST_WORDS - 2))
    page.write_text(f"{text.format(words, words)}\n")
    assert list(long_sentences(page)) == []


@pytest.mark.parametrize(
    ("check", "code"),
    [
        *((in_module, code) for code in ("# nobody knows", '"""It is mended."""', 'X = f"{1} begins anew"')),
        *((in_names, code) for code in ("found = 1", "def rest() -> None: ...", "lambda given: 0")),
        *((in_names, code) for code in ("for _, rest in (): ...", "[0 for found in ()]")),
        *((in_names, code) for code in ("with open('x') as opened: ...", "match {}:\n    case {**rest}: ...")),
    ],
)
def test_a_module_with_one(check: Callable[[Path], Iterator[Finding]], code: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"{code}\n")
    assert len(list(check(module))) == 1


def test_other_strings_than_docstrings_can_be_left_out(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('X = "begins anew"\n"""What is made."""\n\n\ndef told() -> str:\n    """Nobody knows."""\n')
    assert [line for _, line, _ in in_module(module, strings=False)] == [2, 6]
    assert [line for _, line, _ in in_module(module)] == [1, 2, 6]


@pytest.mark.parametrize(
    ("text", "mark", "lines"),
    [
        ("fn told() {} // nobody\n/// What is read.\n//! `told`\n", "//", [1, 2]),
        ("told: 1  # nobody\nhelp:  ## What there is\n# Which it is\n", "#", [1, 2]),
    ],
)
def test_comments_of_other_languages(text: str, mark: str, lines: list[int], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert [line for _, line, _ in in_comments(file, mark)] == lines


def test_names_of_others_and_attributes_are_left_alone(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('from hypothesis import given\n\ndict(rest=given)\nprint("found", module.found)\n')
    assert list(in_names(module)) == []


def test_files_of_the_repository_have_none() -> None:
    assert findings() == []
