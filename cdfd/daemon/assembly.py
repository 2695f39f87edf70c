"""Settings to running parts: the one place of the daemon that chooses implementations."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

from cdfd.changes.execute import Execution, OnMissing, everything, fail, named
from cdfd.config import settings
from cdfd.config.settings import FilesSink as FilesSettings
from cdfd.config.settings import Settings
from cdfd.daemon.feed import Feed, Policies
from cdfd.encoding.json import LineEncoder
from cdfd.errors import MissingFileError, SinkError, UnsupportedError
from cdfd.report import watched
from cdfd.sinks.base import Sink
from cdfd.sinks.files import FilesSink
from cdfd.sinks.formats import JsonLines, Parquet, RowsFormat
from cdfd.table import Table
from cdfd.tail.start import Start

logger = logging.getLogger("cdfd.feed")

BATCH_ROWS = 16_384
"""Rows to encode and deliver at once: encoding takes several times a batch's own memory."""


@asynccontextmanager
async def feed(config: Settings, table: settings.Table, stop: asyncio.Event) -> AsyncIterator[Feed]:
    """The loop of one table, its sink opened, and closed at the end.

    Raises:
        CdfdError: the sink cannot be opened.
    """
    opened = open_table(table)
    select = everything if table.columns is None else partial(named, table.columns)
    execution = Execution(opened.files, select, batch_rows=BATCH_ROWS, on_missing=_on_missing(table))
    policies = Policies(start_of(table), table.changes, table.on_missing_file, table.on_schema_change)
    with opened.tailer(interval=config.poll.interval, max_interval=config.poll.max_interval) as tailer:
        sink = await open_sink(config, table)
        try:
            terminal = watched() and len(config.tables) == 1
            yield Feed(opened, sink, execution, tailer, policies, stop, terminal=terminal)
        finally:
            await sink.close()


def open_table(table: settings.Table) -> Table:
    """A table of the configuration. Touches nothing yet."""
    return Table.open(table.uri, None, table.allowed_roots)


async def open_sink(config: Settings, table: settings.Table) -> Sink:
    """The sink of a table.

    Raises:
        SinkError, FencedError: it cannot be used.
        UnsupportedError: a kind that this version does not have.
    """
    if not isinstance(config.sink, FilesSettings):
        raise _no_such_sink(config)
    folder = os.path.join(config.sink.path, table.topic)
    return await FilesSink.open(folder, _rows_format(config.sink), fsync=config.sink.fsync)


async def check_sink(config: Settings, table: settings.Table) -> str:
    """What `check` says of a table's sink, which is not written to.

    Raises:
        SinkError, UnsupportedError: it could not be used.
    """
    if not isinstance(config.sink, FilesSettings):
        raise _no_such_sink(config)
    folder = os.path.join(config.sink.path, table.topic)
    place = folder
    while not os.path.exists(place):
        place = os.path.dirname(os.path.abspath(place))
    if not os.path.isdir(place):
        raise SinkError("there is something else where the folder is to be", path=place, hint="Choose another path")
    if not os.access(place, os.W_OK | os.X_OK):
        raise SinkError("the folder cannot be written to", path=place, hint="Check its owner and permissions")
    return "ok" if place == folder else "ok, the folder will be created"


def start_of(table: settings.Table) -> Start:
    """Where a table without a position begins, as `tail.start` takes it."""
    start = table.start
    if start.version is not None:
        return start.version
    if start.timestamp_ms is not None:
        return datetime.fromtimestamp(start.timestamp_ms / 1000, UTC)
    return start.kind


def _no_such_sink(config: Settings) -> UnsupportedError:
    return UnsupportedError(
        f"there is no sink of kind {config.sink.kind} in this version", hint="Use `sink.kind: files`"
    )


def _rows_format(sink: FilesSettings) -> RowsFormat:
    if sink.format == "parquet":
        return Parquet()
    return JsonLines(LineEncoder())


def _on_missing(table: settings.Table) -> OnMissing:
    if table.on_missing_file != "skip":
        return fail

    def skip(error: MissingFileError) -> None:
        logger.warning("%s; left out", error, extra={"table": error.table, "version": error.version})

    return skip
