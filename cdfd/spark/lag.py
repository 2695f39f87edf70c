"""The lag of streams of `format("cdfd")`: in versions, bytes and seconds.

    for each in lag(query.lastProgress):
        print(each.versions, each.bytes, each.seconds)

The offsets in a query's progress have it, so this needs neither the table nor its store. `lag_now` looks at the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from cdfd.errors import ConfigError
from cdfd.log.table import Table
from cdfd.model.commit_time import commit_timestamp
from cdfd.runtime.clock import SystemClock
from cdfd.runtime.tasks import run_blocking
from cdfd.spark.source.backlog import PendingBytes
from cdfd.spark.source.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = ["Lag", "lag", "lag_now"]


@dataclass(frozen=True, slots=True)
class Lag:
    """The part of a table that a stream has not read.

    Attributes:
        versions: number of versions that are not read completely.
        bytes: size of their unread files; None if the micro-batch has not counted them all.
        seconds: time since the first of these versions was committed; 0 if there is none.
    """

    versions: int
    bytes: int | None
    seconds: float


def lag(progress: StreamingQueryProgress) -> list[Lag]:
    """The lag after a micro-batch, as of its planning: one for each source of `format("cdfd")`.

    A micro-batch without a limit takes everything, so its lag is 0.

    Args:
        progress: of a query, such as `query.lastProgress`, or the progress of an event of a `StreamingQueryListener`.
    """
    at_ms, lags = round(datetime.fromisoformat(progress.timestamp).timestamp() * 1000), []
    for offset in source_offsets(progress):
        backlog = offset.backlog
        if backlog is None:
            lags.append(Lag(0, 0, 0.0))
        else:
            versions = max(0, backlog.newest - offset.position.version + 1)
            lags.append(Lag(versions, backlog.bytes, max(0, at_ms - backlog.since_ms) / 1000))
    return lags


def lag_now(progress: StreamingQueryProgress, table: str, storage_options: Mapping[str, object] | None = None) -> Lag:
    """The lag after a micro-batch, compared with the table as it is now. It reads the log after the micro-batch's last version.

    Args:
        progress: of a query with one source of `format("cdfd")`.
        table: its path or URI.
        storage_options: settings of the table's store.

    Raises:
        ConfigError: the progress has no such source, or several.
        CdfdError: the log cannot be read.
    """
    offsets = source_offsets(progress)
    if len(offsets) != 1:
        raise ConfigError(f"the progress has {len(offsets)} sources of cdfd", hint="`lag` returns one lag for each")
    return run_blocking(_current(offsets[0], Table.open(table, storage_options)))


def source_offsets(progress: StreamingQueryProgress) -> list[Offset]:
    """The end of each source of cdfd."""
    offsets = []
    # From the JSON: PySpark 4.1 has the offsets of its own objects as Python writes dictionaries.
    for source in json.loads(progress.json)["sources"]:
        end = source.get("endOffset")
        with suppress(ConfigError, json.JSONDecodeError):  # another source's
            # Spark Connect has the offset's text in `query.recentProgress`, and the offset itself in a listener's events.
            end = json.loads(end) if isinstance(end, str) else end
            if isinstance(end, Mapping):
                offsets.append(Offset.from_json(end))
    return offsets


async def _current(offset: Offset, table: Table) -> Lag:
    position = offset.position
    newest = await table.log.latest_version()
    versions = newest - position.version + 1
    if versions <= 0:
        return Lag(0, 0, 0.0)
    entry = await table.log.entry(position.version)
    header = await table.log.header(position.version)
    since_ms = commit_timestamp(entry.commit, header, entry.stat.modified_ms, None)
    counted = await PendingBytes(table.log, "auto").between(position.version, newest, versions)
    return Lag(versions, counted, max(0, SystemClock().now_ms() - since_ms) / 1000)
