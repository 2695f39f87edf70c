"""What `test_connect.py` runs in an environment with Spark Connect's packages; server and broker come by CDFD_CONNECT."""

import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from lake import SCHEMA, rows
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import cdfd
import cdfd.spark
from cdfd.demo.writer import TableWriter
from cdfd.spark.topics import apply_changes, read_changes
from cdfd.storage.local import LocalStorage
from tests.kafka.pipeline import do
from tests.kafka.reading import read_topic

URL, SERVERS = json.loads(os.environ.get("CDFD_CONNECT", '["", ""]'))
WITHIN = 240.0  # seconds until a query or a daemon counts as stuck

Change = tuple[int, int, str, int]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = SparkSession.builder.remote(URL).create()
    cdfd.spark.register(session)
    yield session
    session.stop()


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Ten rows in two files, an update, a delete."""
    writer = TableWriter(LocalStorage(tmp_path / "orders", sync=False), SCHEMA)
    do(writer.create())
    do(writer.commit("WRITE", [do(writer._add(rows(*range(first, first + 5)))) for first in (0, 5)]))
    do(writer.update(pc.field("id") < 3, {"v": pc.scalar("b")}))
    do(writer.delete(pc.field("id") == 7))
    return str(tmp_path / "orders")


def expected(table: str) -> Counter[Change]:
    found = cdfd.changes(table).read_all().to_pylist()
    return Counter((row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"]) for row in found)


def changes(frame: DataFrame) -> Counter[Change]:
    found = frame.select("_commit_version", "_change_ordinal", "_change_type", "id").collect()
    return Counter((row[0], row[1], row[2], row[3]) for row in found)


def ids(spark: SparkSession, copy: str) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(copy).select("id").collect())


def test_batches(spark: SparkSession, table: str) -> None:
    """Of two sessions of the server, each registers for itself, as often as it likes."""
    found = spark.read.format("cdfd").option("startingVersion", 0).load(table)
    assert changes(found) == expected(table)
    assert changes(found.where("_commit_version = 3")) == Counter({(3, 0, "delete", 7): 1})
    cdfd.spark.register(spark)
    assert changes(found) == expected(table)
    other = SparkSession.builder.remote(URL).create()
    try:
        with pytest.raises(PySparkException, match="DATA_SOURCE_NOT_FOUND"):
            other.read.format("cdfd").load(table).collect()
        cdfd.spark.register(other)
        assert changes(other.read.format("cdfd").load(table)) == expected(table)
    finally:
        other.client.close()  # type: ignore[attr-defined] # `stop` ends all sessions of the user


def test_a_stream_to_a_topic_and_back(spark: SparkSession, table: str, tmp_path: Path) -> None:
    name = f"connect-{uuid.uuid4().hex[:8]}"
    topic = f"{name}.orders"
    sink = {"pipeline": name, "uri": table, "topic": topic, "key": "id", "kafka.bootstrap.servers": SERVERS}
    read = spark.readStream.format("cdfd").option("startingVersion", 0).load(table)
    written = read.writeStream.format("cdfd-kafka").options(**sink).option("checkpointLocation", f"{tmp_path}/sent")
    for _ in range(2):
        assert written.trigger(availableNow=True).start().awaitTermination(WITHIN)
    assert set(Counter((each.key, each.value) for each in read_topic(SERVERS, topic)).values()) == {1}
    assert changes(read_changes(spark, topic, bootstrap_servers=SERVERS, table=table)) == expected(table)
    received = read_changes(spark, topic, bootstrap_servers=SERVERS, table=table, streaming=True)
    trigger = {"availableNow": True}
    query = apply_changes(received, f"{tmp_path}/copy", ["id"], checkpoint=f"{tmp_path}/applied", trigger=trigger)
    assert query is not None
    assert query.awaitTermination(WITHIN)
    assert ids(spark, f"{tmp_path}/copy") == ids(spark, table)


def test_a_batch_that_is_applied(spark: SparkSession, table: str, tmp_path: Path) -> None:
    apply_changes(spark.read.format("cdfd").load(table), f"{tmp_path}/copy", ["id"])
    assert ids(spark, f"{tmp_path}/copy") == ids(spark, table)


def test_errors_are_ours(spark: SparkSession, table: str) -> None:
    with pytest.raises(PySparkException, match="there is no version 99 yet"):
        spark.read.format("cdfd").option("startingVersion", 99).load(table).collect()
