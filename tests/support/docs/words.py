"""Finds words and clauses that pages, texts, comments and docstrings do without: `python -m tests.support.docs.words`, a part of `make lint`.

CONTRIBUTING.md says how to write. This finds what can be found without reading: riddles for actors, words that are not the field's, and
clauses that begin with "what" or "who" as subjects of sentences.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
BANNED = re.compile(
    r"\b(?:(?i:mend(?:s|ed|ing)?|anew|told|held up|whoever|nobody|somebody|anybody))\b"
    r"|(?:^|[.!?] )(?:What|Who)\b(?=[^?]*(?:[.!]|$))"
)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(
    r"^(?:[-*] +|\d+\. +)?[*_]*"
)  # of a list item or of emphasis, which hides the beginning of a sentence
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|^#.*$", re.MULTILINE)

Finding = tuple[Path, int, str]


def in_page(path: Path) -> Iterator[Finding]:
    """Findings in a page, without its code and its headings."""
    text = path.read_text(encoding="utf-8")
    for kind in (_FENCE, _CODE):
        text = kind.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for number, line in enumerate(text.splitlines(), 1):
        for cell in line.split("|"):
            yield from ((path, number, found[0].strip()) for found in BANNED.finditer(_MARKER.sub("", cell.strip())))


def in_module(path: Path) -> Iterator[Finding]:
    """Findings in comments and strings of a module."""
    source = path.read_text(encoding="utf-8")
    texts = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [(token.start[0], token.string.lstrip("# ")) for token in tokens if token.type == tokenize.COMMENT]
    for start, text in texts:
        for number, line in enumerate(_CODE.sub("", text).splitlines(), start):
            yield from ((path, number, found[0].strip()) for found in BANNED.finditer(line.strip()))


def findings() -> list[Finding]:
    """All findings in the pages and in the package."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    modules = sorted((ROOT / "cdfd").rglob("*.py"))
    return [each for page in pages for each in in_page(page)] + [
        each for module in modules for each in in_module(module)
    ]


if __name__ == "__main__":
    found = findings()
    for path, line, text in found:
        print(f"{path.relative_to(ROOT)}:{line}: {text!r}")
    sys.exit(bool(found))
