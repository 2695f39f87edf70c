"""The fuzzer, with its first mutants: the same ones in each run, however busy the machine is. `make fuzz` has more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MUTANTS = os.environ.get("CDFD_FUZZ_MUTANTS", "10000")
TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_nothing_is_found() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    command = [sys.executable, "-m", "fuzz.run", "--mutants", MUTANTS, "--workers", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
