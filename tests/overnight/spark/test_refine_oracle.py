"""delta-spark as the oracle of refinement: tables with row tracking and the change feed, both written by it.

The files alone, refined by row ids, give the same change rows for each version as its change data files. By the key, they give those
that change something. Where a version has no change data files, both fold to the same rows.

The run begins at seed CDFD_ORACLE_FIRST and ends before CDFD_REFINE_ORACLE (`make oracle`: 300). Every third seed has another table,
without row tracking.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import cdfd
from cdfd.spark import register
from tests.support.spark.refine_workload import Life
from tests.support.spark.workload import READING, REFUSALS, name_of, settings
from tests.support.spark.workload_answers import bag, folded

END = int(os.environ.get("CDFD_REFINE_ORACLE", 8))
FIRST = int(os.environ.get("CDFD_ORACLE_FIRST", 0))
FILTERS = [
    "x > 1",
    "NOT x > 2 OR v LIKE '%c'",
    "p = 1 AND id BETWEEN 2 AND 20",
    "v IN ('a', NULL) OR n.b = X'00'",
    "v NOT IN ('z', 'b')",
    "x = 'NaN' OR p = 0",
    "NOT (p = 1 OR v IS NULL)",
]
"""Filters that Spark takes, too."""
LESS = ("_commit_timestamp", "_change_ordinal")


def of_version(rows: pa.Table, version: int) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = rows.filter(pc.equal(rows["_commit_version"], version)).to_batches()
    return batches


def effective(changes: Counter[Any]) -> Counter[Any]:
    """The changes without updates that change nothing: both images of those are the same row."""
    kinds = {kind: Counter[Any]() for kind in ("insert", "delete", "update_preimage", "update_postimage")}
    for row, count in changes.items():
        kinds[dict(row)["_change_type"]][frozenset(cell for cell in row if cell[0] != "_change_type")] += count
    same = kinds["update_preimage"] & kinds["update_postimage"]
    kinds["update_preimage"] -= same
    kinds["update_postimage"] -= same
    return Counter({(kind, row): count for kind, rows in kinds.items() for row, count in rows.items()})


def feed_of(life: Life) -> pa.Table:
    """The change feed. Where delta-spark refuses a range across schemas, cdfd reads it: test_oracle.py compares both."""
    try:
        reader = life.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
        return reader.load(life.path).toArrow()
    except REFUSALS as error:
        if name_of(error) != "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE":
            raise
        return cdfd.changes(life.path, 1).read_all()


def check_filter(life: Life, where: str) -> None:
    """The rows that Spark selects are left of the filtered changes, whatever they come from, and of a filtered snapshot."""
    with settings(life.spark, READING):
        selected = life.spark.read.format("delta").load(life.path).where(where).toArrow()
    wanted = bag(selected.to_batches())
    assert folded(bag(cdfd.snapshot(life.path, where=where).read_all().to_batches())) == wanted, where
    for more in (
        {},
        {"changes": "files"},
        {"changes": "files", "refine": "rows"},
        {"changes": "files", "refine": "key", "key": "id"},
    ):
        actual = cdfd.changes(life.path, where=where, **more).read_all()
        assert folded(bag(actual.to_batches())) == wanted, (where, more)


@pytest.mark.parametrize("seed", range(FIRST, END))
def test_files_alone_give_the_rows_of_the_change_feed(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    with settings(spark, READING):
        life = Life(spark, tmp_path / "table", seed)
        life.live()
        feed = feed_of(life)
    by_rows = cdfd.changes(life.path, 1, changes="files", refine="rows").read_all()
    by_key = cdfd.changes(life.path, 1, changes="files", refine="key", key="id").read_all()
    compared = 0
    for version in range(1, life.version() + 1):
        theirs, ours, keyed = (bag(of_version(rows, version), LESS) for rows in (feed, by_rows, by_key))
        if life.has_change_data(version):
            assert ours == theirs, version
            assert effective(keyed) == effective(theirs), version
            compared += 1
        assert folded(ours) == folded(theirs) == folded(keyed), version
    # Some tables have no version with change data files. Then only the sums are compared; not so of the seeds of `make test`.
    assert compared or seed >= 12
    live = cdfd.snapshot(life.path).read_all()
    assert folded(bag(by_rows.to_batches())) == folded(bag(live.to_batches()))
    check_filter(life, FILTERS[seed % len(FILTERS)])
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.mark.parametrize("seed", range(FIRST, END, 3))
def test_a_key_alone_gives_the_rows_of_the_change_feed(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    with settings(spark, READING):
        life = Life(spark, tmp_path / "table", seed, tracking=False)
        life.live()
        feed = feed_of(life)
    by_key = cdfd.changes(life.path, 1, changes="files", refine="auto", key="id").read_all()
    for version in range(1, life.version() + 1):
        theirs, keyed = (bag(of_version(rows, version), LESS) for rows in (feed, by_key))
        if life.has_change_data(version):
            assert effective(keyed) == effective(theirs), version
        assert folded(keyed) == folded(theirs), version
    live = cdfd.snapshot(life.path).read_all()
    assert folded(bag(by_key.to_batches())) == folded(bag(live.to_batches()))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_the_spark_source_gives_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with settings(spark, READING):
        life = Life(spark, tmp_path / "table", 5)
        life.live()
        options = {"startingVersion": 1, "changes": "files", "key": "id", "maxPartitionBytes": "1"}
        for refine in ("rows", "key", "auto"):
            wanted = cdfd.changes(life.path, 1, changes="files", refine=refine, key="id").read_all()
            actual = spark.read.format("cdfd").options(**options, refine=refine).load(life.path).toArrow()
            assert bag(actual.to_batches(), LESS[:1]) == bag(wanted.to_batches(), LESS[:1])
        net = spark.read.format("cdfd").options(**options, netChanges="true").load(life.path).toArrow()
        wanted = cdfd.changes(life.path, 1, changes="files", net=True, key="id").read_all()
        assert bag(net.to_batches(), LESS) == bag(wanted.to_batches(), LESS)
