"""The daemon as an application of the cluster, `spark-submit run.py run`, whose driver dies: every row arrives exactly once."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.cluster.large import WITHIN, append, change, delivered
from tests.support.cluster.standalone import Standalone
from tests.support.kafka.pipeline import Pipeline
from tests.support.kafka.shared import SharedBroker

RUN = "from cdfd.cli import main; main()"
"""As on the page about Kafka."""


@pytest.fixture
def pipeline(broker: SharedBroker, tmp_path: Path, name: str) -> Pipeline:
    return Pipeline(tmp_path, name, broker.bootstrap_servers, broker.bootstrap_servers)


class Submitted:
    """A daemon whose JVM is that of `spark-submit`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.jvm = process
        self.log = log

    @property
    def driver(self) -> int:
        """The process of the daemon, which the JVM has started."""
        for path in Path(f"/proc/{self.jvm.pid}/task").glob("*/children"):
            for child in path.read_text().split():
                if b"run.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        raise AssertionError(f"there is no daemon:\n{self.log.read_text()[-4000:]}")


@contextmanager
def submitted(cluster: Standalone, pipeline: Pipeline, number: int) -> Iterator[Submitted]:
    folder = pipeline.folder / f"driver-{number}"
    folder.mkdir()
    script, log = folder / "run.py", folder / "log"
    script.write_text(RUN)
    command = cluster.submit(folder, str(script), "run", "-c", str(pipeline.config), packed=False)
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=cluster.environment(), stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield Submitted(process, log)
    except Exception as error:
        error.add_note(log.read_text()[-4000:])
        raise
    finally:
        end_all(process)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started, if there are any left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(WITHIN)


def test_a_feed(cluster: Standalone, pipeline: Pipeline) -> None:
    """An orchestrator ends the JVM. The daemon cannot replace it, and ends. The next daemon resumes, and stops cleanly."""
    table = pipeline.table()
    append(table)
    pipeline.configure(
        engine={"kind": "spark", "spark": {"checkpoint": f"{pipeline.folder}/checkpoints", "batch_size": "4KB"}}
    )
    with submitted(cluster, pipeline, 1) as first:
        delivered(pipeline)
        driver = first.driver
        append(table)
        change(table)
        first.jvm.terminate()
        first.jvm.wait(WITHIN)
        ended(driver)
    with submitted(cluster, pipeline, 2) as second:
        delivered(pipeline)
        os.kill(second.driver, signal.SIGTERM)
        assert second.jvm.wait(WITHIN) == 0
    delivered(pipeline)


def ended(process: int) -> None:
    """Wait until a process that is no child of this one has ended."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        readable, _, _ = select.select([watched], [], [], WITHIN)
        assert readable, "the daemon outlives its JVM"
    finally:
        os.close(watched)
