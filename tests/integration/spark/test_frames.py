"""Rows of `cdfd.spark.changes` and `cdfd.spark.snapshot` on a table that Spark's reader cannot read by itself."""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import TimestampType

import cdfd
import cdfd.spark
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.model.columns import CHANGE_ORDINAL
from cdfd.spark.frames import groups
from tests.support.spark.workload import settings
from tests.support.spark.workload_answers import Bag, bag

pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture(scope="module")
def orders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table that Spark's reader cannot read by itself: partitions of several types, deletion vectors, INT96, mapped, renamed, dropped,
    added and widened columns, columns within structs, a path that is no URI, files that come back."""
    table = f"{tmp_path_factory.mktemp('lake')}/or ders%20ü+[a]{{b}}"
    name = f"delta.`{table}`"
    properties = (
        "delta.enableChangeDataFeed = true, delta.enableDeletionVectors = true, delta.columnMapping.mode = 'name',"
        " delta.enableTypeWidening = true"
    )
    spark.sql(
        f"CREATE TABLE {name} (id INT, `a.b` STRING, at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY, gone STRING,"
        " place STRUCT<lat: FLOAT, names: ARRAY<STRUCT<n: STRING>>>, sizes MAP<STRING, STRUCT<w: SHORT>>,"
        " day DATE, `ho.ur` TIMESTAMP, price DECIMAL(9, 2))"
        f" USING delta PARTITIONED BY (day, `ho.ur`, price) TBLPROPERTIES ({properties})"
    )
    row = (
        "SELECT CAST(id AS INT), CONCAT('ä', id), TIMESTAMP'1890-01-01 10:00:00' + id * INTERVAL 1 SECOND,"
        " TIMESTAMP_NTZ'1500-02-03 04:05:06',"
        " IF(id % 2 = 0, NULL, CAST('x' AS BINARY)), 'g', NAMED_STRUCT('lat', 0.5F, 'names', ARRAY(NAMED_STRUCT('n', 'x'), NULL)),"
        " MAP('k', NAMED_STRUCT('w', CAST(id AS SHORT))), DATE'1200-03-01' + CAST(id % 2 AS INT),"
        " IF(id % 4 = 0, NULL, TIMESTAMP'2026-03-29 01:30:00.123456'), -12.50 FROM RANGE({}, {}, 1, 1)"
    )
    with settings(spark, {"spark.sql.parquet.outputTimestampType": "INT96"}):
        spark.sql(f"INSERT INTO {name} {row.format(0, 12)}")
    spark.sql(f"INSERT INTO {name} {row.format(12, 20)}")
    spark.sql(f"UPDATE {name} SET raw = NULL WHERE id % 5 = 0")
    spark.sql(f"DELETE FROM {name} WHERE id IN (1, 6, 13)")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN `a.b` TO text")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN gone")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN id TYPE BIGINT")
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (note STRING, place.more STRUCT<x: INT>, sizes.value.h DOUBLE)")
    spark.sql(f"DELETE FROM {name} WHERE id < 10")
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 2")
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 8")
    return table


@pytest.fixture(params=["named", "literals", "joined"])
def scans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways in which a scan gets what is constant in a file."""
    if request.param != "named":
        monkeypatch.setattr(groups, "MOST_NAMED", 1)
        monkeypatch.setattr(groups, "MOST_SCANS", 1000 if request.param == "literals" else 0)


def of_spark(frame: DataFrame) -> Bag:
    return bag(frame.toArrow().to_batches())


def by_format(spark: SparkSession, table: str, **options: object) -> Bag:
    reader = spark.read.format("cdfd").options(**{name: str(value) for name, value in options.items()})
    return of_spark(reader.load(table).drop(CHANGE_ORDINAL))


