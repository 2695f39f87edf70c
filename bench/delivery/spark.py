"""The peer: delta-spark's change feed, streamed to Kafka at least once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from tests.support.spark.installation import jars, missing

JOB = Path(__file__).with_name("spark_feed.py")
CORES = 2
PRODUCER = {"compression.type": "lz4", "acks": "all", "batch.size": "262144", "linger.ms": "5"}


class PeerError(Exception):
    """There is no Spark here, and why."""


def versions() -> str:
    """The versions of the peer, if it is here."""
    if missing() is not None:
        return "without Spark"
    (delta,) = (jar.stem.rpartition("-")[2] for jar in jars() if jar.name.startswith("delta-spark_"))
    return f"PySpark {metadata.version('pyspark')}, delta-spark {delta}"


@dataclass(frozen=True, slots=True)
class Spark:
    """A session. `started` is the time just before its process started, `ready` the time from which it took queries."""

    process: subprocess.Popen[str]
    log: IO[str]
    started: float
    ready: float

    def begin(self, topic: str) -> float:
        """Start a query to that topic. Returns the time of its request, by the monotonic clock."""
        self.say(topic)
        return self.hear("began")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self, what: str) -> float:
        return _hear(self.process, self.log, what)

    def check(self) -> None:
        """`PeerError` where it has ended."""
        if self.process.poll() is not None:
            raise _ended(self.process, self.log)


@contextmanager
def spark(table: str, servers: str, *, follow: bool) -> Iterator[Spark]:
    """A session on two cores, for queries that end with what is there, or that follow the table by the default trigger.

    Raises:
        PeerError: there is none, or it failed.
    """
    if (reason := missing()) is not None:
        raise PeerError(reason)
    producer = PRODUCER | {"bootstrap.servers": servers}
    settings = {
        "table": table,
        "jars": ",".join(map(str, jars())),
        "cores": CORES,
        "producer": producer,
        "follow": follow,
    }
    command = [sys.executable, str(JOB), json.dumps(settings)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)
    with tempfile.TemporaryFile("w+") as log:
        started = time.monotonic()
        pipe = subprocess.PIPE
        # A session of its own: the JVM is a child of the Python process, and has to go with it whatever happens.
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment, start_new_session=True
        )
        try:
            yield Spark(process, log, started, _hear(process, log, "ready"))
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def _hear(process: subprocess.Popen[str], log: IO[str], what: str) -> float:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and what in (told := json.loads(line)):
            return float(told[what])
    process.wait(30)
    raise _ended(process, log)


def _ended(process: subprocess.Popen[str], log: IO[str]) -> PeerError:
    log.seek(0)
    return PeerError(f"Spark ended with {process.returncode}: {log.read()[-2000:]}")
