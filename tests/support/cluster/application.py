"""An application on a cluster, started by `spark-submit`, that runs scripts of a test; see `driver.py`."""

import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tests.support.cluster.standalone import Standalone

SCRIPT = Path(__file__).with_name("driver.py")
WITHIN = 240.0  # seconds until an application counts as stuck; nothing waits for it otherwise


class ApplicationError(Exception):
    """A script failed in the driver."""


@dataclass
class Application:
    """One that runs; see `application`.

    Attributes:
        process: `spark-submit`, which is the JVM of the driver.
        folder: the driver's working directory.
        log: what driver and JVM wrote.
    """

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path
    _lines: TextIO

    def run(self, body: Callable[..., Any], **arguments: object) -> Any:
        """Run a function in the driver; what it returns.

        Args:
            body: its text is sent. The first parameter is the session; it sees no other names.
            arguments: of the rest; values with a `repr` that Python reads.
        """
        assignments = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        self.define(body)
        return self.tell(f"answer = {body.__name__}(spark, {assignments})")

    def define(self, body: Callable[..., Any]) -> None:
        """Define a function in the driver, for scripts after this one."""
        self.tell(f"from __future__ import annotations\n{textwrap.dedent(inspect.getsource(body))}")

    def begin(self, source: str) -> None:
        """Send a script without waiting for its answer."""
        self._lines.write(json.dumps(source) + "\n")
        self._lines.flush()

    def answer(self) -> Any:
        """The answer of the oldest script without one.

        Raises:
            ApplicationError: it failed, or the driver is gone.
        """
        line = self._lines.readline()
        if not line:
            raise ApplicationError(f"the driver is gone:\n{self.log.read_text()[-4000:]}")
        reply = json.loads(line)
        if "error" in reply:
            raise ApplicationError(reply["error"])
        return reply["answer"]

    def tell(self, source: str) -> Any:
        """Send a script and wait for its answer."""
        self.begin(source)
        return self.answer()

    def kill(self) -> None:
        """End the driver, its JVM and its Python processes, as a crash does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WITHIN)


@contextmanager
def application(
    cluster: Standalone,
    folder: Path,
    more: Mapping[str, str] | None = None,
    *,
    packed: bool = True,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Application]:
    """Start an application, and kill it in the end.

    Args:
        cluster: where it runs.
        folder: an empty one: its working directory.
        more: settings of Spark.
        packed: whether Spark sends the environment to the executors.
        variables: more of the driver's environment.
    """
    own = cluster.environment() | dict(variables or {})
    with socket.create_server(("127.0.0.1", 0)) as server:
        folder.mkdir(exist_ok=True)
        # Away from the tests: Python imports from the folder of a script.
        script = shutil.copy(SCRIPT, folder)
        command = cluster.submit(folder, script, str(server.getsockname()[1]), more=more, packed=packed)
        log = folder / "driver.log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, cwd=folder, env=own, stdout=file, stderr=file, start_new_session=True)
        try:
            connection = _accepted(server, process, log)
            with connection, connection.makefile("rw") as lines:
                yield Application(process, folder, log, lines)
        finally:
            # Executors notice. An end in good order takes seconds.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(WITHIN)


def _accepted(server: socket.socket, process: subprocess.Popen[bytes], log: Path) -> socket.socket:
    server.settimeout(0.2)
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            if process.poll() is not None:
                break
            continue
        connection.settimeout(WITHIN)
        return connection
    raise ApplicationError(f"no driver:\n{log.read_text()[-4000:]}")
