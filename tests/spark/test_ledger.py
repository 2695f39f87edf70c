"""delta-spark writes checkpoints of ledgers: what a ledger knows is in them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdfd.progress.ledger import Ledger, app_id
from cdfd.progress.source_ledger import SourceLedger
from cdfd.progress.table_ledger import TableLedger
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from cdfd.tail.clock import SystemClock

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
    opened, table_id = made(spark, place)

    (await opened(storage).record(ORDERS, 0, table_id, DIGEST))
    spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    log = tmp_path / "_delta_log"
    version = int(max(log.glob("*.checkpoint.parquet")).name[:20])
    for number in range(version):
        (log / f"{number:020d}.json").unlink()
    found = await opened(storage).position(ORDERS)
    assert found is not None
    assert (found.version, found.table_id, found.digest) == (0, table_id, DIGEST)
