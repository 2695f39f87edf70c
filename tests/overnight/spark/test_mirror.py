"""delta-spark as the oracle of mirrors: random tables that it wrote, mirrored, and equal to their source at every version.

The run begins at seed CDFD_ORACLE_FIRST and ends before CDFD_MIRROR_ORACLE (`make oracle`: 200).
"""

import asyncio
import os
import shutil
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cdfd
from cdfd.errors import CdfdError, MissingFileError
from cdfd.log.table import Table
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.row_options import RowOptions
from cdfd.runtime.clock import SystemClock
from cdfd.scan.execute import Execution
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.base import SnapshotNeededError
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.log_actions import mirror_mode
from cdfd.sinks.delta.mirror.sink import MirrorSink
from cdfd.sinks.delta.mirror.state import MirrorOptions
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.ledger.ledger import app_id
from cdfd.spark import register
from cdfd.spark.upsert import apply_changes
from cdfd.storage.local import LocalStorage
from tests.support.spark.workload import FEED, PROFILES, READING, REFUSALS, Workload, name_of, settings
from tests.support.spark.workload_answers import Bag, bag

SAMPLE = 12
END = int(os.environ.get("CDFD_MIRROR_ORACLE", SAMPLE))
FIRST = int(os.environ.get("CDFD_ORACLE_FIRST", 0))
LENGTH = 3 if END > SAMPLE else 0
APP = app_id("shop", "orders")


async def open_sink(folder: Path, *, change_feed: bool, key: str = "id", interval: int = 4) -> MirrorSink:
    layout = Layout(checkpoint_interval=interval, mode=mirror_mode(change_feed=change_feed))
    target = Target(LocalStorage(folder), APP, layout, SystemClock())
    files = partial(DataFiles, compression="snappy", file_bytes=1 << 20)
    return await MirrorSink.open(target, files, MirrorOptions((key,), change_feed, SpillSpace()))


class Mirroring:
    """Mirrors a table version by version, as the loop of a daemon does, and compares after each."""

    def __init__(self, source: Table, folder: Path, sink: MirrorSink) -> None:
        self.source = source
        self.folder = folder
        self.sink = sink
        self.execution = Execution(source.files)
        self.compared = 0
        self.reloaded = 0

    async def run(self) -> None:
        with self.source.tailer(interval=0.05) as tailer:
            last = await self.source.log.latest_version()
            table_id: str | None = None
            stream = self.source.stream(RowOptions(key=("id",)))
            async with aclosing(stream.versions(tailer, 0, last)) as versions:
                async for version in versions:
                    # Positions keep the id that the table had first.
                    table_id = table_id or version.table_id
                    try:
                        await self._deliver(version, Position(table_id, version.plan.version))
                    except SnapshotNeededError:
                        await self._reload(version.plan.version, table_id)
                    self._compare(version.plan.version)

    async def _deliver(self, version: Version, position: Position) -> None:
        delivery = await self.sink.begin(position)
        try:
            await delivery.start_version(version)
            for batch in self.execution.batches([version.plan]):
                await delivery.write(batch.rows)
            await delivery.commit(Position(position.table_id, version.plan.version + 1))
        except CdfdError:
            await delivery.abort()
            raise

    async def _reload(self, number: int, table_id: str) -> None:
        self.reloaded += 1
        snapshot = await self.source.stream().snapshot(number)
        position = Position(table_id, number, phase="snapshot")
        delivery = await self.sink.begin(Position(table_id, number))
        await delivery.commit(position)
        await self._deliver(snapshot, position)

    def _compare(self, version: int) -> None:
        try:
            rows = cdfd.snapshot(self.source.uri, version, allowed_roots=self.source.files.allowed_roots)
            expected = bag(rows, META)
        except MissingFileError:
            return  # a VACUUM has taken what the version had
        actual = bag(self._rows(rows.schema), META) if self.folder.exists() else bag([])
        assert actual == expected, f"version {version}: {differences(actual, expected)}"
        self.compared += 1

    def _rows(self, source: pa.Schema) -> list[pa.RecordBatch]:
        """The rows of the mirror. A type that the source has widened is widened here with the next rows: until then, it is narrower."""
        rows = cdfd.snapshot(self.folder).read_all()
        for place, field in enumerate(rows.schema):
            if pa.types.is_date(field.type) and field.name in source.names:
                rows = rows.set_column(place, field.name, rows.column(place).cast(source.field(field.name).type))
        return rows.to_batches()


