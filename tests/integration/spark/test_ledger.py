"""delta-spark writes checkpoints of ledgers: what a ledger knows is in them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdfd.runtime.clock import SystemClock
from cdfd.sinks.ledger.ledger import Ledger, app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage

ORDERS = app_id("shop", "orders")
DIGEST = "ffeeddccbbaa99887766554433221100"


def table_ledger(spark: SparkSession, folder: str) -> tuple[Callable[[Storage], Ledger], str]:
    return lambda storage: TableLedger(storage, SystemClock()), "T"


def source_ledger(spark: SparkSession, folder: str) -> tuple[Callable[[Storage], Ledger], str]:
    spark.range(3).write.format("delta").save(folder)
    table_id = spark.sql(f"DESCRIBE DETAIL delta.`{folder}`").collect()[0]["id"]
    return lambda storage: SourceLedger(storage, SystemClock()), table_id


@pytest.mark.parametrize("made", [table_ledger, source_ledger], ids=lambda made: made.__name__)
async def test_the_hash_of_an_entry_is_in_its_checkpoint(
    spark: SparkSession,
    tmp_path: Path,
    made: Callable[[SparkSession, str], tuple[Callable[[Storage], Ledger], str]],
) -> None:
    place, storage = str(tmp_path), LocalStorage(tmp_path, sync=False)
    open_ledger, table_id = made(spark, place)

    (await open_ledger(storage).record(ORDERS, 0, table_id, DIGEST))
    spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    log = tmp_path / "_delta_log"
    version = int(max(log.glob("*.checkpoint.parquet")).name[:20])
    for number in range(version):
        (log / f"{number:020d}.json").unlink()
    actual = await open_ledger(storage).position(ORDERS)
    assert actual is not None
    # A ledger in the table's own log does not name the table: the log may give it another id.
    named = None if made is source_ledger else table_id
    assert (actual.version, actual.table_id, actual.digest) == (0, named, DIGEST)


EVERYTHING = """CREATE TABLE {} (n INT NOT NULL, day STRING DEFAULT 'x') USING delta CLUSTER BY (n) TBLPROPERTIES (
    'delta.enableRowTracking' = 'true', 'delta.columnMapping.mode' = 'name', 'delta.enableChangeDataFeed' = 'true',
    'delta.enableInCommitTimestamps' = 'true', 'delta.enableDeletionVectors' = 'true', 'delta.appendOnly' = 'false',
    'delta.checkpointPolicy' = 'v2', 'delta.enableTypeWidening' = 'true', 'delta.checkpointInterval' = '2',
    'delta.feature.allowColumnDefaults' = 'supported', 'delta.constraints.odd' = 'n % 2 < 2')"""


async def test_progress_in_a_table_with_every_rule(spark: SparkSession, tmp_path: Path) -> None:
    """A record adds no rows, so that no rule of the table refuses it. Spark reads and writes on."""
    table = f"delta.`{tmp_path}`"
    spark.sql(EVERYTHING.format(table))
    table_id = spark.sql(f"DESCRIBE DETAIL {table}").collect()[0]["id"]
    for version in range(3):
        spark.sql(f"INSERT INTO {table} (n) VALUES ({version}), ({version + 100})")
        await SourceLedger(LocalStorage(tmp_path), SystemClock()).record(ORDERS, 2 * version + 1, table_id, DIGEST)
    spark.sql(f"UPDATE {table} SET day = 'y' WHERE n = 1")
    spark.sql(f"OPTIMIZE {table}")
    ids = [row[0] for row in spark.sql(f"SELECT _metadata.row_id FROM {table}").collect()]
    assert len(set(ids)) == 6
    actual = await SourceLedger(LocalStorage(tmp_path), SystemClock()).position(ORDERS)
    assert actual is not None
    assert (actual.version, actual.digest) == (5, DIGEST)
