"""A broker's process: started and ended, on purpose or by `kill -9`."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

READY = "Kafka Server started"
# The process writes its id before it becomes the broker. The guard, which removes the folder, finds the process by it; see guard.py.
_LAUNCH = 'echo $$ > pid && exec "$@"'


_STOP_SECONDS = 5.0
_DUMP_SECONDS = 5.0


def _states(pid: int) -> Iterator[tuple[str, str]]:
    """The state of each thread of a process, as `ps` abbreviates it, and the kernel's function that it waits in."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            yield (task / "stat").read_text().rpartition(")")[2].split()[0], (task / "wchan").read_text()


def thread_dump(folder: Path) -> str:
    """The JVM's dump of the threads of a folder's broker. If it writes none within five seconds, the kernel's states of them."""
    log = folder / "broker.log"
    before = log.stat().st_size
    try:
        pid = int((folder / "pid").read_text())
        os.kill(pid, signal.SIGQUIT)
    except (FileNotFoundError, ProcessLookupError):  # it was ended, or it ended by itself
        return "The broker has no process."
    deadline = time.monotonic() + _DUMP_SECONDS
    while time.monotonic() < deadline:
        dump = log.read_bytes()[before:].decode(errors="replace")
        if "JNI global refs" in dump:
            return dump
        time.sleep(0.05)
    waits = "\n".join(f"{number} threads: {state} {place}" for (state, place), number in Counter(_states(pid)).items())
    return f"The JVM writes no dump within {_DUMP_SECONDS:g} s.\n{waits}"


class BrokerError(Exception):
    """There is no broker, and why."""


# Below those that systems give to clients. A client that keeps connecting to a port of theirs on its own machine, while the broker is away,
# in the end connects to itself.
_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 without a listener at this moment."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise BrokerError("there are no free ports")


class Node:
    """A process that runs in a folder and writes `broker.log` there.

    Args:
        folder: an existing one, its own.
        command: what it runs.
        timeout: seconds to start in, and seconds to end in.
    """

    def __init__(self, folder: Path, command: Sequence[str], *, timeout: float = 60.0) -> None:
        self.folder = folder
        self._command = command
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._living().pid

    def log(self) -> str:
        """All that it wrote since it was first started."""
        path = self.folder / "broker.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Return when it is ready for clients. `BrokerError` with what it wrote where it ends instead, or takes too long."""
        if self.running:
            raise BrokerError("the broker runs already")
        before = len(self.log())
        with (self.folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, "sh", *self._command],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + self._timeout
        while READY not in self.log()[before:]:
            ended, late = not self.running, time.monotonic() > deadline
            if ended or late:
                self.kill()
                what = "ended while it started" if ended else f"was not ready within {self._timeout:g} seconds"
                raise BrokerError(f"the broker {what}. Its last words:\n{self.log()[before:][-4000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it in good order."""
        process = self._living()
        process.terminate()
        try:
            process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"the broker did not end within {self._timeout:g} seconds") from None
        self._forget()

    def kill(self) -> None:
        """End it without warning, as a crash does. Nothing where it has ended already."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(self._timeout)
            self._forget()

    def pause(self) -> None:
        """Let it hang: its connections stay open, and nothing is answered."""
        pid = self._living().pid
        self._signal(signal.SIGSTOP)
        # The signal is on its way: a thread that runs stops when it gets there, and until then it may still answer.
        deadline = time.monotonic() + _STOP_SECONDS
        while {state for state, _ in _states(pid)} != {"T"}:
            if time.monotonic() > deadline:
                raise BrokerError(f"the broker did not stop within {_STOP_SECONDS} s")
            time.sleep(0.001)

    def resume(self) -> None:
        """Resume the process."""
        self._living()
        self._signal(signal.SIGCONT)

    def leave(self) -> None:
        """Let it run on without us."""
        if self._process is not None:
            let_go(self._process)
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _living(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise BrokerError(f"the broker does not run. Its last words:\n{self.log()[-4000:]}")
        return self._process

    def _forget(self) -> None:
        self._process = None
        (self.folder / "pid").unlink(missing_ok=True)


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Python warns of a process that is forgotten while it runs. This one is meant to outlive us."""
    process.returncode = 0
