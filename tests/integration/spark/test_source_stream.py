"""`format("cdfd")`, streaming: each row once, across restarts, in the middle of a version and of a snapshot."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming import DataStreamWriter  # type: ignore[attr-defined]
from pyspark.sql.types import StructType

import cdfd
import cdfd.spark
from cdfd.errors import ConfigError
from cdfd.model.columns import CHANGE_ORDINAL
from cdfd.spark.lag import Lag, lag, lag_now
from cdfd.spark.source.source import CdfdSource
from cdfd.spark.source.stream import StreamReader
from tests.support.spark.installation import pyspark_version
from tests.support.spark.workload import settings

pytestmark = pytest.mark.usefixtures("registered")

WITHIN = 60  # seconds until a query counts as stuck

Key = tuple[int, int, str, int]
"""Version, ordinal, change type, id."""


class Stream:
    """A query over a table, with a checkpoint of its own; `rows` is all that it ever delivered, batch by batch."""

    def __init__(self, spark: SparkSession, table: str, folder: Path, **options: object) -> None:
        self.spark = spark
        self.format = "cdfd"
        self.table = table
        self.options = {name: str(value) for name, value in options.items()}
        self.checkpoint = folder / "checkpoint"
        self.rows: list[Key] = []
        self.batches: list[int] = []
        self.fail_at: int | None = None
        self.then: Callable[[], None] = lambda: None  # after each micro-batch

    def frame(self) -> DataFrame:
        return self.spark.readStream.format(self.format).options(**self.options).load(self.table)

    def writer(self) -> DataStreamWriter:
        writer = self.frame().writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self.checkpoint))

    def run(self, batches: int | None = None) -> list[Key]:
        """The new rows of a run of the query, until no more are available."""
        before = len(self.rows)
        writer = self.writer()
        if batches is None:
            query = writer.trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(WITHIN)
            finally:
                query.stop()
            return self.rows[before:]
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return self.rows[before:]

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = frame.select("_commit_version", CHANGE_ORDINAL, "_change_type", "id").collect()
        if self.fail_at == number:
            self.fail_at = None
            raise RuntimeError("lost on the way")
        self.rows += [(row[0], row[1], row[2], row[3]) for row in rows]
        self.batches.append(len(rows))
        self.then()

    def offsets(self) -> list[Mapping[str, Any]]:
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def create(spark: SparkSession, folder: Path, feed: bool = True) -> str:
    table = f"{folder}/t"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, v STRING) USING delta"
        f" TBLPROPERTIES (delta.enableChangeDataFeed = {str(feed).lower()})"
    )
    return table


def insert(spark: SparkSession, table: str, first: int, end: int, files: int = 1) -> None:
    frame = spark.range(first, end, 1, files).selectExpr("id", "CAST(id AS STRING) AS v")
    frame.write.format("delta").mode("append").save(table)


def changes(table: str, *args: int, **options: Any) -> list[Key]:
    rows = cdfd.changes(table, *args, **options).read_all()
    return [(row["_commit_version"], row[CHANGE_ORDINAL], row["_change_type"], row["id"]) for row in rows.to_pylist()]


def snapshot(table: str, version: int) -> list[Key]:
    rows = cdfd.snapshot(table, version).read_all()
    return [(row["_commit_version"], row[CHANGE_ORDINAL], row["_change_type"], row["id"]) for row in rows.to_pylist()]


def test_from_the_beginning_and_on(spark: SparkSession, tmp_path: Path) -> None:
    """Runs with a checkpoint each take what came since the one before."""
    table = create(spark, tmp_path)
    insert(spark, table, 0, 10, files=2)
    stream = Stream(spark, table, tmp_path, startingVersion=0)
    assert sorted(stream.run()) == sorted(changes(table))
    assert stream.run() == []
    spark.sql(f"UPDATE delta.`{table}` SET v = 'x' WHERE id < 3")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 5")
    assert sorted(stream.run()) == sorted(changes(table, 2))
    assert len(stream.batches) == 2


def test_snapshot_first_in_pieces_with_failures(spark: SparkSession, tmp_path: Path) -> None:
    """Without a start: live rows, three files at a time, then changes; a batch that fails comes again, no other does."""
    table = create(spark, tmp_path, feed=False)
    insert(spark, table, 0, 40, files=4)
    insert(spark, table, 40, 80, files=4)
    stream = Stream(spark, table, tmp_path, maxFilesPerTrigger=3)
    stream.fail_at = 1
    with pytest.raises(StreamingQueryException, match="lost on the way"):
        stream.run(batches=9)
    assert stream.batches == [30]
    # The table gets further versions; the snapshot stays at its own.
    insert(spark, table, 80, 120, files=4)
    stream.run(batches=9)
    assert stream.batches == [30, 30, 30, 30]
    insert(spark, table, 120, 121)
    stream.run(batches=9)
    assert Counter(stream.rows) == Counter([*snapshot(table, 2), *changes(table, 3)])
    places = [(each["phase"], each["version"], each["part"], each["ordinal"]) for each in stream.offsets()]
    assert places == [
        ("snapshot", 2, 3, 30),
        ("snapshot", 2, 6, 60),
        ("stream", 3, 1, 10),
        ("stream", 4, 0, 0),
        ("stream", 5, 0, 0),
    ]


def test_a_first_batch_that_fails_is_begun_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Asked again where to begin, the table has gone on: what was planned counts."""
    table = create(spark, tmp_path)
    insert(spark, table, 0, 5)
    stream = Stream(spark, table, tmp_path)
    stream.fail_at = 0
    with pytest.raises(StreamingQueryException, match="lost on the way"):
        stream.run()
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 2")
    stream.run()
    stream.run()
    assert Counter(stream.rows) == Counter([*snapshot(table, 1), *changes(table, 2)])


