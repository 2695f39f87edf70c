"""The data files of one delivery: rows are split by partition, and written as files of a limited size.

Threads encode rows while others are taken: the row groups of a file in turn, and those of several files at the same time. The rows alone
decide which file each of them is in, and the order of the files.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.delta.types import values
from cdfd.delta.types.schema import to_arrow
from cdfd.errors import DataError, PathError
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPE
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of
from cdfd.scan.execute import cores
from cdfd.scan.parquet.writer import DataFileWriter
from cdfd.sinks.delta.columns import Columns
from cdfd.sinks.delta.conditions import RowCheck
from cdfd.storage.base import Storage

PartitionKey = tuple[str | None, ...]
"""Serialized values of the partition columns, in their order."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file for the log.

    Attributes:
        path: in the table.
        partition: values of the partition columns.
        size: in bytes.
        stats: statistics as JSON.
        rows: number of rows.
    """

    path: str
    partition: PartitionKey
    size: int
    stats: str
    rows: int


@dataclass(slots=True)
class _OpenFile:
    """A file that is not complete.

    Attributes:
        writer: of the file.
        size: in bytes, with those of the rows that a thread encodes.
    """

    writer: DataFileWriter
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group that a thread encodes.

    Attributes:
        key: of its partition.
        file: that it is written to.
        last: whether the file ends with it, whatever its size.
        done: the end of the work.
    """

    key: PartitionKey
    file: _OpenFile
    last: bool
    done: Future[None]


class DataFiles:
    """Collects rows of one schema, in order, into files.

    Args:
        columns: of the table. The rows have all or some of them, with names that may differ in case.
        rows: the schema of the rows.
        compression: of the files, unless the table says another one.
        file_bytes: a file ends at about this size. All open files and their rows have twice as many bytes in memory, at most.
    """

    def __init__(self, columns: Columns, rows: pa.Schema, compression: str, file_bytes: int) -> None:
        places = {name.lower(): place for place, name in enumerate(rows.names)}
        # Columns of type void are in the schema, and in no file.
        typed = (field for field in to_arrow(columns.struct) if not pa.types.is_null(field.type))
        fields = [field for field in typed if field.name.lower() in places]
        if CHANGE_TYPE in rows.names and rows.field(CHANGE_TYPE).type == _CHANGE_TYPE.type:
            # Parquet takes the dictionary of change types as it is. Values of partitions are decoded.
            names = {CHANGE_TYPE}.difference(columns.partition_by)
            fields = [_CHANGE_TYPE if field.name in names else field for field in fields]
        self._places = [places[field.name.lower()] for field in fields]
        self._schema = pa.schema(fields)
        self._partition_by = columns.partition_by
        self._check = RowCheck(columns.conditions, columns.struct, self._schema)
        left_out = () if columns.materialized else columns.partition_by
        self._logical = [field.name for field in fields if field.name not in left_out]
        # By the names that files have.
        stored = dict(zip((child.name for child in columns.struct), columns.stored, strict=True))
        dictionaries = {field.name: field.type for field in fields if pa.types.is_dictionary(field.type)}
        self._stored = pa.schema(
            [stored[name].with_type(dictionaries.get(name, stored[name].type)) for name in self._logical]
        )
        self._compression = columns.compression or compression
        self._file_bytes = file_bytes
        self._open: dict[PartitionKey, _OpenFile] = {}
        self._pending: dict[PartitionKey, list[pa.Table]] = {}
        self._bytes: dict[PartitionKey, int] = {}
        self._encoding: deque[_Group] = deque()

    def write(self, batch: pa.RecordBatch) -> Iterator[tuple[NewFile, pa.Buffer]]:
        """Take a batch; yields files that are complete, and their content."""
        columns = [cast(batch.column(at), field) for at, field in zip(self._places, self._schema, strict=True)]
        rows = pa.table(columns, self._schema)
        self._check.check(rows)
        for key, part in self._split(rows):
            self._pending.setdefault(key, []).append(part)
            self._bytes[key] = self._bytes.get(key, 0) + part.nbytes
            if self._bytes[key] >= GROUP_BYTES:
                yield from self._encode(key)
        if sum(self._sizes().values()) <= 2 * self._file_bytes:
            return
        # Rows take less memory once they are encoded.
        yield from self._await_groups()
        while sum((sizes := self._sizes()).values()) > 2 * self._file_bytes:
            yield from self._encode(max(sizes, key=sizes.__getitem__), last=True)

    def finish(self) -> Iterator[tuple[NewFile, pa.Buffer]]:
        """The remaining files."""
        yield from self._await_groups()
        keys = list(self._sizes())
        for key in keys:
            yield from self._encode(key, last=True, here=len(keys) == 1)
        yield from self._await_groups()

    def _sizes(self) -> dict[PartitionKey, int]:
        keys = dict.fromkeys((*self._open, *self._pending))
        return {key: self._bytes.get(key, 0) + (self._open[key].size if key in self._open else 0) for key in keys}

    def _encode(
        self, key: PartitionKey, *, last: bool = False, here: bool = False
    ) -> Iterator[tuple[NewFile, pa.Buffer]]:
        """Let a thread, or this one, write what a partition has collected as a row group. Yields files that are complete before that."""
        # The group before this one decides whether the file is full.
        while len(self._encoding) >= CORES or any(group.file is self._open.get(key) for group in self._encoding):
            yield from self._first_encoded()
        if key not in self._open:
            self._open[key] = _OpenFile(DataFileWriter(self._stored, self._compression))
        file = self._open.pop(key) if last else self._open[key]
        pending = self._pending.pop(key, [])
        file.size += self._bytes.pop(key, 0)
        done: Future[None] = Future()
        if here:
            _write(file.writer, pending)
            done.set_result(None)
        else:
            done = _THREADS.submit(_write, file.writer, pending)
        self._encoding.append(_Group(key, file, last, done))

    def _await_groups(self) -> Iterator[tuple[NewFile, pa.Buffer]]:
        """Wait for all groups. Yields the files that are complete."""
        while self._encoding:
            yield from self._first_encoded()

    def _first_encoded(self) -> Iterator[tuple[NewFile, pa.Buffer]]:
        """Wait for the first group. Yields its file if that is complete."""
        group = self._encoding.popleft()
        group.done.result()
        group.file.size = group.file.writer.size
        if not group.last:
            if group.file.size < self._file_bytes:
                return
            del self._open[group.key]
        file = group.file.writer.finish()
        yield NewFile(new_path(self._compression), group.key, file.data.size, file.stats, file.rows), file.data

    def _split(self, rows: pa.Table) -> Iterator[tuple[PartitionKey, pa.Table]]:
        """The rows of each partition, in their order, as files have them."""
        stored = rows.select(self._logical)
        if not stored.schema.equals(self._stored):
            columns = zip(stored.columns, self._stored, strict=True)
            stored = pa.table([_rename_inside(column, field.type) for column, field in columns], self._stored)
        # All rows have null in a column that they lack, or whose type is void.
        present = [name for name in self._partition_by if name in self._schema.names]
        if not present:
            yield (None,) * len(self._partition_by), stored
            return
        numbered = rows.select(present).append_column("", array_of(np.arange(rows.num_rows)))
        grouped = numbered.group_by(present, use_threads=False).aggregate([("", "list")])
        for group in range(grouped.num_rows):
            key: list[str | None] = []
            for name in self._partition_by:
                if name not in present:
                    key.append(None)
                    continue
                value = grouped.column(name)[group]
                text = values.serialize(value)
                if text is None and value.is_valid:
                    # The empty string has the text of null, except where nothing can be null.
                    if self._schema.field(name).nullable:
                        raise DataError(
                            f"a row has the empty string in column {name!r:.200}, by which the target is partitioned: Delta would store null",
                            hint="Filter such rows with `where`, or make a new target that is partitioned by another column",
                        )
                    text = ""
                key.append(text)
            yield tuple(key), stored.take(grouped.column("_list")[group].values)


