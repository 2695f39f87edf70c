"""Reads and streams in one Spark session, ours and delta-spark's in turn; runs as a process of its own, see `session.py`.

Each line of standard input is a JSON object that says what to do, each line of standard output one that says what it took.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import col, row_number, struct, to_json
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

import cdfd.spark
from bench.delivery.spark_feed import session
from cdfd.spark.topics import Upsert

COUNTED = [os.getsid(0)]
"""Sessions of processes whose processor time counts: of this one, its JVM and its Python; and those of workers elsewhere."""
TIP_COMMITS = 40
"""Commits that a stream follows at the tip of a table. The first quarter warms up."""


def batch(spark: SparkSession, reader: str, table: str) -> DataFrame:
    """The change table, read by ours or by delta-spark; or by ours with just the columns that delta-spark has."""
    if reader == "delta":
        return spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    if reader == "cdfd-scans":
        return cdfd.spark.changes(spark, table, 0, reader="spark")
    feed = spark.read.format("cdfd").option("startingVersion", 0)
    if reader == "cdfd-same-columns":
        feed = feed.option("columns", ",".join(batch(spark, "delta", table).columns))
    return feed.load(table)


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all": lambda frame: frame,
    "column": lambda frame: frame.select("id"),
    "key": lambda frame: frame.where("id = 5"),
    "types": lambda frame: frame.groupBy("_change_type").count(),
}


def read(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """A query of the changes into nowhere, with its planning."""
    query = QUERIES[asked.get("query", "all")]

    def run() -> None:
        query(batch(spark, asked["reader"], asked["table"])).write.format("noop").mode("overwrite").save()

    return taken(run)


def snapshot(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """All rows of the newest version into nowhere: the table's columns, or those of change rows."""
    table, delta = asked["table"], spark.read.format("delta").load(asked["table"])
    ours = spark.read.format("cdfd").option("startingVersion", "snapshot")
    if asked["reader"] == "cdfd-same-columns":
        ours = ours.schema(delta.schema)
    if asked["reader"] == "cdfd-scans":
        frame = cdfd.spark.snapshot(spark, table, reader="spark").select(delta.columns)
    else:
        frame = delta if asked["reader"] == "delta" else ours.load(table)
    return taken(lambda: frame.write.format("noop").mode("overwrite").save()) | {"count": frame.count()}


