"""A sink in memory, for tests and for programs that process the changes themselves."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdfd.changes.position import Position
from cdfd.changes.stream import Version
from cdfd.errors import SinkError
from cdfd.sinks.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Delivered:
    """A committed delivery: its position, the position after it, and its rows."""

    position: Position
    following: Position
    batches: tuple[pa.RecordBatch, ...]


class MemorySink:
    """The `Sink` port over a list.

    Args:
        delivered: the committed deliveries, in order. A sink that is opened on the list of another one resumes after it, as after a crash.
    """

    def __init__(self, delivered: list[Delivered] | None = None) -> None:
        self.delivered = [] if delivered is None else delivered
        self._cursor = Cursor(self.delivered[-1].following if self.delivered else None)
        self._delivery: MemoryDelivery | None = None

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


class MemoryDelivery:
    """A delivery into a `MemorySink`."""

    def __init__(self, delivered: list[Delivered], cursor: Cursor, position: Position) -> None:
        self._delivered = delivered
        self._cursor = cursor
        self._position = position
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
        self._delivered.append(Delivered(self._position, following, tuple(self._batches)))
        self._cursor.advance(following)
        self._ended = True

    async def abort(self) -> None:
        """Discard the batches."""
        if not self._ended:
            self._cursor.abandon()
            self._ended = True

    def _require_open(self) -> None:
        if self._ended:
            raise SinkError("the delivery has ended", version=self._position.version)
