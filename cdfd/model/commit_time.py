"""When a version was committed. Pure."""

from __future__ import annotations

from cdfd.delta import paths
from cdfd.delta.commit import Commit
from cdfd.delta.header import Header
from cdfd.delta.protocol import in_commit_timestamps_enabled
from cdfd.errors import LogError
from cdfd.model.position import LATEST_MS

SKEW_MS = 10_000
"""By how much two clocks may differ, of writers or of stores, so that a version has the same timestamp wherever reading starts."""


def commit_timestamp(commit: Commit, header: Header, modified_ms: int, previous_ms: int | None) -> int:
    """When a version was committed, in ms since the Unix epoch.

    This is the in-commit timestamp if that feature is enabled, else the log file's modification time, made monotonic: a time not after its
    predecessor's becomes that plus 1 ms. A time before 1970 or after 9999 becomes the first or the last moment of these years. It is never
    `commitInfo.timestamp`, which comes from the writer's clock before the commit.

    Raises:
        LogError: in-commit timestamps are enabled and the commit has none, or one outside the calendar.
    """
    if not in_commit_timestamps_enabled(header.metadata):
        return file_time(modified_ms, 0 if previous_ms is None else previous_ms + 1)
    stated = commit.in_commit_timestamp
    if stated is not None and 0 <= stated <= LATEST_MS:
        return stated
    what = "in-commit timestamps are enabled, but the commit has none"
    if stated is not None:
        what = f"the in-commit timestamp {stated} is not a time"
    raise LogError(what, version=commit.version, path=f"{paths.LOG}/{paths.commit_name(commit.version)}")


def file_time(modified_ms: int, earliest_ms: int = 0) -> int:
    """A file's modification time in ms since the Unix epoch, limited to `earliest_ms` to the year 9999, because any user can set it."""
    return min(max(modified_ms, earliest_ms), LATEST_MS)
