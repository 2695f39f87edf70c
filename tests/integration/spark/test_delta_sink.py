"""delta-spark reads a changelog that cdfd writes, and writes into it between two deliveries."""

import asyncio
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdfd.errors import SinkError
from cdfd.model.columns import VersionColumns, change_schema, constant_type
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.log_actions import mirror_mode
from cdfd.sinks.delta.mirror.sink import MirrorSink
from cdfd.sinks.delta.mirror.state import MirrorOptions
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.ledger.ledger import app_id
from cdfd.storage.local import LocalStorage


async def open_sink(folder: Path, interval: int = 0) -> DeltaSink:
    target = Target(
        LocalStorage(folder), app_id("shop", "orders"), Layout(("day",), checkpoint_interval=interval), SystemClock()
    )
    return await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1 << 20))


def batch(version: int, **more: pa.Array) -> pa.RecordBatch:
    days = ["2026-01-01", None, "a=b/c %"]
    n = pa.array([3 * version + place for place in range(3)], pa.int16())
    return pa.record_batch({"n": n, "day": days, "s": [{"a": 1, "b": [1, None]}] * 3} | more)


async def deliver(sink: DeltaSink, version: int, rows: pa.RecordBatch) -> None:
    delivery = await sink.begin(Position("T", version))
    await delivery.write(rows)
    await delivery.commit(Position("T", version + 1))


async def test_spark_reads_what_is_written_and_writes_on(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    sink = await open_sink(folder)

    async def sql(text: str) -> list[tuple[object, ...]]:
        rows = await asyncio.to_thread(lambda: spark.sql(text.replace("TARGET", f"delta.`{folder}`")).collect())
        return [tuple(row) for row in rows]

    await deliver(sink, 0, batch(0))
    assert await sql("SELECT n, day, s.a, s.b FROM TARGET ORDER BY n") == [
        (0, "2026-01-01", 1, [1, None]),
        (1, None, 1, [1, None]),
        (2, "a=b/c %", 1, [1, None]),
    ]
    # Wider numbers, a new column and a timestamp without a zone need features, which Spark then keeps.
    wider = batch(1, n=pa.array([1 << 20, 1 << 21, 1 << 22]), at=pa.array([1, 2, 3], pa.timestamp("us")))
    await deliver(sink, 1, wider)
    assert await sql("SELECT n FROM TARGET WHERE n > 100000 AND day IS NULL") == [(1 << 21,)]
    assert await sql("SELECT max(n), count(at) FROM TARGET") == [(1 << 22, 3)]
    await sql("INSERT INTO TARGET (n, day) VALUES (-1, 'other')")
    await sql("OPTIMIZE TARGET")
    await sql(
        "ALTER TABLE TARGET SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '1')"
    )
    await sql("DELETE FROM TARGET WHERE n = -1")
    await deliver(sink, 2, batch(2))
    await sql("ALTER TABLE TARGET SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")
    await deliver(sink, 3, batch(3))
    # The position is in Spark's checkpoint.
    again = await open_sink(folder)
    assert await again.last_position() == Position("T", 4)
    await deliver(again, 4, batch(4))
    assert await sql("SELECT n FROM TARGET WHERE n < 100 ORDER BY n") == [(n,) for n in (0, 1, 2, *range(6, 15))]
    await sql("ALTER TABLE TARGET ADD CONSTRAINT odd CHECK (n % 2 = 1 OR true)")
    with pytest.raises(SinkError, match="the CHECK constraint 'odd' cannot be checked"):
        await deliver(again, 5, batch(5))


async def test_spark_reads_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    sink = await open_sink(folder, interval=5)
    for version in range(4):
        await deliver(sink, version, batch(version))

    async def count(where: str) -> int:
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        rows = await asyncio.to_thread(
            lambda: spark.sql(f"SELECT count(*) FROM delta.`{folder}` WHERE {where}").collect()
        )
        return int(rows[0][0])

    assert await count("true") == 12
    await asyncio.to_thread(lambda: spark.sql(f"DELETE FROM delta.`{folder}` WHERE n = 0").collect())
    await deliver(sink, 4, batch(4))
    log = folder / "_delta_log"
    newest = max(int(path.name[:20]) for path in log.glob("*.json"))
    assert [path.name for path in log.glob("*.checkpoint.parquet")] == [f"{newest:020}.checkpoint.parquet"]
    for version in range(newest):
        (log / f"{version:020}.json").unlink()
    assert await count("true") == 14
    assert await count("day = 'a=b/c %'") == 5
    assert await count("n > 11") == 3
    await asyncio.to_thread(lambda: spark.sql(f"OPTIMIZE delta.`{folder}`").collect())
    assert await count("day IS NULL AND s.a = 1") == 5


async def test_names_that_need_column_mapping_in_the_source(spark: SparkSession, tmp_path: Path) -> None:
    sink = await open_sink(tmp_path / "t")
    await deliver(sink, 0, pa.record_batch({"unit price (€)": [1], "day": ["a"], "s": [{"a b": 1}]}))
    actual = await asyncio.to_thread(
        lambda: spark.sql(f"SELECT `unit price (€)`, s.`a b` FROM delta.`{tmp_path}/t`").collect()
    )
    assert [tuple(row) for row in actual] == [(1, 1)]


async def test_spark_reads_the_change_feed_of_a_partitioned_mirror(spark: SparkSession, tmp_path: Path) -> None:
    """Change data files are in folders of partitions, or, for names with escapes, in none."""
    mode = mirror_mode(change_feed=True)
    target = Target(LocalStorage(tmp_path), "cdfd/shop/orders", Layout(("day",), mode=mode), SystemClock())
    files = partial(DataFiles, compression="snappy", file_bytes=1 << 20)
    sink = await MirrorSink.open(target, files, MirrorOptions(("id",), True, SpillSpace()))
    days = ["2026-01-01", None, "a b/%"]
    schema = pa.schema({"id": pa.int64(), "day": pa.string()})
    for version, kind in enumerate(("insert", "delete")):
        columns = [pa.array([0, 1, 2]), pa.array(days), constant_type(kind, 3)]
        typed = pa.RecordBatch.from_arrays(columns, schema=pa.schema([*schema, change_schema(schema)[len(schema)]]))
        delivery = await sink.begin(Position("T", version))
        await delivery.write(VersionColumns(version, 0).complete(typed, 0))
        await delivery.commit(Position("T", version + 1))
    folders = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.glob("_change_data/**/*.parquet")}
    wanted = {"_change_data/day=2026-01-01", "_change_data/day=__HIVE_DEFAULT_PARTITION__", "_change_data"}
    assert folders == wanted
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    feed = await asyncio.to_thread(lambda: reader.load(str(tmp_path)).select("_change_type", "id", "day").collect())
    expected = [(kind, number, day) for kind in ("delete", "insert") for number, day in enumerate(days)]
    assert sorted(map(tuple, feed), key=lambda row: row[:2]) == expected
    assert await asyncio.to_thread(spark.read.format("delta").load(str(tmp_path)).count) == 0
