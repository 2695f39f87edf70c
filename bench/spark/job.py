"""Reads and streams in one Spark session, ours and delta-spark's in turn; runs as a process of its own, see `session.py`.

Each line of standard input is a JSON object that says what to do, each line of standard output one that says what it took.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, struct, to_json

import cdfd.spark
from bench.delivery.spark_feed import session


def batch(spark: SparkSession, reader: str, table: str) -> DataFrame:
    """The change table, read by ours or by delta-spark; or by ours with just the columns that delta-spark has."""
    if reader == "delta":
        return spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    feed = spark.read.format("cdfd").option("startingVersion", 0)
    if reader == "cdfd-same-columns":
        feed = feed.option("columns", ",".join(batch(spark, "delta", table).columns))
    return feed.load(table)


def read(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    frame = batch(spark, asked["reader"], asked["table"])
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return {"seconds": time.perf_counter() - began}


def count(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    return {"count": batch(spark, asked["reader"], asked["table"]).count()}


def stream(spark: SparkSession, asked: dict[str, Any]) -> dict[str, Any]:
    """All of a table's changes to a topic, until nothing is left."""
    began = time.perf_counter()
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
            writer = feed.load(asked["table"]).writeStream.format("cdfd-kafka")
            for name, value in asked["sink"].items():
                writer = writer.option(name, value)
        writer.trigger(availableNow=True).option("checkpointLocation", folder).start().awaitTermination()
    return {"seconds": time.perf_counter() - began}


DOES = {"read": read, "count": count, "stream": stream}


def main() -> None:
    settings = json.loads(sys.argv[1])
    spark = session(settings["jars"], settings["cores"])
    cdfd.spark.register(spark)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(DOES[asked["do"]](spark, asked)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
