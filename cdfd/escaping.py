"""Escapes text from other systems: the result is one line of bounded length that cannot control a terminal.

Names, messages and metadata come from a table's log, a broker or a file, and may contain anything: escape sequences for the terminal, line
ends that forge a log line, characters that change the direction of text, or a megabyte of text.
"""

import json
from collections.abc import Mapping
from typing import Any

LONGEST_LINE = 2000
"""Longest line for people, in characters."""


UNICODE_HINT = "Write it in UTF-8, without halves of surrogate pairs"


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which escapes in JSON and YAML and arguments of a command can create. It has no UTF-8 then."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def shorten(text: str, longest: int = LONGEST_LINE) -> str:
    """Text of at most `longest` characters. The middle of a longer text is replaced by the number of missing characters."""
    if len(text) <= longest:
        return text
    room = max(0, longest - len(f" … {len(text)} characters … "))
    first, last = room - room // 2, room // 2
    return f"{text[:first]} … {len(text) - room} characters … {text[len(text) - last :]}"


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    r"""Text on one line. Unprintable characters are escaped as in Python (`\x1b`, `\n`, `\u202e`), and a long text is shortened."""
    text = shorten(text, longest)
    if text.isprintable():
        return text
    return shorten("".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text), longest)


def quoted(text: str) -> str:
    """Text as a JSON string of printable ASCII."""
    # DEL is the only control character that JSON does not escape.
    return json.dumps(text).replace("\x7f", "\\u007f")


def for_terminal(text: str) -> str:
    r"""Lines of text or JSON for a terminal. Characters that JSON may have as they are, and a terminal obeys, are escaped (`\u009b`)."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(mark if mark.isprintable() or mark == "\n" else quoted(mark)[1:-1] for mark in text)


def as_json(document: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON of printable ASCII. Values without a JSON type become text of bounded length."""
    return json.dumps(document, indent=indent, default=lambda value: shorten(str(value))).replace("\x7f", "\\u007f")
