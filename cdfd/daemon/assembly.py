"""Builds the daemon from its settings: the only module of the daemon that chooses implementations."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.config.table import RateLimits
from cdfd.daemon.engines import engine_of, large_versions
from cdfd.daemon.sources import Sources
from cdfd.deliver.admission import Admission
from cdfd.deliver.assignment import Engine
from cdfd.deliver.configured import execution, open_table
from cdfd.deliver.deliverer import PART_BYTES, ROWS, Limits
from cdfd.deliver.feed import Feed
from cdfd.deliver.mailbox import Mailbox
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.rates import RateLimit, Rates
from cdfd.deliver.recorder import LedgerWarnings, Recorder
from cdfd.deliver.resuming import Policies
from cdfd.errors import CdfdError
from cdfd.log.notifications import Notifications
from cdfd.log.pace import Pace, PollBudget
from cdfd.runtime import allocator
from cdfd.runtime.clock import Clock, SystemClock
from cdfd.runtime.file_events import FileEvents
from cdfd.runtime.progress_line import is_watched
from cdfd.scan.updates.last_refined import RefinedVersions
from cdfd.sinks.base import Connector, connector
from cdfd.sinks.ledger.ledger import Ledger, NoLedger, app_id
from cdfd.sinks.ledger.source_ledger import SourceLedger
from cdfd.sinks.ledger.table_ledger import TableLedger
from cdfd.storage.location import open_private
from cdfd.storage.queues.address import QueueAddress
from cdfd.storage.queues.base import Queue
from cdfd.storage.queues.factory import open_queue

logger = logging.getLogger("cdfd.daemon")

HEAD_START_SECONDS = 0.003
"""Seconds that the delivery of a commit has the processor to itself, before the next commit is looked for."""
LARGE_AT_A_TIME = 2
"""Large deliveries at a time. Each one may use all cores, and takes its share of memory."""


@dataclass(slots=True)
class _Kept:
    """State of a table that its next loop continues with: its rhythm, the warnings that were logged, and rows of a version in parts."""

    pace: Pace
    refined: RefinedVersions = field(default_factory=RefinedVersions)
    warned: set[str] = field(default_factory=set)
    ledger_warnings: LedgerWarnings = field(default_factory=LedgerWarnings)


@dataclass(frozen=True, slots=True)
class Shared:
    """The resources that the tables of a sink share.

    Attributes:
        recover_from_ledger: see `Policies`.
        ledger_of: the ledger of a table; None if there is no ledger.
        notifications: receives events of stores; None if not configured.
        engine: of large versions.
        ledger_warnings: those about each ledger that is in use.
        poll_budget: of tables in stores without events.
        kept: what a loop that starts again keeps, by the event that stops it: all loops of a table have the same one until the table leaves.
    """

    config: Settings
    clock: Clock
    recover_from_ledger: bool
    ledger_of: Callable[[settings.Table], Ledger | None]
    admission: Admission
    file_events: FileEvents
    notifications: Notifications | None
    engine: Engine
    sources: Sources
    sink: Connector
    ledger_warnings: WeakValueDictionary[str, LedgerWarnings] = field(default_factory=WeakValueDictionary)
    mailboxes: Mapping[str, Mailbox] = field(default_factory=dict)
    rates: tuple[RateLimit, ...] = ()
    poll_budget: PollBudget = field(kw_only=True)
    kept: WeakKeyDictionary[asyncio.Event, _Kept] = field(default_factory=WeakKeyDictionary)


@asynccontextmanager
async def shared(
    config: Settings,
    clock: Clock,
    recover_from_ledger: bool = False,
    mailboxes: Mapping[str, Mailbox] = MappingProxyType({}),
    notifications: Notifications | None = None,
    poll_budget: PollBudget | None = None,
    sources: Sources | None = None,
    sink: Connector | None = None,
) -> AsyncIterator[Shared]:
    """Open the resources that all tables of a sink share, and close them at the end of the block.

    Raises:
        ConfigError, UnsupportedError: the ledger cannot be opened, or the engine cannot be used.
    """
    none = config.progress.ledger.kind == "none"
    admission = Admission(LARGE_AT_A_TIME, when_idle=allocator.release)
    async with (
        engine_of(config).jobs(admission) as jobs,
        ledgers(config, clock) as ledger_of,
    ):
        with closing(FileEvents()) as file_events:
            yield Shared(
                config,
                clock,
                recover_from_ledger,
                (lambda _: None) if none else ledger_of,
                admission,
                file_events,
                notifications,
                jobs,
                sources or Sources(clock),
                sink or connector(config),
                mailboxes=mailboxes,
                rates=rate_limits(config.limits, clock),
                poll_budget=poll_budget or PollBudget(config.poll.max_requests_per_hour, config.poll.max_interval),
            )


def receive_notifications(config: Settings, clock: Clock) -> AbstractAsyncContextManager[Notifications | None]:
    """The receiver of events of stores; None if not configured."""
    address = config.poll.notifications
    return nullcontext() if address is None else Notifications(partial(_queue, config, address), clock).running()


def _queue(config: Settings, address: str) -> AbstractAsyncContextManager[Queue]:
    return open_queue(QueueAddress.parse(address), config.storage.s3.options())


async def check_notifications(config: Settings) -> str | None:
    """Check the queue of events; None if none is configured. Takes no message from it.

    Raises:
        StorageError: the queue does not exist, or cannot be read.
    """
    if config.poll.notifications is None:
        return None
    async with _queue(config, config.poll.notifications) as queue:
        await queue.check()
    return "ok"


@asynccontextmanager
async def feed(shared: Shared, table: settings.Table, stop: asyncio.Event, monitor: Monitor) -> AsyncIterator[Feed]:
    """Open the sink of one table and yield its loop. Closes the sink at the end of the block.

    Raises:
        CdfdError: the sink cannot be opened.
    """
    config, clock, sinks = shared.config, shared.clock, shared.sink
    ledger = shared.ledger_of(table)
    recorder = None
    kept = shared.kept.setdefault(stop, _Kept(Pace(shared.poll_budget, config.poll.interval)))
    if ledger is not None:
        name, renewal = app_id(config.ledger_name, table.name), config.heartbeat.interval
        # The tables of a ledger keep its warnings for each other.
        kept.ledger_warnings = shared.ledger_warnings.setdefault(ledger.uri, kept.ledger_warnings)
        recorder = Recorder(ledger, name, config.progress.interval, clock, monitor, renewal, kept.ledger_warnings)
    poll, mailbox = config.poll, shared.mailboxes.get(config.address(table.name)) or Mailbox()
    with add_reset_hint(sinks), shared.sources.table(config, table) as (log_table, reader, tip):
        tailing = log_table.tailer(
            clock,
            poll.interval,
            poll.max_interval,
            shared.file_events,
            shared.notifications,
            head_start=HEAD_START_SECONDS,
            pace=kept.pace,
            tip=tip,
        )
        with tailing as tailer:
            budget = shared.poll_budget
            if not budget.suffices and not budget.warned:
                budget.warned = True
                logger.warning(
                    "poll.max_requests_per_hour does not suffice to poll %d tables every poll.max_interval: "
                    "they are polled at least every %.0f s",
                    budget.tables,
                    budget.max_interval,
                )
            async with sinks.open(table, monitor.stage) as sink:
                yield Feed(
                    log_table,
                    sink,
                    replace(execution(config, log_table, table), refined=kept.refined, shared=reader),
                    tailer,
                    policies(config, table, recover_from_ledger=shared.recover_from_ledger),
                    stop,
                    limits(config, table),
                    recorder,
                    monitor,
                    shared.admission,
                    sinks.place,
                    terminal=is_watched() and len(config.tables) == len(config.listed) == 1,
                    # A table that was found is not in the settings, and parts of its versions are delivered by these.
                    large=large_versions(config.with_tables((table,)), table, sink, shared.engine, mailbox.interrupt),
                    warned=kept.warned,
                    mailbox=mailbox,
                    rates=Rates([*rate_limits(table.limits, clock), *shared.rates]),
                    name=config.address(table.name),
                )


@contextmanager
def add_reset_hint(sink: Connector) -> Iterator[None]:
    """Complete hints to reset the progress with what the sink needs before it."""
    try:
        yield
    except CdfdError as error:
        first = sink.before_reset
        if error.hint is not None and first is not None and first not in error.hint:
            error.hint = error.hint.replace(f"run {_RESET}", _RESET).replace(_RESET, f"{first}, then run {_RESET}")
        raise


_RESET = "`cdfd progress reset`"


def rate_limits(section: RateLimits, clock: Clock) -> tuple[RateLimit, ...]:
    """The configured limit; none if there is none."""
    rows, size = section.rows_per_second, section.bytes_per_second
    return () if rows is None and size is None else (RateLimit(rows, size, clock),)


def limits(config: Settings, table: settings.Table) -> Limits:
    """The limits of a delivery into the sink. With a rate limit, a delivery of several versions has a second's worth at most."""
    sinks = connector(config)
    if sinks.one_version:
        return Limits(max_bytes=0, one_schema=True)
    rates = (table.limits, config.limits)
    # Rows that go into files take no memory, and readers of a table prefer few files.
    most_rows = config.catch_up.max_rows or (sys.maxsize if sinks.whole_versions else ROWS)
    return Limits(
        sys.maxsize if sinks.whole_versions else PART_BYTES,
        min([most_rows, *(each.rows_per_second for each in rates if each.rows_per_second)]),
        min([config.catch_up.max_bytes, *(each.bytes_per_second for each in rates if each.bytes_per_second)]),
        config.catch_up.max_seconds,
    )


