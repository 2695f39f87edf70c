"""Dates and times that Spark wrote in its old calendar are what Spark reads."""

from contextlib import ExitStack
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from cdfd.runtime import native
from cdfd.scan.parquet import reader

YEAR = 31_556_952 * 1_000_000
ZONES = [
    "UTC",
    "America/Los_Angeles",
    "America/New_York",
    "America/Sao_Paulo",
    "Europe/London",
    "Europe/Berlin",
    "Europe/Dublin",
    "Africa/Casablanca",
    "Asia/Kolkata",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Australia/Sydney",
    "+05:30",
    "GMT-8",
]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("stored_as", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_the_rows_are_those_that_spark_reads(
    stored_as: str, zone: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(f"{stored_as} {zone}")
    instants = [chance.randrange(-2069 * YEAR, -50 * YEAR) for _ in range(600)]
    instants += [chance.randrange(-390 * YEAR, -68 * YEAR) for _ in range(400)]
    rows = [(None,) if chance.random() < 0.1 else (value // 1000 * 1000,) for value in instants]
    path = f"{tmp_path}/rows"
    settings = {
        "spark.sql.session.timeZone": zone,
        "spark.sql.parquet.outputTimestampType": stored_as,
        "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    }
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.callback(spark.conf.set, name, spark.conf.get(name))
            spark.conf.set(name, value)
        times = spark.createDataFrame(rows, "micros bigint").select(f.timestamp_micros("micros").alias("at"))
        day = f.col("at").cast("date")
        frame = times.select(
            "at",
            day.alias("day"),
            f.array(f.struct("at", day.alias("day")), f.struct("at", f.date_add(day, 1).alias("day"))).alias("several"),
            f.when(f.col("at").isNotNull(), f.create_map(day, f.array("at"))).alias("by_day"),
        )
        frame.coalesce(1).write.parquet(path)
        read = spark.read.parquet(path)
        expected = read.select(
            f.unix_micros("at"),
            f.unix_date("day"),
            f.transform("several", lambda each: f.unix_micros(each["at"])),
            f.transform("several", lambda each: f.unix_date(each["day"])),
            f.transform(f.map_keys("by_day"), f.unix_date),
            f.transform(f.flatten(f.map_values("by_day")), f.unix_micros),
        ).collect()
    [file_path] = tmp_path.glob("rows/*.parquet")
    for built in {native.built, False}:
        monkeypatch.setattr(native, "built", built)
        with reader.open_parquet(pa.OSFile(str(file_path))) as file:
            # Not in the order of the file, and batches that are slices of others.
            batches = list(file.batches(["by_day", "several", "day", "at"], rows=300))
        assert [row for batch in batches for row in numbers(batch)] == [tuple(row) for row in expected]


def numbers(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    """The rows with times as microseconds, and dates as days."""
    for instant, day in ((pa.timestamp("us", "UTC"), pa.date32()), (pa.int64(), pa.int32())):
        several = pa.list_(pa.field("element", pa.struct([("at", instant), ("day", day)])))
        kinds = {"at": instant, "day": day, "several": several, "by_day": pa.map_(day, pa.list_(instant))}
        batch = batch.select(list(kinds)).cast(pa.schema(kinds))
    return [
        (
            row["at"],
            row["day"],
            [each["at"] for each in row["several"]],
            [each["day"] for each in row["several"]],
            None if row["by_day"] is None else [key for key, _ in row["by_day"]],
            None if row["by_day"] is None else [at for _, each in row["by_day"] for at in each],
        )
        for row in batch.to_pylist()
    ]
