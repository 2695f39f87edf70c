"""Carries out the requests of operators for one table, in its loop and between two deliveries.

The loop owns the sink, so only it can store a pause or another position without a race. A request stays in the mailbox until it is stored.
So an error of the sink delays a request, and does not lose it.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace

from cdfd.deliver.mailbox import Mailbox
from cdfd.deliver.monitor import Monitor, ResnapshotProgress
from cdfd.deliver.recorder import Recorder
from cdfd.deliver.requests import Notification, Refused, Request, answer, refusal
from cdfd.errors import CdfdError, FencedError, LogError, NotFoundError, StorageError, UnsupportedError
from cdfd.log.table import Table, position_after
from cdfd.model.control import Pause
from cdfd.model.position import Position
from cdfd.plan.shape.compiler import check_filter
from cdfd.plan.shape.parser import parse_filter
from cdfd.runtime.clock import Clock
from cdfd.sinks.base import Sink

logger = logging.getLogger("cdfd.feed")

LOOK_SECONDS = 10.0
"""How often a paused table looks up its newest version, for the lag."""


@dataclass(slots=True)
class Controls:
    """The controls of one table.

    Attributes:
        name: of the table in the configuration.
        sink: stores the control.
        stop: set when the loop has to end.
        monitor: receives pauses and incremental snapshots.
        recorder: writes the ledger; None if there is no ledger.
        sink_name: the name of the sink in messages.
    """

    name: str
    table: Table
    sink: Sink
    mailbox: Mailbox
    stop: asyncio.Event
    monitor: Monitor
    recorder: Recorder | None
    clock: Clock
    sink_name: str

    def is_set(self) -> bool:
        """Whether the loop has to end the current delivery: to carry out requests, or to stop."""
        return self.stop.is_set() or self.mailbox.interrupt.is_set()

    async def watch_stop(self) -> None:
        """Interrupt the loop once it has to end."""
        await self.stop.wait()
        self.sink.hasten()
        self.mailbox.halt()

    async def obey(self) -> None:
        """Carry out the requests, and wait while the table is paused. The sink has a position.

        Raises:
            SinkError: the control cannot be stored. The request is not answered yet.
        """
        paused = False
        while not self.stop.is_set():
            while not self.stop.is_set() and (request := self.mailbox.first) is not None:
                try:
                    notification = await self._accomplish(request)
                except Refused as error:
                    notification = refusal(error, request.id, request.action, request.table)
                if self.sink.stores_control and request.id not in self.sink.control.recent:
                    # One that changed nothing could change something if it came again, and undo a later one.
                    await self.sink.set_control(self.sink.control.remember(request.id))
                self.mailbox.settle(notification)
            pause = self.sink.control.paused
            self.monitor.paused(pause)
            if pause is None or self.stop.is_set():
                return
            if not paused:
                paused = True
                extra = {"table": self.table.uri, "request": pause.id}
                logger.info("paused by a request; nothing is delivered until it is resumed", extra=extra)
            with suppress(CdfdError):  # the log matters once the table is resumed
                self.monitor.found_version(await self.table.log.latest_version())
            await self.clock.wait(self.mailbox.interrupt, LOOK_SECONDS)

    async def report(self, position: Position) -> None:
        """Report the position, and since when there is something undelivered: clean-up also threatens a table that cannot be read."""
        self.monitor.started(position)
        self.report_snapshot()
        first = position.version + 1 if position.phase == "snapshot" else position.version
        try:
            since_ms = (await self.table.log.stat(first)).modified_ms
        except NotFoundError:
            if position.phase == "stream":
                return  # nothing is undelivered, as the loop reports soon
            since_ms = self.clock.now_ms()  # a later commit is the first to delete files of the snapshot
        except CdfdError:
            return  # the stream reads the same log and raises the better error
        self.monitor.undelivered_since(since_ms)

    def report_snapshot(self, selected: int | None = None, left: int | None = None) -> None:
        """Report the incremental snapshot as it is stored. The loop counts its files once the table is not paused."""
        state = self.sink.control.snapshot
        progress = None
        if state is not None:
            progress = ResnapshotProgress(state.id, state.version, selected, left, state.rows, state.where)
        self.monitor.resnapshot(progress)

    async def _accomplish(self, request: Request) -> Notification:
        if not self.sink.stores_control:
            raise Refused("unsupported", f"{self.sink_name} cannot store requests: positions must be in the sink")
        # The outcome of an earlier attempt is unknown if the sink failed.
        retried, self.mailbox.tried = self.mailbox.tried == request.id, request.id
        if request.id in self.sink.control.recent and not retried:
            raise Refused("duplicate", f"a request with the id {request.id} was already carried out")
        match request.action:
            case "pause":
                return await self._pause(request)
            case "resume":
                return await self._resume(request)
            case "snapshot":
                return await self._begin_snapshot(request, retried=retried)
            case "stop-snapshot":
                return await self._stop_snapshot(request, retried=retried)
            case "move":
                return await self._move(request)
            case _:
                raise Refused("unknown", f"a table has no action {request.action}")

    async def _pause(self, request: Request) -> Notification:
        paused_by = self.sink.control.paused
        if paused_by is not None and paused_by.id != request.id:
            return answer(request, "PAUSED", f"{request.table} was already paused by the request {paused_by.id}")
        if paused_by is None:
            pause = Pause(request.id, self.clock.now_ms())
            await self.sink.set_control(replace(self.sink.control, paused=pause).remember(request.id))
        position = await self._position()
        message = f"{request.table} is paused before version {position.version}"
        return answer(request, "PAUSED", message, version=position.version)

    async def _resume(self, request: Request) -> Notification:
        position = await self._position()
        if self.sink.control.paused is None:
            return answer(request, "RESUMED", f"{request.table} is not paused")
        await self.sink.set_control(replace(self.sink.control, paused=None).remember(request.id))
        message = f"{request.table} is resumed at version {position.version}"
        return answer(request, "RESUMED", message, version=position.version)

    async def _begin_snapshot(self, request: Request, *, retried: bool) -> Notification:
        snapshot, position = self.sink.control.snapshot, await self._position()
        if snapshot is not None and not (retried and snapshot.id == request.id):
            raise Refused("conflict", f"the incremental snapshot {snapshot.id} is in progress; stop it first")
        if position.phase == "snapshot":
            raise Refused("conflict", "the first snapshot is in progress, and has all rows")
        if request.where:
            try:
                check_filter(parse_filter(request.where), (await self.table.log.header()).schema)
            except CdfdError as error:
                if error.retriable or isinstance(error, LogError | StorageError):
                    raise
                raise Refused("malformed", str(error)) from None
        if snapshot is None:
            try:
                await self.sink.set_control(self.sink.control.begin(request.id, request.where))
            except UnsupportedError as error:
                raise Refused("unsupported", str(error)) from None
        self.report_snapshot()
        what = f"the files of {request.table}" + (f" where {request.where}" if request.where else "")
        return answer(request, "STARTED", f"{what} are published again, from version {position.version} on")

    async def _stop_snapshot(self, request: Request, *, retried: bool) -> Notification:
        snapshot = self.sink.control.snapshot
        if snapshot is None:
            if not retried:
                raise Refused("conflict", f"no incremental snapshot of {request.table} is in progress")
            return answer(request, "ABORTED", "the incremental snapshot is stopped")
        await self.sink.set_control(replace(self.sink.control, snapshot=None).remember(request.id))
        self.report_snapshot()
        message = f"the incremental snapshot {snapshot.id} is stopped after {snapshot.rows} rows"
        return answer(request, "ABORTED", message, rows=snapshot.rows)

    async def _move(self, request: Request) -> Notification:
        position, version, snapshot = await self._position(), request.version, self.sink.control.snapshot
        try:
            newest = (await self.table.log.header()).version
            if version > newest:
                raise LogError(f"there is no version {version}; the newest is {newest}")
            # Log clean-up may have removed entries that the loop has read, which is why an operator moves the table.
            following = await position_after(self.table.with_own_log(), version, position)
            await self.sink.set_control(replace(self.sink.control, snapshot=None).remember(request.id), following)
            self.table.log.history.restart()
        except FencedError:
            raise
        except CdfdError as error:
            if error.retriable:
                raise
            raise Refused("conflict", f"the table cannot move: {error}") from None
        if self.sink.control.snapshot is None and self.recorder is not None:
            self.recorder.delivered(version, following.table_id, following.digest)
        await self.report(following)
        if snapshot is not None:
            self.mailbox.news(abort_notice(snapshot.id, self.name, "the table was moved", snapshot.rows))
        message = f"{request.table} is moved from version {position.version} to version {version + 1}"
        return answer(request, "MOVED", message, version=version + 1, before=position.version)

    async def _position(self) -> Position:
        position = await self.sink.last_position()
        assert position is not None
        return position


def abort_notice(id: str, table: str, why: str, rows: int) -> Notification:
    """The news that an incremental snapshot ended early."""
    message = f"the incremental snapshot {id} is aborted after {rows} rows: {why}"
    return Notification(id, "Incremental Snapshot", "ABORTED", message, table, {"rows": rows})
