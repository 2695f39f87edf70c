"""Tables that delta-spark's change feed refuses and `format("cdfd")` reads."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("registered")

FEED = "delta.enableChangeDataFeed = true"


def ours(spark: SparkSession, table: str, start: int = 0) -> DataFrame:
    return spark.read.format("cdfd").option("startingVersion", start).load(table)


def refusal(spark: SparkSession, table: str, start: int = 0) -> str:
    """The error of delta-spark."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # its errors are of many classes
        spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", start).load(
            table
        ).collect()
    return str(caught.value)


def rows(frame: DataFrame, *columns: str) -> list[tuple[object, ...]]:
    ordered = frame.orderBy("_commit_version", "_change_ordinal").select("_commit_version", "_change_type", *columns)
    return [tuple(row) for row in ordered.collect()]


def test_a_table_without_a_change_feed(spark: SparkSession, tmp_path: Path) -> None:
    """Changes are those of its files: an update is a delete and an insert."""
    table = f"{tmp_path}/t"
    spark.range(0, 3, 1, 1).write.format("delta").save(table)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    assert "DELTA_MISSING_CHANGE_DATA" in refusal(spark, table)
    assert rows(ours(spark, table), "id") == [
        *((0, "insert", id) for id in range(3)),
        *((1, "delete", id) for id in range(3)),
        *((1, "insert", id) for id in (0, 2)),
    ]


def test_a_feed_that_was_switched_on_later(spark: SparkSession, tmp_path: Path) -> None:
    table = f"{tmp_path}/t"
    spark.range(0, 2, 1, 1).write.format("delta").save(table)
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({FEED})")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
    assert "DELTA_MISSING_CHANGE_DATA" in refusal(spark, table)
    assert rows(ours(spark, table), "id") == [(0, "insert", 0), (0, "insert", 1), (2, "delete", 1)]


def test_columns_that_are_renamed_and_dropped(spark: SparkSession, tmp_path: Path) -> None:
    """A renamed column is the same one; its rows before have the new name."""
    table = f"{tmp_path}/t"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, old STRING, extra INT) USING delta"
        f" TBLPROPERTIES ({FEED}, delta.columnMapping.mode = 'name')"
    )
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (1, 'a', 7)")
    spark.sql(f"ALTER TABLE delta.`{table}` RENAME COLUMN old TO new")
    spark.sql(f"ALTER TABLE delta.`{table}` DROP COLUMN extra")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (2, 'b')")
    assert "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE" in refusal(spark, table)
    actual = ours(spark, table)
    assert actual.columns[:2] == ["id", "new"]
    assert rows(actual, "id", "new") == [(1, "insert", 1, "a"), (4, "insert", 2, "b")]


def test_a_type_that_is_widened(spark: SparkSession, tmp_path: Path) -> None:
    table = f"{tmp_path}/t"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id SMALLINT) USING delta"
        f" TBLPROPERTIES ({FEED}, delta.enableTypeWidening = true)"
    )
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (1)")
    spark.sql(f"ALTER TABLE delta.`{table}` ALTER COLUMN id TYPE INT")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (100000)")
    assert "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE" in refusal(spark, table)
    actual = ours(spark, table)
    assert actual.schema["id"].dataType.simpleString() == "int"
    assert rows(actual, "id") == [(1, "insert", 1), (3, "insert", 100000)]


def test_removes_without_partition_values(spark: SparkSession, tmp_path: Path) -> None:
    """Writers may leave them out; what they were is in the table's state."""
    table = f"{tmp_path}/t"
    name = f"delta.`{table}`"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES ({FEED})")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'x')")
    spark.sql(f"INSERT INTO {name} VALUES (2, 'y')")
    spark.sql(f"DELETE FROM {name} WHERE p = 'x'")
    entry = Path(table) / "_delta_log" / f"{3:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            for field in ("partitionValues", "size", "tags", "stats"):
                action["remove"].pop(field, None)
            action["remove"]["extendedFileMetadata"] = False
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")
    (entry.parent / f".{entry.name}.crc").unlink(missing_ok=True)
    for checksum in entry.parent.glob("*.crc"):
        checksum.unlink()
    assert rows(ours(spark, table, 3), "id", "p") == [(3, "delete", 1, "x")]
    assert "DELTA_REMOVE_FILE_CDC_MISSING_EXTENDED_METADATA" in refusal(spark, table, 3)
