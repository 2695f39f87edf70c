"""Offsets of a stream: positions, as JSON in Spark's checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdfd.errors import ConfigError
from cdfd.model.position import Phase, Position
from cdfd.spark.source.backlog import Backlog


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a stream, and its start.

    If a query ends before its first micro-batch is complete, Spark asks for the start again, which may be a newer version by then. So the end
    offset of each batch also has the start.

    Attributes:
        position: of the stream.
        first_version, first_phase: of its start.
        key: the columns of the key as they were published, where their names must stay; see `Target.key_paths`. Empty: they need not.
        backlog: the part of the table that a micro-batch with this end left to later ones, if any. The progress of a query shows it.
    """

    position: Position
    first_version: int
    first_phase: Phase
    key: tuple[str, ...] = field(default=(), compare=False)
    backlog: Backlog | None = field(default=None, compare=False)

    def renamed_key(self, key: Iterable[str]) -> tuple[str, str] | None:
        """A column of the key whose name differs only in case from that of the published records, as it was and as it is in `key`.

        Another column of the key would be missing, which is an error too.
        """
        names = {path.lower(): path for path in key}
        return next(((old, new) for old in self.key if (new := names.get(old.lower(), old)) != old), None)

    @property
    def first(self) -> Position:
        """The start of the stream."""
        return Position(self.position.table_id, self.first_version, phase=self.first_phase)

    def to_json(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        document: dict[str, Any] = {
            **self.position.fields(),
            "first_version": self.first_version,
            "first_phase": self.first_phase,
        }
        if self.key:
            document["key"] = list(self.key)
        return document if self.backlog is None else {**document, "backlog": self.backlog.to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Offset:
        """From Spark's checkpoint. `ConfigError` if the checkpoint is of another source."""
        start = {"version": document.get("first_version"), "phase": document.get("first_phase")}
        try:
            position = Position.parse(document)
            first = Position.parse({**document, **start})
        except ValueError as error:
            raise ConfigError(
                f"the checkpoint's offset is not of a cdfd source: {error}",
                hint="The checkpoint is of another query; use a separate folder for each query",
            ) from None
        key = document.get("key")
        names = tuple(map(str, key)) if isinstance(key, list) else ()
        return cls(position, first.version, first.phase, names, Backlog.from_json(document.get("backlog")))
