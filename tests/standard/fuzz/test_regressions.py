"""Every case that the fuzzer once found something with ends as it should now, with the same limits of time and memory."""

import subprocess
import sys

from tests.support.cache import ROOT
from tests.support.fuzz.run import REGRESSIONS


def test_all_are_answered() -> None:
    cases = sorted(REGRESSIONS.glob("*.json"))
    assert cases
    command = [sys.executable, "-m", "tests.support.fuzz.run", "--replay", *map(str, cases)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
