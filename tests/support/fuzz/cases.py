"""Cases and findings of the fuzzer, and the rules that every error of cdfd follows."""

from __future__ import annotations

import base64
import json
import traceback
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cdfd.errors import CdfdError, ConfigError

LONGEST = 2000
"""Characters of an error, at most."""
PACKAGE = str(Path(__file__).parents[3] / "cdfd")


class Violation(AssertionError):
    """A forbidden outcome that did not raise an exception by itself."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}"[:2000])
        self.kind = kind


@dataclass
class Case:
    """One input: a target by name, files by path, and further arguments as JSON."""

    target: str
    files: dict[str, bytes] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"target": self.target, "args": self.args, "files": {p: _text(data) for p, data in self.files.items()}}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Case:
        return cls(
            document["target"], {path: _bytes(data) for path, data in document["files"].items()}, document["args"]
        )


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(content: str | dict[str, str]) -> bytes:
    return content.encode() if isinstance(content, str) else base64.b64decode(content["base64"])


@dataclass(frozen=True)
class Target:
    """Something that takes input.

    Attributes:
        make: a case from random numbers.
        check: tries a case and returns its outcome as a word. Any exception is a finding.
        share: the number of its cases in a thousand.
    """

    name: str
    make: Callable[[Random], Case]
    check: Callable[[Case], str]
    share: float


def guarded(work: Callable[[], str], table: str | None = None, *, allowed: tuple[type[Exception], ...] = ()) -> str:
    """The outcome of some work. An error of cdfd is a valid outcome if it follows the rules; with `table`, it must name that table."""
    try:
        return work()
    except CdfdError as error:
        check_error(error, table)
        last_refusal[:] = [str(error)]
        return f"refused: {type(error).__name__}"
    except allowed as error:
        return f"refused: {type(error).__name__}"


last_refusal: list[str] = []
"""The newest error of cdfd, for reports of findings."""


def check_error(error: CdfdError, table: str | None) -> None:
    """An error is one line of printable text, not too long, and names its table."""
    line = str(error)
    check_text(line)
    if table is not None and not isinstance(error, ConfigError) and error.table != table:
        raise Violation("error without table", f"{type(error).__name__}: {line}")


def check_text(line: str) -> None:
    if len(line) > LONGEST:
        raise Violation("long error", f"{len(line)} characters: {line[:200]}")
    for char in line:
        if (
            unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")
            or char in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        ):
            raise Violation("control character", ascii(line)[:500])


def signature(error: BaseException) -> str:
    """The identity of a finding: its kind, and the function of cdfd that raised it."""
    if isinstance(error, Violation):
        return f"violation {error.kind}{_place(error.__context__) if error.__context__ is not None else ''}"
    return f"{type(error).__name__}{_place(error)}"


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
    return f" in {frames[-1].filename.removeprefix(PACKAGE)[1:]}:{frames[-1].name}" if frames else ""


def to_json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"
