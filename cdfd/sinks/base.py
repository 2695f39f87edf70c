"""The sink port: where change rows go, in deliveries that carry the position with them.

A `Connector` is a sink as the configuration asks for it: it opens a `Sink` for each table. A sink belongs to one table of one pipeline.
Deliveries follow each other, never overlap, and are made in the order of positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from cdfd.changes.position import Phase, Position
from cdfd.changes.stream import Version
from cdfd.config.settings import Settings, Table
from cdfd.errors import SinkError, UnsupportedError
from cdfd.sinks.cursor import order

Counts = Mapping[str, int]
"""Change rows by type."""

StageTimer = Callable[[str, float], None]
"""Receives the name of a stage of a delivery and its duration in seconds, from any thread."""


def unmeasured(name: str, seconds: float) -> None:
    """A `StageTimer` that drops the durations."""


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


@dataclass(frozen=True, slots=True)
class Job:
    """A version that is delivered in parts. The sink keeps it with the table's position, from before the first part until all are delivered.

    Attributes:
        id: no other job has it.
        version, phase: what is delivered.
        parts: how many they are.
        bytes: what the version was cut by; see `cutting.cut`.
        digest: of what the parts are.
        since: the sink's own mark of where the job began; with Kafka, an offset of the progress topic.
    """

    id: str
    version: int
    phase: Phase
    parts: int
    bytes: int
    digest: str
    since: int


Write = Callable[[Delivery], Awaitable[Counts]]
"""Writes the rows of a part into a delivery, from the first one on at every call; how many there were."""


@runtime_checkable
class JobSink(Sink, Protocol):
    """A sink that can take the parts of a version from elsewhere: its `Connector.deliver_part` delivers them, in any process."""

    @property
    def job(self) -> Job | None:
        """The job under way at the position where the sink stands.

        Raises:
            SinkError: it is not one that this version of cdfd knows.
        """

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> Job:
        """Make a new job durable, and tell readers that the version begins. For the arguments see `Job`."""

    async def claim_job(self, position: Position, job: Job) -> None:
        """Make the job durable again. `FencedError` where another process has taken over."""

    async def finish_job(self, version: Version, position: Position, counts: Counts) -> None:
        """All parts are delivered, `counts` together: move to the position after the version."""


class Connector(ABC):
    """A kind of sink, as the configuration of a pipeline asks for it. Making one touches nothing.

    Attributes:
        place: what messages call the place of positions.
        one_version: whether each version is a delivery of its own, however small.
        before_reset: what an operator does before `cdfd progress reset`, where a reset alone is not enough.
        takes_parts: whether its sinks are `JobSink`s, and parts can be delivered.
    """

    place: str = "the sink"
    one_version: ClassVar[bool] = False
    before_reset: ClassVar[str | None] = None
    takes_parts: bool = False

    def preflight(self) -> None:
        """Look at what depends on this machine alone: packages, certificates. The network is not used.

        Raises:
            ConfigError: something cannot be used.
        """
        return

    @abstractmethod
    def opened(self, table: Table, stage: StageTimer = unmeasured) -> AbstractAsyncContextManager[Sink]:
        """The sink of a table, closed at the end. Opening takes the table over from another process, or is refused.

        Raises:
            SinkError, FencedError: it cannot be used.
        """

    @abstractmethod
    async def position(self, table: Table) -> Position | None:
        """Where a table's delivery stands. Changes nothing, and works while a daemon delivers."""

    async def check(self, table: Table) -> str:
        """What `cdfd check` says of a table's sink, in a few words. Nothing is written.

        Raises:
            SinkError: a sink could not be opened.
        """
        await self.position(table)
        return "ok"

    async def move(self, table: Table, to: Position | None) -> None:
        """Make a table's delivery stand elsewhere, at None as if nothing had ever been delivered. Here: only forward.

        Raises:
            SinkError: the sink cannot go there.
            FencedError: a daemon is at work.
        """
        if to is None and await self.position(table) is None:
            return
        async with self.opened(table) as sink:
            stands = await sink.last_position()
            if to is None or (stands is not None and (stands.table_id != to.table_id or order(to) < order(stands))):
                raise SinkError(
                    f"what is in {self.place} cannot be taken back"
                    if to is None
                    else f"{self.place} stands at {stands} and cannot go back",
                    hint=None if self.before_reset is None else f"First {self.before_reset}, and do this again",
                )
            delivery = await sink.begin(stands or to)
            await delivery.commit(to)

    async def deliver_part(
        self, table: Table, number: int, job: Job, position: Position, write: Write, role: str | None = None
    ) -> Counts:
        """Deliver a part of a version, if nobody has; in whatever process this is called.

        Args:
            table: the table.
            number: of the part.
            job: what it is a part of.
            position: of the version.
            write: writes the part's rows.
            role: what the job is a part of, where that is not the table's own delivery.

        Returns:
            The rows of the part, whoever delivered them.

        Raises:
            SinkError: it could not be delivered.
            UnsupportedError: such a sink takes no parts.
        """
        raise UnsupportedError("this sink takes no parts of versions", hint="Use `engine.kind: embedded`")


def connector(config: Settings) -> Connector:
    """What opens the sinks of a pipeline."""
    found: Connector = config.sink.connector(config)
    return found
