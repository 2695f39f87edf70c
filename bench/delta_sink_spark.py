"""A changelog and a mirror in Delta tables, and delta-spark doing the same.

    python -m bench.delta_sink_spark [--rows 20000000] [--runs 3]

| what | cdfd | delta-spark |
|---|---|---|
| changelog | `cdfd run` from its start, until all change rows are in a target | a stream of the change feed, in a warm session |
| mirror | an update of 1 % of the keys, with rows in memory | `MERGE` of the same rows from a file, with deletion vectors |

Seconds, and processor seconds of the process that does it, in turn. Ratios are delta-spark's by cdfd's: more is better.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import cdfd
from bench import tables
from bench.mirror import Numbers, load, open_mirror, rows, update
from bench.processes import cpu_seconds
from bench.refine_spark import JAVA, Cost, taken
from tests.support.spark.session import session

PATIENCE_SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print("load of the machine:", *os.getloadavg())
    with (
        tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder,
        session(2, {"spark.driver.extraJavaOptions": JAVA, "spark.driver.memory": "4g"}) as spark,
    ):
        changelogs(spark, Path(folder), options.runs)
        asyncio.run(mirrors(spark, Path(folder), options.rows, options.runs))


def changelogs(spark: SparkSession, folder: Path, runs: int) -> None:
    """Print the ratios of delivering all change rows."""
    table = tables.changes_table()
    wanted = sum(batch.num_rows for batch in cdfd.changes(table, 0))
    pairs, started = [], []
    for run in range(runs + 1):
        own, after_start = deliver(table, folder / f"copies-{run}", wanted)
        theirs = taken(partial(stream, spark, table, folder / f"feed-{run}"))
        pairs.append((own, theirs))
        started.append((after_start, theirs))
        count = spark.read.format("delta").load(str(folder / f"feed-{run}")).count()
        if count != wanted:
            raise SystemExit(f"delta-spark has written {count} rows, not {wanted}")
        print(f"changelog, {wanted} rows: cdfd {own}, after its start {after_start}, delta-spark {theirs}", flush=True)
    # The first run warms the session up.
    report("changelog", pairs[1:])
    report("changelog, after the start", started[1:])


def deliver(table: str, copies: Path, wanted: int) -> tuple[Cost, Cost]:
    """The cost of a daemon until the target has all rows: from the start of the process, and from the creation of the target."""
    copies.mkdir()
    config = {
        "pipeline": "bench",
        "tables": [{"uri": table, "start": "earliest"}],
        "sink": {"kind": "delta", "path": str(copies)},
        "http": {"listen": None},
    }
    file = copies / "cdfd.yaml"
    file.write_text(json.dumps(config))
    began = time.perf_counter()
    daemon = subprocess.Popen([sys.executable, "-m", "cdfd", "run", "-c", str(file)], stderr=subprocess.DEVNULL)
    start: Cost | None = None
    target = copies / Path(table).name
    try:
        while records(target / "_delta_log") < wanted:
            if daemon.poll() is not None or time.perf_counter() > began + PATIENCE_SECONDS:
                raise SystemExit("the daemon has not delivered all rows")
            time.sleep(0.02)
            if start is None and target.exists():
                start = Cost(time.perf_counter() - began, cpu_seconds(daemon.pid))
        whole = Cost(time.perf_counter() - began, cpu_seconds(daemon.pid))
        assert start is not None
        return whole, whole - start
    finally:
        daemon.terminate()
        daemon.wait()


def records(log: Path) -> int:
    """The rows that the files of a table have."""
    actions = (json.loads(line) for entry in log.glob("*.json") for line in entry.read_text().splitlines())
    return sum(json.loads(action["add"]["stats"])["numRecords"] for action in actions if "add" in action)


def stream(spark: SparkSession, table: str, target: Path) -> None:
    feed = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    writer = feed.writeStream.format("delta").option("checkpointLocation", f"{target}.checkpoint")
    writer.trigger(availableNow=True).start(str(target)).awaitTermination()


async def mirrors(spark: SparkSession, folder: Path, count: int, runs: int) -> None:
    """Print the ratios of updates of 1 % of the keys."""
    random = np.random.default_rng(3)
    mine, theirs = folder / "mirror", folder / "merged"
    sink = await open_mirror(mine)
    await load(sink, count)
    await update(sink, 1, np.arange(1))
    spark.read.format("delta").load(str(mine)).write.format("delta").option("delta.enableDeletionVectors", "true").save(
        str(theirs)
    )
    pairs = []
    for version in range(2, runs + 3):
        ids = np.sort(random.choice(count, count // 100, replace=False))
        began, processor = time.perf_counter(), time.process_time()
        await update(sink, version, ids)
        own = Cost(time.perf_counter() - began, time.process_time() - processor)
        pairs.append((own, await asyncio.to_thread(merge, spark, theirs, version, ids)))
        print(f"mirror, {len(ids)} of {count} keys: cdfd {own}, delta-spark {pairs[-1][1]}", flush=True)
    report("mirror", pairs[1:])


def merge(spark: SparkSession, table: Path, version: int, ids: Numbers) -> Cost:
    source = f"{table}-{version}.parquet"
    with pq.ParquetWriter(source, rows(ids, version).schema) as writer:
        writer.write_batch(rows(ids, version))
    spark.read.parquet(source).createOrReplaceTempView("updates")
    return taken(
        lambda: spark.sql(
            f"MERGE INTO delta.`{table}` AS target USING updates ON target.order_id = updates.order_id "
            "WHEN MATCHED THEN UPDATE SET *"
        ).collect()
    )


def report(what: str, pairs: list[tuple[Cost, Cost]]) -> None:
    for name, seconds in (
        ("wall", [(b.seconds / a.seconds) for a, b in pairs]),
        ("CPU", [b.processor / a.processor for a, b in pairs]),
    ):
        print(f"{what}, {name}: median {median(seconds):.2f}, worst {min(seconds):.2f}")


if __name__ == "__main__":
    main()
