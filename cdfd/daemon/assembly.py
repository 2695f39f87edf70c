"""Settings to running parts: the one place of the daemon that chooses implementations."""

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
from cdfd.tail.file_events import Arrivals
from cdfd.tail.notifications import Notifications

if TYPE_CHECKING:
    from cdfd.storage.s3.sqs import Queue

LARGE_AT_A_TIME = 2
"""Large deliveries at a time, each of which may keep all cores busy and takes its share of memory."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the tables of a daemon have in common.

    Attributes:
        config: all settings.
        clock: time.
        recover_from_ledger: see `Policies`.
        ledger_of: the ledger of a table, None where there is none.
        admission: of large deliveries.
        arrivals: what watches folders.
        notifications: what hears of objects in S3; None where it is not configured.
        engine: of large versions.
        warned: what each table was warned of; see `Feed`.
    """

    config: Settings
    clock: Clock
    recover_from_ledger: bool
    ledger_of: Callable[[settings.Table], Ledger | None]
    admission: Admission
    arrivals: Arrivals
    notifications: Notifications | None
    engine: Engine
    warned: dict[str, set[str]] = field(default_factory=dict)


@asynccontextmanager
async def shared(config: Settings, clock: Clock, recover_from_ledger: bool = False) -> AsyncIterator[Shared]:
    """What all tables need, until the end.

    Raises:
        ConfigError, UnsupportedError: the ledger's place cannot be opened, or an engine that cannot be used.
    """
    none = config.progress.ledger.kind == "none"
    admission = Admission(LARGE_AT_A_TIME)
    async with (
        engine(config, admission) as found,
        ledgers(config, clock) as ledger_of,
        notified(config, clock) as notifications,
    ):
        with Arrivals() as arrivals:
            yield Shared(
                config,
                clock,
                recover_from_ledger,
                (lambda _: None) if none else ledger_of,
                admission,
                arrivals,
                notifications,
                found,
            )


@asynccontextmanager
async def notified(config: Settings, clock: Clock) -> AsyncIterator[Notifications | None]:
    """What hears of objects in S3, where it is configured."""
    if config.poll.notifications is None:
        yield None
        return
    async with Notifications(partial(_queue, config, config.poll.notifications), clock).running() as notifications:
        yield notifications


def _queue(config: Settings, name: str) -> AbstractAsyncContextManager[Queue]:
    # As S3's own client: it takes a while to import, and others do without.
    from cdfd.storage.s3 import sqs
    from cdfd.storage.s3.options import parse

    return sqs.opened(sqs.QueueName.parse(name), parse(config.storage.s3.options()))


async def check_notifications(config: Settings) -> None:
    """Ask the queue of notifications once, where one is configured. Nothing is taken from it.

    Raises:
        StorageError: it is not there, or cannot be read.
    """
    if config.poll.notifications is not None:
        async with _queue(config, config.poll.notifications) as queue:
            await queue.check()


@asynccontextmanager
async def feed(shared: Shared, table: settings.Table, stop: asyncio.Event, monitor: Monitor) -> AsyncIterator[Feed]:
    """The loop of one table, its sink opened, and closed at the end.

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
        advised(config),
        opened.tailer(clock, poll.interval, poll.max_interval, shared.arrivals, shared.notifications) as tailer,
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
def advised(config: Settings) -> Iterator[None]:
    """Errors from within whose hint is to reset say how that is done with this sink: a folder is only reset when it is empty."""
    try:
        yield
    except CdfdError as error:
        if error.hint is not None and isinstance(config.sink, FilesSettings) and _EMPTY not in error.hint:
            error.hint = error.hint.replace(_RESET, f"{_EMPTY}, then {_RESET}")
        raise


_RESET, _EMPTY = "`cdfd progress reset`", "move all files out of the sink's folder"


def folder_of(config: Settings, table: settings.Table) -> str:
    """The folder of a table in a files sink."""
    assert isinstance(config.sink, FilesSettings)
    return os.path.join(config.sink.path, table.topic)


def sink_name(config: Settings) -> str:
    """What the place of positions is called in messages."""
    if isinstance(config.sink, KafkaSettings):
        return f"the topic {PROGRESS_PREFIX}{config.pipeline}"
    return "the folder" if isinstance(config.sink, FilesSettings) else "the table"


def limits(config: Settings) -> Limits:
    """What a delivery into the sink may hold."""
    if isinstance(config.sink, FilesSettings):
        return Limits(max_bytes=0)  # a file for each version: people look at them
    return Limits(PART_BYTES, config.catch_up.max_rows, config.catch_up.max_bytes, config.catch_up.max_seconds)


def policies(config: Settings, table: settings.Table, *, recover_from_ledger: bool = False) -> Policies:
    """What to do with a table where there is a choice."""
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
    """The sink of a table; opening it is what takes it over from another process, or is refused. Closed at the end.

    Raises:
        SinkError, FencedError: it cannot be used.
        UnsupportedError: a kind that this version does not have.
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
    """What `check` says of a table's sink, which is not written to.

    Raises:
        SinkError, UnsupportedError: it could not be used.
    """
    match config.sink:
        case FilesSettings():
            return _check_folder(folder_of(config, table))
        case KafkaSettings():
            return await kafka.check(config, config.sink, table)
    raise no_such_sink(config)


def _check_folder(folder: str) -> str:
    refuse_link(folder)
    place = nearest(folder)
    if not os.path.isdir(place):
        raise SinkError("there is something else where the folder is to be", path=place, hint="Choose another path")
    # What is in it is opened, too: it may be another user's.
    inside = (os.path.join(folder, name) for name in (".lock", "_position.json"))
    for path in (place, *filter(os.path.exists, inside)):
        if not os.access(path, os.W_OK | (os.X_OK if path == place else os.R_OK), effective_ids=True):
            raise SinkError("the folder cannot be written to", path=path, hint="Check its owner and permissions")
    return "ok" if place == folder else "ok, the folder will be created"


def nearest(path: str) -> str:
    """The path itself, or what is there of the way to it."""
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    return place


def start_of(table: settings.Table) -> Start:
    """Where a table without a position begins, as `tail.start` takes it."""
    return str(table.start)


def no_such_sink(config: Settings) -> UnsupportedError:
    """The error for a kind of sink that this version does not have."""
    return UnsupportedError(
        f"there is no sink of kind {config.sink.kind} in this version",
        hint="Use `sink.kind: kafka`, or `files`",
    )


def _rows_format(sink: FilesSettings) -> RowsFormat:
    if sink.format == "parquet":
        return Parquet()
    return JsonLines(LineEncoder())
