"""Keeps a Delta table equal to the rows of the source: each delivery is one version, which deletes old rows and adds new ones."""

from __future__ import annotations

from contextlib import suppress

from cdfd.errors import SinkError, UnsupportedError
from cdfd.model.control import Control
from cdfd.model.position import Position
from cdfd.sinks.delta.data_files import MakeFiles
from cdfd.sinks.delta.mirror.delivery import MirrorDelivery
from cdfd.sinks.delta.mirror.state import MirrorOptions, MirrorState
from cdfd.sinks.delta.parts import TargetSink
from cdfd.sinks.delta.target import Target

RESHAPED = "`where`, `columns` or `mask` is not what the rows of the mirror were made with"


class MirrorSink(MirrorState, TargetSink):
    """The `Sink` port over a mirror; open it with `MirrorSink.open`."""

    _delivery: MirrorDelivery | None = None

    @classmethod
    async def open(cls, target: Target, files: MakeFiles, options: MirrorOptions) -> MirrorSink:
        """Take a target over, and read its position.

        Raises:
            SinkError: the target cannot be used.
        """
        position, columns = await target.take_over(options.shape.digest)
        return cls(target, files, options, position, columns)

    async def begin(self, position: Position) -> MirrorDelivery:
        """Start a delivery; see the port."""
        self.cursor.begin(position)
        self._delivery = MirrorDelivery(self, position)
        return self._delivery

    @property
    def needs_snapshot(self) -> str | None:
        """Whether the rows were made with other settings; see the port."""
        return RESHAPED if self.target.reshaped else None

    @property
    def deferred(self) -> bool:
        """Whether the position waits for the next change; see the port and `MirrorState`."""
        return self.stored != self.cursor.position

    async def set_control(self, control: Control, to: Position | None = None) -> None:
        """Store a control as a property of the target, and the position; see the port.

        Raises:
            UnsupportedError: the control begins an incremental snapshot, or the position moves.
        """
        if control.snapshot is not None:
            hint = "To load it again, stop the daemon, remove or rename the target, and run `cdfd progress reset`"
            raise UnsupportedError("a mirror has each row once already, so it takes no incremental snapshot", hint=hint)
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

    def takes_job(self, position: Position) -> bool:
        """Only rows that replace all others can be delivered in parts, because they delete none; see the port."""
        return position.phase == "snapshot"

    async def close(self) -> None:
        """Abort the current delivery, if any, and store the position."""
        if self._delivery is not None:
            await self._delivery.abort()
        try:
            position = None
            with suppress(SinkError):  # it is uncertain after a commit that failed
                position = self.cursor.position
            if position is not None:
                await self.store(position)
        finally:
            self.cursor.close()
            self.table.forget()
