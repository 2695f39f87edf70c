"""A small Delta writer for the demo and for tests. It changes a table in every way that a reader must support.

It keeps the rows of all files in memory, so it is for small tables. It follows the specification for writers at reader version 3: Parquet
data files, change data files, deletion vectors, and log entries by put-if-absent.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.dataset import dataset

from cdfd.delta import deletion_vector, paths
from cdfd.delta.actions import DeletionVectorDescriptor, Metadata
from cdfd.delta.commit import serialize
from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.file_actions import vector_fields
from cdfd.delta.types import schema as schemas
from cdfd.delta.write.writing import metadata_fields
from cdfd.model.columns import CHANGE_TYPE
from cdfd.runtime.clock import Clock, SystemClock
from cdfd.storage.base import Storage

Action = tuple[str, Mapping[str, Any]]
FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "changeDataFeed"]}


@dataclass(slots=True)
class _File:
    """A live data file: its rows, and the rows that its deletion vector deletes."""

    path: str
    rows: pa.Table
    size: int
    hidden: RowSet = field(default_factory=lambda: RowSet.of(()))
    descriptor: DeletionVectorDescriptor | None = None

    def live(self) -> pa.Table:
        if not len(self.hidden):
            return self.rows
        return self.rows.filter(pa.array(~self.hidden.mask(0, self.rows.num_rows)))


@dataclass(slots=True)
class TableWriter:
    """Writes one table. Every method that changes it commits one version and returns its number.

    Attributes:
        storage: the table's root.
        schema: the current schema of the rows.
        feed: whether updates and merges write change data files.
        properties: further table properties.
        version: the newest written version.
        committing: start of the write of its log entry, on the clock's monotonic scale.
    """

    storage: Storage
    schema: pa.Schema
    feed: bool = True
    clock: Clock = field(default_factory=SystemClock)
    table_id: str = field(default_factory=lambda: str(uuid4()))
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = -1
    committing: float = 0.0
    _files: dict[str, _File] = field(default_factory=dict)

    def rows(self) -> pa.Table:
        """The table's live rows."""
        tables = [_widen(file.live(), self.schema) for file in self._files.values()]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()

    async def create(self) -> int:
        """Version 0: protocol and metadata."""
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **FEATURES}
        return await self.commit("CREATE TABLE", [("protocol", protocol), self._metadata()])

    async def insert(self, rows: pa.Table) -> int:
        """Append rows in a new file."""
        return await self.commit("WRITE", [await self._add(_widen(rows, self.schema))])

    async def update(self, where: pc.Expression, values: Mapping[str, pc.Expression]) -> int:
        """Update rows by rewriting their files. Writes pre- and post-images as change data."""
        actions: list[Action] = []
        before, after = [], []
        for file in list(self._files.values()):
            live = _widen(file.live(), self.schema)
            touched = live.filter(where)
            if touched.num_rows:
                expressions = {name: values.get(name, pc.field(name)) for name in touched.schema.names}
                changed = dataset(touched).to_table(expressions).cast(touched.schema)
                before.append(touched)
                after.append(changed)
                actions += await self._rewrite(file, pa.concat_tables([live.filter(~where), changed]))
        images = _images(pa.concat_tables(before), pa.concat_tables(after))
        return await self.commit("UPDATE", [*actions, *await self._change_data(images)])

    async def merge(self, rows: pa.Table, key: str) -> int:
        """Replace the rows whose key is in `rows`, and insert rows with new keys."""
        rows = _widen(rows, self.schema)
        actions: list[Action] = []
        before = []
        for file in list(self._files.values()):
            live = _widen(file.live(), self.schema)
            matched = pc.is_in(live.column(key), value_set=rows.column(key).combine_chunks())
            if pc.any(matched).as_py():
                before.append(live.filter(matched))
                actions += await self._rewrite(file, live.filter(pc.invert(matched)))
        old = pa.concat_tables([*before, self.schema.empty_table()])
        exists = pc.is_in(rows.column(key), value_set=old.column(key).combine_chunks())
        new = rows.filter(exists)
        images = _images(old.sort_by(key), new.sort_by(key))
        inserted = _with_type(rows.filter(pc.invert(exists)), "insert")
        actions.append(await self._add(rows))
        return await self.commit("MERGE", [*actions, *await self._change_data(pa.concat_tables([images, inserted]))])

    async def delete(self, where: pc.Expression) -> int:
        """Delete rows by deletion vectors. No change data is needed: the difference of the vectors has the deleted rows."""
        actions: list[Action] = []
        for file in list(self._files.values()):
            everything = _widen(file.rows, self.schema)
            numbered = everything.append_column("\0row", pa.array(range(everything.num_rows)))
            hit = RowSet.of(numbered.filter(where).column("\0row").to_pylist()).union(file.hidden)
            if len(hit) > len(file.hidden):
                removed = self._remove(file)
                name = uuid4()
                data, [(offset, size)] = deletion_vector.store([hit])
                described = deletion_vector.describe(name, "", offset, size, len(hit))
                await self.storage.put(str(deletion_vector.path_of(described)), data)
                self._files[file.path] = _File(file.path, file.rows, file.size, hit, described)
                actions += [removed, self._add_action(self._files[file.path])]
        return await self.commit("DELETE", actions)

    async def optimize(self) -> int:
        """Rewrite all live rows into one file. No row changes."""
        rows = self.rows()
        actions = [self._remove(file, data_change=False) for file in list(self._files.values())]
        return await self.commit("OPTIMIZE", [*actions, await self._add(rows, data_change=False)])

    async def add_column(self, column: pa.Field) -> int:
        """Add a column, with null in existing rows."""
        self.schema = self.schema.append(column)
        return await self.commit("ADD COLUMNS", [self._metadata()])

    async def commit(self, operation: str, actions: Sequence[Action]) -> int:
        """Commit any actions."""
        info = {"timestamp": self.clock.now_ms(), "operation": operation, "operationParameters": {}}
        entry = serialize([("commitInfo", info), *actions])
        self.committing = self.clock.monotonic()
        await self.storage.put_if_absent(f"{paths.LOG}/{paths.commit_name(self.version + 1)}", entry)
        self.version += 1
        return self.version

    def _metadata(self) -> Action:
        configuration = {
            "delta.enableChangeDataFeed": str(self.feed).lower(),
            "delta.enableDeletionVectors": "true",
            **self.properties,
        }
        schema = schemas.serialize(schemas.from_arrow(self.schema))
        return "metaData", metadata_fields(Metadata(self.table_id, schema, (), configuration))

    async def _add(self, rows: pa.Table, *, data_change: bool = True) -> Action:
        path = f"part-{uuid4()}.parquet"
        self._files[path] = _File(path, rows, await self._write(path, rows))
        return self._add_action(self._files[path], data_change=data_change)

    def _add_action(self, file: _File, *, data_change: bool = True) -> Action:
        return "add", {
            "path": file.path,
            "partitionValues": {},
            "size": file.size,
            "modificationTime": self.clock.now_ms(),
            "dataChange": data_change,
            "stats": json.dumps({"numRecords": file.rows.num_rows, "tightBounds": file.descriptor is None}),
            **({} if file.descriptor is None else {"deletionVector": vector_fields(file.descriptor)}),
        }

    def _remove(self, file: _File, *, data_change: bool = True) -> Action:
        del self._files[file.path]
        return "remove", {
            "path": file.path,
            "deletionTimestamp": self.clock.now_ms(),
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.size,
            "tags": {},
            **({} if file.descriptor is None else {"deletionVector": vector_fields(file.descriptor)}),
        }

    async def _rewrite(self, file: _File, rows: pa.Table) -> list[Action]:
        removed = self._remove(file)
        return [removed, await self._add(rows)] if rows.num_rows else [removed]

    async def _change_data(self, rows: pa.Table) -> list[Action]:
        if not self.feed:
            return []
        path = f"_change_data/cdc-{uuid4()}.parquet"
        size = await self._write(path, rows)
        return [("cdc", {"path": path, "partitionValues": {}, "size": size, "dataChange": False})]

    async def _write(self, path: str, rows: pa.Table) -> int:
        buffer = io.BytesIO()
        pq.write_table(rows, buffer)
        await self.storage.put(path, buffer.getvalue())
        return buffer.tell()


def _widen(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in a newer schema, with null in added columns."""
    columns = [
        rows.column(each.name).cast(each.type) if each.name in rows.schema.names else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.table(columns, schema=schema)


def _with_type(rows: pa.Table, change_type: str) -> pa.Table:
    return rows.append_column(CHANGE_TYPE, pa.array([change_type] * rows.num_rows, pa.string()))


def _images(before: pa.Table, after: pa.Table) -> pa.Table:
    """Pre- and post-images of an update, in pairs."""
    both = pa.concat_tables([_with_type(before, "update_preimage"), _with_type(after, "update_postimage")])
    count = before.num_rows
    order = [place for row in range(count) for place in (row, count + row)]
    return both.take(pa.array(order, pa.int64()))
