"""Checkpoints of a target, the removal of old log entries, and the compaction of small files.

The log entries and checkpoints that clean-up may remove. Pure.

Source: specification, "Metadata Cleanup" and the table feature `checkpointProtection`, as deployed writers have it. Each version in the
retention must stay readable, so the newest checkpoint that is older than the retention stays, and all that follows it:

    retention begins after 25; checkpoints 10, 20, 30  ->  0 to 19 may go
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdfd.delta import paths
from cdfd.delta.actions import Metadata, Protocol
from cdfd.delta.paths import LogName
from cdfd.delta.protocol import writer_features
from cdfd.delta.retention import Retention
from cdfd.delta.write.checkpoint_writing import V2, checkpoint
from cdfd.errors import LogError, StorageError, UnsupportedError
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import log_path
from cdfd.runtime.clock import Clock
from cdfd.sinks.delta.compactor import Compaction, compact
from cdfd.sinks.ledger.txn_log import publish
from cdfd.sinks.ledger.txn_state import TxnState

logger = logging.getLogger("cdfd.sink")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """The work that is done, and when.

    Attributes:
        checkpoint_interval: versions between two checkpoints; 0: none is written.
        log_cleanup: whether old log entries are removed after a checkpoint, as the properties of the table say.
        compaction: of small files, after a checkpoint; None: none.
    """

    checkpoint_interval: int = 100
    log_cleanup: bool = True
    compaction: Compaction | None = None


async def keep_house(
    log: DeltaLog, clock: Clock, upkeep: Upkeep, check: Callable[[TxnState], None], version: int
) -> None:
    """Write the checkpoint of a version of a target, and clean up.

    An error is only logged: the version is committed, and a later one tries again.

    Args:
        log: of the target.
        clock: the source of time.
        upkeep: the work that is done.
        check: raises a `CdfdError` if this process may not write the table in a state.
        version: that is committed.
    """
    try:
        state = await log.snapshot(version, with_stats=True, with_tombstones=True, all_fields=True)
        policy = state.metadata.configuration.get("delta.checkpointPolicy", "classic").lower()
        v2 = policy == "v2" and V2 in writer_features(state.protocol)
        name = f"{state.version:020d}.checkpoint.{uuid.uuid4()}.parquet" if v2 else paths.checkpoint_name(state.version)
        now = clock.now_ms()
        data, hint = await asyncio.to_thread(checkpoint, state, now, v2_name=name if v2 else None)
        newest = await publish(log, name, data, hint)
        if newest and upkeep.log_cleanup:
            stats = {entry: stat async for entry, stat in log.list_names()}
            entries = [(entry, stat.modified_ms) for entry, stat in stats.items()]
            for entry in removable(entries, state.protocol, state.metadata, now):
                await log.storage.delete(stats[entry].path)
                # Checksums of versions go with their entries, because readers take them for entries.
                if entry.kind == "commit":
                    await log.storage.delete(log_path(f"{entry.version:020d}.crc"))
    except (StorageError, LogError, UnsupportedError) as error:
        extra = {"table": log.storage.uri, "version": version}
        logger.warning("cannot write a checkpoint of the target: %s", error, extra=extra)
        return
    if upkeep.compaction is not None:
        await compact(log.storage, clock, check, upkeep.compaction, state)


def removable(log: Sequence[tuple[LogName, int]], protocol: Protocol, metadata: Metadata, now_ms: int) -> list[LogName]:
    """The files of a log that clean-up may remove, in the order in which it must: the log stays contiguous if it is interrupted.

    Args:
        log: all files of the log, and their modification times in ms.
        protocol, metadata: of the newest version.
        now_ms: the time.
    """
    retention = Retention.of(metadata).log_ms
    if retention is None or "checkpointProtection" in writer_features(protocol):
        return []
    cutoff = now_ms - retention
    # A checkpoint is written after its version: the version is older than the file.
    old = [name.version for name, time in log if name.kind in ("checkpoint", "v2") and time < cutoff]
    first = max(old, default=0)
    # The checkpoint of a version goes before its log entry.
    names = (name for name, _ in log if 0 <= name.version < first)
    return sorted(names, key=lambda name: (name.version, not name.is_checkpoint))
