"""The daemon's engines and `cdfd backfill` on a cluster, while executors, workers and JVMs die: every row arrives exactly once.

`make chaos` has more kills.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import cdfd
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.chaos.faults import SEED, share
from tests.support.cluster.large import WITHIN, Backfill, DeltaTarget, append, change, delivered, engine
from tests.support.cluster.standalone import Standalone
from tests.support.kafka.daemon_process import until
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import SCHEMA, rows

KILLS = share(2, least=1)
"""Of each kind."""
PATIENT = {"spark.task.maxFailures": "30", "spark.python.unix.domain.socket.enabled": "true"}
"""A task that dies with its executor counts as a failed one. The sockets are those of the documentation's applications."""


@pytest.fixture
def pipeline(broker: SharedBroker, tmp_path: Path, name: str) -> Pipeline:
    return Pipeline(tmp_path, name, broker.bootstrap_servers, broker.bootstrap_servers)


def jvm(process: int) -> int | None:
    """The JVM that one of a process's threads has started; None if there is none."""
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in path.read_text().split():
            if b"SparkSubmit" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


def kill_jvm(process: int) -> None:
    actual = jvm(process)
    assert actual is not None, "there is no JVM"
    os.kill(actual, signal.SIGKILL)


def kill_executor(cluster: Standalone, random: Random, within: float = 0.5) -> None:
    """At a random moment, one that runs. There is none if the application has just ended."""
    time.sleep(random.uniform(0, within))
    running = [process for worker in cluster.workers for process in worker.executors()]
    if running:
        with suppress(ProcessLookupError):
            os.kill(random.choice(running), signal.SIGKILL)


def kill_worker(cluster: Standalone, random: Random) -> None:
    """At a random moment, with its executors. Another one comes."""
    time.sleep(random.uniform(0, 0.5))
    worker = random.choice(cluster.workers)
    worker.kill()
    worker.start()
    cluster.wait_for_workers()


def under_way(pipeline: Pipeline, table: TableWriter) -> None:
    """Commit a large version. Some of its rows are delivered when this returns."""
    before = delivered(pipeline)
    append(table)
    assert len(pipeline.read(before + 1, timeout=WITHIN)) > before


def test_large_versions(cluster: Standalone, pipeline: Pipeline) -> None:
    """`engine: auto`. The versions of another table, which are small, do not need a JVM."""
    table, beside = pipeline.table(), TableWriter(LocalStorage(pipeline.folder / "beside", sync=False), SCHEMA)
    do(beside.create())
    append(table)
    pipeline.configure(
        beside=[{"uri": str(pipeline.folder / "beside")}], engine=engine(cluster, pipeline.folder, "auto", PATIENT)
    )
    random = Random(SEED)
    with pipeline.daemon() as daemon:
        for number in range(KILLS):
            under_way(pipeline, table)
            kill_executor(cluster, random)
            change(table)
            under_way(pipeline, table)
            seen = len(daemon.lines)
            kill_jvm(daemon.pid)
            do(beside.insert(rows(number)))
            append(table)
            daemon.wait_for("Spark has stopped", after=seen, timeout=WITHIN)
            read_topic(pipeline.direct, f"{pipeline.name}.beside", at_least=number + 1)
        delivered(pipeline)
        daemon.stop()
    assert not [line for line in daemon.lines if line.get("table") == "beside" and line["level"] == "error"]
    delivered(pipeline)
    into_a_delta_table(cluster, pipeline, table, random)


def into_a_delta_table(cluster: Standalone, pipeline: Pipeline, table: TableWriter, random: Random) -> None:
    """An executor dies between the first and the last file of a version. Each row is in the target once."""
    target = DeltaTarget(pipeline)
    with target.daemon() as daemon:
        daemon.wait_for("starting at version")
        killed = 0
        for _ in range(5 * KILLS):
            left = target.unnamed()
            append(table, files=24)
            until(lambda left=left: bool(target.unnamed() - left), WITHIN)
            kill_executor(cluster, random, within=0.05)
            killed += target.version() != table.version
            until(lambda: target.version() == table.version, WITHIN)
            if killed == KILLS:
                break
        daemon.stop()
    assert killed == KILLS
    target.check()


def test_a_first_load(cluster: Standalone, pipeline: Pipeline) -> None:
    """Executors list its files, by ranges of paths, and one of them dies."""
    table = pipeline.table()
    for _ in range(4):
        append(table)
    pipeline.place.delta().create_checkpoint()
    change(table)
    live = [row["id"] for batch in cdfd.snapshot(pipeline.uri) for row in batch.to_pylist()]
    spark = engine(cluster, pipeline.folder, "auto", PATIENT, snapshot_planning="executors")
    pipeline.configure({"start": "snapshot"}, engine=spark)
    with pipeline.daemon() as daemon:
        pipeline.read(1, timeout=WITHIN)
        kill_executor(cluster, Random(SEED))
        actual = pipeline.read(len(live), timeout=WITHIN)
        daemon.stop()
    assert Counter(json.loads(record.value or b"")["id"] for record in actual) == Counter(live)


def test_a_feed(cluster: Standalone, pipeline: Pipeline) -> None:
    """`engine: spark`, with a query that outlives workers, and one after it that outlives a JVM."""
    table = pipeline.table()
    append(table)
    spark = engine(
        cluster, pipeline.folder, "spark", PATIENT, checkpoint=f"{pipeline.folder}/checkpoints", batch_size="4KB"
    )
    pipeline.configure(engine=spark)
    random = Random(SEED)
    with pipeline.daemon() as daemon:
        for _ in range(KILLS):
            under_way(pipeline, table)
            kill_worker(cluster, random)
            change(table)
            under_way(pipeline, table)
            seen = len(daemon.lines)
            kill_jvm(daemon.pid)
            append(table)
            daemon.wait_for("Spark has stopped", after=seen, timeout=WITHIN)
        delivered(pipeline)
        daemon.stop()
    delivered(pipeline)


def test_a_backfill(cluster: Standalone, pipeline: Pipeline) -> None:
    """Its JVM dies, and later an executor. The same command resumes until all rows are there, and then does nothing."""
    table = pipeline.table()
    for _ in range(6):
        append(table)
    change(table)
    pipeline.configure(engine=engine(cluster, pipeline.folder, "embedded", PATIENT))
    random = Random(SEED)
    with Backfill(pipeline) as first:
        pipeline.read(1, timeout=WITHIN)
        kill_jvm(first.process.pid)
        code, said = first.ended()
    assert code == 1, said
    assert "Spark has stopped" in said
    before = len(pipeline.read())
    with Backfill(pipeline) as second:
        pipeline.read(before + 1, timeout=WITHIN)
        kill_executor(cluster, random)
        code, said = second.ended()
    assert code == 0, said
    assert delivered(pipeline) > before
    with Backfill(pipeline) as third:
        assert third.ended()[0] == 0
    delivered(pipeline)
