"""Text of others, fit to be shown: one line that steers no terminal, of bounded length.

Names, messages and metadata come from a table's log, a broker or a file, and may hold anything: escape sequences that change what a terminal
shows, line ends that make one line of a log look like two, marks that turn the direction of text, a megabyte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONGEST_LINE = 2000
"""Characters of a line for people, at most."""


def shortened(text: str, longest: int) -> str:
    """Text of at most so many characters; of a longer one the middle is left out, and how much that was is said."""
    if len(text) <= longest:
        return text
    room = max(0, longest - len(f" … {len(text)} characters … "))
    first, last = room - room // 2, room // 2
    return f"{text[:first]} … {len(text) - room} characters … {text[len(text) - last :]}"


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    r"""Text on one line: what does not print is escaped as Python does (`\x1b`, `\n`, `\u202e`), and the middle of a long one is left out."""
    text = shortened(text, longest)
    if text.isprintable():
        return text
    return shortened("".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text), longest)


def quoted(text: str) -> str:
    """Text as a JSON string of printable ASCII."""
    # DEL is the one control character that JSON leaves as it is.
    return json.dumps(text).replace("\x7f", "\\u007f")


def as_json(document: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON of printable ASCII; what JSON has no type for as text of bounded length."""
    return json.dumps(document, indent=indent, default=_other).replace("\x7f", "\\u007f")


def _other(value: Any) -> str:
    return shortened(str(value), LONGEST_LINE)
