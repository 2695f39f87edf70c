"""A position: the next thing to deliver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Phase = Literal["snapshot", "stream"]


@dataclass(frozen=True, slots=True)
class Position:
    """The next thing to deliver of one table.

    Attributes:
        table_id: `metaData.id`; a table that was deleted and created anew has another.
        version: version of the table.
        part: file scans of that version's plan that are already delivered. Plans are deterministic, so it holds across restarts.
        phase: `snapshot` while the live rows at `version` are delivered as inserts, `stream` afterwards.
        ordinal: `_change_ordinal` of the next row of that version, so that it goes on where it was.
    """

    table_id: str
    version: int
    part: int = 0
    phase: Phase = "stream"
    ordinal: int = 0

    def after_version(self) -> Position:
        """Where delivery goes on once all of `version` is delivered."""
        return Position(self.table_id, self.version + 1)

    def at_part(self, part: int, ordinal: int) -> Position:
        """The same version from its scan number `part` on, whose first row is number `ordinal`."""
        return replace(self, part=part, ordinal=ordinal)
