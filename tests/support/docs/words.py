"""Finds words, clauses and sentences that pages, texts and comments do without: `python -m tests.support.docs.words`, in `make lint`.

CONTRIBUTING.md says how to write. This finds what can be found without reading: riddles for actors, words that are not the field's,
clauses that begin with "what" or "who" as subjects of sentences, and sentences of pages that are too long. proselint reads the pages, too.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
BANNED = re.compile(
    r"\b(?:(?i:mend(?:s|ed|ing)?|anew|told|held up|whoever|nobody|somebody|anybody))\b"
    r"|(?:^|[.!?] )(?:What|Who)\b(?=[^?]*(?:[.!]|$))"
)
_CANDIDATE = re.compile(r"(?i:mend|anew|told|held up|whoever|nobody|somebody|anybody)|What|Who")
"""Is in each text that has a finding. Most modules have none, and parsing them would take seconds."""
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(
    r"^(?:[-*] +|\d+\. +)?[*_]*"
)  # of a list item or of emphasis, which hides the beginning of a sentence
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|^#.*$", re.MULTILINE)

MOST_WORDS = 25
"""Words of a sentence of a page, at most. Code and the address of a link do not count."""
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")

_COMMENTED = ("", ".toml", ".yml", ".yaml", ".tpl", ".cfg")
"""Suffixes of files whose comments begin with `#`."""

NAMES = re.compile(r"\b(?:found|given|opened|rest)\b")
"""Names of variables and functions that do not say what they hold."""
_BINDING = ("arg", "name", "rest")
"""Fields of nodes that bind a name: parameters, functions, patterns."""

Finding = tuple[Path, int, str]


def in_page(path: Path) -> Iterator[Finding]:
    """Findings in a page, without its code and its headings."""
    text = path.read_text(encoding="utf-8")
    for kind in (_FENCE, _CODE):
        text = kind.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for number, line in enumerate(text.splitlines(), 1):
        for cell in line.split("|"):
            yield from ((path, number, match[0].strip()) for match in BANNED.finditer(_MARKER.sub("", cell.strip())))


def long_sentences(path: Path) -> Iterator[Finding]:
    """Sentences of a page that have more than `MOST_WORDS` words, without those of tables."""
    text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text(encoding="utf-8"))
    start, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if _ITEM.match(line) or not line.strip() or line.lstrip().startswith(("|", "#", "<!--")):
            for sentence in _SENTENCE_END.split(_CODE.sub("code", " ".join(lines))):
                if len(sentence.split()) > MOST_WORDS:
                    yield path, start, f"{' '.join(sentence.split()[:6])} ... has more than {MOST_WORDS} words"
            start, lines = number, [_ITEM.sub("", line)] if _ITEM.match(line) else []
        elif not line.startswith("    ") or lines:
            start, lines = start if lines else number, [*lines, line.strip()]


def in_module(path: Path, *, strings: bool = True) -> Iterator[Finding]:
    """Findings in comments and docstrings of a module, and in its other strings with `strings`."""
    source = path.read_text(encoding="utf-8")
    if not _CANDIDATE.search(source):
        return
    texts = [text for parent in ast.walk(ast.parse(source)) for text in _strings(parent, strings)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [(token.start[0], token.string.lstrip("# ")) for token in tokens if token.type == tokenize.COMMENT]
    for start, text in texts:
        for number, line in enumerate(_CODE.sub("", text).splitlines(), start):
            yield from ((path, number, match[0].strip()) for match in BANNED.finditer(line.strip()))


def in_names(path: Path) -> Iterator[Finding]:
    """Variables, parameters and functions of a module whose names are in `NAMES`."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if NAMES.search(source) else ():
        stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        name = node.id if stored else next((getattr(node, each) for each in _BINDING if hasattr(node, each)), None)  # type: ignore[attr-defined]
        if isinstance(name, str) and NAMES.fullmatch(name) and not isinstance(node, ast.alias | ast.keyword):
            yield path, node.lineno, name  # type: ignore[attr-defined]


def _strings(parent: ast.AST, strings: bool) -> Iterator[tuple[int, str]]:
    """The strings right below a node: all of them, or docstrings alone, those of assignments included."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (strings or isinstance(parent, ast.Expr)):
            yield node.lineno, node.value


def in_comments(path: Path, mark: str) -> Iterator[Finding]:
    """Findings in comments that begin with `mark`: of Rust code, a Makefile, a chart's values."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        _, begins, comment = line.partition(mark)
        if begins:
            text = _CODE.sub("", comment.lstrip(f"{mark}! -"))
            yield from ((path, number, match[0].strip()) for match in BANNED.finditer(text.strip()))


def _below(*folders: str, pattern: str = "*") -> list[Path]:
    """The files below folders of the repository whose names match."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob(pattern)) if path.is_file()]


def pages() -> list[Path]:
    """What people read outside the code."""
    return [
        *sorted(ROOT.glob("*.md")),
        ROOT / "native" / "README.md",
        *_below("bench", "changelog.d", "docs", pattern="*.md"),
    ]


def findings() -> list[Finding]:
    """All findings in pages, code, tests, benchmarks, build files and charts."""
    tests = [path for path in _below("tests", "bench", pattern="*.py") if path != Path(__file__)]
    rust = _below("native/src", "native/fuzz/fuzz_targets", pattern="*.rs")
    others = [ROOT / name for name in ("Makefile", "Dockerfile", "pyproject.toml", "mkdocs.yml")]
    others += [path for path in _below("helm", "config", ".github", ".ci") if path.suffix in _COMMENTED]
    return [
        *(each for page in pages() for each in in_page(page)),
        # The benchmarks' page has conditions of runs, which are lists and no sentences.
        *(each for page in pages() if page.parent.name != "bench" for each in long_sentences(page)),
        *(each for module in _below("cdfd", pattern="*.py") for each in in_module(module)),
        *(each for test in tests for each in in_module(test, strings=False)),  # their other strings are data
        *(each for module in [*_below("cdfd", pattern="*.py"), *tests] for each in in_names(module)),
        *(each for path in rust for each in in_comments(path, "//")),
        *(each for path in others for each in in_comments(path, "#")),
    ]


if __name__ == "__main__":
    problems = findings()
    for path, line, text in problems:
        print(f"{path.relative_to(ROOT)}:{line}: {text!r}")
    # The checks that .proselintrc.json turns off take headings, tables, names and links for mistakes.
    prose = subprocess.run([Path(sys.executable).with_name("proselint"), "check", *pages()], check=False)
    sys.exit(bool(problems) or prose.returncode)
