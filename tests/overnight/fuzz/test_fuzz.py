"""The fuzzer, with its first mutants: the same ones in each run, however busy the machine is. `make fuzz` has more."""

import os
import subprocess
import sys

from tests.support.cache import ROOT

MUTANTS = os.environ.get("CDFD_FUZZ_MUTANTS", "10000")


def test_nothing_is_found() -> None:
    command = [sys.executable, "-m", "tests.support.fuzz.run", "--mutants", MUTANTS, "--workers", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
