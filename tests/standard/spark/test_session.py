"""The peers are there, and work together."""

from pathlib import Path

from pyspark.sql import SparkSession


def test_delta_spark_writes_and_reads_a_change_feed(spark: SparkSession, tmp_path: Path) -> None:
    table = f"{tmp_path}/t"
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (1), (2)")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    actual = {(row.id, row._change_type, row._commit_version) for row in feed.collect()}
    assert actual == {(1, "insert", 1), (2, "insert", 1), (1, "delete", 2)}
