"""The formats on a cluster: rows of executors that share nothing with the driver but the table, Kafka and what `spark-submit` sends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.cluster.application import Application
from tests.support.cluster.standalone import HOME, Standalone
from tests.support.kafka.pipeline import do
from tests.support.kafka.reading import read_topic
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import SCHEMA, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ROOT = Path(__file__).parents[3]


def places(spark: SparkSession) -> Any:
    import os
    import sys

    import cdfd

    def here(_: Any) -> Any:
        import cdfd

        return [(os.getcwd(), os.path.abspath(cdfd.__file__), sys.path)]

    # A task for each core, and no core does both.
    executors = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(here).collect()
    return {"driver": (os.getcwd(), cdfd.__file__), "executors": executors}


def batch(spark: SparkSession, table: str, source: str, options: dict[str, str]) -> list[str]:
    reader = spark.read.format(source).option("startingVersion", 0).options(**options)
    columns = ("_commit_version", "_change_type", "id", "v", "_commit_timestamp")
    return sorted(str(row.asDict()) for row in reader.load(table).select(*columns).collect())


def stream(spark: SparkSession, table: str, folder: str) -> list[str]:
    rows = spark.readStream.format("cdfd").option("startingVersion", 0).option("maxVersionsPerTrigger", 2).load(table)
    query = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/cp").start(f"{folder}/rows")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    frame = spark.read.parquet(f"{folder}/rows")
    columns = ("_commit_version", "_change_type", "id", "v", "_commit_timestamp")
    return sorted(str(row.asDict()) for row in frame.select(*columns).collect())


def send(spark: SparkSession, table: str, options: dict[str, str], checkpoint: str) -> None:
    rows = spark.readStream.format("cdfd").option("startingVersion", 0).option("maxPartitionBytes", 1).load(table)
    written = rows.writeStream.format("cdfd-kafka").options(**options).option("checkpointLocation", checkpoint)
    assert written.trigger(availableNow=True).start().awaitTermination(120)


def receive(spark: SparkSession, topic: str, servers: str, table: str) -> list[str]:
    from cdfd.spark.topics import read_changes

    frame = read_changes(spark, topic, bootstrap_servers=servers, table=table)
    columns = ("_commit_version", "_change_type", "id", "v", "_commit_timestamp")
    return sorted(str(row.asDict()) for row in frame.select(*columns).collect())


def copy(spark: SparkSession, topic: str, servers: str, table: str, folder: str) -> tuple[list[Any], list[Any]]:
    from cdfd.spark.topics import apply_changes, read_changes

    changes = read_changes(spark, topic, bootstrap_servers=servers, table=table, streaming=True)
    trigger = {"availableNow": True}
    query = apply_changes(changes, f"{folder}/copy", ["id"], checkpoint=f"{folder}/applied", trigger=trigger)
    assert query is not None
    assert query.awaitTermination(120)
    columns = ("id", "v")
    copied, original = (
        [str(row.asDict()) for row in spark.read.format("delta").load(one).select(*columns).orderBy("id").collect()]
        for one in (f"{folder}/copy", table)
    )
    return copied, original


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with a change feed, and two files in each of its first versions."""
    folder = tmp_path_factory.mktemp("lake") / "orders"
    table = TableWriter(LocalStorage(folder, sync=False), SCHEMA)
    do(table.create())
    for first in range(0, 40, 10):
        parts = [rows(*range(start, start + 5)) for start in (first, first + 5)]
        do(table.commit("WRITE", [do(table._add(part)) for part in parts]))
    do(table.update(pc.field("id") < 10, {"v": pc.scalar("paid")}))
    do(table.delete(pc.field("id") > 36))
    return str(folder)


def test_nobody_imports_from_the_repository(driver: Application, cluster: Standalone) -> None:
    """Driver and executors have their own folders, the packed environment, and cdfd from `--py-files`."""
    actual = driver.run(places)
    assert actual["driver"] == [str(driver.folder), f"{cluster.wheel}/cdfd/__init__.py"]
    folders = [Path(folder) for folder, _, _ in actual["executors"]]
    assert {folder.parents[1] for folder in folders} == {worker.folder for worker in cluster.workers}
    spark = (f"{HOME}/", f"{(HOME / 'jars').resolve()}/")
    for folder, imported, path in actual["executors"]:
        assert imported == f"{folder}/cdfd.zip/cdfd/__init__.py"
        # The only paths of this repository are PySpark's own packages and jars.
        assert not [place for place in path if str(ROOT) in place and not place.startswith(spark)]


def test_a_batch_is_that_of_delta_spark(driver: Application, orders: str) -> None:
    theirs = driver.run(batch, table=orders, source="delta", options={"readChangeFeed": "true"})
    assert len(theirs) == 40 + 20 + 3
    for limit in ("1", "1g"):
        assert driver.run(batch, table=orders, source="cdfd", options={"maxPartitionBytes": limit}) == theirs


def test_a_stream_is_that_of_delta_spark(driver: Application, orders: str, tmp_path: Path) -> None:
    theirs = driver.run(batch, table=orders, source="delta", options={"readChangeFeed": "true"})
    assert driver.run(stream, table=orders, folder=str(tmp_path)) == theirs


def test_to_a_topic_and_back(driver: Application, orders: str, broker: SharedBroker, name: str, tmp_path: Path) -> None:
    """`cdfd-kafka`, then the readers of topics: rows, and a copy of the table."""
    servers, topic = broker.bootstrap_servers, f"{name}.orders"
    options = {"pipeline": name, "uri": orders, "topic": topic, "key": "id", "kafka.bootstrap.servers": servers}
    driver.run(send, table=orders, options=options, checkpoint=f"{tmp_path}/sent")
    theirs = driver.run(batch, table=orders, source="delta", options={"readChangeFeed": "true"})
    assert driver.run(receive, topic=topic, servers=servers, table=orders) == theirs
    twice = Counter((record.key, record.value) for record in read_topic(servers, topic))
    assert set(twice.values()) == {1}
    copied, original = driver.run(copy, topic=topic, servers=servers, table=orders, folder=str(tmp_path))
    assert copied == original
