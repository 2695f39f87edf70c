"""Seeds on several processes: the order of what is said, and processes that fail, die or are interrupted."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.simulation.run import Outcome
from tests.support.simulation.seeds import CHUNK, DIED, INTERRUPTED, many

SEEDS = range(1000, 1000 + 5 * CHUNK + 3)


def _violating(seed: int) -> Outcome:
    """Some seeds violate something, and the first ones take longest."""
    time.sleep(0.3 if seed == SEEDS[0] else 0)
    violations = [f"{seed} is odd", "and more"] if seed % 20 == 1 else []
    return Outcome(seed, violations, [], Counter({"rows": seed % 3, f"of {seed % 2}": 1}))


def _failing(seed: int) -> Outcome:
    if seed == SEEDS[CHUNK + 2]:
        raise ValueError("a bug of the simulation")
    return _violating(seed)


def _dying(seed: int) -> Outcome:
    if seed == SEEDS[CHUNK + 2]:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return _violating(seed)


def _slow(seed: int) -> Outcome:
    time.sleep(0.001)
    return Outcome(seed, [], [], Counter())


def _interrupting(seed: int) -> Outcome:
    if seed == CHUNK:
        os.kill(os.getppid(), signal.SIGINT)
    return _slow(seed)


def _orphaned(seed: int) -> Outcome:
    if seed == CHUNK:
        os.kill(os.getppid(), signal.SIGKILL)
    return _slow(seed)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_same_is_said_whatever_the_number_of_processes(processes: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert many(SEEDS, processes, _violating) == 1
    *said, seconds = capsys.readouterr().out.splitlines()
    odd = [seed for seed in SEEDS if seed % 20 == 1]
    assert said[: len(odd)] == [f"seed {seed}: {seed} is odd" for seed in odd]
    assert [line.split() for line in said[len(odd) :]] == [
        ["of", "0", str(len(SEEDS) // 2)],
        ["of", "1", str(len(SEEDS) // 2)],
        ["rows", str(sum(seed % 3 for seed in SEEDS))],
        [str(len(SEEDS)), "seeds,", str(len(odd)), "with", "violations"],
    ]
    assert f"with {processes} processes" in seconds


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_names_its_seed(processes: int) -> None:
    with pytest.raises(ValueError, match="a bug of the simulation") as caught:
        many(SEEDS, processes, _failing)
    assert f"in seed {SEEDS[CHUNK + 2]}" in caught.value.__notes__


def test_a_process_that_dies_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert many(SEEDS, 2, _dying) == DIED
    out, err = capsys.readouterr()
    assert f"a process died; seeds from {SEEDS[CHUNK]} on have no result" in err
    assert f"{CHUNK} seeds, " in out


def test_ctrl_c_ends_all() -> None:
    process = _run_for_minutes(_interrupting)
    assert process.returncode == INTERRUPTED
    assert "interrupted; seeds from " in process.stderr


def test_no_process_outlives_the_first() -> None:
    assert _run_for_minutes(_orphaned).returncode == -signal.SIGKILL


def _run_for_minutes(run: Callable[[int], Outcome]) -> subprocess.CompletedProcess[str]:
    """It returns once no process is left that could write to its standard error."""
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from tests.integration.simulation.test_seeds import {run.__name__}\n"
        "from tests.support.simulation.seeds import many\n"
        f"sys.exit(many(range(400_000), 2, {run.__name__}))\n"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=90, check=False
    )
