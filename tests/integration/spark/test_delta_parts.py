"""Spark's executors write the data files of large versions into a Delta table, and the daemon commits them once."""

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdfd.spark.engine.engine import SparkEngine
from tests.integration.spark.test_engine import Borrowed
from tests.support.delta_copies import Copy, Dying, Twice
from tests.support.faulty_storage import Died
from tests.support.oracle.workload import Workload


async def rows_of(spark: SparkSession, copy: Copy, order: str) -> list[str]:
    """The rows as delta-spark reads them, as text, in which NaN equals itself."""
    rows = spark.read.format("delta").load(str(copy.target))
    return await asyncio.to_thread(lambda: [repr(row) for row in rows.orderBy(*order.split(", ")).collect()])


async def test_the_rows_and_ordinals_of_the_embedded_engine(spark: SparkSession, tmp_path: Path) -> None:
    """Also if the daemon dies between the files and the commit, and if each part is written twice."""
    newest = [step.version for step in Workload(tmp_path / "rows", 6).steps(4)][-1]
    sink = {"partition_by": ["_change_type"], "on_missing_column": "follow"}
    embedded = Copy(tmp_path / "rows", tmp_path / "a", sink=sink)
    on_spark = Copy(tmp_path / "rows", tmp_path / "b", sink=sink)
    counts = (await embedded.deliver(newest)).rows
    engine = SparkEngine(Borrowed(spark))
    dying = Dying(engine)
    with pytest.raises(Died):
        await on_spark.deliver(newest, dying)
    assert dying.parts
    assert (await on_spark.deliver(newest, Twice(engine))).rows == counts
    order = "_commit_version, _change_ordinal"
    assert await rows_of(spark, on_spark, order) == await rows_of(spark, embedded, order)
    assert await on_spark.position() == await embedded.position() == (newest + 1, "stream")


async def test_the_first_load_of_a_mirror(spark: SparkSession, tmp_path: Path) -> None:
    newest = [step.version for step in Workload(tmp_path / "rows", 7).steps(4)][-1]
    copy = Copy(tmp_path / "rows", tmp_path / "a", {"start": "snapshot", "key": ["id"]}, {"mode": "mirror"})
    await copy.deliver(newest, SparkEngine(Borrowed(spark)))
    source = Copy(tmp_path / "rows", tmp_path)
    assert source.target == source.uri
    assert await rows_of(spark, copy, "id") == await rows_of(spark, source, "id")
