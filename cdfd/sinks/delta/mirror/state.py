"""A mirror between deliveries: its target, its rows, and the positions that are delivered and stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdfd.model.position import Position
from cdfd.plan.shape.shape import AS_IT_IS, Shape
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.cursor import Cursor
from cdfd.sinks.delta.columns import Columns
from cdfd.sinks.delta.data_files import MakeFiles
from cdfd.sinks.delta.mirror.table import MirrorTable
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
        shape: of the rows, for a first load that is delivered in parts.
    """

    key: Sequence[str]
    change_feed: bool
    space: SpillSpace
    shape: Shape = AS_IT_IS


class MirrorState:
    """The target of a mirror, and the positions that are delivered and stored.

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
        self.shape = options.shape
        self.table = MirrorTable(target, options.key, options.space)
        self.columns = columns
        self.cursor = Cursor(position)
        self.mark_stored(position)

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
