"""An update that delta-spark records as change data, against one that cdfd derives from the files.

    python -m bench.refine_spark [--rows 10000000]

Both tables have row tracking, ten files and no deletion vectors, and an update of one row in a hundred rewrites all files. One of them
records a change feed, which delta-spark reads into nothing. cdfd reads the files of the other, in a process of its own.

| figure | what |
|---|---|
| all | the update and the reading of its changes |
| changes | the reading, and what the change feed adds to the update |

Seconds, and processor seconds of the processes that do it. Updates are done `--runs` (3) times in turn, each on a new table. The least
counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from bench.processes import cpu_seconds
from bench.refine import FILES, measure
from tests.support.spark.session import session

JAVA = "-XX:+UseParallelGC -XX:ReservedCodeCacheSize=400m"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an operation.

    Attributes:
        seconds: of a clock.
        processor: seconds of processors.
    """

    seconds: float
    processor: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.processor + other.processor)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.seconds - other.seconds, self.processor - other.processor)

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.processor:.1f} s of processor time)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder,
        session(2, {"spark.driver.extraJavaOptions": JAVA, "spark.driver.memory": "4g"}) as spark,
    ):
        update_rows(spark, Path(folder, "warm"), 100_000, feed=True)
        feed(spark, Path(folder, "warm"))
        updates: dict[bool, list[Cost]] = {True: [], False: []}
        reads: dict[bool, list[Cost]] = {True: [], False: []}
        for run in range(options.runs):
            for with_feed in (True, False):
                table = Path(folder, f"{run}-{with_feed}")
                updates[with_feed].append(update_rows(spark, table, options.rows, feed=with_feed))
                reads[with_feed].append(feed(spark, table) if with_feed else ours(table))
        update = {each: least(costs) for each, costs in updates.items()}
        read = {each: least(costs) for each, costs in reads.items()}
        print(f"update: {update[True]} with a feed, {update[False]} without; load {os.getloadavg()[0]:.1f}")
        print(f"read: {read[True]} by delta-spark, {read[False]} by cdfd")
        theirs, mine = update[True] + read[True], update[False] + read[False]
        print(f"all: {theirs.seconds / mine.seconds:.2f}, {theirs.processor / mine.processor:.2f} of processor time")
        more = read[True] + update[True] - update[False]
        ratios = more.seconds / read[False].seconds, more.processor / read[False].processor
        print(f"changes: {ratios[0]:.2f}, {ratios[1]:.2f} of processor time")


def least(costs: list[Cost]) -> Cost:
    return Cost(min(cost.seconds for cost in costs), min(cost.processor for cost in costs))


def update_rows(spark: SparkSession, table: Path, rows: int, *, feed: bool) -> Cost:
    """Make a table; what its update takes."""
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, account BIGINT, amount DOUBLE, status STRING, at TIMESTAMP) USING delta TBLPROPERTIES "
        f"('delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'false', 'delta.enableChangeDataFeed' = '{feed}')"
    )
    columns = [
        "id",
        "xxhash64(id) % 1000000",
        "rand(1)",
        "element_at(array('new', 'paid', 'shipped'), 1 + int(id % 3))",
    ]
    frame = spark.range(0, rows, 1, FILES).selectExpr(*columns, "timestamp_micros(xxhash64(id) >> 14)")
    frame.toDF("id", "account", "amount", "status", "at").write.format("delta").mode("append").save(str(table))
    return taken(lambda: spark.sql(f"UPDATE delta.`{table}` SET amount = -1 WHERE xxhash64(id, 7) % 100 = 0"))


def feed(spark: SparkSession, table: Path) -> Cost:
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2)
    return taken(lambda: reader.load(str(table)).write.format("noop").mode("overwrite").save())


def ours(table: Path) -> Cost:
    figures = measure(table, "rows")
    return Cost(figures["seconds"], figures["processor"])


def taken(work: Callable[[], object]) -> Cost:
    """The cost of some work in the JVM."""
    gateway = SparkContext._gateway
    assert gateway is not None
    pid = gateway.proc.pid
    began, processor = time.perf_counter(), cpu_seconds(pid)
    work()
    return Cost(time.perf_counter() - began, cpu_seconds(pid) - processor)


if __name__ == "__main__":
    main()
