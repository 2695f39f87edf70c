"""Runs a query to the newest version of its tables, in micro-batches within the limits of its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdfd.errors import ConfigError
from cdfd.spark.lag import source_offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def run_until_read(writer: DataStreamWriter) -> None:
    """See `cdfd.spark.run_available`."""
    query_id: str | None = None
    newest: list[int] | None = None
    while True:
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        if query_id not in (None, query.id):
            raise ConfigError("the query has no checkpoint", hint="Set the option `checkpointLocation`")
        query_id = query.id
        # In Spark 4.1, a run that repeats an earlier micro-batch plans none.
        planned = [progress for progress in query.recentProgress if "latestOffset" in progress.durationMs]
        if planned:
            # The newest version of each source when the first micro-batch was planned.
            newest = newest or [
                offset.position.version - 1 if offset.backlog is None else offset.backlog.newest
                for offset in source_offsets(planned[0])
            ]
            if _has_read(planned[-1], newest):
                return


def _has_read(progress: StreamingQueryProgress, newest: list[int]) -> bool:
    if all(source.startOffset == source.endOffset for source in progress.sources):
        return True
    ends = source_offsets(progress)
    return all(end.backlog is None or end.position.version > last for end, last in zip(ends, newest, strict=True))
