"""A position: the next thing to deliver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

Phase = Literal["snapshot", "stream"]

ORDINAL_SPAN = 1 << 40
"""Ordinals of a bucket of a refined version (see `cdfd.model.refinement`), or of an incremental snapshot. Each begins at a multiple of this
number, which depends on the log and the number of incremental snapshots alone, and not on rows before it."""
MOST = (1 << 63) - 1
"""The largest number of a position. A larger one has no place in transaction identifiers and columns."""
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, beyond which neither clocks nor consumers go."""


@dataclass(frozen=True, slots=True)
class Position:
    """The next thing to deliver of one table.

    Attributes:
        table_id: `metaData.id`; a table that was deleted and created again has another.
        version: version of the table.
        part: file scans of that version's plan that are already delivered. Plans are deterministic, so this is valid across restarts.
        phase: `snapshot` while the live rows at `version` are delivered as inserts, `stream` afterwards.
        ordinal: `_change_ordinal` of the next row of that version.
        digest: hash of the log entry of version `basis` (see `cdfd.log.entry`); None if not known. It identifies the table's history, not
            the place in it, so comparisons ignore it.
        plan: hash of what decides the version's parts (`ChangePlan.parts_id`), if some are delivered or a job delivers them; None if not
            known. Comparisons ignore it, too.
    """

    table_id: str
    version: int
    part: int = 0
    phase: Phase = "stream"
    ordinal: int = 0
    digest: str | None = field(default=None, compare=False)
    plan: int | None = field(default=None, compare=False)

    @property
    def basis(self) -> int:
        """The last version that the delivered rows depend on; -1 for none."""
        return self.version if self.part or self.phase == "snapshot" else self.version - 1

    @property
    def is_refined(self) -> bool:
        """Whether the delivered parts of the version are buckets of its refinement, whose ordinals are far apart."""
        return self.part > 0 and self.phase == "stream" and self.ordinal >= ORDINAL_SPAN

    @property
    def is_unrefined(self) -> bool:
        """Whether the delivered parts of the version are its files."""
        return self.part > 0 and self.phase == "stream" and self.ordinal < ORDINAL_SPAN

    def fields(self) -> dict[str, str | int]:
        """The fields for JSON, without those that are not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Position:
        """The position in the fields of a JSON document, which may have others. `ValueError` if it is invalid."""
        kinds = {"table_id": str, "version": int, "part": int, "phase": str, "ordinal": int}
        kinds |= {name: kind for name, kind in (("digest", str), ("plan", int)) if document.get(name) is not None}
        fields: dict[str, Any] = {name: document.get(name) for name in kinds}
        for name, kind in kinds.items():
            value = fields[name]
            if type(value) is not kind or (isinstance(value, int) and not 0 <= value <= MOST):
                raise ValueError(f"{name} is {value!r}")
        if fields["phase"] not in get_args(Phase):
            raise ValueError(f"phase is {fields['phase']!r}")
        return cls(**fields)

    def after_version(self, digest: str | None = None) -> Position:
        """The position after all of `version` is delivered; `digest` is the hash of its log entry."""
        return Position(self.table_id, self.version + 1, digest=digest)

    def at_part(self, part: int, ordinal: int, digest: str | None = None, plan: int | None = None) -> Position:
        """A position within the version: next is scan number `part`, whose first row has `ordinal`. `digest` is the hash of the log entry."""
        return replace(self, part=part, ordinal=ordinal, digest=digest, plan=plan)
