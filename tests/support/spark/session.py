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

from tests.support.spark import archive
from tests.support.spark.home import spark_home
from tests.support.spark.installation import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdfd.errors import CdfdError

SMALL_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For sessions of many queries of a few rows: compiling a plan takes longer than running it."""

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def settings(folder: str, cores: int = 2) -> dict[str, str]:
    """The settings of Spark: delta-spark is its catalog, and its files other than tables are below `folder`.

    The JVM has to be started with the `SPARK_HOME` that this process has from here on.
    """
    os.environ["SPARK_HOME"] = str(spark_home())
    return {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "cdfd-tests",
        # On the class path from the start: Spark opens its jars with the file system that is one of them.
        "spark.driver.extraClassPath": ":".join(map(str, jars())),
        # Hadoop's own classes start a process for each permission and link: hundreds in a test.
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
        "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.local.dir": f"{folder}/local",
        # Queries of a few rows: the JVM's second compiler would be at work for longer than what it speeds up.
        # Without it the JVM reserves 48 MiB for compiled code. Spark needs more, and would compile the same methods again and again.
        "spark.driver.extraJavaOptions": " ".join(
            [
                "-XX:TieredStopAtLevel=1",
                "-XX:ReservedCodeCacheSize=400m",
                "-XX:MetaspaceSize=512m",
                "-XX:+UseSerialGC",
                # By itself the heap begins with a sixty-fourth of the memory, and is collected all the time.
                "-Xms768m",
                "-Xmn512m",
                *archive.options(),
                f"-Dderby.system.home={folder}/derby",
                f"-Djava.io.tmpdir={folder}",
            ]
        ),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark keeps the data of its web page even if the page is off.
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "100",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Logs of a few commits: fifty tasks for their state are fifty times nothing.
        "spark.databricks.delta.snapshotPartitions": "1",
        # VACUUM lists folders in as many tasks, 10,000 by default.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.databricks.delta.properties.defaults.minReaderVersion": "1",
    }


def quick(folder: str) -> dict[str, str]:
    """Of these, the ones with which a JVM starts sooner, and nothing else is different."""
    conf = settings(folder)
    return {name: conf[name] for name in ("spark.driver.extraClassPath", "spark.driver.extraJavaOptions")}


class Borrowed:
    """A session that outlives the engines that are given it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def get(self) -> SparkSession:
        """The session."""
        return self._spark

    def check(self, session: SparkSession, error: CdfdError) -> None:
        """The session lives."""

    def drop(self) -> None:
        """Keep the session."""


@contextmanager
def session(cores: int = 2, options: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session, and no trace of it afterwards."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    assert SparkContext._gateway is None, "a test left a JVM, which has another class path"
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
        process.wait(timeout=300)  # it may have an archive of classes to write
    SparkContext._gateway = SparkContext._jvm = None