@pytest.mark.usefixtures("scans")
class TestRows:
    def test_rows_equal_those_of_all_other_readers(self, spark: SparkSession, orders: str) -> None:
        for start, end in ((0, 3), (4, 11), (0, 11), (2, 2)):
            actual = of_spark(cdfd.spark.changes(spark, orders, start, end, reader="spark"))
            assert actual == by_format(spark, orders, startingVersion=start, endingVersion=end)
            assert actual == bag(cdfd.changes(orders, start, end), [CHANGE_ORDINAL])
            assert actual.total() > 0

    def test_rows_equal_those_of_delta_spark(self, spark: SparkSession, orders: str) -> None:
        """Where it answers: between two changes of the schema."""
        feed = spark.read.format("delta").option("readChangeFeed", "true")
        wanted = of_spark(feed.option("startingVersion", 8).option("endingVersion", 9).load(orders))
        assert of_spark(cdfd.spark.changes(spark, orders, 8, 9, reader="spark")) == wanted

    def test_rows_of_file_actions_have_the_ordinals_of_cdfd(self, spark: SparkSession, orders: str) -> None:
        """Deletion vectors of one side, of both, and their differences; the same file in several versions."""
        actual = cdfd.spark.changes(spark, orders, 0, options={"changes": "files"}, ordinals=True, reader="spark")
        assert of_spark(actual) == bag(cdfd.changes(orders, 0, changes="files"))
        assert {row[0] for row in actual.select("_change_type").collect()} == {"insert", "delete"}

    def test_snapshot_rows_equal_those_of_cdfd(self, spark: SparkSession, orders: str) -> None:
        for version in (3, 8, 11):
            actual = cdfd.spark.snapshot(spark, orders, version, ordinals=True, reader="spark")
            assert of_spark(actual) == bag(cdfd.snapshot(orders, version))

    @pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Kathmandu"])
    def test_time_zone_of_the_session_moves_no_instant(self, spark: SparkSession, orders: str, zone: str) -> None:
        """Of the session: partition values and commit times are instants."""
        wanted = bag(cdfd.changes(orders), [CHANGE_ORDINAL])
        with settings(spark, {"spark.sql.session.timeZone": zone}):
            frame = cdfd.spark.changes(spark, orders, 0, reader="spark")
            assert bag([utc(batch) for batch in frame.toArrow().to_batches()]) == wanted

    def test_bounds_are_times_of_the_session(self, spark: SparkSession, orders: str) -> None:
        at = {row.version: row.timestamp for row in spark.sql(f"DESCRIBE HISTORY delta.`{orders}`").collect()}[9]
        local = at.astimezone(ZoneInfo("Asia/Kathmandu")).replace(tzinfo=None).isoformat(" ")
        with settings(spark, {"spark.sql.session.timeZone": "Asia/Kathmandu"}):
            bounds = {"startingTimestamp": local, "endingTimestamp": local}
            frame = cdfd.spark.changes(spark, orders, options=bounds)
            assert {row[0] for row in frame.select("_commit_version").collect()} == {9}

    def test_columns_have_the_names_that_options_give(self, spark: SparkSession, orders: str) -> None:
        options = {"columns": "text as name, day, id"}
        actual = cdfd.spark.changes(spark, orders, 0, options=options, reader="spark")
        assert actual.columns == ["name", "day", "id", "_change_type", "_commit_version", "_commit_timestamp"]
        assert of_spark(actual) == by_format(spark, orders, startingVersion=0, **options)

    def test_rows_are_counted_without_a_column_of_a_file(self, spark: SparkSession, orders: str) -> None:
        """Rows have to be counted all the same."""
        for columns in ("_commit_version", "day, _change_type"):
            actual = cdfd.spark.changes(spark, orders, 0, options={"columns": columns}, reader="spark")
            assert of_spark(actual) == by_format(spark, orders, startingVersion=0, columns=columns)


def test_timestamps_are_instants_also_if_the_session_says_that_they_have_no_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The column is cast, because its fields have other names in files."""
    table = f"{tmp_path}/table"
    properties = "'delta.columnMapping.mode' = 'name'"
    spark.sql(f"CREATE TABLE delta.`{table}` (s STRUCT<at: TIMESTAMP>) USING delta TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT named_struct('at', TIMESTAMP'2026-01-01 12:00:00')")
    with settings(spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        frame = cdfd.spark.changes(spark, table, 0, reader="spark")
        assert frame.schema["s"].dataType["at"].dataType == TimestampType()
        assert of_spark(frame) == bag(cdfd.changes(table), [CHANGE_ORDINAL])


def test_a_type_that_no_row_was_written_in(spark: SparkSession, tmp_path: Path) -> None:
    """RESTORE makes a widened column narrow again."""
    table = f"{tmp_path}/table"
    properties = "'delta.enableTypeWidening' = 'true', 'delta.enableChangeDataFeed' = 'true'"
    spark.sql(f"CREATE TABLE delta.`{table}` (id INT) USING delta TBLPROPERTIES ({properties})")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (1), (2)")
    spark.sql(f"ALTER TABLE delta.`{table}` ALTER COLUMN id TYPE BIGINT")
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (3)")
    assert [row.id for row in cdfd.spark.changes(spark, table, 0).orderBy("id").collect()] == [1, 2, 3]
    frame = spark.read.format("cdfd").option("startingVersion", 0).load(table)
    assert [row.id for row in frame.orderBy("id").collect()] == [1, 2, 3]


def utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) and field.type.tz else field
        for field in batch.schema
    ]
    return batch.cast(pa.schema(fields))


def is_by_spark(frame: DataFrame) -> bool:
    """Whether Spark's own reader reads the files of a frame. The rows that it joins with them are local."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves().toString()
    return "RelationV2" not in leaves and "] parquet" in leaves


