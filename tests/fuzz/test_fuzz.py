"""The fuzzer, for a minute. Its mutants are always the same ones, from the first on; how many fit, the machine decides."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = os.environ.get("CDFD_FUZZ_SECONDS", "60")
TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_nothing_is_found() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    command = [sys.executable, "-m", "fuzz.run", "--seconds", SECONDS, "--workers", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=float(SECONDS) + 300)
    assert done.returncode == 0, done.stdout + done.stderr
