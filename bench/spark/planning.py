"""Memory that planning a first snapshot takes on Spark's driver: `python -m bench.spark.planning FILES driver|executors`.

Three processes take it: the driver's Python, its JVM, and the Python process that plans for the JVM. One JSON object on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import cdfd.spark
from bench import tables

MB = 2**20
HEAP = "16g"


class Watch(threading.Thread):
    """The high-water marks of the processes that descend from this one, looked at several times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[int, int] = {}
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.1):
            self._look()

    def _look(self) -> None:
        parents: dict[int, tuple[int, str]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                name, _, fields = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                parents[int(folder.name)] = int(fields.split()[1]), name
        for process, (_, name) in parents.items():
            # Java starts processes as copies of itself, which have its memory for a moment.
            if name.startswith("python") and self._descends(process, parents):
                with suppress(OSError):
                    self.peaks[process] = max(high_water(Path(f"/proc/{process}")), self.peaks.get(process, 0))

    def _descends(self, process: int, parents: dict[int, tuple[int, str]]) -> bool:
        process = parents[process][0]
        while process > 1 and process != os.getpid():
            process = parents[process][0] if process in parents else 0
        return process == os.getpid()


def high_water(folder: Path) -> int:
    """Bytes of resident memory at most; 0 where the process has none any more."""
    lines = (folder / "status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def plan(spark: SparkSession, uri: str, how: str) -> dict[str, Any]:
    """Plan the read and keep its partitions, as a running query does."""
    start = time.perf_counter()
    reader = spark.read.format("cdfd").option("startingVersion", "snapshot").option("snapshotPlanning", how)
    frame = reader.load(uri)
    query: Any = frame._jdf.queryExecution()
    partitions = query.executedPlan().execute().getNumPartitions()
    seconds = time.perf_counter() - start
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    memory = jvm.java.lang.management.ManagementFactory
    used = memory.getMemoryMXBean().getHeapMemoryUsage().getUsed()
    pools = memory.getMemoryPoolMXBeans()
    heap = sum(pool.getPeakUsage().getUsed() for pool in pools if str(pool.getType()) == "Heap memory")
    return {"seconds": seconds, "partitions": partitions, "heap_used_mb": used / MB, "heap_peak_mb": heap / MB}


def main(files: int, how: str) -> None:
    """Measure, and print."""
    uri = str(Path(tables.many_files(files)).resolve())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", HEAP)
        builder = builder.config("spark.ui.enabled", "false").config("spark.local.dir", folder)
        builder = builder.config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC")
        spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        cdfd.spark.register(spark)
        watch.start()
        cost = plan(spark, uri, how)
        watch.done.set()
        watch.join()
        spark.stop()
    own = high_water(Path("/proc/self"))
    planner = max(watch.peaks.values())
    print(json.dumps({"files": files, "how": how, **cost, "python_mb": own / MB, "planner_mb": planner / MB}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
