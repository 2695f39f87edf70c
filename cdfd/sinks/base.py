"""The sink port: receives change rows in deliveries, each of which stores the position with the rows.

A `Connector` is a configured sink: it opens a `Sink` for each table. A sink belongs to one table of one pipeline. Its deliveries are made
in the order of positions and never overlap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import pyarrow as pa

from cdfd.errors import SinkError, UnsupportedError
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Phase, Position
from cdfd.model.version import Version
from cdfd.sinks.cursor import order

# A sink gets its tables from its caller. All modules of settings together are more than those of the port.
if TYPE_CHECKING:
    from cdfd.config.settings import Table

Counts = Mapping[str, int]
"""Change rows by type."""

StageTimer = Callable[[str, float], None]
"""Receives the name of a stage of a delivery and its duration in seconds, from any thread."""


def unmeasured(name: str, seconds: float) -> None:
    """A `StageTimer` that ignores the durations."""


class SnapshotNeededError(SinkError):
    """Change rows cannot bring the sink to the next version. A snapshot of the table can."""


class ReopenSinkError(SinkError):
    """A sink has to be opened again, although nothing is wrong: for example, it was idle for so long that the cluster has forgotten it."""


_NO_PARTS = "this sink does not support parts of versions"
_NO_BACKFILLS = "this sink does not support backfills"
_NO_CONTROL = "this sink stores no requests of operators"


class Delivery(ABC):
    """A delivery in progress. It takes effect when `commit` has returned."""

    @abstractmethod
    async def start_version(self, version: Version) -> None:
        """Start a version: the next rows belong to it. Also called for versions without rows, and for each part of a version."""

    @abstractmethod
    async def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch of change rows, which does not end between the images of an update.

        Returns when the sink is ready for more, which applies back-pressure.
        """

    @abstractmethod
    async def commit(self, following: Position) -> None:
        """Make the rows and the position after them durable, atomically.

        Without rows, `following` may be the position at which the delivery began. This stores the start before the first row.

        After it returns, `last_position` is `following`, even after a crash. If it raises, the outcome may be unknown: open a new sink and
        read its `last_position`.
        """

    @abstractmethod
    async def abort(self) -> None:
        """Discard the rows. The position does not change."""

    async def commit_control(self, control: Control, to: Position | None = None) -> None:
        """Make the rows and a control durable, atomically. The position stays; without rows, it moves to `to` if that is given."""
        raise UnsupportedError(_NO_CONTROL)

    @property
    def takes_runs(self) -> bool:
        """Whether `write` takes rows of all versions that were started since the last one, with these settings.

        In catch-up, a version may have a single row.
        """
        return False


@dataclass(frozen=True, slots=True)
class Job:
    """The delivery of a version in parts. The sink stores it with the table's position, until all parts are delivered.

    Attributes:
        id: unique id of the job.
        version, phase: of the position.
        parts: number of parts.
        bytes: size limit of a part; see `cutting.cut`.
        digest: digest of the parts.
        since: the sink's mark of the start of the job; with Kafka, an offset of the progress topic.
    """

    id: str
    version: int
    phase: Phase
    parts: int
    bytes: int
    digest: str
    since: int


Write = Callable[[Delivery], Awaitable[Counts]]
"""Writes all rows of a part into a delivery, at every call; their number by type."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A part that is delivered.

    Attributes:
        counts: its rows by type.
        receipt: tells `Sink.finish_job` about the part; empty if the sink needs nothing.
    """

    counts: Counts
    receipt: bytes = b""


def counts_of(parts: Sequence[Delivered]) -> Counts:
    """The rows of several parts by type."""
    total = Counter[str]()
    for part in parts:
        total.update(part.counts)
    return total


Announce = Callable[[Sequence[tuple[bytes, bytes]]], Awaitable[None]]
"""Writes records of the daemon itself, as pairs of key and value. Raises `SinkError` if they may not be written; another call tries again."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill as a sink stores it: its next position, and its range in the fields of the command."""

    position: Position
    range: Mapping[str, str | int]


