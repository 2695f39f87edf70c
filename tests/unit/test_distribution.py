"""How pytest-xdist distributes the tests: modules stay together, and so do those that share a server."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.distribution import NICE, SHORT, TOGETHER, rank, unit

ROOT = Path(__file__).parents[2]
MODULES = (
    "tests/unit/test_a.py",
    "tests/kafka/test_access.py",
    "tests/kafka/test_security.py",
    "tests/chaos/test_kill.py",
)
MODULE = """
import os, pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number, worker_id, request):
    with open({place!r}, "a") as file:
        print(worker_id, os.nice(0), request.node.nodeid, file=file)
"""
CONFTEST = """
import os
os.cpu_count = lambda: 2
from tests.conftest import pytest_configure, pytest_xdist_make_scheduler
"""


def test_there_is_what_is_together() -> None:
    places = [place for each in TOGETHER.values() for place in each]
    assert [place for place in places if not (ROOT / place).exists()] == []
    assert len(places) == len(set(places))


def test_the_longest_begin_first_and_the_shortest_last() -> None:
    units = ["tests/unit/test_a.py", "tests/spark/test_versions.py", "image", "tests/golden/test_golden.py", "cluster"]
    assert sorted(units, key=rank) == [units[4], units[2], units[1], units[0], units[3]]
    assert [place for place in SHORT if not (ROOT / place).exists()] == []


def ran(folder: Path, workers: int, modules: Iterable[str]) -> list[tuple[str, int, str]]:
    """(worker, niceness, test) of each test, in order: `modules` of six tests each, on a machine of two processors."""
    told = folder / "told"
    for module in modules:
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text(MODULE.format(place=str(told)))
    (folder / "pytest.ini").write_text("[pytest]")
    (folder / "conftest.py").write_text(CONFTEST)
    options = ["-q", "-n", str(workers), "-p", "no:cacheprovider", "--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *options, "tests"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in told.read_text().splitlines()]
    return [(worker, int(nice), test) for worker, nice, test in lines]


def test_each_unit_has_one_worker(tmp_path: Path) -> None:
    """Units of several modules come first."""
    found = ran(tmp_path, 2, MODULES)
    assert len(found) == 6 * len(MODULES)
    assert {len(workers) for workers in workers_of(found).values()} == {1}
    assert {next(iter(workers)) for workers in workers_of(found).values()} == {"gw0", "gw1"}
    assert not found[0][2].startswith("tests/unit")


def test_a_worker_beyond_the_processors_has_short_units_only_and_is_nice(tmp_path: Path) -> None:
    found = ran(tmp_path, 3, MODULES)
    assert len(found) == 6 * len(MODULES)
    assert {name: next(iter(workers)) == "gw2" for name, workers in workers_of(found).items()} == {
        unit(module): module.startswith("tests/unit") for module in MODULES
    }
    own = os.nice(0)
    assert {worker: nice for worker, nice, _ in found} == {"gw0": own, "gw1": own, "gw2": min(own + NICE, 19)}


def test_a_worker_for_which_there_is_nothing_ends(tmp_path: Path) -> None:
    found = ran(tmp_path, 3, [f"tests/kafka/test_{number}.py" for number in range(4)])
    assert len(found) == 24
    assert {worker for worker, _, _ in found} == {"gw0", "gw1"}


def workers_of(found: list[tuple[str, int, str]]) -> dict[str, set[str]]:
    """By unit."""
    workers: dict[str, set[str]] = {}
    for worker, _, test in found:
        workers.setdefault(unit(test), set()).add(worker)
    return workers
