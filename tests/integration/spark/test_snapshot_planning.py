"""Snapshots whose files executors list from delta-spark's checkpoints: rows and ordinals are those of `cdfd.snapshot`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cdfd
from cdfd.delta import paths

pytestmark = pytest.mark.usefixtures("registered")

COLUMNS = ("_change_ordinal", "_commit_version", "_change_type", "id", "v", "p")
PART_SIZE = "spark.databricks.delta.checkpoint.partSize"
STATS = "spark.databricks.delta.stats.collect"


@contextmanager
def configured(spark: SparkSession, **settings: object) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, str(value))
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def insert(spark: SparkSession, table: str, first: int) -> None:
    rows = spark.range(first, first + 20, 1, 2).selectExpr("id", "CONCAT('v', id) AS v", "CONCAT('p ', id % 3) AS p")
    rows.write.format("delta").mode("append").partitionBy("p").save(table)


@pytest.fixture(scope="module", params=["classic", "v2"])
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    """A checkpoint of many parts or sidecars, with deletion vectors, and files without statistics. Then versions that change its files."""
    path = str(tmp_path_factory.mktemp("lake") / "orders")
    name = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, v STRING, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES"
        " (delta.enableDeletionVectors = true, delta.checkpointInterval = 4,"
        f" delta.checkpointPolicy = '{request.param}')"
    )
    with configured(spark, **{PART_SIZE: 4}):
        insert(spark, path, 0)
        with configured(spark, **{STATS: "false"}):
            insert(spark, path, 20)
        insert(spark, path, 40)
        spark.sql(f"DELETE FROM {name} WHERE id % 7 = 0")
    spark.sql(f"DELETE FROM {name} WHERE id % 11 = 0")
    spark.sql(f"UPDATE {name} SET v = 'new' WHERE id = 30")
    spark.sql(f"DELETE FROM {name} WHERE p = 'p 1' AND id < 20")
    return path


def test_rows_and_ordinals(spark: SparkSession, table: str) -> None:
    log = Path(table) / paths.LOG
    several = (
        list((log / "_sidecars").iterdir()) if (log / "_sidecars").exists() else list(log.glob("*4.checkpoint.*.*"))
    )
    assert len(several) > 1
    actual = spark.read.format("cdfd").option("startingVersion", "snapshot").option("snapshotPlanning", "executors")
    frame = actual.option("maxPartitionBytes", "512k").load(table)
    assert frame.rdd.getNumPartitions() > 3
    wanted = cdfd.snapshot(table).read_all().select(COLUMNS).to_pylist()
    assert [row["_change_ordinal"] for row in wanted] == list(range(len(wanted)))
    rows = sorted(frame.select(*COLUMNS).collect())
    assert [row.asDict() for row in rows] == wanted
    live = spark.read.format("delta").load(table)
    assert sorted(row.id for row in rows) == sorted(row.id for row in live.collect())
