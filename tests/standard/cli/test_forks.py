"""Commands that are forked end, write and are signalled like those that Python starts."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.commands import CDFD, WITHIN, Ended, cdfd, started
from tests.support.sampling import ALL


@pytest.fixture(autouse=True, scope="module")
def forks() -> Iterator[None]:
    """Fork commands also in the long form."""
    with fork_server.forks() if ALL else nullcontext():
        yield


@pytest.mark.parametrize("arguments", [["version"], ["tail", "/nowhere", "--until", "now"], ["nope"]])
def test_result_is_that_of_a_command_that_python_starts(arguments: list[str]) -> None:
    done = subprocess.run([*CDFD, *arguments], capture_output=True, text=True, timeout=WITHIN)
    assert cdfd(*arguments) == Ended(done.returncode, done.stdout, done.stderr)


def test_process_is_killed_while_another_one_runs(tmp_path: Path) -> None:
    with started("tail", tmp_path / "one") as one, started("tail", "other", cwd=tmp_path) as other:
        for each in (one, other):
            each.log_line("waiting for the table to appear")
        one.process.kill()
        assert one.process.wait(WITHIN) == -signal.SIGKILL
        assert other.process.poll() is None
        assert other.end(signal.SIGINT).code == 130


def test_variables_of_python_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with started("version") as command:
        assert isinstance(command.process, fork_server.Forked)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with started("version") as command:
        assert not isinstance(command.process, fork_server.Forked)
