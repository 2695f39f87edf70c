"""A process that records versions in a ledger as fast as it can. Run as a program: folder, appId, how many."""

import asyncio
import sys

from cdfd.runtime.clock import SystemClock
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.local import LocalStorage


async def write(folder: str, app_id: str, versions: int) -> None:
    ledger = TableLedger(LocalStorage(folder, sync=False), SystemClock())
    for version in range(versions):
        await ledger.record(app_id, version, f"id of {app_id}")
    await ledger.close()


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
