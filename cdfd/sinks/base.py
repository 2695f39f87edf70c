"""The sink port: receives change rows in deliveries, each of which stores the position with the rows.

A `Connector` is a configured sink: it opens a `Sink` for each table. A sink belongs to one table of one pipeline. Its deliveries are made
in the order of positions and never overlap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pyarrow as pa

from cdfd.errors import ConfigError, SinkError, UnsupportedError
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.sinks.cursor import check_move
from cdfd.sinks.jobs import NO_PARTS, Counts, Delivered, Job, JobSink
from cdfd.sinks.own_topics import OwnTopics

# A sink gets its tables from its caller. All modules of settings together are more than those of the port.
if TYPE_CHECKING:
    from cdfd.config.settings import Settings, Table
    from cdfd.sinks.lease import Lease

StageTimer = Callable[[str, float], None]
"""Receives the name of a stage of a delivery and its duration in seconds, from any thread."""


def unmeasured(name: str, seconds: float) -> None:
    """A `StageTimer` that ignores the durations."""


class SnapshotNeededError(SinkError):
    """Change rows cannot bring the sink to the next version. A snapshot of the table can."""


class ReopenSinkError(SinkError):
    """A sink has to be opened again, although nothing is wrong: for example, it was idle for so long that the cluster has forgotten it."""


def other_topic_error(place: str) -> SinkError:
    """The error of a table without a position, whose position is in the place of another topic."""
    return SinkError(
        "the table has no position here: it was delivered with another `topic`, and its position is there",
        path=place,
        hint="Restore `topic`, or stop the daemon and rename that folder to the new topic. "
        "To begin as `start` says, move that folder out of `sink.path`",
    )


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """A record as it would be sent.

    Attributes:
        key: None for no key.
        value: None for a tombstone.
        headers: in order.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all, without what the record batch adds."""
        parts = (
            self.key or b"",
            self.value or b"",
            *(part for name, value in self.headers for part in (name.encode(), value)),
        )
        return sum(map(len, parts))


@dataclass(frozen=True, slots=True)
class SampleSchema:
    """A schema that records refer to.

    Attributes:
        subject: in the registry.
        kind: AVRO, JSON or PROTOBUF.
        text: of the schema.
        state: what the registry has: the id, or why there is none.
    """

    subject: str
    kind: str
    text: str
    state: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Records that are not sent.

    Attributes:
        topic: where a daemon would send them.
        records: in order.
        schemas: of keys and values.
    """

    topic: str
    records: tuple[SampleRecord, ...]
    schemas: tuple[SampleSchema, ...] = ()


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

        After it returns, `last_position` is `following`, even after a crash, unless the sink says that it is `deferred`. If it raises, the
        outcome may be unknown: open a new sink and read its `last_position`.
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


D = TypeVar("D", bound=Delivery)


@asynccontextmanager
async def aborting(delivery: D, aborted: Callable[[], None] = lambda: None) -> AsyncGenerator[D, None]:
    """A delivery. An error or a cancellation in the block aborts it, and `aborted` is called."""
    try:
        yield delivery
    except BaseException:
        await delivery.abort()
        aborted()
        raise


Write = Callable[[Delivery], Awaitable[Counts]]
"""Writes all rows of a part into a delivery, at every call; their number by type."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill as a sink stores it: its next position, and its range in the fields of the command."""

    position: Position
    range: Mapping[str, str | int]


class Sink(JobSink, ABC):
    """Delivers one table's change rows, and stores the position atomically with them.

    A sink with more abilities overrides what declares them: `takes_job`, `stores_control`, and the sink of a backfill `move_to`.

    Attributes:
        lost_position: why it seems that the sink had a position and has lost it; None if it has one, or never had.
    """

    lost_position: str | None = None

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
    def needs_snapshot(self) -> str | None:
        """Why a snapshot has to come before further change rows; None if it need not."""
        return None

    def hasten(self) -> None:
        """The process stops: from now on, leave out what the next process can do, also what is under way. Deliveries finish."""
        return

    @property
    def deferred(self) -> bool:
        """Whether the last deliveries changed nothing, and their position is not stored yet. After a crash they are repeated."""
        return False

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
        if not self.stores_control:
            raise UnsupportedError(_NO_CONTROL)
        position = await self.last_position()
        assert position is not None
        async with aborting(await self.begin(position)) as delivery:
            await delivery.commit_control(control, to)

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


