"""Clean-up of a ledger's log: writes a checkpoint every ten versions, and removes older log entries."""

import logging
from contextlib import suppress

from cdfd.delta import paths
from cdfd.delta.write.checkpoint_writing import checkpoint
from cdfd.errors import LogError, StorageError
from cdfd.log.log import DeltaLog
from cdfd.sinks.ledger import ledger_table
from cdfd.sinks.ledger.checkpoints import publish

logger = logging.getLogger("cdfd.progress")

EVERY = 10
"""Versions between two checkpoints."""


def is_due(version: int, checkpoint: int) -> bool:
    """Whether the writer of `version` should write its checkpoint. `checkpoint` is the newest checkpoint's version; -1: none.

    That is so for every tenth version, and for any version if the last checkpoint is too old.
    """
    since = version - max(checkpoint, 0)
    return since > 0 and (version % EVERY == 0 or since >= 2 * EVERY)


async def maintain(log: DeltaLog, version: int) -> None:
    """Write the checkpoint of `version` and remove older log entries.

    An error is only logged: the progress is recorded, and a later version retries.
    """
    try:
        await _maintain(log, version)
    except (StorageError, LogError) as error:
        with suppress(StorageError):
            if await log.newest_checkpoint(version) > version:
                return  # another writer has written a newer checkpoint and cleaned up at the same time
        logger.warning(
            "cannot clean up the ledger's log: %s", error, extra={"table": log.storage.uri, "version": version}
        )


async def _maintain(log: DeltaLog, version: int) -> None:
    state = await log.snapshot(version, with_tombstones=True)
    if not ledger_table.is_plain(state):
        logger.warning(
            "the ledger has files, domains or table features of another writer: its log is not cleaned up",
            extra={"table": log.storage.uri, "version": version},
        )
        return
    data, hint = checkpoint(state)
    # Otherwise the writer of the newer checkpoint cleans up.
    if await publish(log, paths.checkpoint_name(version), data, hint):
        await _clean(log, version)


async def _clean(log: DeltaLog, version: int) -> None:
    """Remove entries before the newest checkpoint that is at least `EVERY` versions old, so that readers of an older one can finish.

    It removes them in ascending order, so that the log stays contiguous if this is interrupted.
    """
    names = [(name, stat) async for name, stat in log.list_names()]
    kept = max((n.version for n, _ in names if n.kind == "checkpoint" and n.version <= version - EVERY), default=0)
    for name, stat in names:
        if 0 <= name.version < kept:
            await log.storage.delete(stat.path)
