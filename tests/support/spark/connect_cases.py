"""Cases that `test_connect.py` runs in an environment with Spark Connect's packages. CDFD_CONNECT names the server and the broker."""

import json
import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import listener

import cdfd
import cdfd.spark
from cdfd.demo.writer import TableWriter
from cdfd.errors import ConfigError
from cdfd.spark.frames.changes import Reader
from cdfd.spark.lag import Lag, lag, lag_now
from cdfd.spark.topics import apply_changes, read_changes
from cdfd.storage.local import LocalStorage
from tests.support.cluster.large import append, change, delivered
from tests.support.kafka.daemon_process import until
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.reading import read_topic
from tests.support.lake import SCHEMA, rows

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
    rows = cdfd.changes(table).read_all().to_pylist()
    return Counter((row["_commit_version"], row["_change_ordinal"], row["_change_type"], row["id"]) for row in rows)


def changes(frame: DataFrame) -> Counter[Change]:
    rows = frame.select("_commit_version", "_change_ordinal", "_change_type", "id").collect()
    return Counter((row[0], row[1], row[2], row[3]) for row in rows)


def ids(spark: SparkSession, copy: str) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(copy).select("id").collect())


def test_batches(spark: SparkSession, table: str) -> None:
    """Of two sessions of the server, each registers for itself, as often as it likes."""
    frame = spark.read.format("cdfd").option("startingVersion", 0).load(table)
    assert changes(frame) == expected(table)
    assert changes(frame.where("_commit_version = 3")) == Counter({(3, 0, "delete", 7): 1})
    cdfd.spark.register(spark)
    assert changes(frame) == expected(table)
    other = SparkSession.builder.remote(URL).create()
    try:
        with pytest.raises(PySparkException, match="DATA_SOURCE_NOT_FOUND"):
            other.read.format("cdfd").load(table).collect()
        cdfd.spark.register(other)
        assert changes(other.read.format("cdfd").load(table)) == expected(table)
    finally:
        other.client.close()  # type: ignore[attr-defined] # `stop` ends all sessions of the user


@pytest.mark.parametrize("reader", ["spark", "cdfd"])
def test_changes_by_either_reader(spark: SparkSession, table: str, reader: Reader) -> None:
    """The table has change data files and a deletion vector, which the client reads for Spark's own reader."""
    frame = cdfd.spark.changes(spark, table, 0, reader=reader).select("_commit_version", "_change_type", "id")
    wanted = Counter((version, kind, number) for version, _, kind, number in expected(table))
    assert Counter(map(tuple, frame.collect())) == wanted
    assert frame.where("_commit_version = 3").collect() == [(3, "delete", 7)]
    live = cdfd.spark.snapshot(spark, table, reader=reader)
    assert sorted(row.id for row in live.select("id").collect()) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


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


class Heard(listener.StreamingQueryListener):
    """The lags that the server's events tell this client."""

    def __init__(self) -> None:
        self.lags: list[Lag] = []
        self.terminated = threading.Event()

    def onQueryStarted(self, event: listener.QueryStartedEvent) -> None:
        """Nothing is read yet."""

    def onQueryProgress(self, event: listener.QueryProgressEvent) -> None:
        self.lags += lag(event.progress) if event.progress.numInputRows else []

    def onQueryTerminated(self, event: listener.QueryTerminatedEvent) -> None:
        """The last event of the query: after it, the listener can be removed.

        PySpark's `removeListener` holds the lock of the listeners while it waits for the thread that calls them. An event that comes
        meanwhile would wait for that lock, and both of them for ever.
        """
        self.terminated.set()


