"""Writes the rows of one delivery into a mirror: data files of new rows, change data files, and the old rows to delete."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from cdfd.delta.actions import Add
from cdfd.delta.paths import partition_folder
from cdfd.delta.types.datatypes import Primitive, StructField, StructType
from cdfd.model.columns import CHANGE_TYPE
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.image_order import DELETE, INSERT, POST_IMAGE, PRE_IMAGE
from cdfd.scan.table_files import TableFiles
from cdfd.sinks.delta.columns import Columns
from cdfd.sinks.delta.data_files import DataFiles, MakeFiles, NewFile, no_other_root
from cdfd.sinks.delta.mirror.sorted_run import Hashes
from cdfd.sinks.delta.mirror.table import MirrorTable

Event: TypeAlias = "tuple[NewFile, pa.Buffer] | pa.Table"
"""A file to store, or rows to delete."""

_REMOVED_BYTES = 32 << 20
"""Bytes of old rows that are looked up at once."""


@dataclass(slots=True)
class Written:
    """Files that are complete.

    Attributes:
        data: data files.
        changes: change data files.
        keys: the hashes of the rows of data files, by path.
    """

    data: list[NewFile] = field(default_factory=list)
    changes: list[NewFile] = field(default_factory=list)
    keys: dict[str, Hashes] = field(default_factory=dict)


class MirrorWriter:
    """Takes net changes, and gives files and old rows.

    Args:
        columns: of the table.
        schema: of the rows, without change columns.
        files: makes data files.
        change_feed: whether change data files are written.
        table: hashes keys of new rows; None if no rows are looked up yet.
    """

    def __init__(
        self, columns: Columns, schema: pa.Schema, files: MakeFiles, *, change_feed: bool, table: MirrorTable | None
    ) -> None:
        self.written = Written()
        self._table = table
        self._names = schema.names
        self._partition_by = columns.stored_partitions
        self._data = files(columns, schema)
        self._changes: DataFiles | None = None
        if change_feed:
            fed = StructType((*columns.struct, StructField(CHANGE_TYPE, Primitive("string"), True, {})))
            # Old rows need not fulfil the conditions of the table.
            changes = dataclasses.replace(columns, struct=fed, conditions=())
            feed_schema = pa.schema([*schema, pa.field(CHANGE_TYPE, pa.dictionary(pa.int8(), pa.string()))])
            self._changes = files(changes, feed_schema)
        self._removed: list[pa.RecordBatch] = []
        self._removed_bytes = 0

    def events(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Event]:
        """Net changes. Yields files to store, and rows to delete."""
        for batch in batches:
            types = to_numpy(batch.column(CHANGE_TYPE).indices)
            rows = batch.select(self._names)
            added = (types == INSERT) | (types == POST_IMAGE)
            removed = (types == DELETE) | (types == PRE_IMAGE)
            if self._changes is not None:
                yield from self._feed(self._changes.write(batch.select([*self._names, CHANGE_TYPE])))
            if added.any():
                yield from self._keep(self._data.write(rows if added.all() else rows.filter(array_of(added))))
            if removed.any():
                self._removed.append(rows if removed.all() else rows.filter(array_of(removed)))
                self._removed_bytes += self._removed[-1].nbytes
                if self._removed_bytes > _REMOVED_BYTES:
                    yield self._flush()
        if self._removed:
            yield self._flush()
        yield from self._keep(self._data.finish())
        if self._changes is not None:
            yield from self._feed(self._changes.finish())

    def _flush(self) -> pa.Table:
        removed = pa.Table.from_batches(self._removed)
        self._removed, self._removed_bytes = [], 0
        return removed

    def _keep(self, files: Iterable[tuple[NewFile, pa.Buffer]]) -> Iterator[Event]:
        for file, data in files:
            self.written.data.append(file)
            if self._table is not None:
                partition = dict(zip(self._partition_by, file.partition, strict=True))
                in_memory = InMemory(self._table.storage, no_other_root, data=data)
                keys = self._table.read_keys(Add(file.path, partition, file.size, 0, True), in_memory)
                self.written.keys[file.path] = keys
            yield file, data

    def _feed(self, files: Iterable[tuple[NewFile, pa.Buffer]]) -> Iterator[Event]:
        for file, data in files:
            folder = partition_folder(dict(zip(self._partition_by, file.partition, strict=True)))
            named = replace(file, path=f"_change_data/{folder}cdc-{file.path.removeprefix('part-')}")
            self.written.changes.append(named)
            yield named, data


@dataclass(frozen=True, slots=True)
class InMemory(TableFiles):
    """A file that is not stored yet.

    Attributes:
        data: its content.
    """

    data: pa.Buffer = field(kw_only=True, repr=False)

    @contextmanager
    def open(self, path: str, size: int | None = None) -> Iterator[pa.NativeFile]:
        """The file, whatever the path."""
        with pa.BufferReader(self.data) as file:
            yield file
