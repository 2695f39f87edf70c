"""The real command, as a process of its own."""

import json
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

from cdfd.demo.writer import TableWriter
from cdfd.runtime.clock import SystemClock
from cdfd.storage.local import LocalStorage
from tests.support import fork_server
from tests.support.lake import table

WITHIN = 120.0  # seconds until a test gives up; nothing waits for it otherwise
CDFD = [sys.executable, "-m", "cdfd"]


@dataclass(frozen=True)
class Ended:
    """The result of a command that has ended."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        return self.out.splitlines()


def cdfd(*args: object, cwd: Path | None = None) -> Ended:
    """Run a command to its end."""
    with started(*args, cwd=cwd) as command:
        out, err = command.process.communicate(timeout=WITHIN)
    return Ended(command.process.returncode, out.decode(), err.decode())


class Running:
    """A command under way."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = {process.stdout: b"", process.stderr: b""}

    def line(self) -> str:
        """The next line of its standard output, waited for."""
        return self._line(self.process.stdout)

    def log_line(self, containing: str) -> str:
        """The next line of its standard error that contains a text, waited for."""
        while containing not in (line := self._line(self.process.stderr)):
            pass
        return line

    def end(self, signal: int) -> Ended:
        """Send a signal and wait for the end."""
        self.process.send_signal(signal)
        out, err = self.process.communicate(timeout=WITHIN)
        return Ended(
            self.process.returncode,
            (self._rest[self.process.stdout] + out).decode(),
            (self._rest[self.process.stderr] + err).decode(),
        )

    def _line(self, stream: object) -> str:
        deadline = time.monotonic() + WITHIN
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._rest[stream]:
                if not selector.select(deadline - time.monotonic()):
                    raise TimeoutError(f"no line; so far there is {self._rest!r}")
                if not (some := stream.read1(65536)):  # type: ignore[attr-defined]
                    raise EOFError(f"no more lines; there is {self._rest!r}")
                self._rest[stream] += some
        line, _, self._rest[stream] = self._rest[stream].partition(b"\n")
        return line.decode()


@contextmanager
def started(*args: object, cwd: Path | None = None) -> Iterator[Running]:
    """A command that runs until the test is done with it."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = fork_server.start(CDFD, list(map(str, args)), cwd=cwd, **pipes)
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def brief(ended: Ended) -> list[tuple[int, str, int]]:
    rows = [json.loads(line) for line in ended.lines()]
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]


def one_line(ended: Ended, code: int) -> str:
    """The error of a command that failed as it should."""
    assert ended.code == code, ended
    assert ended.out == ""
    assert re.fullmatch(r"cdfd: [^\n]+\n", ended.err), ended.err
    return ended.err


ALL = [
    (1, "insert", 1),
    (2, "insert", 2),
    (3, "insert", 3),
    (4, "update_preimage", 1),
    (4, "update_postimage", 1),
    (5, "delete", 2),
]


async def history(folder: Path) -> TableWriter:
    """Versions 0 to 5: created, three inserts, an update of one row (with a change data file), a delete (by a vector)."""
    writer = await table(LocalStorage(folder), 4, SystemClock())
    await writer.update(pc.field("id") == 1, {"v": pc.scalar("b")})
    await writer.delete(pc.field("id") == 2)
    return writer
