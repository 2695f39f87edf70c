"""The sink port: where change rows go, in deliveries that carry the position with them.

A sink belongs to one table of one pipeline. Deliveries follow each other, never overlap, and are made in the order of positions.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from cdfd.changes.position import Position
from cdfd.changes.stream import Version


class Delivery(Protocol):
    """Rows on their way. Nothing of it counts until `commit` has returned."""

    async def start_version(self, version: Version) -> None:
        """What is written from here on belongs to this version, or to a part of it. Called for versions without rows, too."""

    async def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch of change rows. Returns when the sink is ready for more: this is where back-pressure acts."""

    async def commit(self, following: Position) -> None:
        """Make the rows and the position after them durable, both or neither.

        Without rows, `following` may be where the delivery began: a start that is to survive a crash before the first row.

        When it returns, `last_position` answers `following`, here and after any crash. When it raises, the outcome may be unknown: ask
        `last_position` of a newly opened sink.
        """

    async def abort(self) -> None:
        """Drop the rows. The position stays as it was."""


class Sink(Protocol):
    """Delivers one table's change rows and remembers the position, atomically with them."""

    async def last_position(self) -> Position | None:
        """What is to be delivered next according to the last commit, or None where nothing was ever delivered."""

    async def begin(self, position: Position) -> Delivery:
        """Start a delivery of what is at `position`. `SinkError` where that is not where the sink stands."""

    async def close(self) -> None:
        """Release what is held; an unfinished delivery is aborted."""
