"""Every case that the fuzzer once found something with ends as it should now, with the same limits of time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.run import REGRESSIONS, SETTINGS

CASES = sorted(REGRESSIONS.glob("*.json"))
TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_is_answered(path: Path) -> None:
    environment = {**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    command = [sys.executable, "-m", "fuzz.run", "--replay", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
