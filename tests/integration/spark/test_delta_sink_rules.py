"""Tables that delta-spark creates with a rule for writers: cdfd appends to them, and Spark reads and writes on."""

import asyncio
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdfd.errors import SinkError
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.delta.compactor import Compaction
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.ledger.ledger import app_id
from cdfd.storage.local import LocalStorage
from tests.support.feeding import feed

APP = app_id("shop", "orders")
Sql = Callable[[str], Any]


async def open_sink(folder: Path, layout: Layout | None = None) -> DeltaSink:
    target = Target(LocalStorage(folder), APP, layout or Layout(checkpoint_interval=0), SystemClock(), owner=1)
    return await DeltaSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1 << 20))


async def deliver(sink: DeltaSink, version: int, rows: pa.RecordBatch) -> None:
    delivery = await sink.begin(Position("T", version))
    await delivery.write(rows)
    await delivery.commit(Position("T", version + 1))


def batch(version: int, **more: Any) -> pa.RecordBatch:
    n = pa.array([3 * version + place for place in range(3)], pa.int32())
    columns = {"n": n, "day": ["d1", None, "a=b/c %"], "s": pa.array([{"a": 1}] * 3, pa.struct([("a", pa.int32())]))}
    return pa.record_batch(columns | more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "t"


@pytest.fixture
def sql(spark: SparkSession, folder: Path) -> Sql:
    async def run(text: str) -> list[tuple[Any, ...]]:
        rows = await asyncio.to_thread(lambda: spark.sql(text.replace("TARGET", f"delta.`{folder}`")).collect())
        return [tuple(row) for row in rows]

    return run


def create(properties: str = "", columns: str = "n INT, day STRING, s STRUCT<a: INT>", more: str = "") -> str:
    listed = f"'cdfd.changelog' = '{APP}', 'cdfd.changelog.source' = 'T'" + (f", {properties}" if properties else "")
    return f"CREATE TABLE TARGET ({columns}) USING delta {more} TBLPROPERTIES ({listed})"


MAPPED = "'delta.columnMapping.mode' = '{}', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"

CONSTRAINT = "'delta.constraints.small' = 'n < 1000 AND (day IS NULL OR day <> \\'x\\')'"
DEFAULT = create("'delta.feature.allowColumnDefaults' = 'supported'", "n INT DEFAULT 7, day STRING")

HONOURED = {
    "writer 1": create("'delta.minReaderVersion' = '1', 'delta.minWriterVersion' = '1'"),
    "writer 6": create("'delta.minReaderVersion' = '1', 'delta.minWriterVersion' = '6'"),
    "mapping by id": create(MAPPED.format("id"), more="PARTITIONED BY (day)"),
    "row tracking and mapping by name": create(
        f"""'delta.enableRowTracking' = 'true', 'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true',
        'delta.enableInCommitTimestamps' = 'true', 'delta.enableDeletionVectors' = 'true', {CONSTRAINT}""",
        columns="n INT NOT NULL, day STRING, s STRUCT<a: INT NOT NULL>, at TIMESTAMP_NTZ",
    ),
    "clustering, V2 checkpoints and defaults": create(
        """'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2', 'delta.enableTypeWidening' = 'true',
        'delta.feature.allowColumnDefaults' = 'supported'""",
        columns="n INT DEFAULT 7, day STRING, s STRUCT<a: INT>",
        more="CLUSTER BY (n)",
    ),
}


@pytest.mark.parametrize("rule", HONOURED)
async def test_spark_reads_and_writes_on(rule: str, sql: Sql, folder: Path) -> None:
    await sql(HONOURED[rule])
    await deliver(await open_sink(folder), 0, batch(0))
    await sql("INSERT INTO TARGET (n, day, s) VALUES (100, 'spark', named_struct('a', 2))")
    await deliver(await open_sink(folder), 1, batch(1, new=[1.5, None, 2.5]))
    assert await sql("SELECT n, day, s.a, new FROM TARGET ORDER BY n") == [
        (0, "d1", 1, None),
        (1, None, 1, None),
        (2, "a=b/c %", 1, None),
        (3, "d1", 1, 1.5),
        (4, None, 1, None),
        (5, "a=b/c %", 1, 2.5),
        (100, "spark", 2, None),
    ]
    # Statistics and values of partitions skip files.
    assert await sql("SELECT n FROM TARGET WHERE n > 4 AND day = 'a=b/c %' AND s.a = 1") == [(5,)]
    await sql("UPDATE TARGET SET n = 50 WHERE day IS NULL AND n = 1")
    await sql("OPTIMIZE TARGET")
    await sql("DELETE FROM TARGET WHERE n = 0")
    await deliver(await open_sink(folder), 2, batch(2))
    assert [n for (n,) in await sql("SELECT n FROM TARGET ORDER BY n")] == [2, 3, 4, 5, 6, 7, 8, 50, 100]
    await sql("ALTER TABLE TARGET ADD COLUMN later STRING")
    await deliver(await open_sink(folder), 3, batch(3, later=["x", "y", None]))
    assert await sql("SELECT n, later FROM TARGET WHERE later IS NOT NULL ORDER BY n") == [(9, "x"), (10, "y")]


async def test_row_ids_are_unique_and_stay(sql: Sql, folder: Path) -> None:
    await sql(create("'delta.enableRowTracking' = 'true'"))
    await deliver(await open_sink(folder), 0, batch(0))
    await sql("INSERT INTO TARGET (n) VALUES (100), (101)")
    await deliver(await open_sink(folder), 1, batch(1))
    ids = "SELECT n, _metadata.row_id, _metadata.row_commit_version FROM TARGET ORDER BY n"
    before = await sql(ids)
    assert [row for _, row, _ in before] == [0, 1, 2, 5, 6, 7, 3, 4]
    version_of = {n: version for n, _, version in before}
    assert version_of[0] < version_of[100] < version_of[3]
    await sql("OPTIMIZE TARGET")
    assert await sql(ids) == before
    await deliver(await open_sink(folder), 2, batch(2))
    after = await sql(ids)
    assert [row for row in after if row[0] not in (6, 7, 8)] == before
    assert len({row for _, row, _ in after}) == 11


async def test_ids_are_in_files_and_statistics_by_physical_names(sql: Sql, folder: Path) -> None:
    await sql(create(MAPPED.format("id"), more="PARTITIONED BY (day)"))
    await deliver(await open_sink(folder), 0, batch(0, at=pa.array([1, 2, 3], pa.timestamp("us", "UTC"))))
    entries = sorted((folder / "_delta_log").glob("*.json"))
    adds = [each["add"] for each in map(json.loads, entries[-1].read_text().splitlines()) if "add" in each]
    physical = {name for add in adds for name in json.loads(add["stats"])["minValues"]}
    assert physical
    assert all(name.startswith("col-") for name in physical)
    assert all(key.startswith("col-") for add in adds for key in add["partitionValues"])
    await sql("ALTER TABLE TARGET RENAME COLUMN at TO moment")
    assert await sql("SELECT count(moment) FROM TARGET") == [(3,)]
    await sql("ALTER TABLE TARGET ADD COLUMN x INT")
    assert await sql("SELECT count(x) FROM TARGET") == [(0,)]


async def test_constraints_of_spark(sql: Sql, folder: Path) -> None:
    await sql(create(CONSTRAINT))
    sink = await open_sink(folder)
    with pytest.raises(SinkError, match="the CHECK constraint 'small' of the target is not true"):
        await deliver(sink, 0, batch(1000))
    with pytest.raises(SinkError, match="the CHECK constraint 'small' of the target is not true"):
        await deliver(await open_sink(folder), 0, batch(0, n=[None, 1, 2]))


async def test_a_default_that_the_rows_leave_out(sql: Sql, folder: Path) -> None:
    await sql(DEFAULT)
    with pytest.raises(SinkError, match="column 'n' of the target has a default value"):
        await deliver(await open_sink(folder), 0, pa.record_batch({"day": ["a"]}))


async def test_change_feed_has_the_appended_rows(sql: Sql, folder: Path) -> None:
    await sql(create("'delta.enableChangeDataFeed' = 'true', 'delta.appendOnly' = 'true'"))
    await deliver(await open_sink(folder), 0, batch(0))
    changes = f"SELECT n, _change_type FROM table_changes_by_path('{folder}', 0) ORDER BY n"
    assert await sql(changes) == [(n, "insert") for n in range(3)]


async def test_domains_stay(sql: Sql, folder: Path) -> None:
    await sql(create(more="CLUSTER BY (n)"))
    await deliver(await open_sink(folder), 0, batch(0))
    await deliver(await open_sink(folder), 1, batch(1))
    await sql("OPTIMIZE TARGET")
    described = await sql("DESCRIBE DETAIL TARGET")
    assert ["n"] in described[0]


async def test_a_table_that_dropped_a_feature(sql: Sql, folder: Path) -> None:
    await sql(create("'delta.enableDeletionVectors' = 'true'"))
    await deliver(await open_sink(folder), 0, batch(0))
    await sql("ALTER TABLE TARGET DROP FEATURE deletionVectors")
    (described,) = await sql("DESCRIBE DETAIL TARGET")
    assert any("checkpointProtection" in value for value in described if isinstance(value, list))
    await deliver(await open_sink(folder), 1, batch(1))
    assert await sql("SELECT count(*) FROM TARGET") == [(6,)]


async def refuses(folder: Path, rule: str) -> None:
    before = sorted(path.name for path in folder.rglob("*.*"))
    with pytest.raises(SinkError, match=rule):
        await open_sink(folder)
    assert sorted(path.name for path in folder.rglob("*.*")) == before


@pytest.mark.parametrize("rule", ["generatedColumns in column 'g'", "identityColumns in column 'g'"])
async def test_values_that_spark_makes(rule: str, spark: SparkSession, folder: Path) -> None:
    tables = spark._jvm.io.delta.tables.DeltaTable
    column = tables.columnBuilder(spark._jsparkSession, "g").dataType("BIGINT")
    column = (
        column.generatedAlwaysAs("n + 1") if rule.startswith("generated") else column.generatedByDefaultAsIdentity()
    )
    table = tables.create(spark._jsparkSession).location(str(folder)).property("cdfd.changelog", APP)
    table = table.addColumn("n", "BIGINT").addColumn(column.build())
    await asyncio.to_thread(table.execute)
    await refuses(folder, rule)


async def test_a_condition_that_is_no_filter(sql: Sql, folder: Path) -> None:
    await sql(create("'delta.constraints.odd' = 'n % 2 = 1'"))
    await refuses(folder, "the CHECK constraint 'odd' cannot be checked")


async def test_iceberg_compatibility(sql: Sql, folder: Path) -> None:
    await sql(create("'delta.enableIcebergCompatV2' = 'true', 'delta.columnMapping.mode' = 'name'"))
    await refuses(folder, "the feature icebergCompatV2")


class DeltaPlace:
    """A target that follows its source, for a feed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def open(self) -> DeltaSink:
        layout = Layout(("day",), on_missing_column="follow", checkpoint_interval=2)
        target = Target(LocalStorage(self.folder), APP, layout, SystemClock(), owner=1)
        files = partial(DataFiles, compression="snappy", file_bytes=1 << 20)
        return await DeltaSink.open(target, files)


async def test_names_of_the_source_are_followed(spark: SparkSession, sql: Sql, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    await sql(create(MAPPED.format("name"), columns="n INT, day STRING, s STRUCT<a: INT, b: INT>"))
    await sql("INSERT INTO TARGET VALUES (0, 'x', struct(1, 2))")
    for statement in (
        "ALTER TABLE TARGET RENAME COLUMN n TO id",
        "ALTER TABLE TARGET RENAME COLUMN s.a TO c",
        "ALTER TABLE TARGET DROP COLUMN s.b",
        "ALTER TABLE TARGET RENAME COLUMN day TO date",
        "INSERT INTO TARGET VALUES (1, 'y', struct(3))",
    ):
        await sql(statement)
    await feed(LocalStorage(folder), DeltaPlace(copy), SystemClock(), until=6, start="earliest")

    async def rows(text: str) -> list[tuple[Any, ...]]:
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        answer = await asyncio.to_thread(lambda: spark.sql(text.replace("COPY", f"delta.`{copy}`")).collect())
        return [tuple(row) for row in answer]

    assert await rows("SELECT id, date, s.* FROM COPY ORDER BY id") == [(0, "x", 1), (1, "y", 3)]
    await rows("INSERT INTO COPY (id, date) VALUES (2, 'z')")
    assert await rows("SELECT id FROM COPY WHERE date = 'x'") == [(0,)]


@pytest.mark.parametrize("structs", [False, True])
@pytest.mark.parametrize("policy", ["classic", "v2"])
async def test_checkpoints_and_the_clean_up_of_the_log(
    policy: str, structs: bool, spark: SparkSession, sql: Sql, folder: Path
) -> None:
    properties = f"'delta.checkpointPolicy' = '{policy}', 'delta.columnMapping.mode' = 'name'"
    if structs:
        properties += ", 'delta.checkpoint.writeStatsAsStruct' = 'true', 'delta.checkpoint.writeStatsAsJson' = 'false'"
    await sql(create(properties, more="PARTITIONED BY (day)"))
    sink = await open_sink(folder, Layout(checkpoint_interval=2))
    for version in range(3):
        await deliver(sink, version, batch(version))
    for path in (folder / "_delta_log").glob("0*"):
        os.utime(path, (0, 0))
    for version in range(3, 6):
        await deliver(sink, version, batch(version))
    entries = sorted(path.name for path in (folder / "_delta_log").glob("*.json"))
    assert entries[0] > f"{0:020}.json"
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    assert [n for (n,) in await sql("SELECT n FROM TARGET ORDER BY n")] == list(range(18))
    assert await sql("SELECT n FROM TARGET WHERE day IS NULL AND n > 14") == [(16,)]
    files = log.forTable(spark._jsparkSession, str(folder)).unsafeVolatileSnapshot().allFiles()
    stats = [json.loads(json.loads(text)["stats"]) for text in files.toDF().toJSON().collectAsList()]
    assert sorted(value for each in stats for value in each["minValues"].values()) == list(range(18))
    await sql("DELETE FROM TARGET WHERE n = 0")
    await sql("OPTIMIZE TARGET")
    await deliver(await open_sink(folder), 6, batch(6))
    assert await sql("SELECT count(*) FROM TARGET") == [(20,)]


async def test_checkpoints_of_a_table_with_variants(spark: SparkSession, sql: Sql, folder: Path) -> None:
    await sql(create(columns="n INT, day STRING, s STRUCT<a: INT>, v VARIANT"))
    await sql("INSERT INTO TARGET SELECT 100, 'spark', NULL, parse_json('{\"a\": 7}')")
    sink = await open_sink(folder, Layout(checkpoint_interval=2, compaction=Compaction("snappy", 1 << 20)))
    for version in range(10):
        await deliver(sink, version, batch(version))
    log = sorted((folder / "_delta_log").iterdir())
    newest = max(path.name[:20] for path in log if "checkpoint.parquet" in path.name)
    for path in log:
        if path.suffix == ".json" and path.name[:20] < newest:
            path.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert await sql("SELECT n, variant_get(v, '$.a', 'int') FROM TARGET WHERE v IS NOT NULL") == [(100, 7)]
    assert await sql("SELECT count(*) FROM TARGET") == [(31,)]


async def test_compacted_files(spark: SparkSession, sql: Sql, folder: Path) -> None:
    await sql(create("'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true'"))
    await sql("INSERT INTO TARGET VALUES (100, 'spark', struct(1)), (101, NULL, NULL)")
    await sql("ALTER TABLE TARGET RENAME COLUMN s TO t")
    sink = await open_sink(folder, Layout(checkpoint_interval=12, compaction=Compaction("snappy", 1 << 20)))
    for version in range(12):
        await deliver(sink, version, batch(version))
    assert (await sql("DESCRIBE DETAIL TARGET"))[0][9] < 12
    assert [n for (n,) in await sql("SELECT n FROM TARGET ORDER BY n")] == [*range(36), 100, 101]
    assert await sql("SELECT n FROM TARGET WHERE t.a = 1") == [(100,)]
    # Spark reads changes since the last rename.
    changes = f"SELECT count(*), count(DISTINCT n) FROM table_changes_by_path('{folder}', 4)"
    assert await sql(changes) == [(36, 36)]
    await sql("DELETE FROM TARGET WHERE n = 35")
    await deliver(await open_sink(folder), 12, batch(12))
    assert await sql("SELECT count(*) FROM TARGET") == [(40,)]


IDS = "SELECT n, _metadata.row_id, _metadata.row_commit_version FROM TARGET ORDER BY n"


@pytest.mark.parametrize("policy", ["classic", "v2"])
async def test_checkpoints_keep_row_ids_and_clusters(policy: str, spark: SparkSession, sql: Sql, folder: Path) -> None:
    properties = f"""'delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '100',
        'delta.checkpointPolicy' = '{policy}'"""
    await sql(create(properties, more="CLUSTER BY (n)"))
    for version in range(2):
        await deliver(await open_sink(folder), version, batch(version))
    await sql("OPTIMIZE TARGET")
    await sql("DELETE FROM TARGET WHERE n = 1")
    await deliver(await open_sink(folder), 2, batch(2))
    before = await sql(IDS)
    await deliver(await open_sink(folder, Layout(checkpoint_interval=1)), 3, batch(3))
    log = folder / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.*parquet")
    adds = [add for add in pq.read_table(checkpoint)["add"].to_pylist() if add is not None]
    clustered = [add for add in adds if add["clusteringProvider"] is not None]
    assert 0 < len(clustered) < len(adds)
    assert all(add["tags"] for add in clustered)
    assert all(add["baseRowId"] is not None and add["defaultRowCommitVersion"] is not None for add in adds)
    newest = max(log.glob("*.json"))
    for entry in sorted(log.glob("*.json")):
        if entry != newest:
            entry.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert [row for row in await sql(IDS) if row[0] < 9] == before
    assert ["n"] in (await sql("DESCRIBE DETAIL TARGET"))[0]
    await sql("INSERT INTO TARGET (n) VALUES (100), (101)")
    await sql("UPDATE TARGET SET day = 'later' WHERE n = 2")
    await deliver(await open_sink(folder), 4, batch(4))
    after = {n: row for n, row, _ in await sql(IDS)}
    assert {n: after[n] for n, _, _ in before} == {n: row for n, row, _ in before}
    assert len(set(after.values())) == len(after) == 16
    await sql("OPTIMIZE TARGET")
    assert {n: row for n, row, _ in await sql(IDS)} == after


async def test_compacted_files_keep_row_ids(spark: SparkSession, sql: Sql, folder: Path) -> None:
    tracked = "'delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'true'"
    await sql(create(f"{tracked}, 'delta.columnMapping.mode' = 'name', 'delta.checkpointInterval' = '100'"))
    for version in range(10):
        await deliver(await open_sink(folder), version, batch(version))
        if version == 3:
            # Files with ids in columns, which were counted before.
            await sql("OPTIMIZE TARGET")
    await sql("DELETE FROM TARGET WHERE n IN (1, 28)")
    before = await sql(IDS)
    compaction = Layout(checkpoint_interval=1, compaction=Compaction("snappy", 1 << 20))
    await deliver(await open_sink(folder, compaction), 10, batch(10))
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    (detail,) = await sql("DESCRIBE DETAIL TARGET")
    assert detail[9] == 1
    assert [row for row in await sql(IDS) if row[0] < 30] == before
    await sql("UPDATE TARGET SET day = 'later' WHERE n = 2")
    await sql("INSERT INTO TARGET (n) VALUES (100)")
    await deliver(await open_sink(folder), 11, batch(11))
    after = {n: row for n, row, _ in await sql(IDS)}
    assert {n: after[n] for n, _, _ in before} == {n: row for n, row, _ in before}
    assert len(set(after.values())) == len(after) == 35
    await sql("OPTIMIZE TARGET")
    assert {n: row for n, row, _ in await sql(IDS)} == after
