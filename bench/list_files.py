"""Opening a table and listing its live files: the call that stands against delta-rs's."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from cdfd.log.table import Table


def live_paths(uri: str) -> int:
    """Number of live files of the newest version, every path in memory as Arrow."""
    snapshot = asyncio.run(Table.open(uri).log.snapshot())
    paths = snapshot.live().table.column("path")
    assert isinstance(paths, pa.ChunkedArray)
    return len(paths)
