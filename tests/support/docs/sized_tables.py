"""The tables of docs/sizing.md: logs without data files, which `cdfd plan` does not read."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

from cdfd.delta import paths
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.lake import SCHEMA

DAYS = 7
DAY, HOUR = 86_400, 3600
ROW_BYTES = 68


def create_sized_tables(folder: Path) -> None:
    """Two tables that were loaded 30 days ago. In the last week they commit regularly, and have one busy hour."""
    asyncio.run(_create(folder / "orders", 40_000_000, 300, 20_000, 150_000))
    asyncio.run(_create(folder / "returns", 900_000, 1800, 700, 4_000))


async def _create(folder: Path, loaded: int, every: int, rows: int, busy_rows: int) -> None:
    """A table of so many loaded rows, and a commit of so many rows each `every` seconds."""
    now = int(time.time())
    writer = TableWriter(LocalStorage(folder, sync=False), SCHEMA)
    await writer.create()
    _date(folder, writer.version, now - 30 * DAY)
    await _commit(writer, folder, now - 30 * DAY, loaded)
    busy_hour = (now - 3 * DAY) // HOUR
    # Half an interval away from both ends of the week, so that the time of the command decides nothing.
    for at in range(now - DAYS * DAY + every // 2, now, every):
        await _commit(writer, folder, at, busy_rows if at // HOUR == busy_hour else rows)


async def _commit(writer: TableWriter, folder: Path, at: int, rows: int) -> None:
    file = {"path": f"{writer.version}.parquet", "partitionValues": {}, "size": rows * ROW_BYTES, "dataChange": True}
    add = {**file, "modificationTime": at * 1000, "stats": json.dumps({"numRecords": rows})}
    _date(folder, await writer.commit("WRITE", [("add", add)]), at)


def _date(folder: Path, version: int, at: int) -> None:
    os.utime(folder / paths.LOG / paths.commit_name(version), (at, at))
