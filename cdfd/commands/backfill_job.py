"""What a backfill is to publish: as it is asked for, and as its position's record remembers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from cdfd.changes.position import Position
from cdfd.sinks.kafka.progress.records import Progress

ROLE = "backfill"


@dataclass(frozen=True, slots=True)
class Request:
    """What to publish; the options of the command.

    Attributes:
        table: its name in the configuration.
        start, until: as `cdfd tail` takes them. With `snapshot` they default to the newest version and to the snapshot alone.
        snapshot: first the live rows at `start`.
        id: of a backfill that is to be done once, however often it is asked for.
        restart: begin anew where one that was interrupted would go on.
        engine: what reads and delivers; one may go on with what the other began.
    """

    table: str
    start: str | None = None
    until: str | None = None
    snapshot: bool = False
    id: str | None = None
    restart: bool = False
    engine: Literal["embedded", "spark"] = "embedded"

    @property
    def role(self) -> str:
        """Of its position and its producer."""
        return ROLE if self.id is None else f"{ROLE}.{self.id}"


@dataclass(frozen=True, slots=True)
class Job:
    """A backfill as its position's record has it.

    Attributes:
        first, last: versions, both included.
        snapshot: whether the live rows at `first` are published instead of that version's changes.
        start, until: as they were given; empty where they were not.
    """

    first: int
    last: int
    snapshot: bool
    start: str
    until: str

    @classmethod
    def found(cls, progress: Progress | None) -> Self | None:
        """That of a record. None where there is none."""
        job = {} if progress is None else progress.backfill
        first, last = job.get("first"), job.get("last")
        if not isinstance(first, int) or not isinstance(last, int):
            return None
        return cls(first, last, job.get("snapshot") == 1, str(job.get("from", "")), str(job.get("until", "")))

    def record(self) -> Mapping[str, str | int]:
        """It as the record has it."""
        arguments = {"from": self.start, "until": self.until}
        return {"first": self.first, "last": self.last, "snapshot": int(self.snapshot)} | arguments

    def answers(self, request: Request) -> bool:
        """Whether it is what is asked for."""
        wanted = (request.start or "", request.until or "", request.snapshot)
        return (self.start, self.until, self.snapshot) == wanted

    def begin(self, table_id: str) -> Position:
        """Its first position."""
        return Position(table_id, self.first, phase="snapshot" if self.snapshot else "stream")

    def ended(self, position: Position) -> bool:
        """Whether all of it is delivered."""
        return position.version > self.last

    def __str__(self) -> str:
        changes = self.first + self.snapshot
        told = [f"the rows of version {self.first}"] if self.snapshot else []
        if changes == self.last:
            told.append(f"the changes of version {changes}")
        elif changes < self.last:
            told.append(f"the changes of versions {changes} to {self.last}")
        return " and ".join(told)