META = ("_change_type", "_commit_version", "_commit_timestamp", "_change_ordinal")


def differences(actual: Bag, expected: Bag) -> str:
    parts = (("mirror only", actual - expected), ("source only", expected - actual))
    return "; ".join(f"{who}: {[dict(row) for row in list(rows)[:2]]}" for who, rows in parts if rows)


@pytest.mark.parametrize("seed", range(FIRST, END), ids=lambda seed: f"{seed}-{list(PROFILES)[seed % len(PROFILES)]}")
def test_a_mirror_equals_its_source_at_every_version(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    work = Workload(spark, tmp_path, seed)
    try:
        work.live(LENGTH)
    except REFUSALS as error:
        if LENGTH:
            pytest.skip(f"delta-spark refuses to create this table: {name_of(error)}")
        raise
    source = Table.open(work.path, None, work.allowed_roots)
    folder = tmp_path / "mirror"
    feed = seed % 2 == 0

    async def mirrored() -> Mirroring:
        mirroring = Mirroring(source, folder, await open_sink(folder, change_feed=feed))
        await mirroring.run()
        await mirroring.sink.close()
        return mirroring

    mirroring = asyncio.run(mirrored())
    assert mirroring.compared, " ".join(map(str, work.steps))
    with settings(spark, READING):
        if folder.exists():
            assert spark_rows(spark, folder) == bag(cdfd.snapshot(folder), META)
            if feed:
                check_feed(spark, folder)
    shutil.rmtree(tmp_path)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_a_mirror_and_apply_changes_are_equal(spark: SparkSession, tmp_path: Path) -> None:
    """The same changes, merged by Spark."""
    register(spark)
    source, mirror, copy = (tmp_path / name for name in ("source", "mirror", "copy"))
    table = f"delta.`{source}`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, v STRING) USING delta TBLPROPERTIES ('{FEED}' = 'true')")
    spark.sql(f"INSERT INTO {table} SELECT id, 'a' FROM range(100)")
    spark.sql(f"UPDATE {table} SET v = 'b' WHERE id % 3 = 0")
    spark.sql(f"DELETE FROM {table} WHERE id % 5 = 0")
    spark.sql(f"UPDATE {table} SET id = id + 1000 WHERE id % 7 = 0")
    spark.sql(f"INSERT INTO {table} SELECT id, 'c' FROM range(50, 53) WHERE id = 50")

    async def mirrored() -> None:
        mirroring = Mirroring(Table.open(str(source), None), mirror, await open_sink(mirror, change_feed=False))
        await mirroring.run()

    asyncio.run(mirrored())
    changes = spark.read.format("cdfd").option("startingVersion", 0).load(str(source))
    apply_changes(changes, str(copy), ["id"])
    merged = spark.read.format("delta").load(str(copy)).drop("_cdfd_version", "_cdfd_ordinal")
    rows = spark_rows(spark, mirror)
    assert rows == bag(merged.toArrow().to_batches())
    assert rows == spark_rows(spark, source)


def check_feed(spark: SparkSession, folder: Path) -> None:
    """The change feed of a mirror, as far as delta-spark reads it: not across a column that is widened or that a reload has changed."""
    try:
        actual = spark_changes(spark, folder)
    except REFUSALS as error:
        if "INCOMPATIBLE_SCHEMA_CHANGE" in name_of(error) or "INCOMPATIBLE_DATA_SCHEMA" in name_of(error):
            return
        raise
    assert actual == bag(cdfd.changes(folder, 0), META[1:])


def spark_rows(spark: SparkSession, folder: Path) -> Bag:
    return bag(spark.read.format("delta").load(str(folder)).toArrow().to_batches())


def spark_changes(spark: SparkSession, folder: Path) -> Bag:
    frame = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(str(folder))
    return bag(frame.toArrow().to_batches(), META[1:])
