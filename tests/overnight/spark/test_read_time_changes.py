"""delta-spark's own derivation of changes against `refine: rows`: tables with row tracking and without a change feed.

It is a preview, and needs PySpark 4.2:

    make oracle-preview

The run begins at seed CDFD_ORACLE_FIRST and ends before CDFD_REFINE_ORACLE.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cdfd
from tests.overnight.spark.test_refine_oracle import LESS, of_version
from tests.support.spark.installation import pyspark_version
from tests.support.spark.refine_workload import Life
from tests.support.spark.workload import READING, REFUSALS, name_of, settings
from tests.support.spark.workload_answers import bag, folded

pytestmark = pytest.mark.skipif(pyspark_version() < "4.2", reason="needs PySpark 4.2")

END = int(os.environ.get("CDFD_REFINE_ORACLE", 12))
FIRST = int(os.environ.get("CDFD_ORACLE_FIRST", 0))
PREVIEW = {"spark.databricks.delta.changelogV2.enabled": "true"}


UNMAPPED = "DELTA_CANNOT_RESOLVE_COLUMN"
"""The preview reads no table with column mapping."""


def read_time(life: Life, first: int, last: int) -> Iterator[tuple[int, int, pa.Table]]:
    """delta-spark's changes, in the longest ranges that it answers: first version, last version, and rows."""
    query = f"SELECT * FROM {life.name} CHANGES FROM VERSION {first} TO VERSION {last} WITH (computeUpdates = true)"
    try:
        with settings(life.spark, PREVIEW):
            rows = life.spark.sql(query).toArrow()
    except REFUSALS as error:
        if name_of(error) == UNMAPPED:
            return
        print(f"versions {first} to {last}: {name_of(error):.100}")
        if first < last:
            middle = (first + last) // 2
            yield from read_time(life, first, middle)
            yield from read_time(life, middle + 1, last)
        return
    yield first, last, rows.drop_columns([name for name in rows.column_names if name == "_metadata"])


def replaces_schema(life: Life, version: int) -> bool:
    """Whether a version drops columns."""
    before, after = (set(cdfd.snapshot(life.path, each).schema.names) for each in (version - 1, version))
    return not before <= after


@pytest.mark.parametrize("seed", range(FIRST, END))
def test_it_gives_the_rows_of_refinement(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    with settings(spark, READING):
        life = Life(spark, tmp_path / "table", seed, feed=False)
        life.live()
        answers = list(read_time(life, 1, life.version()))
    for first, last, theirs in answers:
        ours = cdfd.changes(life.path, first, last, refine="rows").read_all()
        for version in range(first, last + 1):
            actual, wanted = bag(of_version(ours, version), LESS), bag(of_version(theirs, version), LESS)
            if replaces_schema(life, version):
                # cdfd does not refine such a version: rows that both sides have are deleted and inserted.
                actual, wanted = folded(actual), folded(wanted)
            assert actual == wanted, version
    assert answers or seed % 3 == 1
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
