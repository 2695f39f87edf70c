"""File actions in bulk: a sequence of `Add`, `Remove` or `Cdc` held in Arrow columns.

A commit of a few files is a tuple of values. A commit of a million, or the live files of a large table, would be a gigabyte of Python
objects; packed in columns they are what their paths weigh. Both are sequences of the same values, so nothing downstream needs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast, overload

import pyarrow as pa

from cdfd.delta.actions import NO_VALUES, Add, Cdc, DeletionVectorDescriptor, FileKey, Remove
from cdfd.errors import LogError
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of

FileAction = Add | Remove | Cdc
T = TypeVar("T", bound=FileAction)

# The paths of tens of millions of files are more than the 2 GiB that 32-bit offsets reach.
TEXT = pa.large_string()

DELETION_VECTOR = pa.struct(
    [
        ("storageType", TEXT),
        ("pathOrInlineDv", TEXT),
        ("offset", pa.int64()),
        ("sizeInBytes", pa.int64()),
        ("cardinality", pa.int64()),
    ]
)

FILES = pa.schema(
    [
        pa.field("path", TEXT, nullable=False),
        pa.field("partition_values", pa.map_(TEXT, TEXT)),
        pa.field("size", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("data_change", pa.bool_()),
        pa.field("stats", TEXT),
        pa.field("deletion_vector", DELETION_VECTOR),
    ]
)
"""One row per file action. `time` is `modificationTime` of an add and `deletionTimestamp` of a remove, in ms since the epoch."""

COMMITTED = pa.schema([*FILES, pa.field("base_row_id", pa.int64()), pa.field("default_row_commit_version", pa.int64())])
"""The same, with the row ids of a commit's files. The state of a table has none: only the rows that a commit changes need them."""

ALL_FIELDS = pa.schema([*COMMITTED, pa.field("clustering_provider", TEXT), pa.field("tags", pa.map_(TEXT, TEXT))])
"""All fields that a checkpoint has. The state of a table has them for a writer of checkpoints."""

PACK = 4096


class PackedFiles(Sequence[T]):
    """An immutable sequence of file actions over a table of the `FILES`, the `COMMITTED` or the `ALL_FIELDS` schema.

    Random access costs one row, iteration a chunk at a time.

    Equal to any sequence of equal actions, hence without a hash. A slice pickles as what it holds, not as what it was cut from.
    """

    __slots__ = ("kind", "table")

    def __init__(self, kind: type[T], table: pa.Table) -> None:
        self.kind = kind
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> PackedFiles[T]: ...
    def __getitem__(self, index: int | slice) -> T | PackedFiles[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return PackedFiles(self.kind, self.table.take(array_of(range(start, stop, step), pa.int64())))
            return PackedFiles(self.kind, self.table.slice(start, max(0, stop - start)))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return next(iter(_values(self.kind, self.table.slice(place, 1))))

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), PACK):
            yield from _values(self.kind, self.table.slice(start, PACK))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedFiles):
            return self.kind is other.kind and bool(self.table.equals(other.table))
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __reduce__(self) -> tuple[Callable[..., PackedFiles[T]], tuple[type[T], bytes]]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as stream:
            stream.write_table(self.table)
        return _unpickle, (self.kind, bytes(sink.getvalue()))

    @property
    def paths(self) -> pa.ChunkedArray:
        """The paths, one string a file."""
        return self.table.column("path")

    def vectors(self) -> Iterator[DeletionVectorDescriptor | None]:
        """The deletion vector of each file. Costs a fraction of what the files cost, as most have none."""
        return map(_descriptor, self.table.column("deletion_vector").to_pylist())

    def keys(self) -> Iterator[FileKey]:
        """The key of each file. Costs as little."""
        for path, vector in zip(self.paths.to_pylist(), self.vectors(), strict=True):
            yield path, None if vector is None else vector.unique_id

    def by_path(self) -> PackedFiles[T]:
        """The same files in ascending order of path (UTF-8 bytes)."""
        return PackedFiles(self.kind, self.table.take(pc.sort_indices(self.table, [("path", "ascending")])))

    def distinct(self) -> bool:
        """Whether no path is there twice."""
        return bool(pc.count_distinct(self.paths).as_py() == len(self))

    def changing(self) -> PackedFiles[T]:
        """Those whose `dataChange` is true."""
        return PackedFiles(self.kind, self.table.filter(self.table.column("data_change")))

    def total_size(self) -> int:
        """Sum of the files' sizes in bytes, as far as the log says them."""
        # Sizes are what the log says: as integers, their sum might be negative.
        return int(pc.sum(self.table.column("size").cast(pa.float64(), safe=False)).as_py() or 0)


def _unpickle(kind: type[T], data: bytes) -> PackedFiles[T]:
    return PackedFiles(kind, pa.ipc.open_stream(data).read_all())


