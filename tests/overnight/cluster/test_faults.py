"""Executors, workers and drivers that die while they deliver: every row arrives exactly once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import cdfd
from cdfd.demo.writer import TableWriter
from tests.support.cluster.application import application
from tests.support.cluster.standalone import Standalone
from tests.support.kafka.daemon_process import until
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


WITHIN = 240.0  # seconds until a test gives up; nothing waits for it otherwise
AHEAD = 6  # versions that are there before the query asks for them

Change = tuple[int, int, str, int]


def append(table: TableWriter) -> None:
    """A version of two files."""
    first = 100 * table.version
    parts = [rows(*range(start, start + 20)) for start in (first, first + 50)]
    do(table.commit("WRITE", [do(table._add(part)) for part in parts]))


def start(spark: SparkSession, uri: str, config: str, checkpoint: str) -> None:
    """A file for each task, and a version for each micro-batch."""
    limits = {"startingVersion": "0", "maxVersionsPerTrigger": "1", "maxPartitionBytes": "1"}
    rows = spark.readStream.format("cdfd").options(**limits).load(uri)
    written = rows.writeStream.format("cdfd-kafka").option("config", config).option("checkpointLocation", checkpoint)
    written.start().processAllAvailable()


def expected(uri: str) -> Counter[Change]:
    listing = cdfd.changes(uri).read_all().to_pylist()
    return Counter((row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"]) for row in listing)


def delivered(pipeline: Pipeline) -> Counter[Change]:
    documents = [json.loads(record.value or b"") for record in read_topic(pipeline.direct, pipeline.topic)]
    return Counter(
        (row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"]) for row in documents
    )


def wait_for(pipeline: Pipeline, count: int) -> None:
    read_topic(pipeline.direct, pipeline.topic, at_least=count, timeout=WITHIN)


def batches(checkpoint: Path) -> int:
    """The number of micro-batches that a query has completed."""
    return len(list((checkpoint / "commits").glob("[0-9]*")))


def advance(table: TableWriter, checkpoint: Path, cluster: Standalone) -> None:
    """Wait until the query has completed another micro-batch, with an executor on each worker. There is always more to deliver."""
    done = batches(checkpoint)

    def advanced() -> bool:
        if batches(checkpoint) > table.version - AHEAD:
            append(table)
        return batches(checkpoint) > done and all(worker.executors() for worker in cluster.workers)

    until(advanced, WITHIN)


def kill(cluster: Standalone, random: Random, *, machine: bool) -> None:
    """Kill an executor, or a worker with its executor, at a random moment of a micro-batch."""
    time.sleep(random.uniform(0, 0.6))
    worker = random.choice(cluster.workers)
    if machine:
        worker.kill()
        worker.start()
        return
    for process in worker.executors():
        os.kill(process, signal.SIGKILL)


def test_executors_workers_and_the_driver(cluster: Standalone, broker: SharedBroker, tmp_path: Path, name: str) -> None:
    """The second driver resumes from the checkpoint of the first, with speculation and dynamic allocation."""
    pipeline = Pipeline(tmp_path, name, broker.bootstrap_servers, broker.bootstrap_servers)
    table = pipeline.table()
    for _ in range(AHEAD):
        append(table)
    checkpoint = pipeline.folder / "checkpoint"
    arguments = {"uri": pipeline.uri, "config": str(pipeline.config), "checkpoint": str(checkpoint)}
    source = f"start(spark, **{arguments!r})"
    # A task that dies with its executor counts as a failed one.
    patient = {"spark.task.maxFailures": "30"}
    with application(cluster, pipeline.folder / "first", patient) as first:
        first.define(start)
        first.begin(source)
        random = Random(17)
        for machine in (False, True, False):
            # An executor that dies before it has done anything takes seconds to come back, and proves nothing.
            advance(table, checkpoint, cluster)
            kill(cluster, random, machine=machine)
        advance(table, checkpoint, cluster)
        first.kill()
    assert batches(checkpoint) <= table.version
    cluster.wait_for_workers()
    wanted = expected(pipeline.uri)
    speculative = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1",
        "spark.speculation.quantile": "0.1",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "2",
    }
    with application(cluster, pipeline.folder / "second", patient | speculative) as second:
        second.define(start)
        second.tell(source)
    assert delivered(pipeline) == wanted
