"""The check of words finds what it is for, and nothing in code."""

from pathlib import Path

import pytest

from tests.support.docs.words import in_module, in_page


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("You mend it.", 1),
        ("The daemon begins anew.", 1),
        ("What is deleted is hidden.", 1),
        ("The row goes. What stays is kept.", 1),
        ("| column | What it is. |", 1),
        ("What is that table?", 0),
        ("Amend the whatever.", 0),
        ("```\ntold\n```\n`anew`", 0),
    ],
)
def test_unplain_words_of_a_page_are_counted(tmp_path: Path, text: str, found: int) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert len(list(in_page(page))) == found


def test_words_of_docstrings_and_comments_are_checked(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""What is here."""\n\ntold = {"what": 1}  # nobody knows\n')
    assert [(line, text) for _, line, text in in_module(module)] == [(1, "What"), (3, "nobody")]
