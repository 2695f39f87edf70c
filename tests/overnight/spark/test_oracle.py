"""delta-spark as the oracle: random tables that it wrote, its change feed against cdfd's. docs/oracle.md lists the differences.

The run ends before seed CDFD_ORACLE (`make oracle`: 300). CDFD_ORACLE_FIRST is the first seed, so that a stopped run can be resumed.
CDFD_ORACLE_LOG is a file to which each seed adds a line of JSON. The first sixteen tables cover every feature.
"""

import datetime
import json
import os
import random
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cdfd
from cdfd.errors import MissingFileError
from cdfd.spark import register
from tests.support.spark.workload import FASTER, PROFILES, READING, REFUSALS, Workload, name_of, settings
from tests.support.spark.workload_answers import Comparison

SAMPLE = len(PROFILES)
END = int(os.environ.get("CDFD_ORACLE", SAMPLE))
FIRST = int(os.environ.get("CDFD_ORACLE_FIRST", 0))
LENGTH = 3 if END > SAMPLE else 0  # random operations besides a profile's own


@pytest.mark.parametrize("seed", range(FIRST, END), ids=lambda seed: f"{seed}-{list(PROFILES)[seed % SAMPLE]}")
def test_changes_are_those_of_delta_spark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    register(spark)
    began = time.monotonic()
    work = Workload(spark, tmp_path, seed)
    try:
        work.live(LENGTH)
    except REFUSALS as error:
        if LENGTH:
            pytest.skip(f"delta-spark refuses to create this table: {name_of(error)}")
        raise
    comparison = Comparison(work)
    with settings(spark, READING):
        comparison.run(random.Random(seed))
    shutil.rmtree(tmp_path)
    # It holds the state of every table for an hour.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    log(comparison, time.monotonic() - began)
    assert not comparison.differences, "\n".join([*comparison.differences, " ".join(map(str, work.steps))])
    assert comparison.compared >= 4, comparison.refusals


