"""A Delta table's change feed to Kafka by delta-spark; runs in the Python that has PySpark, see `spark.py`.

Its settings are one JSON argument. Each line of standard input is a topic, and starts a query from the table's first version. The process
reports the start and the end of each query on standard output. With `follow`, a query ends at the next line.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, struct, to_json


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def session(jars: str, cores: int, more: Mapping[str, str] | None = None) -> SparkSession:
    """A session on so many cores of this machine, or with the master that `more` names."""
    builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    options = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for name, value in (options | dict(more or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def records(spark: SparkSession, table: str) -> DataFrame:
    """Keys and values as cdfd makes them of the same rows."""
    feed = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    return feed.select(to_json(struct("id")).alias("key"), to_json(struct(*map(col, feed.columns))).alias("value"))


def main() -> None:
    settings = json.loads(sys.argv[1])
    spark = session(settings["jars"], settings["cores"])
    tell(ready=time.monotonic())
    for line in sys.stdin:
        began = time.monotonic()
        writer = records(spark, settings["table"]).writeStream.format("kafka").option("topic", line.strip())
        for name, value in settings["producer"].items():
            writer = writer.option(f"kafka.{name}", value)
        if not settings["follow"]:
            writer = writer.trigger(availableNow=True)
        with tempfile.TemporaryDirectory(prefix="cdfd-bench-spark-") as folder:
            query = writer.option("checkpointLocation", folder).start()
            tell(began=began)
            if settings["follow"]:
                sys.stdin.readline()
                query.stop()
            query.awaitTermination()
            tell(ended=time.monotonic())
    spark.stop()


if __name__ == "__main__":
    main()
