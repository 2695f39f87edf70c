"""Delivers change rows to a Delta table exactly once: each delivery is one version, which has the rows and the position after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.errors import SinkError
from cdfd.model.control import Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.shape.shape import AS_IT_IS, Shape
from cdfd.sinks.base import Backfill
from cdfd.sinks.cursor import Cursor, DeliveryState, order, require_open
from cdfd.sinks.delta.columns import Columns
from cdfd.sinks.delta.data_files import MakeFiles, NewFile
from cdfd.sinks.delta.log_actions import add_actions
from cdfd.sinks.delta.parts import Adopting, TargetSink
from cdfd.sinks.delta.sources import Sources
from cdfd.sinks.delta.stored_files import StoredFiles
from cdfd.sinks.delta.target import Target, translate_errors


class DeltaSink(TargetSink):
    """The `Sink` port over a changelog in a Delta table; open it with `DeltaSink.open`.

    Files are written while rows arrive. Their names are random, and they count when the log names them. A crash may leave files that no
    version names: VACUUM removes them.
    """

    backfill: Backfill | None = None
    """The stored backfill, of a sink for one; see the port."""

    def __init__(
        self,
        target: Target,
        files: MakeFiles,
        position: Position | None,
        columns: Columns,
        sources: Sources | None = None,
        shape: Shape = AS_IT_IS,
    ) -> None:
        self.target = target
        self.files = files
        self.sources = sources
        self.shape = shape
        self.columns = columns
        self.cursor = Cursor(position)
        self._delivery: DeltaDelivery | None = None

    @classmethod
    async def open(
        cls, target: Target, files: MakeFiles, sources: Sources | None = None, shape: Shape = AS_IT_IS
    ) -> DeltaSink:
        """Take a target over, and read its position.

        Args:
            target: to write into.
            files: makes the data files.
            sources: of columns, if the target follows renames and drops.
            shape: of the rows, for versions that are delivered in parts.

        Raises:
            SinkError: the target cannot be used.
        """
        position, columns = await target.take_over()
        return cls(target, files, position, columns, sources, shape)

    async def begin(self, position: Position) -> DeltaDelivery:
        """Start a delivery; see the port."""
        self.cursor.begin(position)
        self._delivery = DeltaDelivery(self, position)
        return self._delivery

    def move_to(self, position: Position, backfill: Mapping[str, str | int] | None = None) -> None:
        """Move to the start of a backfill; see the port."""
        self.cursor.move(position)
        self.target.move(backfill or {})

    async def set_control(self, control: Control, to: Position | None = None) -> None:
        """Store a control as a property of the target; see the port. A position can only move forward, because rows stay."""
        current = self.cursor.position
        assert current is not None
        if to is not None and order(to) < order(current):
            raise SinkError(
                f"the target is at version {current.version} and cannot go back", hint="Deliver into another target"
            )
        delivery = await self.begin(current)
        await delivery.commit_control(control, to)

    async def begin_chunk(self, position: Position, version: Version) -> DeltaDelivery:
        """Start to write rows of an incremental snapshot; see the port."""
        delivery = await self.begin(position)
        await delivery.start_version(version)
        return delivery

    def takes_job(self, position: Position) -> bool:
        """Any version can be delivered in parts; see the port."""
        return True

    async def close(self) -> None:
        """Abort the current delivery, if any."""
        if self._delivery is not None:
            await self._delivery.abort()
        self.cursor.close()


class DeltaDelivery(Adopting):
    """A delivery into a `DeltaSink`."""

    def __init__(self, sink: DeltaSink, position: Position) -> None:
        self._sink = sink
        self._position = position
        self._columns: Columns | None = None
        self._schema: pa.Schema | None = None
        self._source: TableSchema | None = None
        self._files = StoredFiles(sink.target)
        self._state: DeliveryState = "open"

    async def start_version(self, version: Version) -> None:
        """Take note of the columns of the source. They are those of all versions of a delivery."""
        self._source = version.plan.schema

    async def write(self, batch: pa.RecordBatch) -> None:
        """Encode a batch, and write the files that are full."""
        require_open(self._state, self._position)
        # Until the batch is complete, because a partial batch must never be committed.
        self._state = "failed"
        if batch.num_rows:
            if self._schema is None or not batch.schema.equals(self._schema):
                columns = self.columns_with(batch.schema)
                self._columns, self._schema = columns, batch.schema
                await self._files.start(self._sink.files(columns, batch.schema))
            await self._files.write(batch)
        self._state = "open"

    async def commit(self, following: Position) -> None:
        """Write the last files and the version; see the port."""
        require_open(self._state, self._position)
        self._sink.cursor.check(following, rows=self._columns is not None)
        await self._complete(following)

    async def commit_control(self, control: Control, to: Position | None = None) -> None:
        """Write the last files, and store a control. The position stays, or moves to another one."""
        require_open(self._state, self._position)
        self._sink.cursor.check_chunk()
        await self._complete(self._position if to is None else to, control)

    async def _complete(self, following: Position, control: Control | None = None) -> None:
        self._state = "failed"
        await self._files.end()
        self._sink.cursor.mark_uncertain()
        self._sink.columns = await self._sink.target.commit(
            self._position,
            following,
            self._columns,
            lambda state, columns, now_ms: add_actions(state, columns, self._files.done, now_ms),
            control=control,
        )
        self._sink.cursor.advance(following)
        self._state = "ended"

    async def abort(self) -> None:
        """Forget the rows. Files that are written are not a part of the table."""
        if self._state != "ended":
            self._state = "ended"
            await self._files.forget()
            self._sink.cursor.abandon()

    def adopt(self, columns: Columns, files: Sequence[NewFile]) -> None:
        """Deliver files that are written for these columns of the table."""
        if files:
            self._columns = columns
            self._files.done += files

    def columns_with(self, schema: pa.Schema) -> Columns:
        """The columns of the table with those of rows.

        Raises:
            SinkError: the table cannot take the rows.
        """
        target = self._sink.target
        with translate_errors("write the rows", target.uri):
            rows, sources = from_arrow(schema), self._sink.sources
            if sources is not None and self._source is not None:
                rows = sources.tagged(rows, self._source)
            return target.merged(self._columns or self._sink.columns, rows)
