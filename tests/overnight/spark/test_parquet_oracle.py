"""CDFD_PARQUET_ORACLE random Parquet files of three writers (3000), from seed CDFD_ORACLE_FIRST (0) on, read as they were written."""

import os
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.support.parquet_oracle import ALL, DELTA, WITH_ZONES, Write, by_delta_rs, by_pyarrow, by_spark, difference

COUNT = int(os.environ.get("CDFD_PARQUET_ORACLE", 30))
FIRST = int(os.environ.get("CDFD_ORACLE_FIRST", 0))


def differences(write: Write, folder: Path, count: int, types: list[pa.DataType]) -> list[str]:
    actual = [difference(write, seed, folder / str(seed), types) for seed in range(FIRST, FIRST + count)]
    print(f"{count} files, of which pyarrow reads {sum(read for _, read in actual)}")
    return [what for what, _ in actual if what]


def test_files_of_pyarrow(tmp_path: Path) -> None:
    assert not differences(by_pyarrow, tmp_path, COUNT, ALL)


def test_files_of_delta_rs(tmp_path: Path) -> None:
    assert not differences(by_delta_rs, tmp_path, COUNT // 3, WITH_ZONES)


def test_files_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    assert not differences(partial(by_spark, spark=spark), tmp_path, COUNT // 6, DELTA)
