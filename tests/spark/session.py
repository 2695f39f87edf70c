"""A real Spark in this process: local, on 127.0.0.1, without a web page, and gone with the process.

with session() as spark:
    spark.read.format("delta").load(...)
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.spark.installation import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings(folder: str, cores: int = 2) -> dict[str, str]:
    """What Spark is told: delta-spark is its catalog, and all that it writes besides tables is below `folder`."""
    return {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "cdfd-tests",
        "spark.jars": ",".join(map(str, jars())),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/local",
        # Queries of a few rows: the JVM's second compiler would be at work for longer than what it speeds up.
        "spark.driver.extraJavaOptions": " ".join(
            [
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                f"-Dderby.system.home={folder}/derby",
                f"-Djava.io.tmpdir={folder}",
            ]
        ),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Logs of a few commits: fifty tasks for their state are fifty times nothing.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.properties.defaults.minReaderVersion": "1",
    }


@contextmanager
def session(cores: int = 2, options: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session, and no trace of it afterwards."""
    from pyspark.sql import SparkSession

    # Executors run `python3` of the PATH where nothing is said.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tempfile.mkdtemp(prefix="cdfd-spark-")
    try:
        builder = SparkSession.builder
        for name, value in (settings(folder, cores) | dict(options or {})).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
            _end_jvm()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_jvm() -> None:
    """`stop` leaves the JVM, which a session with other settings would get again."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        process.wait(timeout=30)
    SparkContext._gateway = SparkContext._jvm = None
