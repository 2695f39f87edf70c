"""Spark's legacy format of Parquet has lists of two levels."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdfd.scan.parquet import reader


@pytest.mark.parametrize(
    "element",
    [
        "id",
        "IF(id = 1, NULL, id)",
        "named_struct('x', id)",
        "array(id, id + 1)",
        "map('a', id)",
        "array(map('a', array(id)))",
        "IF(id = 1, NULL, array(id))",
    ],
)
def test_lists_of_elements_of_every_kind(element: str, spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
    try:
        frame = spark.sql(f"SELECT id, array({element}) AS items, map('k', array({element})) AS by_name FROM range(3)")
        frame.coalesce(1).write.parquet(f"{tmp_path}/rows")
    finally:
        spark.conf.unset("spark.sql.parquet.writeLegacyFormat")
    [path] = tmp_path.glob("rows/*.parquet")
    with reader.open_parquet(pa.OSFile(str(path))) as file:
        batches = list(file.batches(["id", "items", "by_name"], rows=2))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert rows == pq.ParquetFile(path).read().to_pylist()
    assert rows[1]["items"] == [None if element.startswith("IF") else rows[1]["items"][0]]
