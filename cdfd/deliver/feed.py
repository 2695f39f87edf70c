"""One table's loop: plans in, deliveries out.

The sink stores the position in the same transaction as the rows. The loop starts from that position and has no other durable state. After
an error the supervisor opens a new sink and restarts the loop.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from cdfd.deliver.admission import Admission
from cdfd.deliver.controls import Controls
from cdfd.deliver.deliverer import Deliverer, Limits
from cdfd.deliver.large_versions import LargeVersions
from cdfd.deliver.mailbox import Mailbox
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.rates import Rates
from cdfd.deliver.recorder import Recorder
from cdfd.deliver.resnapshotter import Resnapshotter, cancel_impossible
from cdfd.deliver.resuming import Policies, check_fit, check_schema_change, explain_gap, read_ledger
from cdfd.delta.actions import Metadata
from cdfd.delta.header import Header
from cdfd.delta.retention import Retention
from cdfd.errors import CdfdError, LogError, MissingFileError, Within
from cdfd.log.start import wait_for_start_position
from cdfd.log.stream import PlanStream, version_batches
from cdfd.log.table import Table
from cdfd.log.tailer import Tailer
from cdfd.model.position import Phase, Position
from cdfd.model.version import Version
from cdfd.runtime.progress_line import ProgressLine
from cdfd.runtime.tasks import background, beside, unless_set
from cdfd.scan.execute import Execution
from cdfd.scan.table_files import MISSING_HINT
from cdfd.sinks.base import Sink, SnapshotNeededError
from cdfd.sinks.ledger.ledger import LedgerEntry
from cdfd.sinks.ledger.recovery import decide, delivered_version, digest_of
from cdfd.sinks.ledger.txn_state import is_ours

logger = logging.getLogger("cdfd.feed")

LAG_CHECK_SECONDS = 10.0
"""How often a loop with a backlog looks up the newest version."""


@dataclass(slots=True)
class Feed:
    """Delivers one table's changes to one sink, in order, until `stop` is set.

    Attributes:
        tailer: waits for the next version.
        stop: set it to stop after the current delivery.
        recorder: writes the ledger; None if there is no ledger.
        sink_name: the name of the sink in messages.
        terminal: whether to show the progress of long work on a terminal instead of logging it.
        large: delivers versions that are too large for this process.
        warned: warnings since the daemon started; a restarted loop does not repeat them.
        name: of the table in the configuration.
    """

    table: Table
    sink: Sink
    execution: Execution
    tailer: Tailer
    policies: Policies
    stop: asyncio.Event
    limits: Limits = field(default_factory=Limits)
    recorder: Recorder | None = None
    monitor: Monitor = field(default_factory=Monitor)
    admission: Admission = field(default_factory=lambda: Admission(1))
    sink_name: str = "the sink"
    terminal: bool = False
    large: LargeVersions | None = None
    warned: set[str] = field(default_factory=set)
    mailbox: Mailbox = field(default_factory=Mailbox)
    rates: Rates = field(default_factory=Rates)
    name: str = ""
    _controls: Controls = field(init=False)
    _deliverer: Deliverer = field(init=False)
    _lag_checked: float = field(init=False, default=-math.inf)
    _listed: int = field(init=False, default=-1)
    _metadata: Metadata | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        clock = self.tailer.clock
        report = ProgressLine(logger, "delivered", self.table.uri, terminal=self.terminal, clock=clock)
        name = self.name or self.table.uri
        self._controls = Controls(
            name, self.table, self.sink, self.mailbox, self.stop, self.monitor, self.recorder, clock, self.sink_name
        )
        self._deliverer = Deliverer(
            self.table.uri,
            self.sink,
            self.execution,
            self.limits,
            self._controls,
            self.monitor,
            report,
            self.admission,
            clock,
            self.large,
            self.rates,
        )

    async def run(self) -> None:
        """Deliver until stopped.

        Raises:
            CdfdError: the delivery failed and is aborted.
        """
        self.mailbox.open()
        async with background("stop", self._controls.watch_stop()):
            if self.recorder is None:
                await self._run()
            else:
                # Only a bug ends the recorder. It ends the loop too, because a ledger that stops being written must be noticed.
                await beside(self.recorder.run(), self._run())
                await self.recorder.finish()

    async def _run(self) -> None:
        delivered = await self.sink.last_position()
        if delivered is not None:
            if self.sink.control.paused is not None:
                # Clean-up does not wait for a table that is paused from the start: its retention is reported, too.
                with contextlib.suppress(CdfdError):  # the log matters once the table is resumed
                    self._note_retention(await self.table.log.header())
                await self._controls.report(delivered)
            await self._controls.obey()  # a table that fails further on can be paused, too
        begun = await self._start()
        if begun is None:
            return
        position = begun
        # The table has to be the one that the position was stored for.
        await unless_set(self.stop, self.tailer.resume(position))
        await self._controls.report(position)
        while not self.stop.is_set():
            try:
                with explain_gap():
                    await self._run_from(position)
            except MissingFileError as error:
                if self.policies.on_missing_file != "snapshot":
                    if error.hint == MISSING_HINT:
                        error.hint += ", or set `on_missing_file`"
                    raise
                position = await self._restart(error)
            except SnapshotNeededError as error:
                position = await self._restart(error)
            else:
                await self._controls.obey()
                before, position = position, await self.sink.last_position() or position
                await cancel_impossible(self._controls, position)
                moved = (position.table_id, position.version) != (before.table_id, before.version)
                if moved and not self.stop.is_set():
                    await self.tailer.resume(position)
                    await self._controls.report(position)

    async def _start(self) -> Position | None:
        """The position to start from; None if a stop came first."""
        delivered = await self.sink.last_position()
        entry: LedgerEntry | None = None
        if self.recorder is not None:
            # If the sink has a position, an unreadable ledger does not delay the delivery.
            ledger, app_id = self.recorder.ledger, self.recorder.app_id
            entry, unreadable = await read_ledger(ledger, app_id, needed=delivered is None)
            if unreadable is not None:
                about = {"table": self.table.uri}
                logger.warning("the ledger cannot be read: %s; continuing without it", unreadable, extra=about)
                self.monitor.error(unreadable)
            else:
                self.monitor.found_record(-1 if entry is None else entry.version)
        if delivered is None and entry is None:
            return await unless_set(self.stop, self._first_position())
        if delivered is None and await unless_set(self.stop, self.tailer.wait_for_table()) is None:
            return None
        # With a known position, the tailer compares the table's id once it reads the log.
        table_id = delivered.table_id if delivered is not None else (await self.table.log.header()).metadata.id
        recover = self.policies.recover_from_ledger or self.policies.ledger_counts
        ledger_name = None if self.recorder is None else f"the ledger {self.recorder.ledger.uri}"
        try:
            start = decide(delivered, entry, table_id, recover, self.sink_name, ledger_name)
        except CdfdError as error:
            raise error.within(table=self.table.uri) from None
        assert start.position is not None
        level = logging.WARNING if start.warning else logging.INFO
        extra = {"table": self.table.uri, "version": start.position.version, "part": start.position.part}
        logger.log(level, "%s", start.reason, extra=extra)
        if delivered is None:
            # A position of another history of the table must not become durable.
            await unless_set(self.stop, self.tailer.resume(start.position))
            if self.stop.is_set():
                return None
            await self._move(start.position, start.position)
        if start.record is not None:
            self._note_delivered(start.record, start.position)
        return start.position

    async def _first_position(self) -> Position:
        """The configured start. It is committed at once, so that a daemon that crashes before its first row starts there again."""
        start = await wait_for_start_position(self.tailer, self.policies.start)
        phase: Phase = "snapshot" if start.snapshot else "stream"
        position = Position(start.table_id, start.version, phase=phase, digest=start.digest)
        if self.sink.lost_position is not None:
            self.monitor.lost_position()
            extra = {"table": self.table.uri, "version": position.version}
            logger.error(
                "%s. The table begins again as `start` says: see docs/recovery.md", self.sink.lost_position, extra=extra
            )
        await self._move(position, position)
        before = delivered_version(position)
        if self.policies.ledger_counts and before is not None:
            self._note_delivered(before, position)
            assert self.recorder is not None
            await self.recorder.record_now()
        extra = {"table": self.table.uri, "version": position.version, "part": position.part}
        logger.info("starting at version %d", position.version, extra=extra)
        return position

    async def _restart(self, error: MissingFileError | SnapshotNeededError) -> Position:
        """Replace the changes that cannot be read or applied by the live rows of the newest version."""
        delivered = await self.sink.last_position()
        assert delivered is not None
        partly = self._deliverer.partly_delivered
        newest = await self.tailer.check_table()
        if delivered.phase == "stream":
            # Entries without bytes at the end of the log are delivered, although their writers may have just created them.
            newest = max(newest, delivered.version - 1)
        digest = await self.table.log.digest(newest)
        position = Position(delivered.table_id, newest, phase="snapshot", digest=digest)
        if delivered.version >= newest and (delivered.phase == "snapshot" or delivered.part > 0 or partly):
            # A snapshot does not help: the newest version's live rows are unreadable, or its changes are partly delivered.
            raise error
        logger.warning("%s; starting again from a snapshot", error, extra={"table": self.table.uri, "version": newest})
        await self._move(delivered, position)
        await self._controls.report(position)
        return position

    async def _move(self, before: Position, position: Position) -> None:
        delivery = await self.sink.begin(before)
        await delivery.commit(position)

    async def _run_from(self, position: Position) -> None:
        await cancel_impossible(self._controls, position)
        stream = self.table.stream(self.policies.rows)
        stream.continue_from(position)
        if position.phase == "snapshot":
            following = await self._snapshot(stream, position)
            if following is None:
                return
            position = following
        else:
            if (reason := self.sink.needs_snapshot) is not None:
                raise SnapshotNeededError(reason)
            try:
                there = await stream.begin(self.tailer, position.version)
            finally:
                self._note_retention(stream.header)  # of the version before one that cannot be read
            if there is not None:
                await self._check_configuration(there, *filter(None, (stream.header,)))
        again = await self._resnapshotter(position, stream)
        self.tailer.idle.clear()  # it may have been idle at another position, or before a pause
        versions = stream.versions(self.tailer, position.version)
        async with contextlib.aclosing(version_batches(versions)) as ready:
            while (burst := await self._next(ready, position, again)) is not None:
                while burst:
                    clear = len(burst) if again is None else await again.clear(burst, position)
                    if self._controls.is_set() or not clear:
                        return
                    first = burst[0]
                    if first.schema_change is not None:
                        with Within(self.table.uri, first.plan.version):
                            described = check_schema_change(first.schema_change, self.policies)
                        extra = {"table": self.table.uri, "version": first.plan.version}
                        logger.info("schema change: %s", described, extra=extra)
                    self._note_retention(stream.header)
                    whole = await self._deliverer.deliver(burst[:clear], position)
                    if not whole:
                        return
                    position = self._note_delivery(burst[:whole])
                    if again is not None:
                        again.delivered(burst[whole - 1])
                    elif self.sink.control.snapshot is not None:
                        return  # an incremental snapshot that waited for the end of a version begins
                    burst = burst[whole:]

    async def _resnapshotter(self, position: Position, stream: PlanStream) -> Resnapshotter | None:
        """The incremental snapshot in progress; None if there is none, or if a version is partly delivered, which comes first."""
        if self.sink.control.snapshot is None or position.part or self._deliverer.partly_delivered:
            return None
        most = self.limits.max_bytes
        resnapshotter = Resnapshotter(self.execution, self._controls, self.admission, self.rates, most)
        await resnapshotter.begin(position, stream, self.tailer)
        return resnapshotter if resnapshotter.active else None

    async def _snapshot(self, stream: PlanStream, position: Position) -> Position | None:
        """Deliver the live rows at `position`; the position after them, or None if a stop came first."""
        extra = {"table": self.table.uri, "version": position.version, "part": position.part}
        logger.info("snapshot of version %d started", position.version, extra=extra)
        version = await self._deliverer.snapshot(stream, position, self.tailer)
        assert stream.header is not None
        await self._check_configuration(stream.header)
        self.monitor.found_version(position.version)
        began = self.tailer.clock.monotonic()
        if not await self._deliverer.deliver([version], position):
            return None
        seconds = self.tailer.clock.monotonic() - began
        extra = {"table": self.table.uri, "version": position.version, "files": len(version.plan.scans)}
        logger.info("snapshot of version %d completed in %.1f s", position.version, seconds, extra=extra)
        following = self._note_delivery([version])
        return None if self._controls.is_set() else following

    async def _check_configuration(self, header: Header, *before: Header) -> None:
        """Check that the configuration fits the table where the delivery starts, or `before` that. Log each warning once."""
        self._note_retention(header)
        shape = self.policies.rows.shape
        newest = await self.table.log.header() if shape.masks or shape.missing(header.schema) else header
        for warning in check_fit(self.policies, header, newest, *before):
            if warning not in self.warned:
                self.warned.add(warning)
                logger.warning("%s", warning, extra={"table": self.table.uri, "version": header.version})

    def _note_retention(self, header: Header | None) -> None:
        if header is not None and header.metadata is not self._metadata:
            self._metadata = header.metadata
            self.monitor.retained(Retention.of(header.metadata))

    def _note_delivery(self, versions: list[Version]) -> Position:
        """Note that `versions` are delivered; the position after them."""
        last = versions[-1]
        following = Position(last.table_id, last.plan.version + 1, digest=last.digest)
        ours = all(is_ours(version.only_txns) for version in versions)
        self._note_delivered(last.plan.version, following, ours=ours)
        return following

    def _note_delivered(self, version: int, position: Position, *, ours: bool = False) -> None:
        """`version` is delivered, and `position` is the next one. The ledger is never ahead of what the sink has stored."""
        if self.recorder is not None and not self.sink.deferred:
            self.recorder.delivered(version, position.table_id, digest_of(position, version), ours=ours)

    async def _next(
        self, ready: AsyncGenerator[list[Version], None], position: Position, again: Resnapshotter | None
    ) -> list[Version] | None:
        """The versions from `position` on; None if an interruption came first. Meanwhile an incremental snapshot advances by a chunk."""
        if not self.tailer.idle.is_set() and self.tailer.clock.monotonic() - self._lag_checked > LAG_CHECK_SECONDS:
            await self._check_lag()
        following = asyncio.ensure_future(anext(ready))
        idle, interrupt = map(asyncio.ensure_future, (self.tailer.idle.wait(), self.mailbox.interrupt.wait()))
        try:
            while again is not None and again.active and not self._controls.is_set():
                if not await again.step(position) or following.done():
                    break
            await asyncio.wait((following, idle), return_when=asyncio.FIRST_COMPLETED)
            if not following.done() and self._listed >= position.version:
                await self._check_lag()  # a restored backup may have fewer versions than the log had
            if not following.done():
                self.monitor.at_tip(self._listed)
            await asyncio.wait((following, interrupt), return_when=asyncio.FIRST_COMPLETED)
            versions = following.result() if following.done() else None
        finally:
            for future in (following, idle, interrupt):
                future.cancel()
            await asyncio.gather(following, idle, interrupt, return_exceptions=True)
        if versions is not None:
            self.monitor.found_version(versions[-1].plan.version)
        return versions

    async def _check_lag(self) -> None:
        """Look up the newest version of the table."""
        self._lag_checked = self.tailer.clock.monotonic()
        # The stream reads the same log and raises the better error.
        with contextlib.suppress(LogError):
            self._listed = await self.table.log.latest_version()
            self.monitor.found_version(self._listed)