class Sink(ABC):
    """Delivers one table's change rows, and stores the position atomically with them.

    A sink with more abilities overrides what declares them: `takes_job`, `stores_control`, and the sink of a backfill `move_to`.
    """

    @abstractmethod
    async def last_position(self) -> Position | None:
        """The next position to deliver, from the last commit; None if nothing was ever delivered."""

    @abstractmethod
    async def begin(self, position: Position) -> Delivery:
        """Start a delivery at `position`. `SinkError` if the sink has another position."""

    @abstractmethod
    async def close(self) -> None:
        """Abort the current delivery, if any, and release all resources."""

    @property
    def job(self) -> Job | None:
        """The job in progress at the sink's position; None if there is none.

        Raises:
            SinkError: this version of cdfd does not support the job.
        """
        return None

    def takes_job(self, position: Position) -> bool:
        """Whether the version at a position can be delivered in parts. `Connector.deliver_part` delivers a part in any process."""
        return False

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> Job:
        """Begin a job; see `Job` for the arguments.

        A sink that can resume a job stores it, and publishes the start of the version to consumers. Any other sink may return a subclass
        with more that `Connector.deliver_part` has to know.
        """
        raise UnsupportedError(_NO_PARTS)

    async def claim_job(self, position: Position, job: Job) -> None:
        """Check that the job is still this process's. `FencedError` if another process has taken over."""
        raise UnsupportedError(_NO_PARTS)

    async def finish_job(self, version: Version, position: Position, job: Job, parts: Sequence[Delivered]) -> None:
        """Move to the position after the version, once all parts are delivered."""
        raise UnsupportedError(_NO_PARTS)

    @property
    def stores_control(self) -> bool:
        """Whether it stores a table's `Control` with the position, with these settings. Other deliveries keep it as it is."""
        return False

    @property
    def control(self) -> Control:
        """The stored control."""
        return EMPTY

    async def set_control(self, control: Control, to: Position | None = None) -> None:
        """Store a control, and with `to` another position. There is a position already.

        Raises:
            SinkError: the sink cannot move to the position.
        """
        raise UnsupportedError(_NO_CONTROL)

    async def begin_chunk(self, position: Position, version: Version) -> Delivery:
        """Start to deliver rows of `version`, the last one that is delivered. `commit_control` ends it, and the position stays."""
        raise UnsupportedError(_NO_CONTROL)

    @property
    def backfill(self) -> Backfill | None:
        """Of the sink of a backfill, the last one, complete or not; None if there is none."""
        return None

    def move_to(self, position: Position, backfill: Mapping[str, str | int] | None = None) -> None:
        """Move to the start of a backfill, from any position. The first delivery there stores the range. `SinkError` during a delivery."""
        raise UnsupportedError(_NO_BACKFILLS)


SIGNALS = 10
"""Most signals of one poll."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A record of the topic of signals.

    Attributes:
        offset: in the topic.
        place: topic and offset, which identify the record.
        value: the record's value, which anyone may have written; None: no value.
    """

    offset: int
    place: str
    value: bytes | None


class Signals(Protocol):
    """The topic of signals, which others write."""

    @property
    def topic(self) -> str:
        """Its name."""

    async def poll(self) -> Sequence[Signal]:
        """The next signals, `SIGNALS` at most; none if there is none now. `SinkError` if the topic cannot be read."""

    async def done(self, last: Signal) -> None:
        """All signals up to this one are dealt with, and do not come again after a restart."""