def policies(config: Settings, table: settings.Table, *, recover_from_ledger: bool = False) -> Policies:
    """The configured behaviour of a table."""
    return Policies(
        table.start,
        table.rows,
        table.on_missing_file,
        table.on_schema_change,
        recover_from_ledger=recover_from_ledger,
        ledger_counts=not config.sink.keeps_positions,
        headers=tuple(table.headers.values()),
        keyed=config.sink.has_topics,
        typed_keys=config.sink.typed_keys,
    )


@asynccontextmanager
async def ledgers(config: Settings, clock: Clock | None = None) -> AsyncIterator[Callable[[settings.Table], Ledger]]:
    """A function that returns a table's ledger: one ledger for all tables, or with `source` one for each. Closes them at the end.

    It does not access any ledger yet.

    Raises:
        ConfigError, UnsupportedError: the location cannot be opened.
    """
    time = clock or SystemClock()
    place = config.progress.ledger
    # Each start of a table's loop opens its ledger again. Nothing but the loop keeps it.
    in_use = WeakSet[Ledger]()

    def keep(ledger: Ledger) -> Ledger:
        in_use.add(ledger)
        return ledger

    try:
        if place.kind == "source":
            yield lambda table: keep(SourceLedger(open_table(config, table).log.storage, time))
            return
        shared = keep(
            TableLedger(open_private(place.uri, config.options(place.uri)), time)
            if place.kind == "table"
            else NoLedger()
        )
        yield lambda table: shared
    finally:
        for ledger in tuple(in_use):
            await ledger.close()
