"""Queries, streams and batches in one Spark session, ours and a peer's in turn; runs as a process of its own, see `session.py`.

Each line of standard input is a JSON object that says what to do, each line of standard output one that says what it took.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

import cdfd.spark
from bench.delivery.spark_feed import records, session
from cdfd.spark.topics import Upsert

COUNTED = [os.getsid(0)]
"""Sessions of processes whose processor time counts: of this one, its JVM and its Python; and those of workers elsewhere."""
TIP_COMMITS = 40
"""Commits that a stream follows at the tip of a table. The first quarter warms up."""


def feed(spark: SparkSession, table: str) -> DataFrame:
    """The change feed of delta-spark."""
    return spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)


def by_format(spark: SparkSession, table: str) -> DataFrame:
    """The changes, by `format("cdfd")`."""
    return spark.read.format("cdfd").option("startingVersion", 0).load(table)


def live_rows(spark: SparkSession, table: str) -> DataFrame:
    """The columns of the table alone, as delta-spark has them."""
    rows = cdfd.spark.snapshot(spark, table)
    return rows.select([sql.col(f"`{name}`") for name in rows.columns if not name.startswith("_")])


def except_all(spark: SparkSession, table: str) -> DataFrame:
    """The rows that version 1 deletes and inserts, from the rows of both versions."""
    old, new = (spark.read.format("delta").option("versionAsOf", version).load(table) for version in (0, 1))
    gone, here = old.exceptAll(new), new.exceptAll(old)
    return gone.withColumn("_change_type", sql.lit("delete")).unionAll(
        here.withColumn("_change_type", sql.lit("insert"))
    )


FRAMES: dict[str, Callable[[SparkSession, str], DataFrame]] = {
    "changes": lambda spark, table: cdfd.spark.changes(spark, table, 0),
    "format": by_format,
    "feed": feed,
    "snapshot": live_rows,
    "delta": lambda spark, table: spark.read.format("delta").load(table),
    "row ids": lambda spark, table: cdfd.spark.changes(spark, table, 1),
    "key": lambda spark, table: cdfd.spark.changes(spark, table, 1, options={"refine": "key", "key": "id"}),
    "except all": except_all,
}
QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all": lambda frame: frame,
    "column": lambda frame: frame.select("id"),
    "key": lambda frame: frame.where("id = 5"),
    "types": lambda frame: frame.groupBy("_change_type").count(),
}


def read(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """A query into nowhere, with its planning."""

    def run() -> None:
        frame = QUERIES[asked["query"]](FRAMES[asked["way"]](spark, asked["table"]))
        frame.write.format("noop").mode("overwrite").save()

    return taken(run)


def count(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    return {"count": FRAMES[asked["way"]](spark, asked["table"]).count()}


VECTORS = {"delta.enableDeletionVectors": "true"}


class Merge:
    """The last change of each key, and one MERGE, without positions: repeats and late changes make the copy wrong."""

    def __init__(self, copy: str) -> None:
        self._copy = copy

    def __call__(self, changes: DataFrame) -> None:
        window = Window.partitionBy("id").orderBy(sql.desc("_commit_version"), sql.desc("_change_ordinal"))
        after = changes.where("_change_type <> 'update_preimage'")
        last = after.withColumn("_rank", sql.row_number().over(window)).where("_rank = 1")
        columns = [name for name in changes.columns if not name.startswith("_")]
        merge(self._copy, last, columns, "s._change_type = 'delete'")


class ExactMerge:
    """As exact as `Upsert`: each row of the copy has the position of its last change, and old images delete the row of their key."""

    def __init__(self, copy: str) -> None:
        self._copy = copy

    def __call__(self, changes: DataFrame) -> None:
        deletes = sql.col("_change_type").isin("delete", "update_preimage")
        order = sql.desc("_commit_version"), deletes, sql.desc("_change_ordinal")
        window = Window.partitionBy("id").orderBy(*order)
        last = changes.withColumn("_rank", sql.row_number().over(window)).where("_rank = 1")
        last = last.withColumns(
            {"_deleted": deletes, "version": sql.col("_commit_version"), "ordinal": sql.col("_change_ordinal")}
        )
        columns = [name for name in last.columns if not name.startswith("_")]
        later = "(s.version > t.version OR s.version = t.version AND s.ordinal > t.ordinal)"
        merge(self._copy, last, columns, "s._deleted", " AND s.version > t.version", f" AND {later}")


def merge(copy: str, last: DataFrame, columns: Sequence[str], deletes: str, newer: str = "", later: str = "") -> None:
    """Apply the last change of each key.

    Args:
        copy: created if it is missing.
        last: the changes.
        columns: of the copy.
        deletes: the condition of changes that delete a row.
        newer: a further condition of deleting a row.
        later: one of updating a row.
    """
    spark = last.sparkSession
    if not Path(copy).exists():
        last.limit(0).select(*columns).write.format("delta").options(**VECTORS).save(copy)
    last.createOrReplaceTempView("last")
    cells = ", ".join(f"t.`{name}` = s.`{name}`" for name in columns)
    names, values = (", ".join(f"{prefix}`{name}`" for name in columns) for prefix in ("", "s."))
    spark.sql(
        f"MERGE INTO delta.`{copy}` t USING last s ON t.id = s.id "
        f"WHEN MATCHED AND {deletes}{newer} THEN DELETE "
        f"WHEN MATCHED AND NOT {deletes}{later} THEN UPDATE SET {cells} "
        f"WHEN NOT MATCHED AND NOT {deletes} THEN INSERT ({names}) VALUES ({values})"
    )


APPLIES: dict[str, Callable[[str], Callable[[DataFrame], None]]] = {
    "upsert": lambda copy: Upsert(copy, ("id",), properties=VECTORS),
    "exact merge": ExactMerge,
    "merge": Merge,
}
COPIES: dict[str, Callable[[DataFrame], None]] = {}
"""One for each copy, as a stream has one for all of its batches."""


def apply(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """A batch of changes into a copy."""
    way, copy = asked["way"], f"{asked['folder']}/{asked['way']}"
    if copy not in COPIES:
        COPIES[copy] = APPLIES[way](copy)
    changes = spark.read.parquet(asked["batch"])
    return taken(lambda: COPIES[copy](changes))


def wrong(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """The rows of each copy that differ from those of `Upsert`."""

    def rows(way: str) -> DataFrame:
        copy = spark.read.format("delta").load(f"{asked['folder']}/{way}")
        return copy.select("id", "amount", "status", "note", "at")

    ours = rows("upsert")
    counts = {way: rows(way).exceptAll(ours).count() + ours.exceptAll(rows(way)).count() for way in APPLIES}
    return {"wrong": counts, "count": ours.count()}


def tip(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """A stream that follows single commits: how long each micro-batch takes before its rows are read, and whole. In milliseconds."""
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder:
        table, rows = f"{folder}/t", pa.table({"id": [1]})
        write_deltalake(table, rows, configuration={"delta.enableChangeDataFeed": "true"})
        changes = spark.readStream.format("cdfd")
        if asked["way"] == "feed":
            changes = spark.readStream.format("delta").option("readChangeFeed", "true")
        writer = changes.option("startingVersion", 0).load(table).writeStream.format("noop")
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
        before, whole, seen = [], [], -1
        try:
            seen, processor = following(query, seen).batchId, sum(processor_seconds())
            for _ in range(TIP_COMMITS):
                write_deltalake(DeltaTable(table), rows, mode="append")
                progress = following(query, seen)
                seen = progress.batchId
                steps = ("latestOffset", "walCommit", "getBatch", "queryPlanning")
                before.append(sum(progress.durationMs.get(step, 0) for step in steps))
                whole.append(progress.durationMs["triggerExecution"])
            processor = sum(processor_seconds()) - processor
        finally:
            query.stop()
        steady = slice(TIP_COMMITS // 4, None)
        return {"before": before[steady], "whole": whole[steady], "processor": processor}


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
    before = None
    # A process that ends meanwhile would count twice, or not at all.
    while True:
        ticks = dict.fromkeys(COUNTED, 0)
        processes = set[str]()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if (of := int(fields[3])) in ticks:
                processes.add(stat.parent.name)
                ticks[of] += sum(map(int, fields[11:15]))
        if processes == before:
            return [each / os.sysconf("SC_CLK_TCK") for each in ticks.values()]
        before = processes


def stream(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """All of a table's changes to a topic, until nothing is left."""
    return taken(lambda: send(spark, asked))


def send(spark: SparkSession, asked: dict[str, Any]) -> None:
    if asked["way"] == "feed":
        writer = records(spark, asked["table"]).writeStream.format("kafka").option("topic", asked["topic"])
        writer = writer.options(**{f"kafka.{name}": value for name, value in asked["producer"].items()})
    else:
        changes = spark.readStream.format("cdfd").option("startingVersion", 0).option("packed", "true")
        writer = changes.load(asked["table"]).writeStream.format("cdfd-kafka").options(**asked["sink"])
    with tempfile.TemporaryDirectory(prefix="cdfd-bench-") as folder:
        writer.trigger(availableNow=True).option("checkpointLocation", folder).start().awaitTermination()


DOES = {"read": read, "count": count, "stream": stream, "apply": apply, "wrong": wrong, "tip": tip}


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
