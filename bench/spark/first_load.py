"""Memory that a first load on Spark takes in the daemon, before its rows: `python -m bench.spark.first_load FILES driver|executors`.

The daemon lists or counts the files, cuts them into parts, and Spark plans the jobs of these parts. No task runs, because the table has
only a log. One JSON object on standard output: the peaks of this process and of its JVM's heap, and the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession

from bench import tables
from bench.spark.planning import HEAP, MB, high_water
from cdfd.config.settings import Settings
from cdfd.deliver.assignment import Assignment
from cdfd.deliver.configured import open_table
from cdfd.deliver.large_versions import LargeVersions
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.scan.splits import Measured, Part, Split
from cdfd.sinks.base import Sink as Port
from cdfd.sinks.jobs import Delivered, Job
from cdfd.spark.engine import tasks
from cdfd.spark.engine.engine import deliver_part, pack

ROWS = 1000
"""Rows of each file, as the log has it."""


class Planning:
    """An engine that plans its jobs, and runs none."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.tasks = 0

    async def measure(self, assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
        """Nothing is opened, because there are no files."""
        return [Measured(ROWS * part.count) for part in splits]

    async def deliver(self, assignment: Assignment, parts_of_version: Sequence[Part]) -> list[Delivered]:
        """See the port."""
        items = [pack(part) for part in parts_of_version]
        for wave in tasks.waves(items):
            work = partial(deliver_part, assignment)
            self._spark.dataSource.register(tasks.job_of("first-load", wave, work))
            query: Any = self._spark.read.format("first-load").load()._jdf.queryExecution()
            self.tasks += query.executedPlan().execute().getNumPartitions()
        return []


class Sink:
    """Keeps nothing."""

    job = None

    def takes_job(self, position: Position) -> bool:
        """See the port."""
        return True

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> Job:
        """See the port."""
        return Job("job", position.version, position.phase, parts, size, digest, 0)

    async def claim_job(self, position: Position, job: Job) -> None:
        """See the port."""

    async def finish_job(self, version: Version, position: Position, job: Job, parts: Sequence[Delivered]) -> None:
        """See the port."""


async def plan(spark: SparkSession, config: Settings) -> int:
    """Plan a first load; the number of its tasks."""
    (table_settings,) = config.listed
    settings, engine = config.engine.spark, Planning(spark)
    large = LargeVersions(
        table_settings.uri,
        cast(Port, Sink()),
        partial(Assignment.of, config, table_settings.name),
        engine,
        settings.threshold,
        settings.part_size,
        asyncio.Event(),
        settings.snapshot_planning,
    )
    table = open_table(config, table_settings)
    newest = await table.log.latest_version()
    position = Position((await table.log.header()).metadata.id, newest, phase="snapshot")
    with table.tailer() as tailer:
        version = await large.snapshot(table.stream(), position, tailer)
        await large.deliver(version, position)
    return engine.tasks


def main(files: int, how: str) -> None:
    """Measure, and print."""
    document = {
        "pipeline": "bench",
        "tables": [{"uri": str(Path(tables.many_files(files)).resolve())}],
        "sink": {"kind": "kafka", "bootstrap_servers": "nowhere:9092"},
        "engine": {"kind": "auto", "spark": {"threshold": 1, "snapshot_planning": how}},
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", HEAP)
        builder = builder.config("spark.ui.enabled", "false").config("spark.local.dir", folder)
        builder = builder.config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC")
        spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        before, start = time.process_time(), time.perf_counter()
        tasks = asyncio.run(plan(spark, Settings.model_validate(document)))
        seconds, processor = time.perf_counter() - start, time.process_time() - before
        jvm: Any = spark._jvm
        pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
        heap = sum(pool.getPeakUsage().getUsed() for pool in pools if str(pool.getType()) == "Heap memory")
        spark.stop()
    figures = {"tasks": tasks, "seconds": seconds, "processor_seconds": processor}
    memory = {"daemon_mb": high_water(Path("/proc/self")) / MB, "heap_peak_mb": heap / MB}
    print(json.dumps({"files": files, "how": how, **figures, **memory}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
