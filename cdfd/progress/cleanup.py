"""Keeping a ledger's log short: a checkpoint every ten versions, and nothing older than the last but one."""

from __future__ import annotations

import logging
from contextlib import suppress

from cdfd.delta import last_checkpoint, paths
from cdfd.errors import LogError, StorageError
from cdfd.progress import ledger_table
from cdfd.tail.log import DeltaLog, log_path

logger = logging.getLogger("cdfd.progress")

EVERY = 10
"""Versions between two checkpoints."""


def is_due(version: int, checkpoint: int) -> bool:
    """Whether whoever wrote `version` is to write its checkpoint, where the newest one is of `checkpoint` (-1: there is none).

    One of ten versions is; any, where whoever had to did not.
    """
    since = version - max(checkpoint, 0)
    return since > 0 and (version % EVERY == 0 or since >= 2 * EVERY)


async def maintain(log: DeltaLog, version: int) -> None:
    """Write the checkpoint of `version` and remove what is no longer needed.

    A failure is no reason to stop: what was recorded is, and the next one tries again.
    """
    try:
        await _maintain(log, version)
    except (StorageError, LogError) as error:
        with suppress(StorageError):
            if await log.newest_checkpoint(version) > version:
                return  # somebody has written a newer one and cleaned up while this was at it
        logger.warning(
            "the ledger's log could not be shortened: %s", error, extra={"table": log.storage.uri, "version": version}
        )


async def _maintain(log: DeltaLog, version: int) -> None:
    state = await log.snapshot(version, with_tombstones=True)
    if not ledger_table.is_plain(state):
        logger.warning(
            "the ledger has files, domains or table features that it was not given by cdfd: its log is not shortened",
            extra={"table": log.storage.uri, "version": version},
        )
        return
    data, hint = ledger_table.checkpoint(state)
    await log.storage.put(log_path(paths.checkpoint_name(version)), data)
    if await log.newest_checkpoint(version) > version:
        return  # somebody wrote a newer one meanwhile, and has cleaned up
    await log.storage.put(log_path(paths.LAST_CHECKPOINT), last_checkpoint.serialize(hint))
    await _clean(log, version)


async def _clean(log: DeltaLog, version: int) -> None:
    """Remove what is before the newest checkpoint that is `EVERY` versions old: whoever began to read there has had that long to end.

    In ascending order, so that what is left is contiguous wherever this is cut off.
    """
    names = [(name, stat) async for name, stat in log.list_names()]
    kept = max((n.version for n, _ in names if n.kind == "checkpoint" and n.version <= version - EVERY), default=0)
    for name, stat in names:
        if 0 <= name.version < kept:
            await log.storage.delete(stat.path)
