"""Keeps a Delta table equal to the rows of the source: each delivery is one version, which deletes old rows and adds new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from cdfd.errors import SinkError, UnsupportedError
from cdfd.log.stream import Version
from cdfd.model.control import Control
from cdfd.model.position import Position
from cdfd.plan.shape.shape import AS_IT_IS, Shape
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.base import Delivered, Job
from cdfd.sinks.cursor import Cursor
from cdfd.sinks.delta.columns import Columns
from cdfd.sinks.delta.data_files import MakeFiles
from cdfd.sinks.delta.mirror.delivery import MirrorDelivery
from cdfd.sinks.delta.mirror.table import MirrorTable
from cdfd.sinks.delta.parts import DeltaJob, finish, row_schema
from cdfd.sinks.delta.sources import Sources
from cdfd.sinks.delta.target import Target

MOST_DEFERRED = 100
"""Versions of the source without a change, before their position is stored."""
MOST_DEFERRED_MS = 3_600_000
"""Milliseconds before it is. Log clean-up of the source must not remove versions that a restart reads again."""


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """How a mirror is kept.

    Attributes:
        key: columns that identify a row.
        change_feed: whether the target has a change data feed.
        space: local disk, for rows and for the index of keys.
        sources: of columns, if the target follows renames and drops.
        shape: of the rows, for a first load that is delivered in parts.
    """

    key: Sequence[str]
    change_feed: bool
    space: SpillSpace
    sources: Sources | None = None
    shape: Shape = AS_IT_IS


class MirrorSink:
    """The `Sink` port over a mirror; open it with `MirrorSink.open`.

    A delivery without a change commits nothing. Its position is in memory, and is stored with the next version, after `MOST_DEFERRED`
    versions of the source or `MOST_DEFERRED_MS`, or when the sink closes. After a crash these versions are read again, and give no
    change again.

    Attributes:
        target: the table.
        files: makes data files.
        options: of the mirror.
        table: the rows of the target.
        columns: of the target.
        cursor: the position.
        stored: the position in the target; None if there is no target.
    """

    def __init__(
        self, target: Target, files: MakeFiles, options: MirrorOptions, position: Position | None, columns: Columns
    ) -> None:
        self.target = target
        self.files = files
        self.options = options
        self.table = MirrorTable(target, options.key, options.space)
        self.columns = columns
        self.cursor = Cursor(position)
        self.mark_stored(position)
        self._delivery: MirrorDelivery | None = None

    @classmethod
    async def open(cls, target: Target, files: MakeFiles, options: MirrorOptions) -> MirrorSink:
        """Take a target over, and read its position.

        Raises:
            SinkError: the target cannot be used.
        """
        position, columns = await target.take_over()
        return cls(target, files, options, position, columns)

    async def last_position(self) -> Position | None:
        """The next position to deliver; see the port."""
        return self.cursor.position

    async def begin(self, position: Position) -> MirrorDelivery:
        """Start a delivery; see the port."""
        self.cursor.begin(position)
        self._delivery = MirrorDelivery(self, position)
        return self._delivery

    stores_control = True

    @property
    def control(self) -> Control:
        """The stored control; see the port."""
        return self.target.control

    async def set_control(self, control: Control, to: Position | None = None) -> None:
        """Store a control as a property of the target, and the position; see the port.

        Raises:
            UnsupportedError: the control begins a re-snapshot, or the position moves.
        """
        if control.snapshot is not None:
            hint = "To load it again, stop the daemon, remove or rename the target, and run `cdfd progress reset`"
            raise UnsupportedError("a mirror has each row once already, so it takes no re-snapshot", hint=hint)
        if to is not None:
            raise UnsupportedError("a mirror cannot skip versions of its source")
        position = self.cursor.position
        assert position is not None
        self.cursor.begin(position)
        self.cursor.mark_uncertain()
        begun = self.stored or position
        self.columns = await self.target.commit(
            begun, position, None, lambda state, columns, now_ms: [], control=control
        )
        self.mark_stored(position)
        self.cursor.advance(position)

    async def begin_chunk(self, position: Position, version: Version) -> NoReturn:
        """A mirror takes no re-snapshot: `set_control` refuses it."""
        raise UnsupportedError("a mirror takes no re-snapshot", version=version.plan.version)

    job = None

    def takes_job(self, position: Position) -> bool:
        """Only rows that replace all others can be delivered in parts, because they delete none; see the port."""
        return position.phase == "snapshot"

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> DeltaJob:
        """Choose the columns of the target, which all parts have; see the port. Nothing is stored."""
        delivery = MirrorDelivery(self, position)
        await delivery.start_version(version)
        columns = delivery.columns_with(row_schema(version, self.options.shape))
        return DeltaJob.begin(position, parts, size, digest, columns)

    async def claim_job(self, position: Position, job: Job) -> None:
        """Check that no other process has taken the target over; see the port."""
        await self.target.check_owner()

    async def finish_job(self, version: Version, position: Position, job: Job, parts: Sequence[Delivered]) -> None:
        """Replace all rows by the files of all parts; see the port."""
        await finish(self, version, position, job, parts)

    async def close(self) -> None:
        """Abort the current delivery, if any, and store the position."""
        if self._delivery is not None:
            await self._delivery.abort()
        try:
            if (position := self._usable()) is not None:
                await self.store(position)
        finally:
            self.cursor.close()
            self.table.forget()

    async def defer(self, following: Position) -> None:
        """Move to a position, without a version of the target. Without a target, only the first rows create one."""
        stored = self.stored
        if stored is not None:
            age_ms = self.target.clock.now_ms() - self._stored_ms
            if following.version - stored.version >= MOST_DEFERRED or age_ms >= MOST_DEFERRED_MS:
                await self.store(following)
        self.cursor.advance(following)

    async def store(self, position: Position) -> None:
        """Store a position in a version of the target without rows, unless it is stored or there is no target."""
        if self.stored is None or position == self.stored or position.phase == "snapshot":
            return
        await self.target.commit(self.stored, position, None, lambda state, columns, now_ms: [])
        self.mark_stored(position)

    def mark_stored(self, position: Position | None) -> None:
        """Record that the target has a position."""
        self.stored = position
        self._stored_ms = self.target.clock.now_ms()

    def _usable(self) -> Position | None:
        try:
            return self.cursor.position
        except SinkError:
            return None
