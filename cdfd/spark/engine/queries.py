"""`engine.kind: spark`: a table's feed as a query of Structured Streaming, from `format("cdfd")` to `format("cdfd-kafka")`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

import cdfd.spark
from cdfd import errors
from cdfd.config.settings import Settings, Table
from cdfd.errors import CdfdError, ConfigError, SchemaChangedError, SinkError, StorageError
from cdfd.log.bounds import After, parse_bound
from cdfd.model.position import Position
from cdfd.spark.engine.sessions import FAILURES, first_line
from cdfd.spark.lag import source_offsets
from cdfd.spark.session import active_session
from cdfd.spark.source.options import STORAGE, option_text, written

_OURS: Final = re.compile(r"^cdfd\.[a-z_.]+\.(\w+): (.*)$", re.MULTILINE)
_LONGEST: Final = 2000
_PERMANENT: Final = (errors.LogError, errors.UnsupportedError, errors.DataError, errors.PathError, ConfigError)


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a trigger of a query: of a micro-batch that it has delivered, or that there was nothing to read.

    Attributes:
        timestamp: when the trigger began, which tells reports apart.
        number: of the micro-batch; without one, that of the next micro-batch.
        delivered: whether there was a micro-batch.
        rows: number of rows.
        following: the next position.
        newest: the newest known version.
    """

    timestamp: str
    number: int
    delivered: bool
    rows: int
    following: Position
    newest: int


def location(config: Settings, table: Table) -> str:
    """The checkpoint location of a table's query."""
    assert config.engine.spark.checkpoint is not None
    return f"{config.engine.spark.checkpoint.rstrip('/')}/{config.pipeline}/{table.name}"


def start(spark: SparkSession, config: Settings, table: Table, document: Mapping[str, str]) -> StreamingQuery:
    """Start the query of a table. It resumes from its checkpoint, if there is one.

    `document` has the options of `format("cdfd-kafka")` that name a file with the same settings, which Spark's driver reads.

    Raises:
        CdfdError: the query cannot be started.
    """
    try:
        cdfd.spark.register(spark)
        # The daemon calls from any thread.
        with active_session(spark):
            rows = spark.readStream.format("cdfd").options(**source_options(config, table)).load(table.uri)
            if table.key and config.engine.spark.order == "key":
                # Several files may have changes of one key. Only one task keeps their order.
                rows = rows.coalesce(1)
            writer = rows.writeStream.format("cdfd-kafka").options(**document, table=table.name, shaped="true")
            writer = writer.option("checkpointLocation", location(config, table))
            writer = writer.queryName(f"{config.pipeline}.{table.name}")
            return writer.trigger(processingTime=f"{max(1, int(config.poll.interval * 1000))} milliseconds").start()
    except FAILURES as error:
        raise failure(error, table) from error


def source_options(config: Settings, table: Table) -> dict[str, str]:
    """The options of `format("cdfd")` for a table. They include secrets of its store, and keys of masks."""
    options = written(table.rows) | {
        "keepKeyNames": str(bool(table.key)).lower(),
        "ignoreMissingFiles": str(table.on_missing_file == "skip").lower(),
        "maxBytesPerTrigger": str(config.engine.spark.batch_size),
        "snapshotPlanning": config.engine.spark.snapshot_planning,
        "packed": "true",
        "maxLogLine": str(table.max_log_line),
    }
    options |= _start(table.start)
    if table.allowed_roots:
        options["allowedRoots"] = json.dumps(table.allowed_roots)
    if table.path_prefixes:
        options["pathPrefixes"] = json.dumps(dict(table.path_prefixes))
    return options | {f"{STORAGE}{name}": option_text(value) for name, value in config.options(table.uri).items()}


def _start(start: str) -> dict[str, str]:
    """The option for `start`. A time gets its zone, which the source asks for."""
    bound = start if start == "snapshot" else parse_bound(start)
    after, inner = ("after ", bound.bound) if isinstance(bound, After) else ("", bound)
    if isinstance(inner, datetime):
        return {"startingTimestamp": f"{after}{inner.isoformat()}"}
    return {"startingTimestamp" if isinstance(inner, timedelta) else "startingVersion": start}


def poll(query: StreamingQuery, table: Table, last: Report | None) -> tuple[list[Report], CdfdError | None, bool]:
    """The reports of a query after `last`, in order (None: all that Spark has kept); the error that ended it; and whether it is idle.

    Raises:
        CdfdError: Spark does not answer.
    """
    try:
        ended: CdfdError | None = None
        if not query.isActive:
            cause, hint = query.exception(), "Another program stopped it"
            ended = SinkError("the query was stopped", table=table.uri, hint=hint, retriable=True)
            ended = ended if cause is None else failure(cause, table)
        newest, recent = query.lastProgress, list[StreamingQueryProgress]()
        if newest is not None and (last is None or newest.timestamp != last.timestamp):
            recent = [newest]
            if last is None or newest.batchId > last.number + last.delivered:
                # Some were missed. Spark has the last hundred, and each takes many calls of the JVM.
                recent = query.recentProgress
                times = [progress.timestamp for progress in recent]
                if last is not None and last.timestamp in times:
                    recent = recent[times.index(last.timestamp) + 1 :]
        reports = [_report(progress) for progress in recent if source_offsets(progress)]
        status = query.status
        return reports, ended, not status["isDataAvailable"] and not status["isTriggerActive"]
    except FAILURES as error:
        raise failure(error, table) from error


def _report(progress: StreamingQueryProgress) -> Report:
    (offset, *_) = source_offsets(progress)
    return Report(
        progress.timestamp,
        progress.batchId,
        "addBatch" in progress.durationMs,
        progress.numInputRows,
        offset.position,
        offset.position.basis if offset.backlog is None else offset.backlog.newest,
    )


def failure(error: BaseException, table: Table) -> CdfdError:
    """Translate Spark's error. If a Python process of Spark ended with an error of ours, it is that error."""
    text = str(error)
    said = list(_OURS.finditer(text))
    if not said:
        return StorageError(f"Spark: {first_line(error)}", table=table.uri, retriable=True)
    message = said[-1]
    what = message[2].removesuffix(" SQLSTATE: 38000")[:_LONGEST]
    kind = getattr(errors, message[1], ConfigError if message[1] == "ConfigProblems" else CdfdError)
    # Any error that is not known to be permanent is retriable.
    made: CdfdError = (kind if issubclass(kind, CdfdError) else CdfdError)(what)
    made.retriable = not isinstance(
        made, (*_PERMANENT, SchemaChangedError, errors.TableChangedError, errors.FencedError)
    )
    return made