class TestQueries:
    def test_query_reads_the_columns_that_it_needs(
        self, spark: SparkSession, orders: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        frame = cdfd.spark.changes(spark, orders, 0, 11)
        frame.where("id = 14 AND _change_type = 'insert'").select("id").explain()
        plan = capsys.readouterr().out
        assert "EqualTo" in plan
        assert "raw" not in plan
        assert "update_preimage" not in plan
        assert frame.where("id = 14").count() < frame.count() == cdfd.changes(orders, 0, 11).read_all().num_rows


class TestReader:
    """Which reader reads."""

    def test_few_files_are_read_by_spark(self, spark: SparkSession, orders: str) -> None:
        assert is_by_spark(cdfd.spark.changes(spark, orders, 0))

    @pytest.mark.parametrize(
        "options",
        [
            {"changes": "files", "refine": "key", "key": "id"},
            {"netChanges": True, "key": "id"},
            {"where": "id > 12"},
            {"mask.text": "nullify"},
            {"dropUnchanged": True},
            {"ignoreMissingFiles": True},
        ],
    )
    def test_options_that_derive_rows_are_read_by_cdfd(
        self, spark: SparkSession, orders: str, options: dict[str, object]
    ) -> None:
        frame = cdfd.spark.changes(spark, orders, 0, options=options)
        assert not is_by_spark(frame)
        assert of_spark(frame) == by_format(
            spark, orders, **{name: str(value).lower() for name, value in options.items()}
        )
        with pytest.raises(UnsupportedError, match="Spark's reader cannot read the rows"):
            cdfd.spark.changes(spark, orders, 0, options=options, reader="spark")

    def test_unknown_reader_is_refused(self, spark: SparkSession, orders: str) -> None:
        with pytest.raises(ConfigError, match="reader"):
            cdfd.spark.changes(spark, orders, reader="flink")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def events(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of flat columns, and of small files."""
    table = f"{tmp_path_factory.mktemp('lake')}/events"
    name = f"delta.`{table}`"
    spark.sql(
        f"CREATE TABLE {name} (id INT, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, price DECIMAL(9, 2), raw BINARY, note STRING)"
        " USING delta PARTITIONED BY (day) TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    spark.sql(
        f"INSERT INTO {name} SELECT id, TIMESTAMP'1890-01-01 10:00:00' + id * INTERVAL 1 SECOND, TIMESTAMP_NTZ'2026-03-29 02:30:00',"
        " DATE'1200-03-01' + CAST(id % 2 AS INT), -12.50, IF(id % 3 = 0, NULL, CAST('x' AS BINARY)), CONCAT('ä', id) FROM RANGE(10)"
    )
    spark.sql(f"UPDATE {name} SET note = 'new' WHERE id = 3")
    spark.sql(f"DELETE FROM {name} WHERE id = 4")
    return table


class TestSmallRange:
    """Where Spark's own reader does not read, the driver reads the rows of a small range itself."""

    @pytest.fixture(autouse=True)
    def many_small_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(groups, "FEW_FILES", 0)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"where": "id > 2"},
            {"columns": "note as name, day, id"},
            {"netChanges": "true", "key": "id"},
            {"changes": "files", "refine": "key", "key": "id"},
        ],
    )
    @pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
    def test_rows_are_those_of_the_format(
        self, spark: SparkSession, events: str, options: dict[str, str], zone: str
    ) -> None:
        with settings(spark, {"spark.sql.session.timeZone": zone}):
            frame = cdfd.spark.changes(spark, events, 0, options=options)
            assert is_by_driver(frame)
            assert of_spark(frame) == by_format(spark, events, startingVersion=0, **options)
            assert frame.count() > 0

    def test_rows_have_the_ordinals_of_cdfd(self, spark: SparkSession, events: str) -> None:
        frame = cdfd.spark.changes(spark, events, 1, 2, ordinals=True)
        assert is_by_driver(frame)
        assert of_spark(frame) == bag(cdfd.changes(events, 1, 2))

    def test_range_without_rows_has_the_columns(self, spark: SparkSession, events: str) -> None:
        frame = cdfd.spark.changes(spark, events, 1, options={"where": "id > 99"})
        assert frame.collect() == []
        assert frame.columns == cdfd.spark.changes(spark, events, 1).columns

    @pytest.mark.parametrize(
        "limit", ["frames.changes.RANGE_BYTES", "frames.changes.RANGE_FILES", "source.reading.PLANNED_ROW_BYTES"]
    )
    def test_larger_range_is_read_by_tasks(
        self, spark: SparkSession, events: str, monkeypatch: pytest.MonkeyPatch, limit: str
    ) -> None:
        monkeypatch.setattr(f"cdfd.spark.{limit}", 1)
        frame = cdfd.spark.changes(spark, events, 0)
        assert not is_by_driver(frame)
        assert of_spark(frame) == by_format(spark, events, startingVersion=0)


def is_by_driver(frame: DataFrame) -> bool:
    """Whether the plan has the rows, and no file or source."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves().toString()
    return "Relation" not in leaves.replace("LocalRelation", "")
