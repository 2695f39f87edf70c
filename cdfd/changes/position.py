"""A position: the next thing to deliver."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Literal

Phase = Literal["snapshot", "stream"]


@dataclass(frozen=True, slots=True)
class Position:
    """The next thing to deliver of one table.

    Attributes:
        table_id: `metaData.id`; a table that was deleted and created again has another.
        version: version of the table.
        part: file scans of that version's plan that are already delivered. Plans are deterministic, so it holds across restarts.
        phase: `snapshot` while the live rows at `version` are delivered as inserts, `stream` afterwards.
        ordinal: `_change_ordinal` of the next row of that version, so that it goes on where it was.
        digest: hash of the log entry of version `basis` (see `cdfd.tail.history`); None where it is not known. It says nothing of where this
            is, so positions compare without it: it tells the table from a copy of it that went another way.
    """

    table_id: str
    version: int
    part: int = 0
    phase: Phase = "stream"
    ordinal: int = 0
    digest: str | None = field(default=None, compare=False)

    @property
    def basis(self) -> int:
        """The last version that what is delivered depends on; -1 where nothing does."""
        return self.version if self.part or self.phase == "snapshot" else self.version - 1

    def fields(self) -> dict[str, str | int]:
        """As JSON has it; a digest that is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def after_version(self, digest: str | None = None) -> Position:
        """Where delivery goes on once all of `version` is delivered; `digest` is that of its log entry."""
        return Position(self.table_id, self.version + 1, digest=digest)

    def at_part(self, part: int, ordinal: int, digest: str | None = None) -> Position:
        """The same version from its scan number `part` on, whose first row is number `ordinal`; `digest` is that of its log entry."""
        return replace(self, part=part, ordinal=ordinal, digest=digest)