class TestWhatIsKnownToDiffer:
    """The lines of docs/oracle.md that are not refusals: should delta-spark change its mind, so do they."""

    def test_days_that_the_julian_calendar_skips(self, spark: SparkSession, tmp_path: Path) -> None:
        table = made(spark, tmp_path, "(1, DATE'1582-10-10')")
        day = datetime.date(1582, 10, 10)
        assert spark.read.format("delta").load(table).toArrow()["day"].to_pylist() == [day]
        assert cdfd.changes(table, 1).read_all()["day"].to_pylist() == [day]
        assert feed(spark, table, 1)["day"].to_pylist() == [datetime.date(1582, 10, 15)]

    def test_vectors_after_their_feature_was_dropped(self, spark: SparkSession, tmp_path: Path) -> None:
        table = made(spark, tmp_path, vectors=True)
        spark.sql(f"INSERT INTO delta.`{table}` SELECT id, NULL FROM range(1, 4, 1, 1)")  # one file of three rows
        spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 1")
        before = feed(spark, table, 2)
        spark.sql(f"ALTER TABLE delta.`{table}` DROP FEATURE deletionVectors")
        assert before["id"].to_pylist() == cdfd.changes(table, 2).read_all()["id"].to_pylist() == [1]
        assert sorted(feed(spark, table, 2)["id"].to_pylist()) == [1, 2, 3]

    def test_ranges_by_time_after_a_replacement_ended_commit_timestamps(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        table = made(spark, tmp_path, "(1, NULL)")
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
        spark.sql(f"INSERT INTO delta.`{table}` VALUES (2, NULL)")
        end = cdfd.changes(table, 3).read_all()["_commit_timestamp"][0].as_py()
        entry = Path(table, "_delta_log", f"{3:020}.json")
        later = entry.stat().st_mtime_ns + 10**9
        os.utime(entry, ns=(later, later))
        by_time = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
        by_time = by_time.option("endingTimestamp", str(end.replace(tzinfo=None)))
        assert sorted(by_time.load(table).toArrow()["id"].to_pylist()) == [1, 2]
        feed_only = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        spark.sql(f"REPLACE TABLE delta.`{table}` (id BIGINT, day DATE) USING delta {feed_only}")
        assert by_time.load(table).toArrow()["id"].to_pylist() == [1]
        assert cdfd.changes(table, 1, end).read_all()["id"].to_pylist() == [1, 2]


def test_times_of_log_entries_that_are_out_of_order(spark: SparkSession, tmp_path: Path) -> None:
    """Each is a millisecond after the one before: wherever a range begins."""
    table = made(spark, tmp_path, "(1, NULL)", "(2, NULL)", "(3, NULL)")
    first, *later = (Path(table, "_delta_log", f"{version:020}.json") for version in (1, 2, 3))
    moment = first.stat().st_mtime_ns // 10**6
    for back, entry in zip((5000, 4000), later, strict=True):
        os.utime(entry, ns=((moment - back) * 10**6, (moment - back) * 10**6))
    for start in (1, 2, 3):
        assert times_of(cdfd.changes(table, start).read_all())[-1] == moment + 2
    assert times_of(feed(spark, table, 1)) == [moment, moment + 1, moment + 2]


def test_a_dropped_column_that_restore_brings_back(spark: SparkSession, tmp_path: Path) -> None:
    """The version that brings it back deletes rows with the value that their inserts had."""
    table = made(spark, tmp_path, "(1, DATE'2026-01-01')")
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (2, DATE'2026-01-02')")
    spark.sql(f"ALTER TABLE delta.`{table}` DROP COLUMN day")
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 2")
    ours = cdfd.changes(table, 5).read_all().select(["id", "day", "_change_type"])
    assert ours.to_pylist() == [{"id": 2, "day": datetime.date(2026, 1, 2), "_change_type": "delete"}]
    assert ours.to_pylist() == feed(spark, table, 5).select(["id", "day", "_change_type"]).to_pylist()


def test_what_a_vacuum_took_is_missing_for_both(spark: SparkSession, tmp_path: Path) -> None:
    table = made(spark, tmp_path, "(1, NULL), (2, NULL)")
    spark.sql(f"UPDATE delta.`{table}` SET id = id + 10")
    with settings(spark, FASTER):
        spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    assert sorted(cdfd.snapshot(table).read_all()["id"].to_pylist()) == [11, 12]
    for start in (1, 2):
        with pytest.raises(REFUSALS):
            feed(spark, table, start)
        with pytest.raises(MissingFileError):
            cdfd.changes(table, start).read_all()


def log(comparison: Comparison, seconds: float) -> None:
    """A line for a seed, where one is asked for: a long run shows what it found before it ends."""
    path = os.environ.get("CDFD_ORACLE_LOG")
    if path is None:
        return
    line = {
        "seed": comparison.work.seed,
        "kind": comparison.work.kind,
        "seconds": round(seconds, 1),
        "compared": comparison.compared,
        "refusals": comparison.refusals,
        "steps": [str(step) for step in comparison.work.steps],
        "differences": comparison.differences,
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def feed(spark: SparkSession, table: str, start: int) -> pa.Table:
    """Changes as delta-spark reads them, oldest first."""
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", start)
    return reader.load(table).toArrow().sort_by("_commit_version")


def made(spark: SparkSession, folder: Path, *rows: str, vectors: bool = False) -> str:
    """A table with a change feed: an insert for each of `rows`, from version 1 on."""
    table = f"{folder}/t"
    properties = f"delta.enableChangeDataFeed = true, delta.enableDeletionVectors = {str(vectors).lower()}"
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, day DATE) USING delta TBLPROPERTIES ({properties})")
    for row in rows:
        spark.sql(f"INSERT INTO delta.`{table}` VALUES {row}")
    return table


def times_of(changes: pa.Table) -> list[int]:
    """Milliseconds since 1970."""
    return changes["_commit_timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
