"""How pytest-xdist distributes the tests: modules stay together, and so do those that share a server."""

import subprocess
import sys
from pathlib import Path

from tests.distribution import SHORT, TOGETHER, rank, unit

ROOT = Path(__file__).parents[2]
MODULES = (
    "tests/unit/test_a.py",
    "tests/kafka/test_access.py",
    "tests/kafka/test_security.py",
    "tests/chaos/test_kill.py",
)
MODULE = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number, worker_id, request):
    with open({place!r}, "a") as file:
        print(worker_id, request.node.nodeid, file=file)
"""


def test_there_is_what_is_together() -> None:
    places = [place for each in TOGETHER.values() for place in each]
    assert [place for place in places if not (ROOT / place).exists()] == []
    assert len(places) == len(set(places))


def test_the_longest_begin_first_and_the_shortest_last() -> None:
    units = ["tests/unit/test_a.py", "tests/spark/test_versions.py", "image", "tests/golden/test_golden.py", "cluster"]
    assert sorted(units, key=rank) == [units[4], units[2], units[1], units[0], units[3]]
    assert [place for place in SHORT if not (ROOT / place).exists()] == []


def test_each_unit_has_one_worker(tmp_path: Path) -> None:
    """Units of several modules come first."""
    told = tmp_path / "told"
    for module in MODULES:
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text(MODULE.format(place=str(told)))
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = subprocess.run([*command, "tests"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in told.read_text().splitlines()]
    assert len(ran) == 6 * len(MODULES)
    workers: dict[str, set[str]] = {}
    for worker, test in ran:
        workers.setdefault(unit(test), set()).add(worker)
    assert {name: len(each) for name, each in workers.items()} == dict.fromkeys(map(unit, MODULES), 1)
    assert len({next(iter(each)) for each in workers.values()}) == 2
    assert not ran[0][1].startswith("tests/unit")
