"""Publishes the live rows of a table again, in chunks between the versions that the stream delivers.

`cdfd.plan.resnapshot` decides which files are next. A chunk is a delivery of its own: its rows, the position, which stays, and the
progress of the incremental snapshot are committed together. So a crash repeats no chunk and leaves none out.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cdfd.deliver.admission import Admission
from cdfd.deliver.controls import Controls, abort_notice
from cdfd.deliver.rates import Rates
from cdfd.deliver.requests import Notification
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.types.schema import TableSchema
from cdfd.encode.side import RowCounts
from cdfd.errors import CdfdError, GapError, LogError, SinkError
from cdfd.log.stream import PlanStream
from cdfd.log.tailer import Tailer
from cdfd.model.control import Resnapshot
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import Position
from cdfd.model.version import Touched, Version
from cdfd.plan.planner import plan_snapshot
from cdfd.plan.resnapshot import CHUNK_BYTES, NumberedFiles, PendingFiles
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.pruning import select_files
from cdfd.runtime.tasks import iterate_in_thread
from cdfd.scan.execute import Execution
from cdfd.sinks.base import aborting

logger = logging.getLogger("cdfd.feed")


@dataclass(frozen=True, slots=True)
class _Reached:
    """The last version that the stream has delivered."""

    table_id: str
    version: int
    timestamp_ms: int
    schema: TableSchema


@dataclass(eq=False)
class Resnapshotter:
    """The incremental snapshot of one table, while its loop runs from a position on.

    Attributes:
        controls: has the state of the incremental snapshot.
        most_bytes: limit of a delivery, which chunks keep, too; 0: none.
    """

    execution: Execution
    controls: Controls
    admission: Admission
    rates: Rates
    most_bytes: int
    _pending: PendingFiles | None = field(default=None, init=False)
    _reached: _Reached | None = field(default=None, init=False)

    @property
    def active(self) -> bool:
        """Whether files are left to publish."""
        return self._pending is not None

    async def begin(self, position: Position, stream: PlanStream, tailer: Tailer) -> None:
        """Find the files to publish, at the beginning of a version. `stream` then tells which of them its versions touch.

        Raises:
            CdfdError: the state of the table before the position cannot be read.
        """
        state = self._state
        assert state is not None
        if position.version == 0:
            await self._complete("the table has no version yet")
            return
        try:
            # Which files are pending must not depend on restarts: progress counts those that are published ahead.
            version = await stream.snapshot(position.version - 1, tailer, all_files=True)
            plan = version.plan
            files, chosen, begun = await self._files(state, plan.version)
        except CdfdError as error:
            if error.retriable:
                raise
            await self._abort(error)
            return
        self._reached = _Reached(version.table_id, plan.version, plan.timestamp_ms, plan.schema)
        if begun != state.version:
            state = replace(state, version=begun, next=0, ahead_of=-1, ahead=0)
        assert isinstance(plan.scans, LiveScans)
        if state.version == plan.version:
            live = np.ones(len(files), np.bool_)
        else:
            live = await asyncio.to_thread(files.live_in, plan.scans.files)
        chunk_bytes = min(self.most_bytes or CHUNK_BYTES, CHUNK_BYTES)
        pending = self._pending = PendingFiles(files, chosen, live, state.next, chunk_bytes)
        await self._store(state, pending)
        stream.files = files
        extra = {"table": self.controls.table.uri, "version": state.version, "files": len(pending), "request": state.id}
        logger.info("incremental snapshot of version %d: %d files are left", state.version, len(pending), extra=extra)
        await self._complete_if_done()

    async def step(self, position: Position) -> bool:
        """Publish the next chunk. False if the next version comes first: files that it removes were published before a restart."""
        state = self._state
        if self._pending is None or state is None or (state.ahead_of == position.version and state.ahead):
            return False
        await self._publish(self._pending.in_order(), position)
        await self._complete_if_done()
        return True

    async def clear(self, versions: Sequence[Version], position: Position) -> int:
        """How many of `versions` can be delivered now. Publishes the files that the first of them touches; 0 if a stop came first."""
        if self._pending is None:
            return len(versions)
        if not await self._before(versions[0].touched or Touched(), position):
            return 0
        for count, version in enumerate(versions[1:], start=1):
            touched = version.touched or Touched()
            if self._pending is not None and (self._pending.before(touched) or self._pending.until(touched)):
                return count
        return len(versions)

    def delivered(self, last: Version) -> None:
        """The stream has delivered the versions up to this one."""
        self._reached = _Reached(last.table_id, last.plan.version, last.plan.timestamp_ms, last.plan.schema)

    @property
    def _state(self) -> Resnapshot | None:
        return self.controls.sink.control.snapshot

    async def _files(self, state: Resnapshot, reached: int) -> tuple[NumberedFiles, npt.NDArray[np.bool_], int]:
        """All files of the incremental snapshot, which of them are selected, and the version whose files they are."""
        version = reached if state.version < 0 else state.version
        try:
            snapshot = await self._live(version, state.where)
        except (GapError, LogError):
            if version == reached:
                raise
            # Log clean-up removed that version while the incremental snapshot was paused or the daemon was down.
            logger.warning(
                "version %d can no longer be read; the incremental snapshot starts again at version %d",
                version,
                reached,
                extra={"table": self.controls.table.uri, "request": state.id},
            )
            version, snapshot = reached, await self._live(reached, state.where)
        return *await asyncio.to_thread(_select, snapshot, state.where), version

    async def _live(self, version: int, where: str) -> Snapshot:
        """The state at a version, with statistics if there is a condition."""
        while True:
            snapshot = await self.controls.table.log.snapshot(version, with_stats=bool(where), with_counts=True)
            if await self.controls.table.log.history.confirm():
                return snapshot

    async def _before(self, touched: Touched, position: Position) -> bool:
        """Publish what must be published before a version is delivered; whether that is done."""
        pending = self._pending
        assert pending is not None
        until = pending.until(touched)
        while until and (numbers := pending.in_order(until)):
            if self.controls.is_set():
                return False
            await self._publish(numbers, position)
            if self._pending is not pending:
                return True  # the incremental snapshot is aborted, and its files stay pending
        if until and self._state is not None:
            pending.advance(until)
            await self._store(replace(self._state, next=until), pending)
        numbers = pending.before(touched)
        state = self._state
        if state is not None and state.ahead_of == position.version:
            pending.published(numbers[: state.ahead])
            numbers = numbers[state.ahead :]
        for chunk in pending.chunks(numbers):
            if self.controls.is_set():
                return False
            await self._publish(chunk, position, ahead=True)
        await self._complete_if_done()
        return True

    async def _publish(self, numbers: Sequence[int], position: Position, *, ahead: bool = False) -> None:
        """Deliver a chunk, and store the progress with it. `ahead`: the files are published before their turn."""
        state, pending = self._state, self._pending
        if not numbers or state is None or pending is None:
            return
        try:
            await self._deliver(numbers, position, state, pending, ahead=ahead)
        except SinkError:
            raise
        except CdfdError as error:
            if error.retriable:
                raise
            await self._abort(error)

    async def _deliver(
        self, numbers: Sequence[int], position: Position, state: Resnapshot, pending: PendingFiles, *, ahead: bool
    ) -> None:
        reached = self._reached
        assert reached is not None
        plan = ChangePlan(reached.version, reached.timestamp_ms, reached.schema, pending.scans(numbers), "snapshot")
        if not await self.rates.admit(plan.size, self.controls):
            return
        start = Position(reached.table_id, reached.version, phase="snapshot", ordinal=state.ordinal)
        version = Version(plan, reached.table_id)
        async with (
            self.admission.admit(plan.size) as progressed,
            aborting(
                await self.controls.sink.begin_chunk(position, version), self.controls.monitor.aborted
            ) as delivery,
        ):
            counts, ordinal = RowCounts(), state.ordinal
            batches = iterate_in_thread(self.execution.batches([plan], start))
            async with contextlib.aclosing(batches) as open_batches:
                async for batch in open_batches:
                    if batch.rows.num_rows:
                        await delivery.write(batch.rows)
                        counts.add(batch.rows)
                    ordinal = batch.following
                    progressed()
            rows = Counter(counts.by_type())
            following = replace(state, ordinal=ordinal, rows=state.rows + rows.total())
            if ahead:
                before = state.ahead if state.ahead_of == position.version else 0
                following = replace(following, ahead_of=position.version, ahead=before + len(numbers))
            else:
                following = replace(following, next=numbers[-1] + 1)
            await delivery.commit_control(replace(self.controls.sink.control, snapshot=following))
        self.rates.settle(rows.total(), plan.size)
        pending.published(numbers)
        pending.advance(following.next)
        self.controls.monitor.committed(position, [], rows, plan.size)
        self.controls.report_snapshot(pending.selected, len(pending))

    async def _complete_if_done(self) -> None:
        state = self._state
        if self._pending is not None and state is not None and not len(self._pending):
            await self._complete(f"{state.rows} rows of {self._pending.selected} files are published")

    async def _complete(self, message: str) -> None:
        state = self._state
        assert state is not None
        self._pending = None
        await self.controls.sink.set_control(replace(self.controls.sink.control, snapshot=None))
        self.controls.monitor.resnapshot(None)
        details = {"rows": state.rows, "version": state.version}
        text = f"the incremental snapshot {state.id} is complete: {message}"
        name = self.controls.name
        self.controls.mailbox.news(Notification(state.id, "Incremental Snapshot", "COMPLETED", text, name, details))

    async def _abort(self, error: CdfdError) -> None:
        """End an incremental snapshot whose files cannot be read. The stream continues: it may not need these files."""
        state = self._state
        assert state is not None
        self._pending = None
        self.controls.monitor.error(error)
        await self.controls.sink.set_control(replace(self.controls.sink.control, snapshot=None))
        self.controls.monitor.resnapshot(None)
        self.controls.mailbox.news(abort_notice(state.id, self.controls.name, str(error), state.rows))

    async def _store(self, state: Resnapshot, pending: PendingFiles) -> None:
        if state != self._state:
            await self.controls.sink.set_control(replace(self.controls.sink.control, snapshot=state))
        self.controls.report_snapshot(pending.selected, len(pending))


def _select(snapshot: Snapshot, where: str) -> tuple[NumberedFiles, npt.NDArray[np.bool_]]:
    """The files of a state, and which of them may have rows that satisfy a condition. Takes some 100 microseconds for each file."""
    plan = plan_snapshot(snapshot, 0)
    assert isinstance(plan.scans, LiveScans)
    chosen = np.ones(len(plan.scans), np.bool_)
    if where:
        chosen = select_files(parse_filter(where), plan.scans, plan.schema)
    return NumberedFiles(plan.scans), chosen


async def cancel_impossible(controls: Controls, position: Position) -> None:
    """End an incremental snapshot that cannot go on at a position: before its version, or where a snapshot has all rows."""
    state = controls.sink.control.snapshot
    if state is None or (position.phase == "stream" and state.version < position.version):
        return
    await controls.sink.set_control(replace(controls.sink.control, snapshot=None))
    controls.report_snapshot()
    why = "the table was moved back" if position.phase == "stream" else "a snapshot of the table has all rows"
    controls.mailbox.news(abort_notice(state.id, controls.name, why, state.rows))
