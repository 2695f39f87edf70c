"""`cdfd.spark.register`: any session, in any order, as often as you like; not with a Spark that is too old."""

from pathlib import Path

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cdfd.spark
from cdfd.demo.writer import TableWriter
from cdfd.errors import ConfigError
from cdfd.storage.local import LocalStorage
from tests.support.kafka.pipeline import do
from tests.support.lake import SCHEMA, rows


@pytest.fixture
def writer(tmp_path: Path) -> TableWriter:
    made = TableWriter(LocalStorage(tmp_path / "t", sync=False), SCHEMA)
    do(made.create())
    do(made.insert(rows(1, 2)))
    return made


@pytest.fixture
def table(writer: TableWriter, tmp_path: Path) -> str:
    return f"{tmp_path}/t"


def count(spark: SparkSession, table: str) -> int:
    return spark.read.format("cdfd").option("startingVersion", 0).load(table).where("id > 1").count()


def test_sessions_in_any_order(spark: SparkSession, table: str) -> None:
    younger, youngest = spark.newSession(), spark.newSession()
    cdfd.spark.register(youngest)
    assert count(youngest, table) == 1
    with pytest.raises((Py4JJavaError, PySparkException), match="DATA_SOURCE_NOT_FOUND"):
        count(younger, table)
    for session in (spark, younger, spark, youngest):
        cdfd.spark.register(session)
        assert count(session, table) == 1
        assert session.conf.get("spark.sql.python.filterPushdown.enabled") == "false"


def test_a_query_that_runs_is_not_disturbed(
    spark: SparkSession, writer: TableWriter, table: str, tmp_path: Path
) -> None:
    cdfd.spark.register(spark)
    read = spark.readStream.format("cdfd").option("startingVersion", 0).load(table)
    query = read.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/cp").start()
    try:
        query.processAllAvailable()
        cdfd.spark.register(spark)
        do(writer.insert(rows(3)))
        query.processAllAvailable()
        assert sum(progress.numInputRows for progress in query.recentProgress) == 3
    finally:
        query.stop()


@pytest.mark.parametrize("version", ["4.0.1", "3.5.6"])
def test_an_old_spark_is_refused_by_name(spark: SparkSession, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pyspark, "__version__", version)
        with pytest.raises(ConfigError, match=f"PySpark {version} is too old: cdfd needs 4.1 or newer"):
            cdfd.spark.register(spark)
    with monkeypatch.context() as patch:
        patch.setitem(vars(spark), "version", version)  # a cached property
        with pytest.raises(ConfigError, match=f"the session's Spark {version} is too old"):
            cdfd.spark.register(spark)
