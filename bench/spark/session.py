"""A Spark session as a process that takes requests by lines of its standard input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.spark.installation import jars

ROOT = Path(__file__).parents[2]


class JobError(Exception):
    """It ended, and what it said last."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session that takes requests."""

    process: subprocess.Popen[str]
    log: IO[str]

    def ask(self, **what: Any) -> dict[str, Any]:
        """Do it, and what it took."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(what)}\n")
        self.process.stdin.flush()
        return self.heard()

    def heard(self) -> dict[str, Any]:
        """The next answer."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        self.process.wait(30)
        self.log.seek(0)
        raise JobError(f"Spark ended with {self.process.returncode}: {self.log.read()[-3000:]}")


@contextmanager
def session(
    cores: int, settings: Mapping[str, str] | None = None, beside: Sequence[int] = (), *, pinned: bool = False
) -> Iterator[Session]:
    """A session on so many cores.

    Args:
        cores: of this machine.
        settings: more of Spark's; with a master among them, that one.
        beside: sessions of processes whose processor time counts, too.
        pinned: whether the session has the first of the machine's cores only.
    """
    settings_of_job = {
        "cores": cores,
        "jars": ",".join(map(str, jars())),
        "settings": dict(settings or {}),
        "beside": [*beside],
    }
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+") as log:
        # A session of its own: the JVM is a child of the Python process, and has to go with it whatever happens.
        process = subprocess.Popen(
            [
                *(["taskset", "-c", f"0-{cores - 1}"] if pinned else []),
                sys.executable,
                "-m",
                "bench.spark.job",
                json.dumps(settings_of_job),
            ],
            cwd=ROOT,
            stdin=pipe,
            stdout=pipe,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            session = Session(process, log)
            session.heard()
            yield session
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
