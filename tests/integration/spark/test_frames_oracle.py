"""Five random tables of delta-spark: `cdfd.spark.changes` gives the rows of `format("cdfd")`, `cdfd.changes` and the change feed.

Many more are read by `tests/overnight/spark/test_oracle.py`, with the same comparison.
"""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdfd.spark import register
from tests.support.spark.workload import PROFILES, READING, Workload, settings
from tests.support.spark.workload_answers import Comparison

KINDS = ("vectors", "mapping-id", "partitioned", "widening", "schemas")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_delta_spark(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    register(spark)
    seed = list(PROFILES).index(kind)
    work = Workload(spark, tmp_path, seed)
    work.live(0)
    comparison = Comparison(work)
    with settings(spark, READING):
        comparison.run(random.Random(seed))
    assert not comparison.differences, "\n".join([*comparison.differences, " ".join(map(str, work.steps))])
    assert comparison.compared >= 6, comparison.refusals
