"""Runs a query to the newest version of its tables, in micro-batches within the limits of its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdfd.errors import ConfigError
from cdfd.spark.lag import source_offsets
from cdfd.spark.source.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def run_until_read(writer: DataStreamWriter) -> None:
    """See `cdfd.spark.run_available`."""
    known: str | None = None
    newest: list[int] | None = None
    while True:
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        if known not in (None, query.id):
            raise ConfigError("the query has no checkpoint", hint="Set the option `checkpointLocation`")
        known = query.id
        planned = [progress for progress in query.recentProgress if _is_planned(progress)]
        if planned:
            newest = newest or [_newest(offset) for offset in source_offsets(planned[0])]
            if _has_read(planned[-1], newest):
                return


def _is_planned(progress: StreamingQueryProgress) -> bool:
    """Whether a micro-batch was planned in this run. In Spark 4.1, a run that repeats an earlier micro-batch plans none."""
    return "latestOffset" in progress.durationMs


def _newest(offset: Offset) -> int:
    """The newest version when a micro-batch that ends here was planned."""
    return offset.position.version - 1 if offset.backlog is None else offset.backlog.newest


def _has_read(progress: StreamingQueryProgress, newest: list[int]) -> bool:
    if all(source.startOffset == source.endOffset for source in progress.sources):
        return True
    ends = source_offsets(progress)
    return all(end.backlog is None or end.position.version > last for end, last in zip(ends, newest, strict=True))
