"""Rows shaped on the way on Spark: the rows and ordinals of `cdfd.changes`, in batches, in streams, and in parts."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cdfd
from tests.standard.spark.test_source import Table, numbers, orders, ours, rows

__all__ = ["numbers", "orders"]

pytestmark = pytest.mark.usefixtures("registered")

SHAPES: list[dict[str, Any]] = [
    {"where": "status = 'paid' OR id > 30"},
    {"where": "status = 'paid'", "changes": "files"},
    {"where": "day = '2026-01-01' AND NOT id IN (5, 8)", "columns": ["id", {"name": "amount", "as": "value"}]},
    {"mask": {"status": "truncate:1", "raw": "nullify"}, "exclude_change_types": ["delete", "update_preimage"]},
    {"where": "place.lat > 0 AND amount BETWEEN 3 AND 40.5", "changes": "files", "refine": "key", "key": "id"},
]


def options(shape: dict[str, Any]) -> dict[str, str]:
    values = {name: shape[name] for name in ("where", "changes", "refine", "key") if name in shape}
    values |= {f"mask.{name}": mask for name, mask in shape.get("mask", {}).items()}
    if "columns" in shape:
        values["columns"] = ",".join(
            each if isinstance(each, str) else f"{each['name']} as {each['as']}" for each in shape["columns"]
        )
    if "exclude_change_types" in shape:
        values["excludeChangeTypes"] = ",".join(shape["exclude_change_types"])
    return values


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_and_ordinals_are_those_of_the_embedded_engine(spark: SparkSession, orders: Table, shape: Any) -> None:
    wanted = cdfd.changes(orders, **shape).read_all()
    assert wanted.num_rows
    keys = ["_commit_version", "_change_ordinal", "_change_type", "id"]
    listed = sorted(tuple(row[name] for name in keys) for row in wanted.select(keys).to_pylist())
    for more in ({}, {"maxPartitionBytes": 1}):
        actual = ours(spark, orders, **options(shape), **more)
        assert actual.columns == wanted.column_names
        assert sorted(tuple(row) for row in actual.select(*keys).collect()) == listed
    # Without ordinals among the columns, the filter has the same updates. By a key, only what is read is compared.
    less = ours(spark, orders, **(options(shape) | {"columns": "id,_change_type"}))
    assert "refine" in shape or rows(less) == sorted(str({"id": row[3], "_change_type": row[2]}) for row in listed)


def test_a_filter_of_the_query_is_of_the_shaped_rows(spark: SparkSession, orders: Table) -> None:
    shape = {"where": "id < 30", "columns": "id,amount as value", "mask.amount": "constant:7.00"}
    actual = ours(spark, orders, **shape)
    assert actual.where("value = 7").count() == actual.count() > 0
    assert actual.where("value > 7").count() == 0
    assert actual.where("id = 4 AND _change_type = 'insert'").count() == 1


def test_files_that_the_filter_excludes_are_not_opened(spark: SparkSession, numbers: Table) -> None:
    # A file of the other partition is gone.
    assert ours(spark, numbers, where="p = 0").count() == 30
    assert ours(spark, numbers, where="p = 0 AND id >= 20", startingVersion="snapshot").count() == 20
    assert ours(spark, numbers, where="id < 30", startingVersion="snapshot").count() == 30


def test_a_stream(spark: SparkSession, orders: Table, tmp_path: Path) -> None:
    shape = {"where": "status = 'paid'", "mask.status": "truncate:2", "maxVersionsPerTrigger": "1"}
    reader = spark.readStream.format("cdfd").option("startingVersion", "earliest")
    for name, value in shape.items():
        reader = reader.option(name, value)
    written = reader.load(orders).writeStream.format("parquet").option("path", f"{tmp_path}/out")
    query = written.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
    try:
        query.processAllAvailable()
        batches = len(query.recentProgress)
    finally:
        query.stop()
    wanted = cdfd.changes(orders, where="status = 'paid'", mask={"status": "truncate:2"}).read_all()
    keys = ["_commit_version", "_change_ordinal", "_change_type", "id", "status"]
    actual = spark.read.parquet(f"{tmp_path}/out").select(*keys).collect()
    assert sorted(map(tuple, actual)) == sorted(tuple(row.values()) for row in wanted.select(keys).to_pylist())
    # A version has a micro-batch of its own; there are eight.
    assert batches >= 8


@pytest.mark.parametrize(
    ("shape", "what"),
    [
        ({"where": "statu = 'paid'"}, "there is no column 'statu' \\(character 1"),
        ({"where": "id >"}, "a column or a literal is expected \\(character 5"),
        ({"mask.amount": "truncate:2"}, "cannot hide"),
        ({"mask.id": "nullify", "key": "id"}, "gives different rows the same key"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_row(
    spark: SparkSession, orders: Table, shape: Any, what: str
) -> None:
    with pytest.raises(PySparkException, match=what):
        ours(spark, orders, **shape)
