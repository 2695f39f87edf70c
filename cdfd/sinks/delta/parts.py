"""Versions that are delivered in parts: each part is data files, and one version of the target names the files of all parts.

    the sink of the table                                    parts, perhaps in executors
    the columns that the target will have        ->          data files with random names
    one version with all files and the position  <-          the descriptions of the files

Until that version, nothing names the files. So another attempt at a part, or a process that dies, leaves files that VACUUM removes.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from uuid import uuid4

import orjson
import pyarrow as pa

from cdfd.delta.types.arrow_types import from_arrow
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import NotFoundError, SinkError
from cdfd.model.columns import CHANGE_NAMES, change_schema
from cdfd.model.control import Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.shape.shape import Shape
from cdfd.sinks.base import Delivery, Sink, Write, aborting
from cdfd.sinks.cursor import Cursor
from cdfd.sinks.delta.columns import Columns, columns_of_extended, with_dropped
from cdfd.sinks.delta.data_files import MakeFiles, NewFile
from cdfd.sinks.delta.stored_files import StoredFiles
from cdfd.sinks.delta.target import Target, translate_errors
from cdfd.sinks.jobs import Delivered, Job


@dataclass(frozen=True, slots=True)
class DeltaJob(Job):
    """A job, with the columns that its files are written for.

    Attributes:
        columns: of the target after the job.
        earlier: those for deleted rows whose columns have other names, by the names of these.
    """

    columns: Columns
    earlier: Mapping[tuple[str, ...], Columns] = field(default_factory=dict)


@dataclass(eq=False)
class PartDelivery(Delivery):
    """The `Delivery` port over the data files of one part.

    Attributes:
        job: has the columns of the table; the rows have no others.
        make: makes the data files.
        stored: the data files.
    """

    job: DeltaJob
    make: MakeFiles
    stored: StoredFiles
    _schema: pa.Schema | None = field(default=None, init=False)

    async def start_version(self, version: Version) -> None:
        """See the port. The columns are those of the job."""

    async def write(self, batch: pa.RecordBatch) -> None:
        """Encode a batch, and store the files that are full."""
        if self._schema is None or not batch.schema.equals(self._schema):
            uri = self.stored.target.uri
            columns = self.job.earlier.get(tuple(batch.schema.names), self.job.columns)
            left_out = set(CHANGE_NAMES) - {child.name for child in columns.struct}
            with translate_errors("write the rows", uri):
                rows = from_arrow(pa.schema([field for field in batch.schema if field.name not in left_out]))
                extended = columns_of_extended(columns, rows, "keep")
            # The files would leave out other columns.
            if extended.struct != columns.struct:
                raise SinkError(
                    f"the rows have other columns than the job: {', '.join(batch.schema.names):.500}",
                    table=uri,
                    hint="Install the same version of cdfd on all machines",
                )
            await self.stored.start(self.make(columns, batch.schema))
            self._schema = batch.schema
        await self.stored.write(batch)

    async def commit(self, following: Position) -> None:
        """Store the last files; see the port."""
        await self.stored.end()

    async def abort(self) -> None:
        """Forget the rows."""
        await self.stored.forget()


async def deliver(target: Target, job: Job, make: MakeFiles, write: Write) -> Delivered:
    """Write the rows of a part into data files of a target; their descriptions are the receipt.

    Raises:
        SinkError: the rows cannot be written.
    """
    if not isinstance(job, DeltaJob):
        raise SinkError("the job is that of another sink", table=target.uri)
    files = StoredFiles(target)
    async with aborting(PartDelivery(job, make, files)) as delivery:
        counts = await write(delivery)
        await files.end()
    described = orjson.dumps([astuple(file) for file in files.done])
    # The daemon holds the receipts of all parts. Most of a receipt is statistics, which repeat.
    return Delivered(counts, zlib.compress(described, 1))


class Adopting(Delivery):
    """A delivery that takes files."""

    @abstractmethod
    def columns_with(self, schema: pa.Schema, before: Columns | None = None) -> Columns:
        """The columns of the table, or `before`, with those of rows. `SinkError` if the table cannot take the rows."""

    @abstractmethod
    def adopt(self, columns: Columns, files: Sequence[NewFile]) -> None:
        """Deliver files that are written for these columns of the table."""


class TargetSink(Sink):
    """A sink into a target. Versions can be delivered in parts, whose files its deliveries adopt.

    Attributes:
        target: the table.
        cursor: the position.
        shape: of the rows, for versions that are delivered in parts.
    """

    target: Target
    cursor: Cursor
    shape: Shape
    stores_control = True

    @abstractmethod
    async def begin(self, position: Position) -> Adopting:
        """Start a delivery; see the port."""

    async def last_position(self) -> Position | None:
        """The next position to deliver; see the port."""
        return self.cursor.position

    def hasten(self) -> None:
        """Give up the housekeeping of the target; see the port."""
        self.target.hurried.set()

    @property
    def control(self) -> Control:
        """The stored control; see the port."""
        return self.target.control

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> DeltaJob:
        """Choose the columns of the target, which all parts have; see the port. Nothing is stored."""
        schema, earlier = self._rows_schema(version.plan.schema), dict[tuple[str, ...], Columns]()
        delivery = await self.begin(position)
        try:
            await delivery.start_version(version)
            if version.plan.earlier_schema is None:
                columns = delivery.columns_with(schema)
            else:
                # In the order of the rows: a target that follows its source renames columns twice.
                deleted = self._rows_schema(version.plan.earlier_schema)
                before = delivery.columns_with(deleted)
                columns = with_dropped(delivery.columns_with(schema, before), before)
                if self.target.follows and deleted.names != schema.names:
                    earlier[tuple(deleted.names)] = before
        finally:
            await delivery.abort()
        return DeltaJob(uuid4().hex, position.version, position.phase, parts, size, digest, 0, columns, earlier)

    def _rows_schema(self, schema: TableSchema) -> pa.Schema:
        """The schema of change rows that are read in a schema of the source."""
        return change_schema(self.shape.published(self.shape.select(schema)).arrow)

    async def claim_job(self, position: Position, job: Job) -> None:
        """Check that no other process has taken the target over; see the port."""
        await self.target.check_owner()

    async def finish_job(self, version: Version, position: Position, job: Job, parts: Sequence[Delivered]) -> None:
        """Commit the files of all parts, and the position after the version; see the port.

        Raises:
            SinkError: a file is missing, or the commit fails.
        """
        assert isinstance(job, DeltaJob)
        files = [
            NewFile(path, tuple(partition), size, stats, rows)
            for part in parts
            for path, partition, size, stats, rows in orjson.loads(zlib.decompress(part.receipt))
        ]
        # If the target is on a disk, this process has to find the files there.
        for file in () if self.target.storage.remote else files:
            try:
                stat = await self.target.storage.stat(file.path)
            except NotFoundError:
                stat = None
            if stat is None or stat.size != file.size:
                raise SinkError(
                    "a data file that an executor has written is not in the target",
                    table=self.target.uri,
                    path=file.path,
                    hint="Use a folder that all machines share, or an object store",
                )
        async with aborting(await self.begin(position)) as delivery:
            delivery.adopt(job.columns, files)
            await delivery.commit(position.after_version(version.digest))
