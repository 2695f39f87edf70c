"""Offsets of a stream: positions, as JSON in Spark's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdfd.changes.position import Phase, Position
from cdfd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a stream, and its start.

    If a query ends before its first micro-batch is complete, Spark asks for the start again, which may be a newer version by then. So the end
    offset of each batch also has the start.
    """

    position: Position
    first_version: int
    first_phase: Phase

    @classmethod
    def beginning(cls, position: Position) -> Offset:
        """The offset of a stream that begins at a position."""
        return cls(position, position.version, position.phase)

    def at(self, position: Position) -> Offset:
        """The same stream, at another position."""
        return Offset(position, self.first_version, self.first_phase)

    @property
    def first(self) -> Position:
        """The start of the stream."""
        return Position(self.position.table_id, self.first_version, phase=self.first_phase)

    @property
    def is_first(self) -> bool:
        """Whether the stream is at its start."""
        return self.position == self.first

    def to_json(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        return {**self.position.fields(), "first_version": self.first_version, "first_phase": self.first_phase}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        """From Spark's checkpoint. `ConfigError` if the checkpoint is of another source."""
        counts = [found.get(name) for name in ("version", "part", "ordinal", "first_version")]
        phases = [found.get(name) for name in ("phase", "first_phase")]
        table = found.get("table_id")
        if (
            not isinstance(table, str)
            or any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in counts)
            or any(phase not in ("snapshot", "stream") for phase in phases)
        ):
            raise ConfigError(
                "the checkpoint's offset is not of a cdfd source",
                hint="The checkpoint is of another query; use a separate folder for each query",
            )
        digest = found.get("digest")
        known = digest if isinstance(digest, str) else None
        position = Position(table, found["version"], found["part"], found["phase"], found["ordinal"], known)
        return cls(position, found["first_version"], found["first_phase"])
