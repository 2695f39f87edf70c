"""Reads the source offset from a query's checkpoint. `offsets/` has a file for each micro-batch, whose last line is an offset in JSON.

v1
{"batchWatermarkMs":0,...}
{"table_id":"...","version":8,...,"first_version":7,"first_phase":"snapshot"}
"""

import asyncio
import json
from collections.abc import Mapping

from cdfd.errors import CdfdError
from cdfd.spark.source.offsets import Offset
from cdfd.storage.base import Storage
from cdfd.storage.location import open_storage

_OFFSETS = "offsets/"
_LONGEST = 1 << 20


def snapshot_version(location: str, storage_options: Mapping[str, object] | None = None) -> int | None:
    """The version of the snapshot with which a stream of `format("cdfd")` began.

    Args:
        location: of the checkpoint.
        storage_options: settings of its store.

    Returns:
        None if it began with changes, has another source, or if the checkpoint cannot be read here. Formats then treat live rows as inserts.
    """
    try:
        text = asyncio.run(_newest(open_storage(location, storage_options)))
        lines = [] if text is None else text.decode().splitlines()
        found = json.loads(lines[2]) if len(lines) == 3 else None
        offset = Offset.from_json(found) if isinstance(found, dict) else None
    except (CdfdError, ValueError, RecursionError):
        return None
    return offset.first_version if offset is not None and offset.first_phase == "snapshot" else None


async def _newest(storage: Storage) -> bytes | None:
    """The file of the newest micro-batch."""
    # The folder also has checksum files, such as `.7.crc`.
    names = [stat.path.removeprefix(_OFFSETS) async for stat in storage.list(_OFFSETS)]
    numbers = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 20]
    return await storage.read(f"{_OFFSETS}{max(numbers)}", 0, _LONGEST) if numbers else None
