"""`cdfd run` as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import processes

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Source:
    """A table and the topic that its changes go to."""

    uri: str
    topic: str
    name: str = "orders"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that runs. `started` is when there was no process yet."""

    process: subprocess.Popen[bytes]
    started: float
    log: Path

    def check(self) -> None:
        """`SystemExit` with the last lines of its log where it has ended."""
        if self.process.poll() is not None:
            raise SystemExit(f"cdfd run ended with {self.process.returncode}:\n{self.words()}")

    def words(self) -> str:
        """The last ones of its log."""
        return self.log.read_text()[-4000:]

    def peak_mb(self) -> float:
        """High-water mark of resident memory."""
        return processes.peak_mb(self.process.pid)

    def cpu_seconds(self) -> float:
        """Of all its threads, by user and system."""
        return processes.cpu_seconds(self.process.pid)


@contextmanager
def daemon(servers: str, sources: Sequence[Source]) -> Iterator[Daemon]:
    """From a new pipeline's first start to SIGTERM, which it has to obey."""
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder:
        config, log = Path(folder, "bench.yaml"), Path(folder, "log")
        config.write_text(json.dumps(_config(servers, sources, folder)))
        with log.open("wb") as stderr:
            started = time.monotonic()
            command = [sys.executable, "-m", "cdfd", "run", "-c", str(config)]
            process = subprocess.Popen(command, cwd=ROOT, stdout=stderr, stderr=stderr)
        try:
            running = Daemon(process, started, log)
            yield running
            running.check()
            process.terminate()
            if process.wait(STOP_SECONDS) != 0:
                raise SystemExit(
                    f"cdfd run ended with {process.returncode} when told to stop:\n{log.read_text()[-4000:]}"
                )
        finally:
            process.kill()
            process.wait()


def _config(servers: str, sources: Sequence[Source], folder: str) -> dict[str, object]:
    tables = [
        {"uri": source.uri, "name": source.name, "topic": source.topic, "key": ["id"], "start": "earliest"}
        for source in sources
    ]
    return {
        "pipeline": f"bench-{uuid.uuid4().hex[:8]}",
        "tables": tables,
        "sink": {"kind": "kafka", "bootstrap_servers": servers, "delivery": "exactly_once", "compression": "lz4"},
        "progress": {"ledger": os.path.join(folder, "ledger")},
        "http": {"listen": None},
    }
