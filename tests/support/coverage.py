"""Lines and branches that tests reach, by room, and floors: `python -m tests.support.coverage [PATHS...]`.

The rooms with a floor decide which rows are delivered, and when a position moves. A test that goes must not take them below it.
"""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.cache import ROOT

PATHS = ("tests/quick", "tests/standard/unit", "tests/standard/contract", "tests/standard/kafka")
FLOORS = {
    "cdfd/delta": 99.0,
    "cdfd/plan/planner.py": 99.5,
    "cdfd/sinks/ledger": 99.0,
    "cdfd/sinks/kafka/transactions": 97.0,
}
"""Percent of lines and branches of a room, or of a module, that `PATHS` reach at least: just below 99.4, 100, 99.3 and 97.9, as measured
with the quick tier, and of `tests/standard` the tests of Kafka, ledgers, the sink contract, the Delta sink and mirrors."""
Reached = tuple[int, int]
"""Lines and branches that are reached, and that there are."""


def measure(paths: Sequence[str]) -> dict[str, Reached]:
    """By module. Raises CalledProcessError if a test fails."""
    with tempfile.TemporaryDirectory(prefix="cdfd-coverage-") as folder:
        report = Path(folder) / "coverage.json"
        options = ["--cov=cdfd", "--cov-branch", f"--cov-report=json:{report}"]
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *options, *paths]
        subprocess.run(command, cwd=ROOT, check=True)
        modules = json.loads(report.read_text())["files"]
    return {name: _reached(module["summary"]) for name, module in modules.items()}


def _reached(summary: Mapping[str, int]) -> Reached:
    return (
        summary["covered_lines"] + summary["covered_branches"],
        summary["num_statements"] + summary["num_branches"],
    )


def percent(reached: Reached) -> float:
    """Of what there is; of nothing, all."""
    return 100 * reached[0] / reached[1] if reached[1] else 100.0


def by_room(modules: Mapping[str, Reached]) -> dict[str, Reached]:
    """The sums of folders directly below the package."""
    rooms = defaultdict[str, list[Reached]](list)
    for name, reached in modules.items():
        rooms["/".join(name.split("/")[:2])].append(reached)
    return {name: (sum(one for one, _ in each), sum(all_ for _, all_ in each)) for name, each in rooms.items()}


def main(paths: Sequence[str]) -> int:
    """Measure, print a table, and compare with the floors. Returns 1 if a room is below its floor."""
    modules = measure(paths or PATHS)
    for name, reached in sorted(by_room(modules).items()):
        print(f"{percent(reached):6.1f} %  {name}")
    below = 0
    for place, floor in FLOORS.items():
        parts = [reached for name, reached in modules.items() if name == place or name.startswith(f"{place}/")]
        share = percent((sum(one for one, _ in parts), sum(all_ for _, all_ in parts)))
        below += share < floor and not paths
        print(f"{share:6.1f} %  {place}, at least {floor}" + (": BELOW" if share < floor else ""))
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
