"""A sink in memory."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdfd.errors import SinkError
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.sinks.base import Delivery, Sink
from cdfd.sinks.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Delivered:
    """A committed delivery: its position, the position after it, its rows, and the control after it."""

    position: Position
    following: Position
    batches: tuple[pa.RecordBatch, ...]
    control: Control = EMPTY


class MemorySink(Sink):
    """The `Sink` port over a list.

    Args:
        delivered: the committed deliveries, in order. A sink that is opened on the list of another one resumes after it, as after a crash.
    """

    def __init__(self, delivered: list[Delivered] | None = None) -> None:
        self.delivered = [] if delivered is None else delivered
        self._cursor = Cursor(self.delivered[-1].following if self.delivered else None)
        self._delivery: MemoryDelivery | None = None

    stores_control = True

    @property
    def control(self) -> Control:
        """The stored control; see the port."""
        return self.delivered[-1].control if self.delivered else EMPTY

    async def set_control(self, control: Control, to: Position | None = None) -> None:
        """Append a delivery without rows; see the port."""
        position = self._cursor.position
        assert position is not None
        following = position if to is None else to
        self._cursor.begin(position)
        self.delivered.append(Delivered(position, following, (), control))
        self._cursor.advance(following)

    async def begin_chunk(self, position: Position, version: Version) -> MemoryDelivery:
        """Start to deliver rows; see the port."""
        return await self.begin(position)

    async def last_position(self) -> Position | None:
        """The next position to deliver; see the port."""
        return self._cursor.position

    async def begin(self, position: Position) -> MemoryDelivery:
        """Start a delivery; see the port."""
        self._cursor.begin(position)
        self._delivery = MemoryDelivery(self.delivered, self._cursor, position)
        return self._delivery

    async def close(self) -> None:
        """Abort the current delivery, if any."""
        if self._delivery is not None:
            await self._delivery.abort()
        self._cursor.close()


class MemoryDelivery(Delivery):
    """A delivery into a `MemorySink`."""

    def __init__(self, delivered: list[Delivered], cursor: Cursor, position: Position) -> None:
        self._delivered = delivered
        self._cursor = cursor
        self.position = position
        self._batches: list[pa.RecordBatch] = []
        self._ended = False

    async def start_version(self, version: Version) -> None:
        """Does nothing, because each row has its version."""

    async def write(self, batch: pa.RecordBatch) -> None:
        """Keep a batch."""
        self._require_open()
        self._batches.append(batch)

    async def commit(self, following: Position) -> None:
        """Append the delivery to the sink's list."""
        self._require_open()
        self._cursor.check(following, rows=any(batch.num_rows for batch in self._batches))
        self.append(following, self._delivered[-1].control if self._delivered else EMPTY)

    async def commit_control(self, control: Control, to: Position | None = None) -> None:
        """Append the rows and the control to the sink's list."""
        self.append(to or self.position, control)

    def append(self, following: Position, control: Control) -> None:
        """End the delivery at a position, with a control."""
        self._require_open()
        self._delivered.append(Delivered(self.position, following, tuple(self._batches), control))
        self._cursor.advance(following)
        self._ended = True

    async def abort(self) -> None:
        """Discard the batches."""
        if not self._ended:
            self._cursor.abandon()
            self._ended = True

    def _require_open(self) -> None:
        if self._ended:
            raise SinkError("the delivery has ended", version=self.position.version)