def test_limits_of_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """The first file of a batch fits, however large; a version of change data files is not cut."""
    table = create(spark, tmp_path)
    insert(spark, table, 0, 9, files=3)
    spark.sql(f"UPDATE delta.`{table}` SET v = 'x'")
    stream = Stream(spark, table, tmp_path, startingVersion=1, maxBytesPerTrigger="1b")
    stream.run(batches=9)
    assert stream.batches == [3, 3, 3, 18]
    assert sorted(stream.rows) == sorted(changes(table))


def ten_rows_three_times(spark: SparkSession, folder: Path) -> str:
    table = create(spark, folder)
    for first in range(0, 30, 10):
        insert(spark, table, first, first + 10)
    return table


def test_available_now_with_a_limit(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark 4.1 asks a Python source once: a run is one micro-batch, and the next run resumes. PySpark 4.2 runs as many as needed."""
    stream = Stream(spark, ten_rows_three_times(spark, tmp_path), tmp_path, startingVersion=1, maxVersionsPerTrigger=1)
    stream.run()
    assert stream.batches == ([10] if pyspark_version() == "4.1" else [10, 10, 10])


def test_run_available(spark: SparkSession, tmp_path: Path) -> None:
    """In micro-batches within the limit, also after a failure, to the version that was the newest at the start."""
    table = ten_rows_three_times(spark, tmp_path)
    stream = Stream(spark, table, tmp_path, startingVersion=1, maxVersionsPerTrigger=1)
    stream.fail_at = 1
    with pytest.raises(StreamingQueryException, match="lost on the way"):
        cdfd.spark.run_available(stream.writer())
    assert stream.batches == [10]
    cdfd.spark.run_available(stream.writer())
    assert stream.batches == [10, 10, 10]
    for number in range(2):
        insert(spark, table, number, number + 1)
    stream.then = lambda: insert(spark, table, 0, 7)
    cdfd.spark.run_available(stream.writer())
    assert stream.batches[3:] == [1, 1]


def test_run_available_needs_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    table = ten_rows_three_times(spark, tmp_path)
    stream = Stream(spark, table, tmp_path, startingVersion=1, maxVersionsPerTrigger=1)
    counts = list[int]()
    writer = stream.frame().writeStream.foreachBatch(lambda rows, _: counts.append(rows.count()))
    if pyspark_version() == "4.1":
        with pytest.raises(ConfigError, match="the query has no checkpoint"):
            cdfd.spark.run_available(writer)
        assert counts == [10]  # not once more
    else:
        cdfd.spark.run_available(writer)


def test_run_available_needs_the_progress_of_a_run(spark: SparkSession, tmp_path: Path) -> None:
    """Spark keeps one less than the setting says. The query would run again and again, with all versions that come meanwhile."""
    table = ten_rows_three_times(spark, tmp_path)
    stream = Stream(spark, table, tmp_path, startingVersion=1, maxVersionsPerTrigger=1)

    def commit() -> None:
        assert len(stream.batches) <= 3, "the query ran again"
        insert(spark, table, 0, 1)

    stream.then = commit
    kept = {"spark.sql.streaming.numRecentProgressUpdates": "1"}
    with settings(spark, kept), pytest.raises(ConfigError, match="numRecentProgressUpdates"):
        cdfd.spark.run_available(stream.writer())


@pytest.fixture
def without_tasks(spark: SparkSession) -> str:
    """A format whose tasks fail. Its classes are sent to executors by value."""

    class WithoutTasks(StreamReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            raise AssertionError("a task reads")

    class Source(CdfdSource):
        @classmethod
        def name(cls) -> str:
            return "cdfd-without-tasks"

        def streamReader(self, schema: StructType) -> StreamReader:
            reader = super().streamReader(schema)
            reader.__class__ = WithoutTasks
            return reader

    spark.dataSource.register(Source)
    return Source.name()


def test_rows_of_a_small_micro_batch_come_with_its_plan(
    spark: SparkSession, tmp_path: Path, without_tasks: str
) -> None:
    stream = Stream(spark, ten_rows_three_times(spark, tmp_path), tmp_path, startingVersion=1)
    stream.format = without_tasks
    assert len(stream.run(1)) == 30


def test_planned_rows_have_the_values_that_tasks_read(spark: SparkSession, tmp_path: Path, without_tasks: str) -> None:
    """Of every type, but for arrays and maps."""
    table = f"{tmp_path}/types"
    spark.sql(
        f"""CREATE TABLE delta.`{table}` USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true') AS SELECT
        id, CAST(id AS TINYINT) byte, CAST(id AS SMALLINT) short, CAST(id AS INT) number, id / 3 double, CAST(id / 3 AS FLOAT) single,
        id > 1 flag, concat('a', id) text, CAST('b' AS BINARY) raw, DATE'2026-01-01' day, TIMESTAMP'2026-01-01 12:00:00.000001' at,
        TIMESTAMP_NTZ'1500-01-01 12:00:00' local, CAST(id AS DECIMAL(30, 4)) price,
        struct(id AS number, struct(TIMESTAMP'1969-01-01' AS t, CAST(NULL AS INT) AS gone) AS inner) place, CAST(NULL AS STRING) nothing
        FROM range(3)"""
    )
    frame = spark.readStream.format(without_tasks).option("startingVersion", 0).load(table)
    rows: list[str] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(map(str, batch.collect())))
    query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
    assert query.awaitTermination(WITHIN)
    assert (error := query.exception()) is None, error
    expected = spark.read.format("cdfd").option("startingVersion", 0).load(table).collect()
    assert sorted(rows) == sorted(map(str, expected))
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("BIGINT COMMENT 'a number'", "5"),
        ("ARRAY<BIGINT>", "array(1, NULL)"),
        ("STRUCT<m: MAP<STRING, BIGINT>>", "named_struct('m', map('k', NULL))"),
        ("STRUCT<a: BIGINT COMMENT 'a'>", "named_struct('a', 1)"),
    ],
)
def test_rows_that_spark_does_not_take_with_a_plan_are_read_by_tasks(
    spark: SparkSession, tmp_path: Path, column: str, value: str
) -> None:
    """Spark's copy of arrays fails for nulls in them, and Arrow's schema has no comments."""
    table, rows = f"{tmp_path}/table", list[Any]()
    spark.sql(f"CREATE TABLE delta.`{table}` (v {column}) USING delta")
    spark.sql(f"INSERT INTO delta.`{table}` SELECT {value}")
    frame = spark.readStream.format("cdfd").option("startingVersion", 1).load(table)
    writer = frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
    assert query.awaitTermination(WITHIN)
    assert (error := query.exception()) is None, error
    expected = spark.read.format("cdfd").option("startingVersion", 1).load(table).collect()
    assert rows == expected
    assert len(rows) == 1


def test_lag(spark: SparkSession, tmp_path: Path) -> None:
    """In the progress of each micro-batch, as of its planning; and by the table."""
    table = ten_rows_three_times(spark, tmp_path)
    files = [DeltaTable(table, version).get_add_actions().column("size_bytes").to_pylist() for version in (1, 2, 3)]
    total = [sum(sizes) for sizes in files]
    stream = Stream(spark, table, tmp_path, startingVersion=1, maxVersionsPerTrigger=1)
    query = stream.writer().start()
    try:
        query.processAllAvailable()
        actual = [each for progress in query.recentProgress if progress.numInputRows for each in lag(progress)]
        assert [(each.versions, each.bytes) for each in actual] == [
            (2, total[2] - total[0]),
            (1, total[2] - total[1]),
            (0, 0),
        ]
        assert actual[0].seconds >= actual[1].seconds - 60 > -60
        assert actual[2].seconds == 0
        last = query.lastProgress
        assert last is not None
        latest = last.sources[0].latestOffset.replace('"', "'")
        assert "'version': 4" in latest if pyspark_version() == "4.1" else latest == "null"
    finally:
        query.stop()
    assert lag_now(last, table) == Lag(0, 0, 0.0)
    insert(spark, table, 30, 33)
    behind = lag_now(last, table)
    size = sum(DeltaTable(table).get_add_actions().column("size_bytes").to_pylist()) - total[2]
    assert (behind.versions, behind.bytes) == (1, size)
    assert lag(last) == [Lag(0, 0, 0.0)]


def test_only_what_is_to_come(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)
    insert(spark, table, 0, 3)
    stream = Stream(
        spark, table, tmp_path, startingVersion="latest", columns="id,_change_type,_commit_version,_change_ordinal"
    )
    assert stream.run() == []
    insert(spark, table, 3, 5)
    assert [row[3] for row in sorted(stream.run())] == [3, 4]


def test_the_schema_changes(spark: SparkSession, tmp_path: Path) -> None:
    """A running query stops before the change. After a restart it resumes, and earlier rows lack the column."""
    table = create(spark, tmp_path)
    insert(spark, table, 0, 3)
    stream = Stream(spark, table, tmp_path, startingVersion=0)
    query = (
        stream.frame()
        .writeStream.foreachBatch(stream._take)
        .option("checkpointLocation", str(stream.checkpoint))
        .start()
    )
    try:
        query.processAllAvailable()
        spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMN (note STRING)")
        spark.sql(f"INSERT INTO delta.`{table}` VALUES (3, 'd', 'n')")
        with pytest.raises(StreamingQueryException) as caught:
            query.processAllAvailable()
    finally:
        query.stop()
    assert "the table's schema changed: added note" in str(caught.value)
    assert "version 2" in str(caught.value)
    assert stream.frame().columns[:3] == ["id", "v", "note"]
    stream.run()
    assert sorted(stream.rows) == sorted(changes(table))


def test_a_replacement_of_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """The query ends there by default. With `onReplace` and the same checkpoint it reads on: all rows of before are deleted."""
    table = create(spark, tmp_path)
    insert(spark, table, 0, 3)
    stream = Stream(spark, table, tmp_path, startingVersion=0)
    stream.run()
    insert(spark, table, 3, 4)
    spark.sql(f"CREATE OR REPLACE TABLE delta.`{table}` USING delta AS SELECT 7L AS id, 'new' AS v")
    with pytest.raises(StreamingQueryException, match="`onReplace` = `continue`"):
        stream.run()
    stream.options["onReplace"] = "continue"
    stream.run()
    insert(spark, table, 8, 9)
    stream.run()
    assert sorted(stream.rows) == sorted(changes(table))
    assert Counter(row[2] for row in stream.rows) == {"insert": 4 + 1 + 1, "delete": 4}


def test_a_table_created_anew_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)
    insert(spark, table, 0, 3)
    stream = Stream(spark, table, tmp_path, startingVersion=0)
    stream.run()
    shutil.rmtree(table)
    create(spark, tmp_path)
    for number in range(3):
        insert(spark, table, number, number + 1)
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        stream.run()


def test_a_file_that_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    """The error names table, version and file; with `ignoreMissingFiles` the rest is read."""
    table = create(spark, tmp_path, feed=False)
    insert(spark, table, 0, 3)
    insert(spark, table, 3, 5)
    (gone,) = spark.read.format("delta").load(table).where("id < 3").select("_metadata.file_path").distinct().collect()
    path = Path(gone[0].removeprefix("file:").replace("//", "/"))
    path.unlink()
    stream = Stream(spark, table, tmp_path, startingVersion=0)
    with pytest.raises(StreamingQueryException) as caught:
        stream.run()
    message = str(caught.value)
    assert "MissingFileError: the file is gone" in message
    assert f"table {table}, version 1, file {path.name}" in message
    stream.options["ignoreMissingFiles"] = "true"
    assert [row[3] for row in sorted(stream.run())] == [3, 4]


def test_an_end_is_for_batches(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path)
    with pytest.raises(Exception, match="a stream has no end"):
        Stream(spark, table, tmp_path, endingVersion=0).run()