def test_lag(spark: SparkSession, table: str, tmp_path: Path) -> None:
    """In the progress that the client asks for, and in the events that its listeners get."""
    read = spark.readStream.format("cdfd").option("startingVersion", 1).option("maxVersionsPerTrigger", 1).load(table)
    written = read.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/lag")
    heard = Heard()
    spark.streams.addListener(heard)
    query = written.start()
    try:
        query.processAllAvailable()
        lags = [each for progress in query.recentProgress if progress.numInputRows for each in lag(progress)]
        last = query.lastProgress
        until(lambda: len(heard.lags) == len(lags), WITHIN)
    finally:
        query.stop()
        assert heard.terminated.wait(WITHIN)
        spark.streams.removeListener(heard)
    assert [each.versions for each in lags] == [2, 1, 0]
    assert [each.bytes or 0 for each in lags] == sorted((each.bytes or 0 for each in lags), reverse=True)
    assert lags[0].bytes
    assert heard.lags == lags
    assert last is not None
    assert lag_now(last, table) == Lag(0, 0, 0.0)


def test_run_available(spark: SparkSession, table: str, tmp_path: Path) -> None:
    """In micro-batches within the limit."""
    read = spark.readStream.format("cdfd").option("startingVersion", 1).option("maxVersionsPerTrigger", 1).load(table)
    written = read.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/available")
    cdfd.spark.run_available(written.option("path", f"{tmp_path}/rows"))
    assert changes(spark.read.parquet(f"{tmp_path}/rows")) == expected(table)
    assert len(list((tmp_path / "available" / "commits").glob("[0-9]*"))) == 3


def test_a_batch_that_is_applied(spark: SparkSession, table: str, tmp_path: Path) -> None:
    apply_changes(spark.read.format("cdfd").load(table), f"{tmp_path}/copy", ["id"])
    assert ids(spark, f"{tmp_path}/copy") == ids(spark, table)


def test_a_batch_in_a_session_that_wraps_integers(spark: SparkSession, tmp_path: Path) -> None:
    """The session stays as it is, so such a batch is refused."""
    copy, columns = (
        f"{tmp_path}/copy",
        "'insert' _change_type, 1L _commit_version, now() _commit_timestamp, 0L _change_ordinal",
    )
    apply_changes(spark.sql(f"SELECT 1 id, {columns}"), copy, ["id"])
    spark.conf.set("spark.sql.storeAssignmentPolicy", "legacy")
    try:
        with pytest.raises(ConfigError, match=r"storeAssignmentPolicy is LEGACY.*ANSI"):
            apply_changes(spark.sql(f"SELECT 4294967298L id, {columns}"), copy, ["id"])
    finally:
        spark.conf.unset("spark.sql.storeAssignmentPolicy")
    assert ids(spark, copy) == [1]


def test_a_batch_with_void_fields(spark: SparkSession, tmp_path: Path) -> None:
    columns = "'insert' _change_type, 1L _commit_version, now() _commit_timestamp, 0L _change_ordinal"
    changes = spark.sql(f"SELECT 1 id, named_struct('a', 1, 'b', null) s, {columns}")
    for _ in range(2):
        apply_changes(changes, f"{tmp_path}/copy", ["id"])
    assert spark.read.format("delta").load(f"{tmp_path}/copy").select("s").collect() == [((1,),)]


@pytest.mark.parametrize("kind", ["auto", "spark"])
def test_the_daemon(kind: str, tmp_path: Path) -> None:
    """Its large versions, and all of them, are work of the server."""
    pipeline = Pipeline(tmp_path, f"connect-{uuid.uuid4().hex[:8]}", SERVERS, SERVERS)
    table = pipeline.table()
    append(table)
    remote = {"remote": URL, "threshold": "1KB", "part_size": "1KB", "checkpoint": f"{tmp_path}/checkpoints"}
    pipeline.configure(engine={"kind": kind, "spark": remote})
    with pipeline.daemon() as daemon:
        delivered(pipeline)
        change(table)
        append(table)
        delivered(pipeline)
        if kind == "auto":
            daemon.wait_for("tasks done", timeout=WITHIN)
        daemon.stop()
    delivered(pipeline)


def test_errors_are_ours(spark: SparkSession, table: str) -> None:
    with pytest.raises(PySparkException, match="there is no version 99 yet"):
        spark.read.format("cdfd").option("startingVersion", 99).load(table).collect()
