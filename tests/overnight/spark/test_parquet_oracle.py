"""Random Parquet files of three writers, read as they were written.

The run begins at seed CDFD_ORACLE_FIRST (0) and ends before CDFD_PARQUET_ORACLE (`make oracle`: 3,000).
"""

import os
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.support.parquet_oracle import ALL, DELTA, WITH_ZONES, Write, by_delta_rs, by_pyarrow, by_spark, difference

SEEDS = range(int(os.environ.get("CDFD_ORACLE_FIRST", 0)), int(os.environ.get("CDFD_PARQUET_ORACLE", 30)))


def differences(write: Write, folder: Path, seeds: range, types: list[pa.DataType]) -> list[str]:
    actual = [difference(write, seed, folder / str(seed), types) for seed in seeds]
    print(f"{len(seeds)} files, of which pyarrow reads {sum(read for _, read in actual)}")
    return [what for what, _ in actual if what]


def test_files_of_pyarrow(tmp_path: Path) -> None:
    assert not differences(by_pyarrow, tmp_path, SEEDS, ALL)


def test_files_of_delta_rs(tmp_path: Path) -> None:
    assert not differences(by_delta_rs, tmp_path, SEEDS[::3], WITH_ZONES)


def test_files_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    assert not differences(partial(by_spark, spark=spark), tmp_path, SEEDS[::6], DELTA)
