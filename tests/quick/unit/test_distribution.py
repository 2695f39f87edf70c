"""How pytest-xdist distributes the tests: modules stay together, and the longest begin first."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.cache import ROOT
from tests.support.distribution import TOGETHER, unit

MODULE = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(number, worker_id, request):
    with open({place!r}, "a") as file:
        print(worker_id, request.node.nodeid, file=file)
"""
CONFTEST = """
import json, pathlib
from tests.support import distribution
distribution.DURATIONS = pathlib.Path("durations.json")
from tests.conftest import pytest_configure, pytest_xdist_make_scheduler
"""
MODULES = ("tests/a/test_one.py", "tests/a/test_two.py", f"{TOGETHER[0]}test_three.py", f"{TOGETHER[0]}test_four.py")


def test_folders_that_are_together_exist() -> None:
    assert [folder for folder in TOGETHER if not (ROOT / folder).is_dir()] == []


def test_each_unit_has_one_worker_and_the_longest_of_the_last_run_begins(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for module in MODULES:
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text(MODULE.format(place=str(ran)))
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "durations.json").write_text(json.dumps({MODULES[1]: 9, MODULES[0]: 5, TOGETHER[0]: 1}))
    options = ["-q", "-n", "1", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *options, "tests"]
    # Both have a folder `tests`, which is a package of both parts.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    units = [unit(line.split()[1]) for line in ran.read_text().splitlines()]
    assert units == [MODULES[1]] * 6 + [MODULES[0]] * 6 + [TOGETHER[0]] * 12
    recorded = json.loads((tmp_path / "durations.json").read_text())
    assert sorted(recorded) == sorted([*MODULES[:2], TOGETHER[0]])
    assert max(recorded.values()) < 9


def test_a_worker_that_dies_does_not_stop_the_others(tmp_path: Path) -> None:
    hook = "def pytest_xdist_make_scheduler(config, log):\n    return Units(config, log)\n"
    (tmp_path / "conftest.py").write_text(f"from tests.support.distribution import Units\n\n\n{hook}")
    for module in "abcd":
        (tmp_path / f"test_{module}.py").write_text("def test_one(): pass\n\n\ndef test_two(): pass\n")
    (tmp_path / "test_dying.py").write_text(
        "import os\n\n\ndef test_dying(): os._exit(1)\n\n\ndef test_after(): pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n2",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "1 failed, 9 passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running 'test_dying.py::test_dying'" in done.stdout
