"""The range of a backfill: as requested, and as stored with its position."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from cdfd.model.position import Position
from cdfd.sinks.base import Backfill

ROLE = "backfill"


@dataclass(frozen=True, slots=True)
class Request:
    """The options of the command.

    Attributes:
        table: its name in the configuration.
        start, until: as in `cdfd tail`. With `snapshot` they default to the newest version, and to the snapshot alone.
        snapshot: whether to publish the live rows at `start` first.
        id: name of a backfill that is done once, even if requested again.
        restart: start over instead of resuming an interrupted backfill.
        engine: the engine that reads and delivers. Either engine can resume a backfill of the other.
        sink: one of several sinks; None: the only one.
    """

    table: str
    start: str | None = None
    until: str | None = None
    snapshot: bool = False
    id: str | None = None
    restart: bool = False
    engine: Literal["embedded", "spark"] = "embedded"
    sink: str | None = None

    @property
    def role(self) -> str:
        """The role of its position and its producer."""
        return ROLE if self.id is None else f"{ROLE}.{self.id}"


@dataclass(frozen=True, slots=True)
class Job:
    """A backfill, as stored with its position.

    Attributes:
        first, last: range of versions, inclusive.
        snapshot: whether the live rows at `first` replace that version's changes.
        start, until: the options as given; empty if not given.
    """

    first: int
    last: int
    snapshot: bool
    start: str
    until: str

    @classmethod
    def stored(cls, backfill: Backfill | None) -> Self | None:
        """The backfill that a sink stores; None if there is none."""
        job = {} if backfill is None else backfill.range
        first, last = job.get("first"), job.get("last")
        if not isinstance(first, int) or not isinstance(last, int):
            return None
        return cls(first, last, job.get("snapshot") == 1, str(job.get("from", "")), str(job.get("until", "")))

    def record(self) -> Mapping[str, str | int]:
        """The fields that the sink stores."""
        arguments = {"from": self.start, "until": self.until}
        return {"first": self.first, "last": self.last, "snapshot": int(self.snapshot)} | arguments

    def begin(self, table_id: str) -> Position:
        """Its first position."""
        return Position(table_id, self.first, phase="snapshot" if self.snapshot else "stream")

    def ended(self, position: Position) -> bool:
        """Whether it is complete."""
        return position.version > self.last

    def __str__(self) -> str:
        changes = self.first + self.snapshot
        ranges = [f"the rows of version {self.first}"] if self.snapshot else []
        if changes == self.last:
            ranges.append(f"the changes of version {changes}")
        elif changes < self.last:
            ranges.append(f"the changes of versions {changes} to {self.last}")
        return " and ".join(ranges)