def apply(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """The changes of the last versions into a copy that has the rows of those before; by `Upsert`, or by a MERGE that a user writes."""
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder:
        applied = Upsert(f"{folder}/copy", ("id",)) if asked["reader"] == "cdfd" else Merge(f"{folder}/copy")
        feed = spark.read.format("cdfd").option("startingVersion", 0).option("endingVersion", asked["before"])
        applied(feed.load(asked["table"]))
        changes = spark.read.format("cdfd").option("startingVersion", asked["before"] + 1).load(asked["table"])
        cost = taken(lambda: applied(changes))
        copy = spark.read.format("delta").load(f"{folder}/copy").select("id", "amount", "status")
        wrong = copy.exceptAll(spark.read.format("delta").load(asked["table"]).select("id", "amount", "status")).count()
        return cost | {"wrong": wrong, "count": copy.count()}


class Merge:
    """The last change of each key, and one MERGE: as a user writes it."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self, changes: DataFrame) -> None:
        spark = changes.sparkSession
        window = Window.partitionBy("id").orderBy(col("_commit_version").desc(), col("_change_ordinal").desc())
        after = changes.where("_change_type <> 'update_preimage'")
        last = after.withColumn("_rank", row_number().over(window)).where("_rank = 1")
        columns = [name for name in changes.columns if not name.startswith("_")]
        if not Path(self._target).exists():
            last.where("_change_type <> 'delete'").select(*columns).write.format("delta").save(self._target)
            return
        last.select(*columns, "_change_type").createOrReplaceTempView("last")
        cells = ", ".join(f"t.`{name}` = s.`{name}`" for name in columns)
        names, values = (", ".join(f"{prefix}`{name}`" for name in columns) for prefix in ("", "s."))
        spark.sql(
            f"MERGE INTO delta.`{self._target}` t USING last s ON t.id = s.id "
            f"WHEN MATCHED AND s._change_type = 'delete' THEN DELETE WHEN MATCHED THEN UPDATE SET {cells} "
            f"WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT ({names}) VALUES ({values})"
        )


def tip(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """A stream that follows single commits: how long each micro-batch takes before its rows are read, and whole. In milliseconds."""
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder:
        table, rows = f"{folder}/t", pa.table({"id": [1]})
        write_deltalake(table, rows, configuration={"delta.enableChangeDataFeed": "true"})
        feed = spark.readStream.format("cdfd")
        if asked["reader"] == "delta":
            feed = spark.readStream.format("delta").option("readChangeFeed", "true")
        begun = feed.option("startingVersion", 0).load(table)
        query = begun.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint").start()
        before, whole, seen = [], [], -1
        try:
            seen = following(query, seen).batchId
            for _ in range(TIP_COMMITS):
                write_deltalake(DeltaTable(table), rows, mode="append")
                progress = following(query, seen)
                seen = progress.batchId
                steps = ("latestOffset", "walCommit", "getBatch", "queryPlanning")
                before.append(sum(progress.durationMs.get(step, 0) for step in steps))
                whole.append(progress.durationMs["triggerExecution"])
        finally:
            query.stop()
        return {"before": before[TIP_COMMITS // 4 :], "whole": whole[TIP_COMMITS // 4 :]}


def following(query: StreamingQuery, seen: int) -> StreamingQueryProgress:
    """The progress of the first micro-batch after batch `seen` that has run."""
    deadline = time.monotonic() + 60
    while True:
        for progress in query.recentProgress:
            if progress.batchId > seen and "addBatch" in progress.durationMs:
                return progress
        if query.exception() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the stream does not follow: {query.exception()}")
        time.sleep(0.01)


def taken(work: Callable[[], object]) -> dict[str, Any]:
    """Seconds of a clock, and processor seconds: of the driver's processes, of those of each worker, and of all."""
    began, before = time.perf_counter(), processor_seconds()
    work()
    seconds, after = time.perf_counter() - began, processor_seconds()
    driver, *workers = (now - then for then, now in zip(before, after, strict=True))
    return {"seconds": seconds, "processor": driver + sum(workers), "workers": workers}


def processor_seconds() -> list[float]:
    """Of all processes of each session that counts. Each one has the seconds of its children that have ended, too."""
    ticks = dict.fromkeys(COUNTED, 0)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if (of := int(fields[3])) in ticks:
            ticks[of] += sum(map(int, fields[11:15]))
    return [each / os.sysconf("SC_CLK_TCK") for each in ticks.values()]


def count(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    return {"count": batch(spark, asked["reader"], asked["table"]).count()}


def stream(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """All of a table's changes to a topic, until nothing is left."""
    return taken(lambda: sent(spark, asked))


def sent(spark: SparkSession, asked: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder:
        if asked["reader"] == "delta":
            feed = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
            changes = feed.load(asked["table"])
            records = changes.select(
                to_json(struct("id")).alias("key"), to_json(struct(*map(col, changes.columns))).alias("value")
            )
            writer = records.writeStream.format("kafka").option("topic", asked["topic"])
            for name, value in asked["producer"].items():
                writer = writer.option(f"kafka.{name}", value)
        else:
            feed = spark.readStream.format("cdfd").option("startingVersion", 0)
            feed = feed.option("packed", asked["reader"] == "cdfd-packed")
            writer = feed.load(asked["table"]).writeStream.format("cdfd-kafka")
            for name, value in asked["sink"].items():
                writer = writer.option(name, value)
        writer.trigger(availableNow=True).option("checkpointLocation", folder).start().awaitTermination()


DOES = {"read": read, "count": count, "stream": stream, "snapshot": snapshot, "apply": apply, "tip": tip}


def main() -> None:
    settings = json.loads(sys.argv[1])
    COUNTED.extend(settings["beside"])
    spark = session(settings["jars"], settings["cores"], settings["settings"])
    cdfd.spark.register(spark)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(DOES[asked["do"]](spark, asked)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
