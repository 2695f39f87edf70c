"""`format("cdfd")`, batch: the rows that `cdfd.changes` gives and, where it answers, those of delta-spark's change feed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import cdfd
import cdfd.spark
from cdfd.model.columns import CHANGE_ORDINAL
from tests.support.spark.workload import settings

pytestmark = pytest.mark.usefixtures("registered")

Table = str
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def orders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table with a change feed, partitioned, with deletion vectors: inserts, an update, a delete, a merge, an OPTIMIZE, an added column."""
    table = f"{tmp_path_factory.mktemp('lake')}/orders"
    name = f"delta.`{table}`"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT NOT NULL, amount DECIMAL(12,2), status STRING COMMENT 'of now', day DATE, at TIMESTAMP,"
        " local TIMESTAMP_NTZ, raw BINARY, tags ARRAY<STRING>, sizes MAP<STRING, INT>, place STRUCT<lat: DOUBLE, names: ARRAY<STRING>>)"
        " USING delta PARTITIONED BY (day) TBLPROPERTIES"
        " (delta.enableChangeDataFeed = true, delta.enableDeletionVectors = true)"
    )
    row = (
        "SELECT id, CAST(id * 1.5 AS DECIMAL(12,2)), CONCAT('s', id % 3), DATE'2026-01-01' + CAST(id % 3 AS INT),"
        " TIMESTAMP'2026-01-01 10:00:00' + id * INTERVAL 1 SECOND, TIMESTAMP_NTZ'2026-01-01 10:00:00',"
        " IF(id % 2 = 0, NULL, CAST('x' AS BINARY)), ARRAY('a', NULL), MAP('k', CAST(id AS INT)),"
        " NAMED_STRUCT('lat', 0.5D, 'names', ARRAY('n')) FROM RANGE({}, {})"
    )
    spark.sql(f"INSERT INTO {name} {row.format(0, 20)}")
    spark.sql(f"INSERT INTO {name} {row.format(20, 40)}")
    spark.sql(f"UPDATE {name} SET status = 'paid' WHERE id % 4 = 0")
    spark.sql(f"DELETE FROM {name} WHERE id IN (1, 2, 3)")
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN (note STRING)")
    spark.sql(
        f"MERGE INTO {name} t USING (SELECT id FROM RANGE(35, 45)) s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET note = 'merged', day = DATE'2026-02-01'"
        " WHEN NOT MATCHED THEN INSERT (id, day) VALUES (s.id, DATE'2026-01-01')"
    )
    return table


