"""Builds the daemon from its settings: the only module of the daemon that chooses implementations."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from cdfd.config import settings
from cdfd.config.settings import FilesSink as FilesSettings
from cdfd.config.settings import KafkaSink as KafkaSettings
from cdfd.config.settings import Settings
from cdfd.console.progress_line import watched
from cdfd.daemon import kafka
from cdfd.daemon.engines import check_engine as check_engine
from cdfd.daemon.engines import engine, large_versions
from cdfd.daemon.ledgers import ledgers
from cdfd.daemon.loop.admission import Admission
from cdfd.daemon.loop.deliverer import PART_BYTES, Limits
from cdfd.daemon.loop.feed import Feed, Policies
from cdfd.daemon.loop.monitor import Monitor, NullMonitor
from cdfd.daemon.loop.recorder import Recorder
from cdfd.encoding.json import LineEncoder
from cdfd.errors import CdfdError, SinkError, UnsupportedError
from cdfd.jobs.assignment import Engine
from cdfd.progress.ledger import Ledger, app_id
from cdfd.sinks.base import Sink
from cdfd.sinks.files.folder import refuse_link
from cdfd.sinks.files.formats import JsonLines, Parquet, RowsFormat
from cdfd.sinks.files.sink import FilesSink
from cdfd.sinks.kafka.progress.topics import PROGRESS_PREFIX
from cdfd.tables.configured import execution as execution
from cdfd.tables.configured import open_table as open_table
from cdfd.tail.bounds import Start
from cdfd.tail.clock import Clock
from cdfd.tail.file_events import FileEvents
from cdfd.tail.notifications import Notifications

if TYPE_CHECKING:
    from cdfd.storage.s3.sqs import Queue

LARGE_AT_A_TIME = 2
"""Large deliveries at a time. Each one may use all cores, and takes its share of memory."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The resources that the tables of a daemon share.

    Attributes:
        config: all settings.
        clock: the source of time.
        recover_from_ledger: see `Policies`.
        ledger_of: the ledger of a table; None if there is no ledger.
        admission: of large deliveries.
        arrivals: watches local folders.
        notifications: receives S3 events; None if not configured.
        engine: of large versions.
        warned: the warnings of each table; see `Feed`.
    """

    config: Settings
    clock: Clock
    recover_from_ledger: bool
    ledger_of: Callable[[settings.Table], Ledger | None]
    admission: Admission
    file_events: FileEvents
    notifications: Notifications | None
    engine: Engine
    warned: dict[str, set[str]] = field(default_factory=dict)


@asynccontextmanager
async def shared(config: Settings, clock: Clock, recover_from_ledger: bool = False) -> AsyncIterator[Shared]:
    """Open the resources that all tables share, and close them at the end of the block.

    Raises:
        ConfigError, UnsupportedError: the ledger cannot be opened, or the engine cannot be used.
    """
    none = config.progress.ledger.kind == "none"
    admission = Admission(LARGE_AT_A_TIME)
    async with (
        engine(config, admission) as found,
        ledgers(config, clock) as ledger_of,
        notified(config, clock) as notifications,
    ):
        with FileEvents() as file_events:
            yield Shared(
                config,
                clock,
                recover_from_ledger,
                (lambda _: None) if none else ledger_of,
                admission,
                file_events,
                notifications,
                found,
            )


@asynccontextmanager
async def notified(config: Settings, clock: Clock) -> AsyncIterator[Notifications | None]:
    """The receiver of S3 events; None if not configured."""
    if config.poll.notifications is None:
        yield None
        return
    async with Notifications(partial(_queue, config, config.poll.notifications), clock).running() as notifications:
        yield notifications


def _queue(config: Settings, name: str) -> AbstractAsyncContextManager[Queue]:
    # Imports the S3 client, which is slow, and which other stores do not need.
    from cdfd.storage.s3 import sqs
    from cdfd.storage.s3.options import parse

    return sqs.opened(sqs.QueueName.parse(name), parse(config.storage.s3.options()))


async def check_notifications(config: Settings) -> None:
    """Check the queue of S3 events, if one is configured. Takes no message from it.

    Raises:
        StorageError: the queue does not exist, or cannot be read.
    """
    if config.poll.notifications is not None:
        async with _queue(config, config.poll.notifications) as queue:
            await queue.check()


@asynccontextmanager
async def feed(shared: Shared, table: settings.Table, stop: asyncio.Event, monitor: Monitor) -> AsyncIterator[Feed]:
    """Open the sink of one table and yield its loop. Closes the sink at the end of the block.

    Raises:
        CdfdError: the sink cannot be opened.
    """
    config, clock = shared.config, shared.clock
    opened = open_table(config, table)
    ledger = shared.ledger_of(table)
    recorder = None
    if ledger is not None:
        recorder = Recorder(ledger, app_id(config.pipeline, table.name), config.progress.interval, clock, monitor)
    poll = config.poll
    with (
        add_reset_hint(config),
        opened.tailer(clock, poll.interval, poll.max_interval, shared.file_events, shared.notifications) as tailer,
    ):
        async with open_sink(config, table, monitor) as sink:
            yield Feed(
                opened,
                sink,
                execution(opened, table),
                tailer,
                policies(config, table, recover_from_ledger=shared.recover_from_ledger),
                stop,
                limits(config),
                recorder,
                monitor,
                shared.admission,
                sink_name(config),
                terminal=watched() and len(config.tables) == 1,
                large=large_versions(config, table, sink, shared.engine, stop, monitor),
                warned=shared.warned.setdefault(table.name, set()),
            )


@contextmanager
def add_reset_hint(config: Settings) -> Iterator[None]:
    """Complete hints to reset the progress: a folder must be empty before a reset."""
    try:
        yield
    except CdfdError as error:
        if error.hint is not None and isinstance(config.sink, FilesSettings) and _EMPTY not in error.hint:
            error.hint = error.hint.replace(_RESET, f"{_EMPTY}, then {_RESET}")
        raise


_RESET, _EMPTY = "`cdfd progress reset`", "move all files out of the sink's folder"


def folder_of(config: Settings, table: settings.Table) -> str:
    """The folder of a table in the files sink."""
    assert isinstance(config.sink, FilesSettings)
    return os.path.join(config.sink.path, table.topic)


def sink_name(config: Settings) -> str:
    """The name of the sink in messages about positions."""
    if isinstance(config.sink, KafkaSettings):
        return f"the topic {PROGRESS_PREFIX}{config.pipeline}"
    return "the folder" if isinstance(config.sink, FilesSettings) else "the table"


def limits(config: Settings) -> Limits:
    """The limits of a delivery into the sink."""
    if isinstance(config.sink, FilesSettings):
        return Limits(max_bytes=0)  # one file for each version, because people read them
    return Limits(PART_BYTES, config.catch_up.max_rows, config.catch_up.max_bytes, config.catch_up.max_seconds)


def policies(config: Settings, table: settings.Table, *, recover_from_ledger: bool = False) -> Policies:
    """The configured behaviour of a table."""
    sink = config.sink
    return Policies(
        start_of(table),
        table.changes,
        table.on_missing_file,
        table.on_schema_change,
        recover_from_ledger=recover_from_ledger,
        ledger_counts=isinstance(sink, KafkaSettings) and sink.delivery == "at_least_once",
        columns=table.columns,
        key=table.key,
    )


@asynccontextmanager
async def open_sink(config: Settings, table: settings.Table, monitor: Monitor | None = None) -> AsyncIterator[Sink]:
    """Open the sink of a table, and close it at the end of the block. Opening takes the table over from another process, or fails.

    Raises:
        SinkError, FencedError: the sink cannot be used.
        UnsupportedError: this version does not have such a sink.
    """
    match config.sink:
        case FilesSettings():
            folder = folder_of(config, table)
            rows, mode = _rows_format(config.sink), int(config.sink.mode, 8)
            sink = await FilesSink.open(folder, rows, fsync=config.sink.fsync, mode=mode)
            try:
                yield sink
            finally:
                await sink.close()
        case KafkaSettings():
            async with kafka.opened(config, config.sink, table, monitor or NullMonitor()) as opened:
                yield opened
        case _:
            raise no_such_sink(config)


async def check_sink(config: Settings, table: settings.Table) -> str:
    """Check a table's sink without writing to it; the text for the report.

    Raises:
        SinkError, UnsupportedError: the sink cannot be used.
    """
    match config.sink:
        case FilesSettings():
            return _check_folder(folder_of(config, table))
        case KafkaSettings():
            return await kafka.check(config, config.sink, table)
    raise no_such_sink(config)


def _check_folder(folder: str) -> str:
    refuse_link(folder)
    place = nearest_existing(folder)
    if not os.path.isdir(place):
        raise SinkError("the path is not a folder", path=place, hint="Choose another path")
    # The sink also opens files in the folder, which may belong to another user.
    inside = (os.path.join(folder, name) for name in (".lock", "_position.json"))
    for path in (place, *filter(os.path.exists, inside)):
        if not os.access(path, os.W_OK | (os.X_OK if path == place else os.R_OK), effective_ids=True):
            raise SinkError("the folder cannot be written to", path=path, hint="Check its owner and permissions")
    return "ok" if place == folder else "ok, the folder will be created"


def nearest_existing(path: str) -> str:
    """The path itself, or its nearest ancestor that exists."""
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return place


def start_of(table: settings.Table) -> Start:
    """The configured start of a table, as `tail.start` takes it."""
    return str(table.start)


def no_such_sink(config: Settings) -> UnsupportedError:
    """The error for a sink that this version does not have."""
    return UnsupportedError(
        f"this version has no sink of kind {config.sink.kind}",
        hint="Use `sink.kind: kafka`, or `files`",
    )


def _rows_format(sink: FilesSettings) -> RowsFormat:
    if sink.format == "parquet":
        return Parquet()
    return JsonLines(LineEncoder())
