"""A delivery into a mirror."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from cdfd.delta.file_actions import removals
from cdfd.delta.protocol import cdf_enabled
from cdfd.delta.types.arrow_types import from_arrow
from cdfd.delta.types.datatypes import StructField, StructType, fields_in, map_fields
from cdfd.delta.types.schema import TableSchema, column_id, to_arrow
from cdfd.delta.types.schema_merge import merge, nullable
from cdfd.errors import SchemaChangedError, SinkError
from cdfd.model.columns import CHANGE_NAMES, CHANGE_TYPE, change_codes, change_schema
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.scan.image_order import DELETE, PRE_IMAGE
from cdfd.scan.updates.net import NetChanges
from cdfd.sinks.base import SnapshotNeededError
from cdfd.sinks.cursor import DeliveryState, require_open
from cdfd.sinks.delta.columns import Columns, with_sources, without_mapping
from cdfd.sinks.delta.data_files import NewFile, cast
from cdfd.sinks.delta.log_actions import add_actions, file_fields
from cdfd.sinks.delta.mirror.removal import Removal
from cdfd.sinks.delta.mirror.state import MirrorState
from cdfd.sinks.delta.mirror.writer import Event, MirrorWriter, Written
from cdfd.sinks.delta.parts import Adopting
from cdfd.sinks.delta.stored_files import StoredFiles, fetch_in_thread
from cdfd.sinks.delta.target import translate_errors
from cdfd.sinks.ledger.txn_state import Action, TxnState

ATTEMPTS = 24
"""Attempts of a commit. Each one fails if another writer moves rows at the same time."""


class MovedError(SinkError):
    """Another writer has committed since the rows were looked up."""


class MirrorDelivery(Adopting):
    """A delivery into a mirror. One that begins at a snapshot replaces all rows."""

    def __init__(self, mirror: MirrorState, position: Position) -> None:
        self._mirror = mirror
        self._position = position
        self._replaces = position.phase == "snapshot"
        self._base = mirror.columns
        """The columns of the table before the rows of the delivery, with the sources that they have now."""
        self._columns: Columns | None = None
        self._rows_schema: pa.Schema | None = None
        self._schema: pa.Schema | None = None
        self._source: TableSchema | None = None
        self._earlier: TableSchema | None = None
        self._net: NetChanges | None = None
        self._removes = False
        self._stored = StoredFiles(mirror.target)
        """The files of rows that replace all others. They are not looked up, so their keys are not kept."""
        self._state: DeliveryState = "open"

    async def start_version(self, version: Version) -> None:
        """Check that the version keeps all columns of the mirror; see the port.

        Raises:
            SnapshotNeededError: it does not.
        """
        self._source, self._earlier = version.plan.schema, version.plan.earlier_schema
        if version.mapped_before is not None and self._mirror.target.follows_names and not self._replaces:
            self._base = without_mapping(self._base, version.mapped_before, version.plan.schema)
            if self._columns is not None:
                self._columns = without_mapping(self._columns, version.mapped_before, version.plan.schema)
        change = version.schema_change
        if self._replaces or change is None or not self._mirror.columns.struct.fields:
            return
        if self._mirror.target.follows:
            return
        if change.lost(self._mirror.shape.names):
            raise self._reload_error(f"the schema changes: {'; '.join(change.describe())}")

    async def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch; see the port."""
        require_open(self._state, self._position)
        self._state = "failed"
        if batch.num_rows:
            if self._rows_schema is None or not batch.schema.equals(self._rows_schema):
                await self._start_schema(batch.schema)
            rows = self._cast(batch)
            if self._replaces:
                await self._stored.write(rows.select(range(len(rows.columns) - len(CHANGE_NAMES))))
            else:
                assert self._net is not None
                types = change_codes(rows.column(CHANGE_TYPE))
                self._removes = self._removes or bool(((types == DELETE) | (types == PRE_IMAGE)).any())
                with translate_errors("write the rows", self._mirror.target.uri):
                    await asyncio.to_thread(self._net.add, rows)
        self._state = "open"

    async def commit(self, following: Position) -> None:
        """Write the last files and the version, if there is any change; see the port."""
        require_open(self._state, self._position)
        mirror = self._mirror
        mirror.cursor.check(following, rows=self._columns is not None)
        self._state = "failed"
        if self._columns is None and (not self._replaces or following == self._position or mirror.stored is None):
            if self._base == mirror.columns:
                await mirror.defer(following)
            else:
                await self._commit_sources(following)
        elif self._replaces:
            await self._commit_snapshot(following)
        else:
            await self._commit_changes(following)
        self._state = "ended"

    async def abort(self) -> None:
        """Forget the rows. Files that are written are not a part of the table."""
        if self._state == "failed":
            # It may have read a part of the rows.
            self._mirror.table.forget()
        if self._state != "ended":
            self._state = "ended"
            self._net = None
            await self._stored.forget()
            self._mirror.cursor.abandon()

    def adopt(self, columns: Columns, files: Sequence[NewFile]) -> None:
        """Deliver files that are written for these columns, as all rows of the table."""
        if files:
            self._columns = columns
            self._stored.done += files

    def columns_with(self, schema: pa.Schema, before: Columns | None = None) -> Columns:
        """The columns of the table, or `before`, with those of rows that follow.

        Raises:
            SinkError: the table cannot take the rows.
        """
        struct = from_arrow(pa.schema([field for field in schema if field.name not in CHANGE_NAMES]))
        before = before or self._columns or self._base
        target = self._mirror.target
        if target.follows:
            struct = with_sources(struct, (self._source, self._earlier), self._mirror.shape)
        try:
            if not self._replaces and before.struct.fields:
                merged = merge(before.struct, nullable(struct), follow=target.follows)
                if merged.replaced:
                    # Old files have values of the old column, which is another one.
                    raise self._reload_error(f"another column has the name {'.'.join(merged.replaced[0])!r:.200} now")
                if merged.missing and not target.follows and self._columns is None:
                    raise self._reload_error(
                        f"the rows have no column {'.'.join(next(iter(merged.missing)))!r:.200} any more"
                    )
            return target.merged(before, struct, replaces=self._replaces and self._columns is None)
        except SchemaChangedError as error:
            raise self._reload_error(error.what) from error

    async def _start_schema(self, schema: pa.Schema) -> None:
        """Merge the columns of rows that follow into those of the table. The rows before them stay in the delivery."""
        columns = self.columns_with(schema)
        self._rows_schema = schema
        if columns == self._columns:
            return
        previous, self._columns = self._columns, columns
        self._schema = pa.schema([field for field in to_arrow(columns.struct) if not pa.types.is_null(field.type)])
        if self._replaces:
            await self._stored.start(self._mirror.files(columns, self._schema))
            return
        before, self._net = self._net, NetChanges(self._schema, self._key_in(self._schema), self._mirror.options.space)
        if before is not None:
            assert previous is not None
            fields = [field for field in _renamed(previous, columns) if not pa.types.is_null(field.type)]
            for batch in before.batches():
                arrays = [array.view(field.type) for array, field in zip(batch.columns, fields, strict=False)]
                names = [field.name for field in fields] + list(CHANGE_NAMES)
                arrays += [batch.column(name) for name in CHANGE_NAMES]
                self._net.add(self._cast(pa.RecordBatch.from_arrays(arrays, names)))

    def _key_in(self, schema: pa.Schema) -> list[str]:
        """The columns of the key, as they are spelled in a schema."""
        key = []
        names = {name.lower(): name for name in schema.names}
        for each in self._mirror.options.key:
            name = names.get(each.lower())
            if name is None:
                raise SinkError(f"the rows have no column {each!r:.200} of the key", table=self._mirror.target.uri)
            key.append(name)
        for name in key:
            if pa.types.is_nested(schema.field(name).type):
                raise SinkError(
                    f"column {name!r:.200} of the key is a struct, a list or a map",
                    table=self._mirror.target.uri,
                    hint="Correct the table's `key`",
                )
        return key

    def _cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as the table has them, with the change columns."""
        assert self._schema is not None
        places = {name.lower(): place for place, name in enumerate(batch.schema.names)}
        with translate_errors("write the rows", self._mirror.target.uri):
            columns = [
                cast(batch.column(places[field.name.lower()]), field)
                if field.name.lower() in places
                else pa.nulls(batch.num_rows, field.type)
                for field in self._schema
            ]
        changes = [batch.column(name) for name in CHANGE_NAMES]
        return pa.RecordBatch.from_arrays([*columns, *changes], schema=change_schema(self._schema))

    async def _commit_snapshot(self, following: Position) -> None:
        mirror, target = self._mirror, self._mirror.target
        # All rows are replaced, so nothing that is known of them counts.
        mirror.table.forget()
        await self._stored.end()
        await target.ensure(mirror.stored or self._position, self._columns)
        mirror.cursor.mark_uncertain()
        for _ in range(ATTEMPTS):
            version = await mirror.table.follow()
            removed = await asyncio.to_thread(removals, await mirror.table.live_adds(), target.clock.now_ms())
            try:
                await self._commit_at(version, following, Written(self._stored.done), removed)
            except MovedError:
                continue
            return
        raise MovedError("cannot commit: other writers were first each time", table=target.uri, retriable=True)

    async def _commit_sources(self, following: Position) -> None:
        mirror = self._mirror
        mirror.cursor.mark_uncertain()
        begun = mirror.stored or self._position
        mirror.columns = await mirror.target.commit(begun, following, self._base, lambda state, columns, now_ms: [])
        mirror.mark_stored(following)
        mirror.cursor.advance(following)

    async def _commit_changes(self, following: Position) -> None:
        assert self._net is not None
        assert self._columns is not None
        assert self._schema is not None
        mirror, target = self._mirror, self._mirror.target
        await target.ensure(mirror.stored or self._position, self._columns)
        version = await mirror.table.follow()
        table = mirror.table if self._removes or mirror.table.index is not None else None
        if table is not None:
            await table.load(self._columns)
        writes_feed = self._needs_feed
        writer = MirrorWriter(self._columns, self._schema, mirror.files, change_feed=writes_feed, table=table)
        removal = Removal(mirror.table)
        await self._put_all(writer.events(self._net.batches()), removal)
        evolves = self._columns != mirror.columns
        if not writer.written.data and not removal.parts and not evolves:
            await mirror.defer(following)
            return
        mirror.cursor.mark_uncertain()
        for _ in range(ATTEMPTS):
            vectors = await asyncio.to_thread(removal.vectors, target.clock.now_ms())
            if vectors.data:
                await target.put(vectors.path, vectors.data)
            mirror.table.written, mirror.table.vectors = writer.written.keys, vectors.rows
            try:
                await self._commit_at(version, following, writer.written, vectors.actions)
            except MovedError:
                version = await mirror.table.follow()
            else:
                return
            if self._needs_feed != writes_feed:
                raise SinkError(
                    "another writer switched the change data feed of the target on or off while rows were written",
                    table=self._mirror.target.uri,
                    version=version,
                    hint="The daemon writes them again",
                    retriable=True,
                )
            with translate_errors("find the rows", self._mirror.target.uri):
                if removal.parts:
                    await mirror.table.load(self._columns)
                    await asyncio.to_thread(removal.again)
        raise MovedError("cannot commit: other writers were first each time", table=target.uri, retriable=True)

    @property
    def _needs_feed(self) -> bool:
        """Whether there have to be change data files. Without deleted rows, readers take the new files themselves as the changes."""
        mirror, metadata = self._mirror, self._mirror.table.metadata
        assert metadata is not None
        return self._removes and (mirror.options.change_feed or cdf_enabled(metadata))

    async def _commit_at(self, version: int, following: Position, written: Written, removed: Sequence[Action]) -> None:
        """Commit the version after `version`, or raise `MovedError` if there is another one. `removed`: the actions that remove rows."""
        mirror = self._mirror

        def changes(state: TxnState, columns: Columns, now_ms: int) -> list[Action]:
            if state.version != version:
                uri = mirror.target.uri
                raise MovedError("another writer was first", table=uri, version=state.version, retriable=True)
            names = columns.stored_partitions
            return [
                *removed,
                *add_actions(state, columns, written.data, now_ms),
                *(("cdc", file_fields(file, names, data_change=False)) for file in written.changes),
            ]

        begun = mirror.stored or self._position
        mirror.columns = await mirror.target.commit(begun, following, self._columns, changes, replaces=self._replaces)
        mirror.mark_stored(following)
        mirror.cursor.advance(following)

    async def _put_all(self, events: Iterator[Event], removal: Removal) -> None:
        """Store the files, and look the rows up that are to be deleted."""
        async for event in fetch_in_thread(events, self._mirror.target.uri):
            if isinstance(event, pa.Table):
                with translate_errors("find the rows", self._mirror.target.uri):
                    await asyncio.to_thread(removal.take, event)
            else:
                file, data = event
                await self._mirror.target.put(file.path, data)

    def _reload_error(self, reason: str) -> SinkError:
        """The error of rows that do not have the columns of the mirror."""
        if self._mirror.target.on_missing_column == "stop":
            hint = "Set `sink.on_missing_column: keep` to load the mirror again"
            return SinkError(reason, table=self._mirror.target.uri, hint=hint)
        return SnapshotNeededError(reason, table=self._mirror.target.uri)


def _renamed(before: Columns, after: Columns) -> pa.Schema:
    """The columns of rows by the names that the same columns have afterwards. Those that are gone have names of none."""
    names = {column_id(child): child.name for child in fields_in(after.struct)}

    def rename(child: StructField) -> StructField:
        number = column_id(child)
        return child if number is None else replace(child, name=names.get(number, f"\0{number}"))

    struct = map_fields(before.struct, rename)
    assert isinstance(struct, StructType)
    return to_arrow(struct)
