"""Delivers change rows to a Delta table exactly once: each delivery is one version, which has the rows and the position after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.model.control import Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.shape.shape import AS_IT_IS, Shape
from cdfd.sinks.base import Backfill
from cdfd.sinks.cursor import Cursor, DeliveryState, check_move, require_open
from cdfd.sinks.delta.columns import Columns, with_sources, without_mapping
from cdfd.sinks.delta.data_files import MakeFiles, NewFile
from cdfd.sinks.delta.log_actions import add_actions
from cdfd.sinks.delta.parts import Adopting, TargetSink
from cdfd.sinks.delta.stored_files import StoredFiles
from cdfd.sinks.delta.target import Target, translate_errors


@dataclass(eq=False)
class DeltaSink(TargetSink):
    """The `Sink` port over a changelog in a Delta table; open it with `DeltaSink.open`.

    Files are written while rows arrive. Their names are random, and they count when the log names them. A crash may leave files that no
    version names: VACUUM removes them.

    Attributes:
        files: makes the data files.
        columns: of the target.
        backfill: the stored backfill, of a sink for one; see the port.
    """

    target: Target
    files: MakeFiles
    cursor: Cursor
    columns: Columns
    shape: Shape
    backfill: Backfill | None = field(default=None, init=False)
    _delivery: DeltaDelivery | None = field(default=None, init=False)

    @classmethod
    async def open(cls, target: Target, files: MakeFiles, shape: Shape = AS_IT_IS) -> DeltaSink:
        """Take a target over, and read its position; see the attributes.

        Raises:
            SinkError: the target cannot be used.
        """
        position, columns = await target.take_over()
        return cls(target, files, Cursor(position), columns, shape)

    async def begin(self, position: Position) -> DeltaDelivery:
        """Start a delivery; see the port."""
        self.cursor.begin(position)
        self._delivery = DeltaDelivery(self, position, StoredFiles(self.target))
        return self._delivery

    def move_to(self, position: Position, backfill: Mapping[str, str | int] | None = None) -> None:
        """Move to the start of a backfill; see the port."""
        self.cursor.move(position)
        self.target.move(backfill or {})

    async def set_control(self, control: Control, to: Position | None = None) -> None:
        """Store a control as a property of the target; see the port. A position can only move forward, because rows stay."""
        current = self.cursor.position
        assert current is not None
        if to is not None:
            check_move("the target", current, to, "Deliver into another target")
        await super().set_control(control, to)

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


@dataclass(eq=False)
class DeltaDelivery(Adopting):
    """A delivery into a `DeltaSink`."""

    sink: DeltaSink
    position: Position
    stored: StoredFiles
    _columns: Columns | None = field(default=None, init=False)
    _schema: pa.Schema | None = field(default=None, init=False)
    _source: TableSchema | None = field(default=None, init=False)
    _earlier: TableSchema | None = field(default=None, init=False)
    _state: DeliveryState = field(default="open", init=False)

    async def start_version(self, version: Version) -> None:
        """Take note of the columns of the source. They are those of all versions of a delivery."""
        self._source, self._earlier = version.plan.schema, version.plan.earlier_schema
        if version.mapped_before is not None and self.sink.target.follows_names:
            before = self._columns or self.sink.columns
            columns = without_mapping(before, version.mapped_before, version.plan.schema)
            if columns != before:
                # The next rows begin files of these columns.
                self._columns, self._schema = columns, None

    async def write(self, batch: pa.RecordBatch) -> None:
        """Encode a batch, and write the files that are full."""
        require_open(self._state, self.position)
        # Until the batch is complete, because a partial batch must never be committed.
        self._state = "failed"
        if batch.num_rows:
            if self._schema is None or not batch.schema.equals(self._schema):
                columns = self.columns_with(batch.schema)
                self._columns, self._schema = columns, batch.schema
                await self.stored.start(self.sink.files(columns, batch.schema))
            await self.stored.write(batch)
        self._state = "open"

    async def commit(self, following: Position) -> None:
        """Write the last files and the version; see the port."""
        require_open(self._state, self.position)
        self.sink.cursor.check(following, rows=self._columns is not None)
        await self._complete(following)

    async def commit_control(self, control: Control, to: Position | None = None) -> None:
        """Write the last files, and store a control. The position stays, or moves to another one."""
        require_open(self._state, self.position)
        self.sink.cursor.check_chunk()
        await self._complete(self.position if to is None else to, control)

    async def _complete(self, following: Position, control: Control | None = None) -> None:
        self._state = "failed"
        await self.stored.end()
        self.sink.cursor.mark_uncertain()
        self.sink.columns = await self.sink.target.commit(
            self.position,
            following,
            self._columns,
            lambda state, columns, now_ms: add_actions(state, columns, self.stored.done, now_ms),
            control=control,
        )
        self.sink.cursor.advance(following)
        self._state = "ended"

    async def abort(self) -> None:
        """Forget the rows. Files that are written are not a part of the table."""
        if self._state != "ended":
            self._state = "ended"
            await self.stored.forget()
            self.sink.cursor.abandon()

    def adopt(self, columns: Columns, files: Sequence[NewFile]) -> None:
        """Deliver files that are written for these columns of the table."""
        if files:
            self._columns = columns
            self.stored.done += files

    def columns_with(self, schema: pa.Schema, before: Columns | None = None) -> Columns:
        """The columns of the table, or `before`, with those of rows.

        Raises:
            SinkError: the table cannot take the rows.
        """
        target = self.sink.target
        with translate_errors("write the rows", target.uri):
            rows = from_arrow(schema)
            if target.follows:
                rows = with_sources(rows, (self._source, self._earlier), self.sink.shape)
            return target.merged(before or self._columns or self.sink.columns, rows)
