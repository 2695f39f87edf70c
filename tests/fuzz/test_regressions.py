"""Every case that the fuzzer once found something with ends as it should now, with the same limits of time and memory."""

import os
import subprocess
import sys
from pathlib import Path

from fuzz.run import REGRESSIONS

TESTS = Path(__file__).parents[1]


def test_all_are_answered() -> None:
    cases = sorted(REGRESSIONS.glob("*.json"))
    assert cases
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    command = [sys.executable, "-m", "fuzz.run", "--replay", *map(str, cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
