"""How long a table keeps log entries and deleted files: the time within which its changes must be read.

Log clean-up removes the entry of a version once it is older than `delta.logRetentionDuration`. VACUUM removes a file once its deletion is
older than `delta.deletedFileRetentionDuration`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdfd.delta.actions import Metadata

_DAY_MS = 86_400_000
_LONGEST_MS = 1 << 60
"""Longer than any time in a log is away, and no overflow."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of one table, in ms.

    Attributes:
        log_ms: of log entries; None if the table has no log clean-up.
        files_ms: of deleted files.
    """

    log_ms: int | None
    files_ms: int

    @classmethod
    def of(cls, metadata: Metadata) -> Retention:
        """The retention that a table's properties set, or Delta's defaults: 30 days and one week."""
        cleaned = metadata.configuration.get("delta.enableExpiredLogCleanup", "true").lower() != "false"
        log_ms = _duration_ms(metadata, "delta.logRetentionDuration", 30 * _DAY_MS)
        return cls(log_ms if cleaned else None, deleted_files_ms(metadata))


def deleted_files_ms(metadata: Metadata) -> int:
    """`delta.deletedFileRetentionDuration` in milliseconds; a week where it is not set or not an interval of fixed length."""
    return _duration_ms(metadata, "delta.deletedFileRetentionDuration", 7 * _DAY_MS)


def _duration_ms(metadata: Metadata, key: str, default_ms: int) -> int:
    """A property that is a Spark interval, such as `interval 1 week 2 days`; the default where it is none of fixed length."""
    match = _INTERVAL.fullmatch(metadata.configuration.get(key, "").lower())
    if match is None:
        return default_ms
    interval = int(sum(int(amount) * _UNITS[unit] for amount, unit in _TERM.findall(match[1])))
    return min(max(interval, -_LONGEST_MS), _LONGEST_MS)


_UNITS = {
    "microsecond": 0.001,
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": _DAY_MS,
    "week": 7 * _DAY_MS,
}
_TERM = re.compile(rf"([+-]?[0-9]{{1,12}})\s+({'|'.join(_UNITS)})s?(?:\s+|$)")
_INTERVAL = re.compile(rf"\s*(?:interval\s+)?((?:{_TERM.pattern})+)", re.ASCII)
