"""The results of all benchmarks, in one file. `bench/README.md` and `docs/performance.md` have their figures from it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "bench" / "results.json"
README = ROOT / "bench" / "README.md"


@dataclass(frozen=True)
class Section:
    """The measurements of one run.

    Attributes:
        date: of the run, such as 2026-11-25.
        commit: the last commit before it.
        conditions: the command, the machine and the versions of packages, in Markdown.
        columns: their names.
        rows: of texts with units, in order. The first cell says what was measured.
    """

    date: str
    commit: str
    conditions: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def row(self, what: str) -> dict[str, str]:
        """A measurement, by column.

        Raises:
            KeyError: there is none of that name.
        """
        for row in self.rows:
            if row[0] == what:
                return dict(zip(self.columns, row, strict=True))
        raise KeyError(what)


def read() -> dict[str, Section]:
    """All sections, by name."""
    return {name: Section(**section) for name, section in json.loads(FILE.read_text()).items()}


def write(name: str, conditions: str, lines: Sequence[str]) -> None:
    """Put the lines of a table, the header included, in the place of those before, here and in the README."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, separator, after = README.read_text().partition(begin)
    if not separator:
        raise SystemExit(f"{README} has no line {begin}")
    text = "\n".join([conditions, "", *lines])
    README.write_text(f"{before}{begin}\n{text}\n{end}{after.partition(end)[2]}")
    commit = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, text=True).strip()
    columns, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    sections = read() | {name: Section(time.strftime("%Y-%m-%d"), commit, conditions, columns, rows)}
    stored = {name: asdict(section) for name, section in sorted(sections.items())}
    FILE.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
