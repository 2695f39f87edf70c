"""The problems of a configuration: all of them at once, each with its path."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic_core import ErrorDetails

from cdfd.errors import ConfigError
from cdfd.escaping import one_line

Path = tuple[str | int, ...]
"""The path of a value in the document: keys of mappings and indices of lists."""

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Attributes:
        path: the path in the YAML document; empty for the whole document.
        what: the text. It never has a secret or the value of an environment variable.
        line: line of the file, from 1; None if unknown.
    """

    path: Path
    what: str
    line: int | None = None

    def __str__(self) -> str:
        place = ""
        for step in self.path:
            if isinstance(step, int):
                place += f"[{step}]"
            elif re.fullmatch(r"[A-Za-z0-9_-]+", step):
                place += f".{step}" if place else step
            else:
                place += f"[{quoted(step)}]"
        place = f"{place}: " if place else ""
        return f"{place}{self.what}" + (f" (line {self.line})" if self.line is not None else "")


class ConfigProblems(ConfigError):
    """One or more problems of a configuration.

    Attributes:
        problems: one line each: `tables[0].strat: unknown key, did you mean "start"? (line 4)`.
    """

    def __init__(self, problems: Sequence[Problem], name: str | None = None) -> None:
        ordered = sorted(problems, key=lambda problem: problem.line or 0)
        self.problems: tuple[str, ...] = tuple(str(problem) for problem in ordered)
        count = f"{len(self.problems)} problems: " if len(self.problems) > 1 else ""
        super().__init__(count + "; ".join(self.problems), path=name)

    def lines(self) -> list[str]:
        """A line with the number of problems and the file, then a line for each problem. A single problem is one line."""
        if len(self.problems) < 2:
            return [str(self)]
        where = f" (file {self.path})" if self.path is not None else ""
        return [
            one_line(line)
            for line in (f"{len(self.problems)} problems{where}", *(f"  {problem}" for problem in self.problems))
        ]


class Conflicts(ValueError):
    """Values that are invalid together; each with its path within the validated section."""

    def __init__(self, *conflicts: tuple[Path, str]) -> None:
        super().__init__("; ".join(what for _, what in conflicts))
        self.conflicts = conflicts


def conflicts_of(detail: ErrorDetails) -> tuple[tuple[Path, str], ...]:
    """An error of pydantic as conflicts."""
    raised = detail.get("ctx", {}).get("error")
    return raised.conflicts if isinstance(raised, Conflicts) else (((), str(raised or detail["msg"])),)


def refuse(conflicts: Iterable[tuple[Path, str]]) -> None:
    """Raise `Conflicts` if there are any."""
    if conflicts := tuple(conflicts):
        raise Conflicts(*conflicts)


def quoted(text: str) -> str:
    """Text in quotes, on one line and of limited length."""
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    return f'"{one_line(text)}"'