class Connector(OwnTopics, ABC):
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
    def open(self, table: Table, stage: StageTimer = unmeasured) -> AbstractAsyncContextManager[Sink]:
        """Open the sink of a table, and close it at the end of the block. Opening takes the table over from another process, or fails.

        Raises:
            SinkError, FencedError: the sink cannot be used.
        """

    async def prepare(self, table: Table) -> None:
        """Prepare to open the sink of a table soon, without taking it over and without a write. Call it again to follow changes.

        `open` uses what is prepared. By default nothing is.

        Raises:
            SinkError: the sink cannot be reached.
        """
        return

    async def retain(self, tables: Sequence[Table]) -> None:
        """Release what was prepared and not opened for other tables than these."""
        return

    @abstractmethod
    async def position(self, table: Table) -> Position | None:
        """A table's position. Changes nothing, and works while a daemon delivers."""

    def lease(self, patience: float) -> AbstractAsyncContextManager[Lease]:
        """The lease of the pipeline, closed at the end of the block. It accesses nothing yet.

        Args:
            patience: seconds without a change after which a claim counts as abandoned.

        Raises:
            ConfigError: the sink has no place for a lease.
        """
        raise ConfigError("this sink does not support standby", hint="Run one process, without --standby")

    async def reach(self) -> None:
        """Check the access to the sink, which all tables share, without a write. A mistyped address is reported once.

        Raises:
            SinkError: the sink cannot be reached.
        """
        return

    async def check(self, table: Table) -> str:
        """Check a table's sink without writing to it; a short text for `cdfd check`.

        Raises:
            SinkError: a sink could not be opened.
        """
        await self.position(table)
        return "ok"

    def check_columns(self, table: Table, table_id: str, schema: pa.Schema) -> None:
        """Check that change rows of a schema can be written. It needs no answer from the sink.

        Raises:
            UnsupportedError: a column is of a type that records do not have.
            MissingColumnError: a column of the key is not there.
        """
        return

    def sample(self, table: Table, table_id: str, rows: pa.RecordBatch, *, snapshot: bool) -> Sample:
        """The records of change rows. Nothing is sent or registered.

        Args:
            table: of the rows.
            table_id: `metaData.id`.
            rows: change rows.
            snapshot: whether they are live rows.

        Raises:
            ConfigError: the sink has no records.
            CdfdError: the rows cannot be encoded.
        """
        raise ConfigError("this sink has no records", hint="`cdfd tail` prints rows")

    async def move(self, table: Table, to: Position | None) -> None:
        """Set a table's position; None: as if nothing was ever delivered. By default a position can only move forward.

        Raises:
            SinkError: the sink cannot move to the position.
            FencedError: a daemon delivers the table.
        """
        if to is None and await self.position(table) is None:
            return
        async with self.open(table) as sink:
            stands = await sink.last_position()
            hint = None if self.before_reset is None else f"First {self.before_reset}, then repeat this command"
            if to is None:
                raise SinkError(f"rows in {self.place} cannot be taken back", hint=hint)
            if stands is not None:
                check_move(self.place, stands, to, hint)
            delivery = await sink.begin(stands or to)
            await delivery.commit(to)

    def dataset(self, table: Table) -> tuple[str, str]:
        """The destination of a table's rows as a dataset: namespace and name, by OpenLineage's conventions."""
        return "cdfd", table.topic

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
        raise UnsupportedError(NO_PARTS, hint="Use `engine.kind: embedded`")

    async def backfill(self, table: Table, role: str) -> Backfill | None:
        """The stored backfill. Changes nothing.

        Args:
            table: the table.
            role: tells the position and the producer of a backfill from the daemon's.

        Raises:
            UnsupportedError: the sink does not support backfills.
        """
        raise UnsupportedError(_NO_BACKFILLS)

    def open_for_backfill(self, table: Table, role: str) -> AbstractAsyncContextManager[Sink]:
        """As `open`, for a backfill; see `backfill` for the arguments and errors."""
        raise UnsupportedError(_NO_BACKFILLS)


def connector(config: Settings) -> Connector:
    """The configured sink of a pipeline."""
    connector: Connector = config.sink.connector(config)
    return connector