class Connector(ABC):
    """A configured sink of a pipeline. Creating one accesses nothing.

    Attributes:
        place: the location of positions, for messages.
        one_version: whether each version is a separate delivery, even a small one.
        whole_versions: whether no version is delivered in parts, even a large one.
        before_reset: instructions for the operator before `cdfd progress reset`; None if a reset is sufficient.
        takes_parts: whether its sinks take jobs, and parts can be delivered.
        takes_backfills: whether it delivers backfills beside the daemon.
        takes_queries: whether queries of Spark can deliver into it, with `engine.kind: spark`.
    """

    place: str = "the sink"
    one_version: ClassVar[bool] = False
    whole_versions: ClassVar[bool] = False
    before_reset: ClassVar[str | None] = None
    takes_parts: bool = False
    takes_backfills: bool = False
    takes_queries: bool = False

    def preflight(self) -> None:
        """Check the packages, certificates and files of this machine, without network access.

        Raises:
            ConfigError: something is missing or cannot be used.
        """
        return

    @abstractmethod
    def opened(self, table: Table, stage: StageTimer = unmeasured) -> AbstractAsyncContextManager[Sink]:
        """Open the sink of a table, and close it at the end of the block. Opening takes the table over from another process, or fails.

        Raises:
            SinkError, FencedError: the sink cannot be used.
        """

    @abstractmethod
    async def position(self, table: Table) -> Position | None:
        """A table's position. Changes nothing, and works while a daemon delivers."""

    async def reach(self) -> None:
        """Check the access to the sink, which all tables share, without a write. A mistyped address is reported once.

        Raises:
            SinkError: the sink cannot be reached.
        """
        return

    async def check_own_topics(self) -> str | None:
        """Check the topics of the daemon itself, such as that of heartbeats, without writing to them; a short text for `cdfd check`.

        Returns:
            The text; None if the daemon has no such topics.

        Raises:
            SinkError: a topic cannot be used.
        """
        return None

    async def check(self, table: Table) -> str:
        """Check a table's sink without writing to it; a short text for `cdfd check`.

        Raises:
            SinkError: a sink could not be opened.
        """
        await self.position(table)
        return "ok"

    async def move(self, table: Table, to: Position | None) -> None:
        """Set a table's position; None: as if nothing was ever delivered. By default a position can only move forward.

        Raises:
            SinkError: the sink cannot move to the position.
            FencedError: a daemon delivers the table.
        """
        if to is None and await self.position(table) is None:
            return
        async with self.opened(table) as sink:
            stands = await sink.last_position()
            hint = None if self.before_reset is None else f"First {self.before_reset}, then repeat this command"
            if to is None:
                raise SinkError(f"rows in {self.place} cannot be taken back", hint=hint)
            if stands is not None and (stands.table_id != to.table_id or order(to) < order(stands)):
                at = f"version {stands.version} of table {stands.table_id}"
                raise SinkError(f"{self.place} is at {at} and cannot go back", hint=hint)
            delivery = await sink.begin(stands or to)
            await delivery.commit(to)

    def dataset(self, table: Table) -> tuple[str, str]:
        """The destination of a table's rows as a dataset: namespace and name, by OpenLineage's conventions."""
        return "cdfd", table.topic

    def announcing(self, topic: str, *, compacted: bool = True) -> AbstractAsyncContextManager[Announce]:
        """A writer of records about the daemon, apart from all deliveries. It connects with the first records, and closes with the block.

        Args:
            topic: the topic. If it is missing, it is created with one partition.
            compacted: whether a created topic keeps the newest record of each key, instead of all records for a time.

        Raises:
            UnsupportedError: the sink has no topics.
        """
        raise UnsupportedError("this sink has no topics", hint="Use a Kafka sink")

    def signals(self, reader: str = "") -> AbstractAsyncContextManager[Signals]:
        """The topic of signals of the pipeline, created if it is missing.

        Args:
            reader: tells processes that read the same signals apart, such as shards.

        Raises:
            UnsupportedError: the sink has no topics.
            SinkError: the topic cannot be used.
        """
        raise UnsupportedError("this sink has no topics", hint="Use a Kafka sink")

    async def deliver_part(
        self, table: Table, number: int, job: Job, position: Position, write: Write, role: str | None = None
    ) -> Delivered:
        """Deliver a part of a version, unless it is already delivered. Works in any process.

        Args:
            table: the table.
            number: of the part.
            job: the job of the part.
            position: of the version.
            write: writes the part's rows.
            role: the role of the job; None for the daemon's own delivery.

        Returns:
            The part, even if another process delivered it.

        Raises:
            SinkError: the part cannot be delivered.
            UnsupportedError: the sink does not support parts.
        """
        raise UnsupportedError(_NO_PARTS, hint="Use `engine.kind: embedded`")

    async def backfill(self, table: Table, role: str) -> Backfill | None:
        """The stored backfill. Changes nothing.

        Args:
            table: the table.
            role: tells the position and the producer of a backfill from the daemon's.

        Raises:
            UnsupportedError: the sink does not support backfills.
        """
        raise UnsupportedError(_NO_BACKFILLS)

    def opened_for_backfill(self, table: Table, role: str) -> AbstractAsyncContextManager[Sink]:
        """As `opened`, for a backfill; see `backfill` for the arguments and errors."""
        raise UnsupportedError(_NO_BACKFILLS)