MakeFiles = Callable[[Columns, pa.Schema], DataFiles]
"""From the columns of the table and the schema of the rows."""

GROUP_BYTES = 32 << 20
"""Bytes of rows of a row group."""


def new_path(compression: str) -> str:
    """The name of a new data file."""
    suffix = "" if compression == "none" else f".{compression}"
    return f"part-00000-{uuid.uuid4()}-c000{suffix}.parquet"


_CHANGE_TYPE = CHANGE_COLUMNS[0].with_nullable(True)


def _write(writer: DataFileWriter, rows: Sequence[pa.Table]) -> None:
    if rows:
        writer.write(pa.concat_tables(rows))


def _rename_inside(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The same values in a type whose structs have other names inside: those are a part of the type."""
    if column.type == kind:
        return column
    # There is no view in an extension type.
    is_extension = isinstance(kind, pa.BaseExtensionType)
    return pa.chunked_array([chunk.cast(kind) if is_extension else chunk.view(kind) for chunk in column.chunks], kind)


def cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column as the target has it: dictionaries decoded, extension types as what they are stored as, narrower types widened."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == field.type:
        return column
    try:
        return pc.cast(column.view(_spelled(column.type, field.type)), field.type)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {field.name!r:.200} has values that the target cannot hold: {error!s:.200}",
            hint="Leave it out with `columns`",
        ) from error


def _spelled(kind: Any, target: Any) -> Any:
    """The type with the names that `target` has inside of it. Arrow takes names that differ in case for other fields, which are null."""

    def field_with(field: pa.Field, other: pa.Field) -> pa.Field:
        return field.with_type(_spelled(field.type, other.type))

    if pa.types.is_struct(kind) and pa.types.is_struct(target):
        others = {other.name.lower(): other for other in target}
        pairs = [(field, others.get(field.name.lower(), field)) for field in kind]
        return pa.struct([field_with(field, other).with_name(other.name) for field, other in pairs])
    if pa.types.is_list(kind) and pa.types.is_list(target):
        return pa.list_(field_with(kind.value_field, target.value_field))
    if pa.types.is_map(kind) and pa.types.is_map(target):
        return pa.map_(field_with(kind.key_field, target.key_field), field_with(kind.item_field, target.item_field))
    return kind


def no_other_root(root: str) -> Storage:
    """A target has no files elsewhere: it raises an error."""
    raise PathError("a file of the target is outside of its folder", path=root)


CORES = cores()
"""Row groups that are encoded at the same time, at most."""
_THREADS = ThreadPoolExecutor(CORES, "cdfd-delta")
