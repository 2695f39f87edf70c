"""A worker of Kafka Connect, in standalone mode, on a free port of 127.0.0.1. It ends with the block."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.consumers.installation import CONNECT, ConsumerError, jars
from tests.support.installation import java
from tests.support.kafka.installation import LOGGING, QUICK, as_text
from tests.support.kafka.node import free_ports

_START_SECONDS = 120
_REQUEST_SECONDS = 90
_STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Connect:
    """A running worker. Connectors have names of your own."""

    url: str
    log_file: Path

    def log(self) -> str:
        """All that it wrote: warnings and errors."""
        return self.log_file.read_text(errors="replace")

    @contextmanager
    def connector(self, name: str, settings: Mapping[str, str]) -> Iterator[None]:
        """A connector with one task, until the end of the block."""
        self._request("PUT", f"/connectors/{name}/config", {"name": name, "tasks.max": "1"} | dict(settings))
        try:
            yield
        finally:
            self._request("DELETE", f"/connectors/{name}")

    def wait(self, name: str, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a connector has done something.

        Raises:
            ConsumerError: its task has failed.
            TimeoutError: the condition does not become true.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            self.check(name)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} has not done it within {seconds:g} seconds. Its log:\n{self.log()[-3000:]}")
            time.sleep(0.2)

    def check(self, name: str) -> None:
        """`ConsumerError` with the trace of a connector's task that has failed."""
        for task in self._request("GET", f"/connectors/{name}/status")["tasks"]:
            if task["state"] == "FAILED":
                raise ConsumerError(f"the task of {name} has failed:\n{_causes(task['trace'])}")

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                raise ConsumerError(f"{method} {path}: {error.read().decode()}") from None


@contextmanager
def connect(bootstrap_servers: str) -> Iterator[Connect]:
    """A worker with Debezium's JDBC sink, its transforms, and Apicurio's Avro converter.

    Raises:
        ConsumerError: it does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="cdfd-connect-"))
    [port] = free_ports(1)
    worker, *plugins = CONNECT
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "listeners": f"http://127.0.0.1:{port}",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "offset.storage.file.filename": str(folder / "offsets"),
        "plugin.path": str(folder / "plugins"),
        "consumer.metadata.max.age.ms": "1000",
    }
    try:
        (folder / "plugins").mkdir()
        for plugin in plugins:
            (folder / "plugins" / plugin).symlink_to(jars(plugin))
        (folder / "worker.properties").write_text(as_text(settings))
        logging = f"-Dlog4j2.configurationFile={LOGGING}"
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [java(), "-Xmx512m", *QUICK, logging, "-cp", f"{jars(worker)}/*", main, "worker.properties"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            started = Connect(f"http://127.0.0.1:{port}", folder / "log")
            _wait(process, started)
            yield started
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # in good order it would take half a minute
            process.wait(_STOP_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], worker: Connect) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            worker._request("GET", "/connectors")
        except (OSError, ConsumerError):  # its server answers 404 before it is ready
            if process.poll() is not None or time.monotonic() > deadline:
                raise ConsumerError(f"Kafka Connect did not start:\n{worker.log()[-3000:]}") from None
            time.sleep(0.2)
        else:
            return


def _causes(trace: str) -> str:
    """The lines of a Java trace that say what went wrong."""
    lines = trace.splitlines()
    return "\n".join(line for line in lines if not line.startswith("\t"))[-3000:]
