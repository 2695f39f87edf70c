"""`cdfd.spark.changes` and `cdfd.spark.snapshot`: Spark's own reader gives the rows of `format("cdfd")`, `cdfd.changes` and delta-spark."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import cdfd
import cdfd.spark
from cdfd.errors import MissingFileError, PathError, UnsupportedError
from cdfd.model.plan import ChangePlan
from cdfd.spark.frames import changes, groups, paths
from cdfd.spark.frames.changes import time_in_zone
from cdfd.spark.frames.paths import SparkFile, has_own_keys
from cdfd.spark.source import source
from tests.support.spark.workload import settings

pytestmark = pytest.mark.usefixtures("registered")
TIME = pa.timestamp("us", "UTC")


def test_settings_of_spark_say_where_its_keys_of_a_bucket_are(spark: SparkSession) -> None:
    assert not has_own_keys(spark, "s3://lake/orders")
    with settings(spark, {"spark.hadoop.fs.s3a.bucket.lake.aws.credentials.provider": "a.Provider"}):
        assert has_own_keys(spark, "s3://lake/orders")
        assert not has_own_keys(spark, "s3://other/orders")
    with settings(spark, {"spark.hadoop.fs.s3a.access.key": "a"}):
        assert has_own_keys(spark, "s3://other/orders")


@pytest.mark.parametrize(
    ("text", "zone", "wanted"),
    [
        ("2026-07-01 12:30:00", "Asia/Kathmandu", "2026-07-01T06:45:00+00:00"),
        ("2026-07-01", "UTC", "2026-07-01T00:00:00+00:00"),
        ("2026-07-01", "+02:00", "2026-06-30T22:00:00+00:00"),
        ("2026-07-01", "GMT+05:30", "2026-06-30T18:30:00+00:00"),
        # Names that Python does not have.
        ("2026-07-01", "+2:00", "2026-06-30T22:00:00+00:00"),
        ("2026-07-01", "GMT+8", "2026-06-30T16:00:00+00:00"),
        ("2026-07-01 00:00:00.000001", "PST", "2026-07-01T07:00:00.000001+00:00"),
        ("2026-07-01T00:00:00Z", "Asia/Kathmandu", "2026-07-01T00:00:00+00:00"),
        ("1 hour ago", "Asia/Kathmandu", "1 hour ago"),
        ("1765110511154", "Asia/Kathmandu", "1765110511154"),  # Python reads it as a time of 1765
    ],
)
def test_times_without_a_zone_are_in_that_of_the_session(
    spark: SparkSession, text: str, zone: str, wanted: str
) -> None:
    with settings(spark, {"spark.sql.session.timeZone": zone, "spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        assert time_in_zone(text, spark) == wanted


class TestQueries:
    def test_frame_tells_spark_its_size(self, spark: SparkSession, tmp_path: Path) -> None:
        """Spark broadcasts what is small."""
        plan = cdfd.spark.changes(spark, numbers(spark, tmp_path))._jdf.queryExecution().optimizedPlan()
        assert 0 < int(str(plan.stats().sizeInBytes())) < 10 << 20

    @pytest.mark.parametrize("ansi", ["true", "false"])
    def test_ordinals_count_the_rows_that_long_deletion_vectors_leave(
        self, spark: SparkSession, tmp_path: Path, ansi: str
    ) -> None:
        """Arithmetic of a session with ANSI fails where it overflows, as at the last bit of a word."""
        table = f"{tmp_path}/t"
        write_deltalake(table, pa.table({"id": range(200)}))
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
        spark.sql(f"DELETE FROM delta.`{table}` WHERE id % 3 = 0")
        with settings(spark, {"spark.sql.ansi.enabled": ansi}):
            for version, start, rows in ((2, 2, range(0, 200, 3)), (2, "snapshot", (n for n in range(200) if n % 3))):
                frame = cdfd.spark.changes(spark, table, start, version, ordinals=True, reader="spark")
                actual = sorted(tuple(row) for row in frame.select("_change_ordinal", "id").collect())
                assert actual == list(enumerate(rows))

    def test_frame_reads_the_versions_that_it_was_made_of(self, spark: SparkSession, tmp_path: Path) -> None:
        table = numbers(spark, tmp_path)
        for reader in ("spark", "cdfd"):
            before = cdfd.spark.changes(spark, table, reader=reader)  # type: ignore[arg-type]
            count = before.count()
            spark.range(3).write.format("delta").mode("append").save(table)
            assert before.count() == count
            assert cdfd.spark.changes(spark, table).count() == count + 3

    def test_frame_of_cdfd_begins_where_it_did_when_it_was_made(self, spark: SparkSession, tmp_path: Path) -> None:
        table = numbers(spark, tmp_path)
        newest = cdfd.spark.changes(spark, table, -1, reader="cdfd")
        following = cdfd.spark.changes(spark, table, "latest", reader="cdfd")
        spark.range(3).write.format("delta").mode("append").save(table)
        assert (newest.count(), following.count()) == (20, 0)

    async def test_frames_are_made_where_an_event_loop_runs(self, spark: SparkSession, tmp_path: Path) -> None:
        """As in a notebook."""
        table = numbers(spark, tmp_path)
        for frame in (
            cdfd.spark.changes(spark, table, reader="spark"),
            cdfd.spark.changes(spark, table, reader="cdfd"),
            cdfd.spark.changes(spark, table, options={"where": "id >= 0"}),
            cdfd.spark.snapshot(spark, table),
        ):
            assert frame.count() == 20


def test_2000_columns_are_read(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(2000)]
    write_deltalake(tmp_path / "wide", pa.table({name: [number, None] for number, name in enumerate(names)}))
    frame = cdfd.spark.changes(spark, tmp_path / "wide", reader="spark")
    assert frame.columns[:-3] == names
    assert [tuple(row) for row in frame.select("c0", "c1999").collect()] == [(0, 1999), (None, None)]


class TestReader:
    """Which reader reads."""

    def test_names_that_spark_replaces_in_sql_are_read_by_cdfd(self, spark: SparkSession, tmp_path: Path) -> None:
        """The name of a column could show the environment of the driver, in the error about an unknown column."""
        table, name = tmp_path / "t", "${env:HOME}"
        write_deltalake(table, pa.table({name: [1], "s": pa.array([{name: 2}])}))
        row = (1, (2,), "insert", 0)
        assert [tuple(each)[:4] for each in cdfd.spark.changes(spark, table).collect()] == [row]
        with pytest.raises(UnsupportedError, match=r"Spark would replace `\$\{env:HOME\}` in SQL"):
            cdfd.spark.changes(spark, table, reader="spark")
        with settings(spark, {"spark.sql.variable.substitute": "false"}):
            frame = cdfd.spark.changes(spark, table, reader="spark")
            assert [tuple(each)[:4] for each in frame.collect()] == [row]

    def test_many_small_files_are_read_by_cdfd(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = numbers(spark, tmp_path)
        assert is_by_spark(cdfd.spark.changes(spark, table))
        monkeypatch.setattr(groups, "FEW_FILES", 1)
        assert not is_by_spark(cdfd.spark.changes(spark, table))

    def test_settings_that_change_what_spark_reads_leave_it_to_cdfd(self, spark: SparkSession, tmp_path: Path) -> None:
        table, nested = numbers(spark, tmp_path), f"{tmp_path}/nested"
        spark.sql(
            f"CREATE TABLE delta.`{nested}` (id INT, s STRUCT<a: INT>) USING delta"
            " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        )
        spark.sql(f"INSERT INTO delta.`{nested}` VALUES (1, NAMED_STRUCT('a', 1)), (2, NULL)")
        spark.sql(f"ALTER TABLE delta.`{nested}` ADD COLUMN s.b INT")
        spark.sql(f"ALTER TABLE delta.`{nested}` DROP COLUMN s.a")
        with settings(spark, {"spark.sql.sources.useV1SourceList": "csv"}):
            assert cdfd.spark.changes(spark, table, ordinals=True).count() == 20
        with settings(spark, {"spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "true"}):
            rows = cdfd.spark.changes(spark, nested).orderBy("id").selectExpr("id", "s IS NULL").collect()
            assert [tuple(row) for row in rows] == [(1, False), (2, True)]
            assert is_by_spark(cdfd.spark.changes(spark, table))

    def test_columns_of_another_writers_file_differ_in_case(self, spark: SparkSession, tmp_path: Path) -> None:
        table = tmp_path / "t"
        write_deltalake(table, pa.table({"id": [1]}))
        pq.write_table(pa.table({"ID": [2]}), table / "other.parquet")
        size = (table / "other.parquet").stat().st_size
        add = {"path": "other.parquet", "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
        (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"add": add}))
        with settings(spark, {"spark.sql.caseSensitive": "true"}):
            assert [row.id for row in cdfd.spark.changes(spark, table).orderBy("id").collect()] == [1, 2]
            assert [row.id for row in cdfd.spark.snapshot(spark, table).orderBy("id").collect()] == [1, 2]

    def test_char_columns_are_padded_as_the_page_says(self, spark: SparkSession, tmp_path: Path) -> None:
        table = f"delta.`{tmp_path}/t`"
        spark.sql(
            f"CREATE TABLE {table} (id INT, c CHAR(5)) USING delta TBLPROPERTIES (delta.enableChangeDataFeed=true)"
        )
        spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 'ab'), (2, 'ab') AS t(id, c)")
        spark.sql(f"DELETE FROM {table} WHERE id = 1")
        theirs = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        for frame in (spark.read.format("cdfd").load(f"{tmp_path}/t"), cdfd.spark.changes(spark, f"{tmp_path}/t")):
            stored = [row.c for row in frame.orderBy("_commit_version").collect()]
            assert stored == ["ab", "ab", "ab   "]
            padded = frame.selectExpr("rpad(c, 5, ' ') AS c", "_change_type").orderBy("_change_type").collect()
            own = theirs.load(f"{tmp_path}/t").select("c", "_change_type").orderBy("_change_type").collect()
            assert padded == own
        with settings(spark, {"spark.sql.readSideCharPadding": "false"}):
            assert [row.c for row in theirs.load(f"{tmp_path}/t").orderBy("_commit_version").collect()] == stored

    def test_names_that_the_session_takes_for_patterns_are_read_by_cdfd(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        table = f"{tmp_path}/t"
        spark.sql(
            f"CREATE TABLE delta.`{table}` (`price (EUR)` INT) USING delta"
            " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        )
        spark.sql(f"INSERT INTO delta.`{table}` VALUES (7)")
        with settings(spark, {"spark.sql.parser.quotedRegexColumnNames": "true"}):
            assert [row[0] for row in cdfd.spark.changes(spark, table).collect()] == [7]

    def test_range_is_planned_once_and_no_further_than_needed(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table, planned = numbers(spark, tmp_path), list[int]()
        for _ in range(3):
            spark.range(1).write.format("delta").mode("append").save(table)

        async def plans_of(*arguments: Any) -> list[ChangePlan]:
            plans = await source.plans_of(*arguments)
            planned.extend(plan.version for plan in plans)
            return plans

        monkeypatch.setattr(changes, "plans_of", plans_of)
        monkeypatch.setattr(groups, "FEW_FILES", 0)
        assert cdfd.spark.changes(spark, table).count() == 23  # read by the driver
        assert planned == [0, 1, 2, 3]
        planned.clear()
        monkeypatch.setattr(changes, "RANGE_FILES", 1)
        monkeypatch.setattr(changes, "_MOST_PLANNED", 4)
        assert cdfd.spark.changes(spark, table).count() == 23
        assert planned == [0, 1]

    def test_columns_by_id_are_read_by_spark_if_the_session_finds_them(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        """Spark finds columns by id only if the session says so."""
        table = f"{tmp_path}/by-id"
        spark.sql(
            f"CREATE TABLE delta.`{table}` (id INT, n INT) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'id')"
        )
        spark.sql(f"INSERT INTO delta.`{table}` VALUES (1, 2)")
        ids = "spark.sql.parquet.fieldId.read.enabled"  # delta-spark switches it on in its sessions
        with settings(spark, {ids: "false"}):
            assert not is_by_spark(cdfd.spark.changes(spark, table))
        with settings(spark, {ids: "true"}):
            frame = cdfd.spark.changes(spark, table)
            assert is_by_spark(frame)
            assert [row[:2] for row in frame.collect()] == [(1, 2)]

    def test_files_with_names_that_spark_hides_are_read_by_cdfd(self, spark: SparkSession, tmp_path: Path) -> None:
        """Spark reads no file whose name begins with `_` or `.`, and says nothing."""
        folder = tmp_path / "hidden"
        write_deltalake(folder, pa.table({"id": [1, 2]}))
        (file,) = folder.glob("*.parquet")
        (log,) = (folder / "_delta_log").glob("*.json")
        file.rename(folder / "_part.parquet")
        log.write_text(log.read_text().replace(file.name, "_part.parquet"))
        frame = cdfd.spark.changes(spark, folder)
        assert not is_by_spark(frame)
        assert frame.count() == 2


class TestTableFunction:
    def test_rows_are_those_of_the_frame(self, spark: SparkSession, tmp_path: Path) -> None:
        numbers(spark, tmp_path)
        table = numbers(spark, tmp_path)
        of_sql = spark.sql(f"SELECT * FROM cdfd_changes('{table}', 1, endingVersion => 1, ordinals => true)")
        assert is_by_spark(of_sql)
        frame = cdfd.spark.changes(spark, table, 1, 1, ordinals=True)
        assert of_sql.collect() == frame.collect() != []
        named = spark.sql(f"SELECT * FROM cdfd_changes('{table}', NULL, -1 + 1, columns => 'id')")
        assert named.columns[0] == "id"
        assert named.collect() == cdfd.spark.changes(spark, table, None, 0, {"columns": "id"}).collect() != []

    def test_a_view_of_it_reads_the_newest_versions(self, spark: SparkSession, tmp_path: Path) -> None:
        table = f"{tmp_path}/t"
        write_deltalake(table, pa.table({"id": [1]}))
        name = f"view_{os.getpid()}"
        spark.sql(f"CREATE TEMPORARY VIEW {name} AS SELECT id FROM cdfd_changes('{table}')")
        try:
            write_deltalake(table, pa.table({"id": [2]}), mode="append")
            assert sorted(row.id for row in spark.sql(f"SELECT * FROM {name}").collect()) == [1, 2]
        finally:
            spark.catalog.dropTempView(name)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("", "takes a table"),
            ("NULL, 1", "takes a table"),
            ("5, 1", "takes a table"),
            ("true", "takes a table"),
            ("'{table}', 1, 2, 3", "takes a table"),
            ("'{table}', 1.5", "not decimal"),
            ("'{table}', rand()", "takes constants"),
            ("'{table}', ordinals => 'false'", "true or false"),
            ("'{table}', speed => 'high'", "unknown option 'speed'"),
            ("'{table}', 1, startingVersion => 2", "which is an argument, too"),
            ("'{table}-none'", "not a Delta table"),
        ],
    )
    def test_errors_are_those_of_cdfd(self, spark: SparkSession, tmp_path: Path, arguments: str, message: str) -> None:
        table = numbers(spark, tmp_path)
        with pytest.raises((Py4JJavaError, PySparkException), match=message):
            spark.sql(f"SELECT * FROM cdfd_changes({arguments.format(table=table)})")


class TestFiles:
    @pytest.mark.parametrize("rows", [(1, 1, 1), (1, 20, 300)])
    def test_rows_of_a_scan_have_the_version_of_their_file(
        self, spark: SparkSession, tmp_path: Path, rows: tuple[int, ...]
    ) -> None:
        """Of files of the same size, and of different sizes, which are not those in the log."""
        wanted, sizes = [], set[int]()
        for version, count in enumerate(rows):
            write_deltalake(tmp_path, pa.table({"n": [version * 1000 + row for row in range(count)]}), mode="append")
            wanted += [(version * 1000 + row, version, row) for row in range(count)]
            log = tmp_path / "_delta_log" / f"{version:020}.json"
            sizes.add(size := (tmp_path / path_in(log)).stat().st_size)
            log.write_text(log.read_text().replace(f'"size":{size}', '"size":1'))
        assert len(sizes) == len({*rows})
        frame = cdfd.spark.changes(spark, tmp_path, ordinals=True, reader="spark")
        actual = frame.orderBy("n").select("n", "_commit_version", "_change_ordinal").collect()
        assert [tuple(row) for row in actual] == wanted

    @pytest.mark.parametrize("ansi", ["true", "false"])
    @pytest.mark.parametrize("ordinals", [True, False])
    def test_a_file_that_is_added_and_removed_is_read_once(
        self, spark: SparkSession, tmp_path: Path, ordinals: bool, ansi: str
    ) -> None:
        for number, day in enumerate((None, "0001-01-01", "2026-12-01")):
            days = pa.array([day] * 2, pa.string())
            rows = {
                "n": [number, number + 10],
                "day": days.cast(pa.date32()),
                "text": days,
                "time": days.cast(pa.timestamp("us")).cast(TIME),
            }
            write_deltalake(tmp_path, pa.table(rows), mode="append", partition_by=["day", "text", "time"])
        DeltaTable(tmp_path).delete()
        with settings(spark, {"spark.sql.ansi.enabled": ansi}):
            frame, other = (
                cdfd.spark.changes(spark, tmp_path, ordinals=ordinals, reader=reader) for reader in ("spark", "cdfd")
            )
            assert frame._jdf.queryExecution().optimizedPlan().collectLeaves().size() == 1
            assert frame.count() == other.count() == 12
            assert frame.exceptAll(other).isEmpty()
            row = frame.where("n = 11 AND _commit_version = 3").select("day", "_change_type").collect()
        assert [tuple(each) for each in row] == [(date(1, 1, 1), "delete")]

    @pytest.mark.parametrize("most_named", [groups.MOST_NAMED, 0])
    def test_a_file_has_the_rows_of_all_its_changes_whatever_columns_are_read(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_named: int
    ) -> None:
        monkeypatch.setattr(groups, "MOST_NAMED", most_named)
        monkeypatch.setattr(groups, "MOST_SCANS", 0)
        write_deltalake(tmp_path, pa.table({"n": [1, 2]}))
        DeltaTable(tmp_path).delete()
        # Both versions have the same ordinals.
        frame = cdfd.spark.changes(spark, tmp_path, options={"columns": "n,_change_ordinal"}, reader="spark")
        assert sorted(map(tuple, frame.collect())) == [(1, 0), (1, 0), (2, 1), (2, 1)]

    @pytest.mark.parametrize("ansi", ["true", "false"])
    def test_rows_of_a_file_that_is_replaced_have_its_version(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ansi: str
    ) -> None:
        """Its size is not the one that it had."""
        for number in range(2):
            write_deltalake(tmp_path, pa.table({"n": range(1 + 20 * number)}), mode="append")

        def spark_files(*arguments: Any) -> dict[str, SparkFile]:
            return {path: replace(file, size=file.size + 1) for path, file in paths.spark_files(*arguments).items()}

        monkeypatch.setattr(changes, "spark_files", spark_files)
        with settings(spark, {"spark.sql.ansi.enabled": ansi}):
            rows = cdfd.spark.changes(spark, tmp_path, reader="spark").groupBy("_commit_version").count().collect()
        assert sorted(map(tuple, rows)) == [(0, 1), (1, 21)]

    def test_a_column_may_have_the_name_of_that_of_spark(self, spark: SparkSession, tmp_path: Path) -> None:
        for number in range(2):
            write_deltalake(tmp_path, pa.table({"_Metadata": [number]}), mode="append")
        for ordinals in (True, False):
            frame = cdfd.spark.changes(spark, tmp_path, ordinals=ordinals, reader="spark")
            rows = frame.select("_metadata", "_commit_version").orderBy("_metadata").collect()
            assert [tuple(row) for row in rows] == [(0, 0), (1, 1)]

    @pytest.mark.parametrize("name", ["10:30", "[a]", "[a] 10:30"])
    def test_names_of_folders_are_no_patterns(self, name: str, spark: SparkSession, tmp_path: Path) -> None:
        write_deltalake(tmp_path / "table", pa.table({"id": [1]}))
        path = (tmp_path / "table").rename(tmp_path / name)
        assert [row.id for row in cdfd.spark.changes(spark, path).collect()] == [1]

    def test_filter_on_the_version_leaves_out_files(self, spark: SparkSession, tmp_path: Path) -> None:
        for number in range(3):
            write_deltalake(tmp_path, pa.table({"id": [number]}), mode="append")
        for path in tmp_path.glob("*.parquet"):
            if path.name != path_in(tmp_path / "_delta_log" / f"{1:020}.json"):
                path.write_bytes(b"\0" * path.stat().st_size)
        frame = cdfd.spark.changes(spark, tmp_path, reader="spark")
        assert [row.id for row in frame.where("_commit_version = 1").collect()] == [1]

    def test_missing_file_is_an_error(self, spark: SparkSession, tmp_path: Path) -> None:
        table = numbers(spark, tmp_path)
        gone = next(Path(table).glob("*.parquet"))
        gone.unlink()
        with pytest.raises(MissingFileError) as caught:
            cdfd.spark.changes(spark, table)
        assert caught.value.path == gone.name
        assert caught.value.version is not None

    def test_link_out_of_the_table_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        """Spark would follow the link."""
        table = numbers(spark, tmp_path)
        file = next(Path(table).glob("*.parquet"))
        os.rename(file, tmp_path / "elsewhere.parquet")
        file.symlink_to(tmp_path / "elsewhere.parquet")
        with pytest.raises(PathError):
            cdfd.spark.changes(spark, table)
        assert cdfd.spark.changes(spark, table, options={"allowedRoots": str(tmp_path)}).count() == 20

    def test_damaged_file_fails_although_the_session_skips_those(self, spark: SparkSession, tmp_path: Path) -> None:
        """A session that skips damaged files must not lose rows silently."""
        table = numbers(spark, tmp_path)
        file = next(Path(table).glob("*.parquet"))
        file.write_bytes(b"PAR1" + b"x" * (file.stat().st_size - 8) + b"PAR1")
        with (
            settings(spark, {"spark.sql.files.ignoreCorruptFiles": "true"}),
            pytest.raises(Exception, match="FAILED_READ_FILE"),
        ):
            cdfd.spark.changes(spark, table, reader="spark").collect()


def numbers(spark: SparkSession, folder: Path) -> str:
    """Two files of ten rows."""
    table = f"{folder}/numbers"
    spark.range(0, 20, 1, 2).write.format("delta").mode("append").save(table)
    return table


def is_by_spark(frame: DataFrame) -> bool:
    """Whether Spark's own reader reads a frame."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves().toString()
    return "RelationV2" not in leaves and "LocalRelation" not in leaves


def path_in(log: Path) -> str:
    """The only file that a commit adds."""
    (path,) = [action["add"]["path"] for action in map(json.loads, log.read_text().splitlines()) if "add" in action]
    return str(path)
