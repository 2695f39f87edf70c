"""`cdfd run` as a process of its own, and what it says."""

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support import fork_server
from tests.support.commands import CDFD

WITHIN = 60.0  # seconds until a test gives up; nothing waits for it otherwise

Line = dict[str, Any]


class Daemon:
    """A daemon that runs from here to the end of a `with`, however it ends.

    Args:
        config: the file.
        options: of `cdfd run`.
        within: a command that becomes the one that it is given.
        command: `cdfd`, or that of another release.

    Attributes:
        lines: its log so far, as it comes.
        said: what it wrote besides, such as the error that it ends with.
    """

    def __init__(self, config: Path, *options: str, within: Sequence[str] = (), command: Sequence[str] = CDFD) -> None:
        arguments = ["--log-format", "json", "run", "-c", str(config), *options]
        self.lines: list[Line] = []
        self.said: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        if within or command is not CDFD:
            self._process = subprocess.Popen([*within, *command, *arguments], **streams)
        else:
            self._process = fork_server.start(command, arguments, **streams)
        self._reader = threading.Thread(target=self._collect, name="daemon's log")
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def error(self) -> str:
        """The message of the line that it ended with, after it did of an error."""
        last = self.lines[-1] if self.lines else {}
        return str(last["message"]) if "exit_code" in last else ""

    def log(self) -> str:
        """All of it, for people."""
        with self._news:
            return "\n".join([*map(_told, self.lines), *self.said])

    def has_said(self, text: str) -> bool:
        """Whether there is a log line with a text in its message."""
        return any(text in line["message"] for line in list(self.lines))

    def wait_for(self, wanted: str | Callable[[Line], bool], *, after: int = 0, timeout: float = WITHIN) -> Line:
        """The first log line, after so many, that contains a text in its message or is as wanted; waited for.

        Raises:
            TimeoutError: there is none, nor will there be if the daemon has ended.
        """

        def fits(line: Line) -> bool:
            return wanted in line["message"] if isinstance(wanted, str) else wanted(line)

        def first_fitting() -> Line | None:
            return next((line for line in self.lines[after:] if fits(line)), None)

        with self._news:
            self._news.wait_for(lambda: self._ended or first_fitting() is not None, timeout)
            line = first_fitting()
        if line is None:
            raise TimeoutError(f"no line {wanted!r}. The log:\n{self.log()}")
        return line

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            self._process.send_signal(number)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """It does nothing meanwhile."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a crash does; it is gone when this returns."""
        self.signal(signal.SIGKILL)
        self.ended()

    def stop(self) -> None:
        """In good order: it must end so."""
        self.signal(signal.SIGTERM)
        code = self.ended()
        assert code == 0, f"ended with {code} after SIGTERM. The log:\n{self.log()}"

    def ended(self, timeout: float = WITHIN) -> int:
        """Its exit code, waited for."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"it still runs after {timeout:g} seconds. The log:\n{self.log()}") from None
        self._reader.join(timeout)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and hasattr(error, "add_note"):
            error.add_note(f"The daemon's log:\n{self.log()}")
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._reader.join()

    def _collect(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for text in stream:
                with self._news:
                    self._take(text.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, text: str) -> None:
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict):
            self.lines.append(line)
        else:
            self.said.append(text)


def configure(
    folder: Path,
    pipeline: str,
    bootstrap_servers: str,
    tables: Sequence[Mapping[str, Any]],
    *,
    sink: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Path:
    """A configuration file in `folder`, with a ledger next to it. Tables have the pipeline's name as their topics' prefix, and the key `id`.

    Args:
        folder: an existing one.
        pipeline: its name; also that of the file.
        bootstrap_servers: where the cluster is.
        tables: the section of each; with `uri`.
        sink: more of `sink`.
        sections: more of the file, or others than there would be.
    """
    document: dict[str, Any] = {
        "pipeline": pipeline,
        "tables": [{"key": ["id"], "start": "earliest"} | dict(table) for table in tables],
        "sink": {
            "kind": "kafka",
            "bootstrap_servers": bootstrap_servers,
            "topics": {"prefix": f"{pipeline}.", "partitions": 3},
        }
        | dict(sink or {}),
        "progress": {"ledger": str(folder / "ledger")},
        "poll": {"interval": "50ms", "max_interval": "200ms"},
        "http": {"listen": None},
    }
    path = folder / f"{pipeline}.yaml"
    path.write_text(json.dumps(document | sections))
    return path


def until(condition: Callable[[], bool], timeout: float = WITHIN, *, every: float = 0.05) -> None:
    """Poll until a condition without a notification holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {timeout:g} seconds")
        time.sleep(every)


def _told(line: Line) -> str:
    return " ".join(f"{line[key]}" for key in ("ts", "level", "logger", "message", "table", "version") if key in line)
