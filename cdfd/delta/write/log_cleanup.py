"""The log entries and checkpoints that clean-up may remove. Pure.

Source: specification, "Metadata Cleanup" and the table feature `checkpointProtection`, as deployed writers have it. Each version in the
retention must stay readable, so the newest checkpoint that is older than the retention stays, and all that follows it:

    retention begins after 25; checkpoints 10, 20, 30  ->  0 to 19 may go
"""

from collections.abc import Sequence

from cdfd.delta.actions import Metadata, Protocol
from cdfd.delta.paths import LogName
from cdfd.delta.protocol import writer_features
from cdfd.delta.retention import Retention

Entry = tuple[LogName, int]
"""A file of the log, and its modification time in ms."""


def removable(log: Sequence[Entry], protocol: Protocol, metadata: Metadata, now_ms: int) -> list[LogName]:
    """The files of a log that clean-up may remove, in the order in which it must: the log stays contiguous if it is interrupted.

    Args:
        log: all files of the log.
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
    return sorted((name for name, _ in log if 0 <= name.version < first), key=_order)


def _order(name: LogName) -> tuple[int, bool]:
    """Versions ascend. The checkpoint of a version goes before its log entry."""
    return name.version, not name.is_checkpoint