@dataclass(eq=False)
class FileList(Generic[T]):
    """Gathers the file actions of one kind, packing them as they become many. `freeze` gives the sequence."""

    kind: type[T]
    schema: pa.Schema = COMMITTED
    _pending: list[T] = field(default_factory=list, init=False)
    _packed: list[pa.RecordBatch] = field(default_factory=list, init=False)

    def append(self, value: T) -> None:
        """Add one action at the end."""
        self._pending.append(value)
        if len(self._pending) >= PACK:
            self._packed.append(pack(self._pending, self.schema))
            self._pending.clear()

    def freeze(self) -> Sequence[T]:
        """The actions, exact repetitions dropped: a tuple of few, in the order in which they came; packed columns of many, in any order.

        Raises:
            LogError: two different actions for one logical file, or adds of one path with different deletion vectors (specification, "Add
            File and Remove File").
        """
        if not self._packed:
            return tuple(_distinct(self._pending))
        pending = [pack(self._pending, self.schema)] if self._pending else []
        table = pa.Table.from_batches([*self._packed, *pending], schema=self.schema)
        # Counting takes a fraction of what grouping does, and repetitions are rare.
        if (files := PackedFiles(self.kind, table)).distinct():
            return files
        counts = table.group_by("path").aggregate([([], "count_all")])
        repeated = counts.filter(pc.greater(counts.column("count_all"), 1)).column("path")
        several = pc.is_in(table.column("path"), value_set=repeated.combine_chunks())
        distinct = pack(_distinct(PackedFiles[T](self.kind, table.filter(several))), self.schema)
        return PackedFiles(
            self.kind, pa.concat_tables([table.filter(pc.invert(several)), pa.Table.from_batches([distinct])])
        )


def _distinct(values: Iterable[T]) -> Iterator[T]:
    seen: dict[str | FileKey, T] = {}
    for value in values:
        # A checkpoint in JSON may have tombstones of one path with different deletion vectors.
        first = seen.setdefault(value.key if isinstance(value, Remove) else value.path, value)
        if first is value:
            yield value
        elif first != value:
            what = f"two different {type(value).__name__.lower()} actions for one logical file"
            if first.key != value.key:
                what = "two actions of one kind for one data file in one version"
            raise LogError(what, path=value.path)


def pack(values: Iterable[FileAction], schema: pa.Schema = FILES) -> pa.RecordBatch:
    """File actions as one record batch of the `FILES`, the `COMMITTED` or the `ALL_FIELDS` schema."""
    rows = [_row(value) for value in values]
    columns = list(zip(*rows, strict=True))[: len(schema)] if rows else [()] * len(schema)
    return pa.record_batch(
        [array_of(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema
    )


def _row(value: FileAction) -> tuple[Any, ...]:
    values = None if value.partition_values is None else list(value.partition_values.items())
    if isinstance(value, Cdc):
        return value.path, values, value.size, None, False, *[None] * 6
    vector = value.deletion_vector
    dv = None
    if vector is not None:
        dv = vector.storage_type, vector.path_or_inline, vector.offset, vector.size_in_bytes, vector.cardinality
    ids = value.base_row_id, value.default_row_commit_version
    tags = None if value.tags is None else list(value.tags.items())
    if isinstance(value, Add):
        own = value.stats, dv, *ids, value.clustering_provider, tags
        return value.path, values, value.size, value.modification_time, value.data_change, *own
    return value.path, values, value.size, value.deletion_timestamp, value.data_change, None, dv, *ids, None, tags


def _values(kind: type[T], table: pa.Table) -> Iterator[T]:
    # One Python object per file, in chunks that are let go again: files are what a plan is about, rows are not.
    make = cast(Callable[[Mapping[str, Any]], T], _MAKERS[kind])
    yield from map(make, table.to_pylist())


def _add(row: Mapping[str, Any]) -> Add:
    return Add(
        row["path"],
        dict(row["partition_values"] or ()) or NO_VALUES,
        row["size"],
        row["time"],
        row["data_change"],
        row["stats"],
        deletion_vector=_descriptor(row["deletion_vector"]),
        base_row_id=row.get("base_row_id"),
        default_row_commit_version=row.get("default_row_commit_version"),
        clustering_provider=row.get("clustering_provider"),
        tags=None if row.get("tags") is None else dict(row["tags"]),
    )


def _remove(row: Mapping[str, Any]) -> Remove:
    values = row["partition_values"]
    return Remove(
        row["path"],
        row["time"],
        row["data_change"],
        None if values is None else dict(values),
        row["size"],
        _descriptor(row["deletion_vector"]),
        row.get("base_row_id"),
        row.get("default_row_commit_version"),
        None if row.get("tags") is None else dict(row["tags"]),
    )


def _descriptor(row: Mapping[str, Any] | None) -> DeletionVectorDescriptor | None:
    return None if row is None else DeletionVectorDescriptor(*row.values())


_MAKERS: Mapping[type, Callable[[Mapping[str, Any]], FileAction]] = {
    Add: _add,
    Remove: _remove,
    Cdc: lambda row: Cdc(row["path"], dict(row["partition_values"]) or NO_VALUES, row["size"]),
}
