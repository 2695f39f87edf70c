"""The Spark integration of cdfd. It needs PySpark: `pip install cdfd[spark]`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cdfd.errors import ConfigError
from cdfd.spark.session import active_session, check_versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from cdfd.spark.frames.changes import Reader

__all__ = ["changes", "register", "run_available", "snapshot"]


def register(spark: SparkSession) -> None:
    """Register `format("cdfd")` (a table's changes) and `format("cdfd-kafka")` (a sink for them) in a session, and in a classic one the
    table-valued function `cdfd_changes`.

    Each session has its own formats, also one of `newSession()`. Registering a session again changes nothing.

    Args:
        spark: the session, classic or Connect.

    Raises:
        ConfigError: PySpark is missing, or Spark is too old.
    """
    check_versions(spark)
    from cdfd.spark.engine.kafka_sink import CdfdKafka
    from cdfd.spark.frames import table_function
    from cdfd.spark.source.source import CdfdSource

    # Spark 4.1 refuses a name that the thread's active session has, if another session registers it.
    with active_session(spark):
        spark.dataSource.register(CdfdSource)
        spark.dataSource.register(CdfdKafka)
        table_function.register(spark, changes)


def changes(
    spark: SparkSession,
    table: str | os.PathLike[str],
    starting_version: int | str | None = None,
    ending_version: int | str | None = None,
    options: Mapping[str, object] | None = None,
    *,
    ordinals: bool = False,
    reader: Reader = "auto",
) -> DataFrame:
    """The row-level changes of a table, read by Spark's own Parquet reader if it gives the same rows in less time.

    cdfd plans which rows of which files are the changes. Spark then reads them, with pushed filters and only the columns of a query, and
    executors need no cdfd. `format("cdfd")` reads many small files, and rows that Spark's reader cannot read. The logger `cdfd.spark` says
    why.

    Args:
        spark: the session, classic or Connect. The driver's Python needs access to the table.
        table: a path or URI of a Delta table.
        starting_version: as the option `startingVersion`; None: as `options` say, otherwise all versions.
        ending_version: the last version, included; None: as `options` say, otherwise the newest version.
        options: more options of `format("cdfd")`, by their names.
        ordinals: whether rows have `_change_ordinal`.
        reader: `auto` chooses. `spark` is Spark's reader, and refuses rows that it cannot read. `cdfd` is `format("cdfd")`.

    Returns:
        The columns of `format("cdfd")`, without `_change_ordinal` unless it is requested. The versions are fixed at this call: later queries
        of the DataFrame read the same ones.

    Raises:
        ConfigError: an option is unknown or invalid, or PySpark is too old.
        CdfdError: the log cannot be read, or a file is gone; it names table, version and file.
    """
    check_versions(spark)
    from cdfd.spark.frames.changes import change_frame
    from cdfd.spark.source.options import option_text

    named = {"path": os.fspath(table), "startingVersion": starting_version, "endingVersion": ending_version}
    own = {name: value for name, value in named.items() if value is not None}
    for name in options or ():
        if name.lower().replace("_", "") in map(str.lower, own):
            raise ConfigError(f"options has {name!r:.100}, which is an argument, too", hint="Give only one of them")
    texts = {name: option_text(value) for name, value in {**own, **(options or {})}.items() if value is not None}
    return change_frame(spark, texts, ordinals=ordinals, reader=reader)


def snapshot(
    spark: SparkSession,
    table: str | os.PathLike[str],
    version: int | str | None = None,
    options: Mapping[str, object] | None = None,
    *,
    ordinals: bool = False,
    reader: Reader = "auto",
) -> DataFrame:
    """The live rows of a table, as `insert`s of that version, read as `changes` reads.

    Args:
        spark: as for `changes`.
        table: as for `changes`.
        version: of the table; None: as the option `endingTimestamp` says, otherwise the newest version.
        options: as for `changes`.
        ordinals: as for `changes`.
        reader: as for `changes`.

    Returns:
        As `changes`.

    Raises:
        CdfdError: as `changes` says.
    """
    return changes(spark, table, "snapshot", version, options, ordinals=ordinals, reader=reader)


def run_available(writer: DataStreamWriter) -> None:
    """Run a query until it has read the versions that exist now, and end it. The limits of its sources apply to each micro-batch.

    Spark 4.2 does this in one run with `Trigger.AvailableNow`. Spark 4.1 ends such a run after one micro-batch, because its Python sources
    have no admission control. There, the query runs again from its checkpoint, and its last micro-batch may have newer versions too.

    Args:
        writer: of a streaming DataFrame, with a `checkpointLocation`. Its trigger is replaced.

    Raises:
        ConfigError: the query has no checkpoint to continue from, or Spark keeps no progress.
        StreamingQueryException: the query failed.
    """
    from cdfd.spark.lag import source_offsets

    query_id: str | None = None
    newest: list[int] | None = None
    while True:
        query = writer.trigger(availableNow=True).start()
        try:
            if query_id not in (None, query.id):
                raise ConfigError(
                    "the query has no checkpoint, so it began again after its first run",
                    hint="Set the option `checkpointLocation`. The rows of the first run are written",
                )
            query.awaitTermination()
        finally:
            query.stop()
        query_id = query.id
        recent = query.recentProgress
        if not recent:
            raise ConfigError(
                "Spark keeps no progress of the query",
                hint="Set `spark.sql.streaming.numRecentProgressUpdates` to 100, the default",
            )
        # In Spark 4.1, a run that repeats an earlier micro-batch plans none.
        planned = [progress for progress in recent if "latestOffset" in progress.durationMs]
        if not planned:
            continue
        # The newest version of each source when the first micro-batch was planned.
        newest = newest or [
            offset.position.version - 1 if offset.backlog is None else offset.backlog.newest
            for offset in source_offsets(planned[0])
        ]
        if all(source.startOffset == source.endOffset for source in planned[-1].sources):
            return
        ends = zip(source_offsets(planned[-1]), newest, strict=True)
        if all(end.backlog is None or end.position.version > last for end, last in ends):
            return