@pytest.fixture(scope="module")
def numbers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Six files of ten rows each, partitions of even and odd files; of the file of 30 to 39, only the log is left."""
    table = f"{tmp_path_factory.mktemp('lake')}/numbers"
    for number in range(6):
        frame = spark.range(10 * number, 10 * number + 10, 1, 1).selectExpr("id", f"{number % 2} AS p")
        frame.write.format("delta").partitionBy("p").mode("append").save(table)
    (gone,) = spark.read.format("delta").load(table).where("id = 33").select("_metadata.file_path").collect()
    Path(gone[0].removeprefix("file:").replace("//", "/")).unlink()
    return table


def ours(spark: SparkSession, table: Table, **options: object) -> DataFrame:
    reader = spark.read.format("cdfd")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(table)


def theirs(spark: SparkSession, table: Table, **options: object) -> DataFrame:
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(table)


def rows(frame: DataFrame) -> list[str]:
    """In an order that both have, as text: dicts do not compare."""
    return sorted(str(row.asDict(recursive=True)) for row in frame.collect())


def of_python(table: Table, *args: Any, **options: Any) -> list[tuple[int, int, str, int]]:
    rows_read = (
        cdfd.changes(table, *args, **options)
        .read_all()
        .select(["_commit_version", CHANGE_ORDINAL, "_change_type", "id"])
    )
    return sorted(tuple(row.values()) for row in rows_read.to_pylist())


def of_spark(frame: DataFrame) -> list[tuple[int, int, str, int]]:
    return sorted(tuple(row) for row in frame.select("_commit_version", CHANGE_ORDINAL, "_change_type", "id").collect())


class TestRows:
    def test_those_of_delta_spark(self, spark: SparkSession, orders: Table) -> None:
        actual, wanted = ours(spark, orders, startingVersion=0), theirs(spark, orders, startingVersion=0)
        assert rows(actual.drop(CHANGE_ORDINAL)) == rows(wanted)
        assert actual.columns == [*wanted.columns, CHANGE_ORDINAL]
        assert [field.dataType for field in actual.schema][:-1] == [field.dataType for field in wanted.schema]

    @pytest.mark.parametrize("limit", ["1", "1g"])
    def test_those_of_python(self, spark: SparkSession, orders: Table, limit: str) -> None:
        """In tasks of one file each, and in one: ordinals too."""
        actual = ours(spark, orders, maxPartitionBytes=limit)
        assert of_spark(actual) == of_python(orders)

    def test_of_some_versions(self, spark: SparkSession, orders: Table) -> None:
        """Columns are those of the last version that is read; for delta-spark, of the newest."""
        for start, end in ((2, 3), (4, 4), (7, 7)):
            actual = ours(spark, orders, startingVersion=start, endingVersion=end)
            wanted = theirs(spark, orders, startingVersion=start, endingVersion=end)
            assert rows(actual.drop(CHANGE_ORDINAL)) == rows(wanted if end == 7 else wanted.drop("note"))

    def test_an_end_after_the_newest_version(self, spark: SparkSession, orders: Table) -> None:
        """As delta-spark: the range ends at the newest version. It may also begin with the next one."""
        wanted = rows(theirs(spark, orders, startingVersion=6, endingVersion=99))
        assert rows(ours(spark, orders, startingVersion=6, endingVersion=99).drop(CHANGE_ORDINAL)) == wanted
        assert ours(spark, orders, startingVersion=8, endingVersion=99).count() == 0

    def test_of_a_view_in_sql(self, spark: SparkSession, orders: Table) -> None:
        spark.sql(f"CREATE TEMPORARY VIEW feed USING cdfd OPTIONS (path '{orders}', startingVersion 6)")
        try:
            assert rows(spark.table("feed")) == rows(ours(spark, orders, startingVersion=6))
        finally:
            spark.sql("DROP VIEW feed")

    def test_a_table_of_the_catalog(self, spark: SparkSession, orders: Table) -> None:
        """Spark 4.1 would create it, and then read it without its options."""
        with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW feed USING cdfd"):
            spark.sql(f"CREATE TABLE feed USING cdfd OPTIONS (startingVersion 6) LOCATION '{orders}'")

    def test_since_a_time(self, spark: SparkSession, orders: Table) -> None:
        times = {row.version: row.timestamp for row in spark.sql(f"DESCRIBE HISTORY delta.`{orders}`").collect()}
        at = times[3].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        actual = ours(spark, orders, startingTimestamp=at, endingTimestamp=datetime.fromisoformat(at).isoformat() + "Z")
        assert {row._commit_version for row in actual.collect()} == {3}
        wanted = theirs(spark, orders, startingTimestamp=at, endingTimestamp=at)
        assert rows(actual.drop(CHANGE_ORDINAL)) == rows(wanted.drop("note"))

    def test_a_snapshot(self, spark: SparkSession, orders: Table) -> None:
        actual = ours(spark, orders, startingVersion="snapshot", endingVersion=3)
        assert {row._change_type for row in actual.collect()} == {"insert"}
        live = spark.read.format("delta").option("versionAsOf", 3).load(orders)
        assert rows(actual.select(live.columns)) == rows(live)

    def test_nothing(self, spark: SparkSession, orders: Table) -> None:
        assert ours(spark, orders, startingVersion="latest").count() == 0

    def test_from_file_actions(self, spark: SparkSession, orders: Table) -> None:
        actual = ours(spark, orders, changes="files", startingVersion=3)
        assert {row._change_type for row in actual.collect()} == {"insert", "delete"}


class TestColumns:
    def test_by_name(self, spark: SparkSession, orders: Table) -> None:
        assert ours(spark, orders, columns="NOTE, id").columns[:3] == ["note", "id", "_change_type"]
        actual = ours(spark, orders, columns="id,_change_type")
        assert actual.columns == ["id", "_change_type"]
        assert actual.count() == len(of_python(orders))

    def test_by_schema(self, spark: SparkSession, orders: Table) -> None:
        actual = spark.read.format("cdfd").schema("_commit_version BIGINT, ID BIGINT").load(orders)
        assert actual.columns == ["_commit_version", "ID"]
        assert sorted((row[0], row[1]) for row in actual.collect()) == sorted(
            (row[0], row[3]) for row in of_python(orders)
        )

    def test_none_of_the_table(self, spark: SparkSession, orders: Table) -> None:
        actual = ours(spark, orders, columns="_commit_version,_change_ordinal")
        assert sorted(tuple(row) for row in actual.collect()) == [row[:2] for row in of_python(orders)]

    def test_of_another_type(self, spark: SparkSession, orders: Table) -> None:
        with pytest.raises(PySparkException, match="column 'id' is bigint, but the requested schema has string"):
            spark.read.format("cdfd").schema("id STRING").load(orders).collect()

    def test_without_those_that_have_the_names_of_change_columns(self, spark: SparkSession, tmp_path: Path) -> None:
        table = str(tmp_path)
        for kind, version in (("a", "x"), ("b", "y")):
            rows = pa.table({"id": [1, 2], "_change_type": [kind] * 2, "_commit_version": [version] * 2})
            write_deltalake(table, rows, mode="append", partition_by=["_commit_version"])
        wanted, names = of_python(table, columns=["id"]), ["id", "_change_type", "_commit_version", CHANGE_ORDINAL]
        assert len(wanted) == 4
        schema = "id BIGINT, _change_type STRING, _commit_version BIGINT, _change_ordinal BIGINT"
        options = {"columns": "id"}
        for frame in (
            ours(spark, table, columns="id"),
            ours(spark, table, columns=",".join(names)),
            spark.read.format("cdfd").schema(schema).load(table),
            cdfd.spark.changes(spark, table, options=options, ordinals=True, reader="spark"),
            cdfd.spark.changes(spark, table, options=options, ordinals=True, reader="cdfd"),
        ):
            assert of_spark(frame) == wanted
        of_ids = spark.read.format("cdfd").schema("id BIGINT").load(table)
        assert sorted(row.id for row in of_ids.collect()) == [1, 1, 2, 2]
        with pytest.raises(PySparkException, match="Leave them out with `columns`"):
            ours(spark, table)


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"startingVersions": 1}, "Did you mean startingVersion?"),
            ({"startingVersion": 99}, "there is no version 99 yet; the newest is"),
            ({"startingVersion": "snapshot", "endingVersion": 99}, "Set endingVersion to a version up to 7"),
            ({"ignoreDeletes": "true"}, "leave them out with `excludeChangeTypes`"),
            ({"columns": "idd"}, "Did you mean 'id'?"),
            ({"readChangeFeed": "false"}, "cdfd reads only changes"),
        ],
    )
    def test_of_options(self, spark: SparkSession, orders: Table, options: dict[str, object], message: str) -> None:
        with pytest.raises(PySparkException) as caught:
            ours(spark, orders, **options).collect()
        assert message in str(caught.value)

    def test_no_table(self, spark: SparkSession, tmp_path: Path) -> None:
        with pytest.raises(AnalysisException, match="not a Delta table: the path does not exist"):
            ours(spark, str(tmp_path / "none"))


def test_a_frame_that_is_queried_again(spark: SparkSession, orders: Table) -> None:
    """Spark 4.1 keeps the filters that a Python source takes, for the next query of the same DataFrame. cdfd takes none."""
    with settings(spark, {PUSHDOWN: "true"}):
        actual = ours(spark, orders)
        assert of_spark(actual.where("id < 3")) == [row for row in of_python(orders) if row[3] < 3]
        assert of_spark(actual) == of_python(orders)
