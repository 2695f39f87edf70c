"""One file scan -> record batches. Threads of the daemon and Spark executors both call this.

Rows stay in Arrow buffers. Columns and hidden rows are resolved once per file, before its first batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, cast

import pyarrow as pa

from cdfd.changes.column_prefetch import can_prefetch, may_skip_groups, prefetch_columns
from cdfd.changes.columns import CHANGE_TYPE, constant_type, types_as_written
from cdfd.changes.data_files import ColumnSizes, DataFile, Footer, has_column_sizes, is_parquet, opened
from cdfd.changes.group_pruning import excluded_groups, kept_batches
from cdfd.changes.image_order import Codes, ImageCounts, ImageOrder, ReorderBuffer, codes_of, codes_with_keys
from cdfd.changes.layout import Layout, Layouts
from cdfd.changes.plan import FileScan, ImagePhase
from cdfd.changes.row_ids import ROW_ID, ROW_ID_FIELDS, ROW_VERSION, FileRowIds
from cdfd.changes.row_selection import DAMAGED_HINT, RowSelection, check_row_counts
from cdfd.changes.shape.predicate import Predicate
from cdfd.delta import deletion_vector, paths, values
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.schema import TableSchema
from cdfd.errors import CdfdError, DataError, MissingFileError, NotFoundError, PathError, StorageError
from cdfd.storage.base import Storage, WholeFiles
from cdfd.storage.durable import is_transient

BATCH_BYTES = 8 << 20
"""Uncompressed bytes of a batch, about: so a batch takes the same memory for rows of any width."""
BATCH_ROWS = 65_536
"""Rows of a batch, at most. With so many rows, the fixed cost of a batch is negligible."""

ERRORS_OF_FILES = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
"""Errors of reading a damaged file. ValueError includes UnicodeDecodeError, for column names that are not text. MemoryError is Python's:
Arrow's is an ArrowException."""
READ_ERRORS = (CdfdError, *ERRORS_OF_FILES)
"""The same, with those of cdfd."""

MISSING_HINT = "VACUUM may have removed it: start from a newer version or a snapshot, or set `on_missing_file`"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's files, in its store and those of allowed roots.

    Attributes:
        storage: the table's root.
        open_root: opens the store of an allowed root.
        allowed_roots: roots outside the table in which absolute paths may lie.
        layouts: of the files that were read last.
    """

    storage: Storage
    open_root: Callable[[str], Storage]
    allowed_roots: tuple[str, ...] = ()
    layouts: Layouts = field(default_factory=Layouts, compare=False, repr=False)

    def locate(self, path: str) -> tuple[Storage, str]:
        """The store of a path from the log, and the path in that store.

        Raises:
            PathError: the path leads out of the table and of all allowed roots.
        """
        location = paths.resolve(self.storage.uri, path, self.allowed_roots)
        inside = location.root == self.storage.uri
        return self.storage if inside else self.open_root(location.root), location.path

    @contextlib.contextmanager
    def open(self, path: str, size: int | None = None) -> Iterator[Any]:
        """A file for random access. MissingFileError if it is gone."""
        storage, inside = self.locate(path)
        try:
            file = storage.open_input_file(inside, size if is_parquet(path) else None)
        except NotFoundError:
            raise MissingFileError("the file is gone", path=path, hint=MISSING_HINT) from None
        with file:
            try:
                yield file
            except NotFoundError:
                # An object store does not keep an object for its readers: it was removed while it was read.
                raise MissingFileError("the file is gone", path=path, hint=MISSING_HINT) from None

    @property
    def reads_whole(self) -> bool:
        """Whether the table's store reads small files together."""
        return reads_whole(self.storage.__class__)

    def read_whole(self, paths: Sequence[str], sizes: Sequence[int]) -> Sequence[bytes] | None:
        """All bytes of files. None if their store does not read files together.

        Raises:
            StorageError: a file is gone, cannot be read, or is larger than its size in `sizes`.
            PathError: a file lies outside the table.
        """
        found = [self.locate(path) for path in paths]
        storage = found[0][0]
        if any(other is not storage for other, _ in found) or not reads_whole(storage.__class__):
            return None
        return cast(WholeFiles, storage).read_whole([inside for _, inside in found], sizes)

    def prefetch(self, path: str, size: int, *, whole: bool = False) -> None:
        """Prefetch a file that will be opened soon; `whole` if all its columns will be read. Errors are left to `open`."""
        with contextlib.suppress(PathError):
            storage, inside = self.locate(path)
            storage.prefetch(inside, (size or None) if is_parquet(path) else None, whole=whole)

    def vector_rows(self, descriptor: DeletionVectorDescriptor | None, file_rows: int) -> RowSet | None:
        """The rows in a deletion vector of a file of `file_rows` rows; None for no vector.

        Raises:
            DataError: the vector is missing, damaged, or does not match its descriptor.
        """
        if descriptor is None:
            return None
        if descriptor.cardinality > file_rows:
            raise DataError(f"the deletion vector hides {descriptor.cardinality} rows of a file of {file_rows} rows")
        path, span = deletion_vector.path_of(descriptor), deletion_vector.range_of(descriptor)
        if path is None or span is None:
            return deletion_vector.decode_inline(descriptor)
        start, length = span
        with naming_file(path), self.open(path) as file:
            file.seek(0, 2)
            # The length comes from the log. It is limited by the file's size, so a hostile length allocates nothing.
            length = max(0, min(length, file.tell() - start))
            file.seek(start)
            return deletion_vector.decode_stored(descriptor, file.read(length))


def read_image_order(scan: FileScan, files: TableFiles, key: TableSchema | None = None) -> ImageOrder:
    """The image order of a change data file by itself. `key` is the schema of the key, if there is one. Raises what `read` does."""
    with (
        naming_file(scan.path),
        files.open(scan.path, scan.size or None) as source,
        opened(scan.path, source, [CHANGE_TYPE]) as file,
    ):
        return ImageOrder.of(lambda: _types(file, scan, files, key))


def count_rows(scan: FileScan, files: TableFiles) -> int:
    """How many rows a scan of a data file returns, from the footer alone. Raises what `read` does."""
    with naming_file(scan.path), files.open(scan.path, scan.size or None) as source, opened(scan.path, source) as file:
        return selection_of(scan, files, file.metadata).count(file.metadata)


def count_images(scan: FileScan, files: TableFiles, key: TableSchema | None = None) -> ImageCounts:
    """How many rows of each change type a change data file has. `key` is the schema of the key. Raises what `read` does."""
    with (
        naming_file(scan.path),
        files.open(scan.path, scan.size or None) as source,
        opened(scan.path, source, [CHANGE_TYPE]) as file,
    ):
        return ImageCounts.of(_types(file, scan, files, key))


def _types(file: DataFile, scan: FileScan, files: TableFiles, key: TableSchema | None) -> Iterator[Codes]:
    """The codes of the change types of a change data file."""
    check_change_type(file)
    if key is None:
        return codes_of(batch.column(0) for batch in file.batches([CHANGE_TYPE], rows=BATCH_ROWS))
    layout = files.layouts.of(key, file.schema_arrow)
    constants = values.parse_partition(scan.partition_values, key)
    return codes_with_keys(
        (batch.column(CHANGE_TYPE), layout.projection.apply(batch, constants))
        for batch in file.batches(layout.names(None), rows=BATCH_ROWS)
    )


def check_change_type(file: DataFile) -> None:
    """DataError unless a change data file has one column of change types."""
    found = file.schema_arrow.names.count(CHANGE_TYPE)
    if found != 1:
        raise DataError(f"the change data file has {found} _change_type columns instead of one")


class RowBatch(NamedTuple):
    """Change rows of one scan.

    Attributes:
        batch: the columns of the table, then `_change_type`.
        gap_before: whether an ordinal is skipped before the first row, a post-image that does not belong to the row before it.
        skipped: rows before these that the filter excludes, and that are not read. They have ordinals.
    """

    batch: pa.RecordBatch
    gap_before: bool = False
    skipped: int = 0


def read(
    scan: FileScan,
    schema: TableSchema,
    files: TableFiles,
    *,
    batch_rows: int = BATCH_ROWS,
    use_threads: bool = False,
    reorder_buffer: ReorderBuffer | None = None,
    key: TableSchema | None = None,
    where: Predicate | None = None,
) -> Iterator[RowBatch]:
    """The change rows of one scan, in the order of the file. Early rows of a change data file precede late ones (see `image_order`).

    Args:
        scan: what to read.
        schema: the schema to read it in, with the selected columns.
        files: the table's files.
        batch_rows: rows of a batch, at most.
        use_threads: decode columns in parallel.
        reorder_buffer: keeps a change data file's late rows from the scan of the early phase to that of the late phase.
        key: the schema of the key, by which images are ordered; None if there is no key.
        where: the filter of a data file's rows: parts of the file without a row for it are not read.

    Raises:
        MissingFileError: the data file or deletion vector is gone.
        DataError: the file is truncated, corrupt, or does not match the schema.
        LogError: a partition value does not parse.
        PathError: the file lies outside the table.
    """
    if scan.image_phase == "late" and reorder_buffer is not None and reorder_buffer.reread_from is None:
        yield from _with_gap_first(reorder_buffer, reorder_buffer.drain())
        return
    with (
        naming_file(scan.path),
        files.open(scan.path, scan.size or None) as source,
        opened(scan.path, source, [CHANGE_TYPE]) as file,
    ):
        prefetch_columns(source, schema, scan, files.layouts, file, where)
        reader = FileReader.prepare(file, schema, scan, files)
        excluded = frozenset[int]()
        if where is not None and scan.change_type is not None:
            excluded = excluded_groups(reader, schema, where)
        if may_skip_groups(scan, where) and is_parquet(scan.path) and can_prefetch(source.__class__):
            wanted = {group for _, groups in reader.row_groups() for group in groups}
            source.prefetch_columns(reader.names, wanted - excluded)
        if scan.change_type is None and scan.image_phase != "as_written":
            buffer = ReorderBuffer(pairs=scan.pairs) if reorder_buffer is None else reorder_buffer
            if buffer.order is None:
                buffer.order = ImageOrder.of(lambda: _types(file, scan, files, key), pairs=buffer.pairs)
            yield from _reordered(reader, scan.image_phase, buffer, (batch_rows, use_threads))
        elif excluded:
            for batch, skipped in kept_batches(reader, excluded, batch_rows, use_threads):
                yield RowBatch(batch, skipped=skipped)
        else:
            yield from map(RowBatch, reader.batches(batch_rows, use_threads))


def _reordered(
    reader: FileReader, image_phase: ImagePhase | None, buffer: ReorderBuffer, options: tuple[int, bool]
) -> Iterator[RowBatch]:
    """Rows of a change data file: those of one phase, or those of the early phase and then those of the late one."""
    order = buffer.order
    assert order is not None
    if not order.late or (order.in_order and image_phase is None):
        buffer.reread_from = None
        if image_phase != "late":
            yield from _split_at(reader.batches(*options), order.late.min() if order.late_starts_with_post else None)
        return
    if image_phase != "late":
        yield from map(RowBatch, _early_rows(reader, order.late, buffer, options))
    if image_phase != "early":
        yield from _with_gap_first(buffer, _late_rows(reader, order.late, buffer, options))


def _early_rows(
    reader: FileReader, late: RowSet, buffer: ReorderBuffer, options: tuple[int, bool]
) -> Iterator[pa.RecordBatch]:
    count = reader.file.metadata.num_rows
    if len(late) == count:
        return
    yield from buffer.split(reader.batches(*options), late)
    if buffer.reread_from is not None:
        rest = reader.of_rows(RowSelection(RowSet.of(range(buffer.reread_from, count)), late))
        yield from rest.batches(*options)


def _late_rows(
    reader: FileReader, late: RowSet, buffer: ReorderBuffer, options: tuple[int, bool]
) -> Iterator[pa.RecordBatch]:
    yield from buffer.drain()
    if buffer.reread_from is not None:
        rest = late.difference(RowSet.of(range(buffer.reread_from)))
        yield from reader.of_rows(RowSelection(rest)).batches(*options)


def _with_gap_first(buffer: ReorderBuffer, batches: Iterator[pa.RecordBatch]) -> Iterator[RowBatch]:
    gap = buffer.order is not None and buffer.order.late_starts_with_post
    for batch in batches:
        yield RowBatch(batch, gap)
        gap = False


def _split_at(batches: Iterator[pa.RecordBatch], row: int | None) -> Iterator[RowBatch]:
    """The batches, split before that row of the file, with a gap before it. None for no split."""
    first = 0
    for batch in batches:
        last = first + batch.num_rows
        if row is None or not first <= row < last:
            yield RowBatch(batch)
        else:
            if row > first:
                yield RowBatch(batch.slice(0, row - first))
            yield RowBatch(batch.slice(row - first), gap_before=True)
        first = last


@dataclass(frozen=True, slots=True)
class FileReader:
    """An open file, with columns, partition values and selected rows resolved.

    Attributes:
        file: the file.
        layout: of its columns.
        partition_values: by name of the column.
        change_type: of all rows; None if a column has it.
        selection: the rows to read.
        row_ids: where row ids are; None if they are not read. With them, rows have `ROW_ID_FIELDS` instead of a change type.
    """

    file: DataFile
    layout: Layout
    partition_values: Mapping[str, pa.Scalar]
    change_type: str | None
    selection: RowSelection
    row_ids: FileRowIds | None = None

    @classmethod
    def prepare(cls, file: DataFile, schema: TableSchema, scan: FileScan, files: TableFiles) -> FileReader:
        """Resolve a scan. Raises what `read` does."""
        if scan.change_type is None:
            check_change_type(file)
        selection = selection_of(scan, files, file.metadata)
        partition_values = values.parse_partition(scan.partition_values, schema)
        return cls(file, files.layouts.of(schema, file.schema_arrow), partition_values, scan.change_type, selection)

    def of_rows(self, selection: RowSelection) -> FileReader:
        """The same reader for other rows of the file."""
        return replace(self, selection=selection)

    def batches(self, batch_rows: int, use_threads: bool) -> Iterator[pa.RecordBatch]:
        """The selected rows, in order."""
        names = self.names
        for first_row, groups in self.row_groups():
            row = first_row
            for batch in self.file.batches(names, groups, rows=self._batch_rows(batch_rows), use_threads=use_threads):
                if self.row_ids is not None:
                    batch = self.row_ids.extended(batch, row)
                if self.layout.views:
                    # pyarrow cannot filter views, but can filter the columns that are made from them.
                    rows = self.selection.filter(self._logical(batch), row)
                else:
                    rows = self._logical(self.selection.filter(batch, row))
                row += batch.num_rows
                if rows.num_rows:
                    yield rows

    @property
    def names(self) -> list[str]:
        """Columns of the file to read."""
        names = self.layout.names(self.change_type)
        return names if self.row_ids is None else [*names, *self.row_ids.names]

    def row_groups(self) -> Iterator[tuple[int, list[int]]]:
        """Runs of consecutive row groups to read, each with the number of its first row. Groups without a selected row are skipped."""
        start, run = 0, list[int]()
        for group, row, _ in self.selection.row_groups(self.file.metadata):
            if run and run[-1] != group - 1:
                yield start, run
                run = []
            start = start if run else row
            run.append(group)
        if run:
            yield start, run

    def _batch_rows(self, most: int) -> int:
        metadata = self.file.metadata
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        if size > BATCH_BYTES and has_column_sizes(self.file.__class__):
            size = cast(ColumnSizes, self.file).size_of(self.names)
        # The footer is not trusted: whatever it says, a batch is never larger than `most` rows.
        return max(1, min(most, BATCH_BYTES * int(metadata.num_rows) // max(int(size), 1)))

    def _logical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.row_ids is not None:
            columns = self.layout.projection.apply(batch, self.partition_values)
            ids = batch.column(ROW_ID), batch.column(ROW_VERSION)
            schema = pa.schema([*self.layout.projection.schema, *ROW_ID_FIELDS])
            return pa.RecordBatch.from_arrays([*columns, *ids], schema=schema)
        if self.change_type is None:
            types = types_as_written(batch.column(CHANGE_TYPE))
        else:
            types = constant_type(self.change_type, batch.num_rows)
        columns = self.layout.projection.apply(batch, self.partition_values)
        return pa.RecordBatch.from_arrays([*columns, types], schema=self.layout.schema)


def selection_of(scan: FileScan, files: TableFiles, metadata: Footer) -> RowSelection:
    """The rows of a file that a scan reads. Raises what `read` does."""
    check_row_counts(metadata)
    rows = metadata.num_rows
    selection = RowSelection(files.vector_rows(scan.only, rows), files.vector_rows(scan.without, rows), scan.piece)
    selection.check(rows)
    return selection.reduced()


@cache
def reads_whole(kind: type) -> bool:
    """Whether stores of that class are `WholeFiles`. Cached, because checking a protocol takes long."""
    return issubclass(kind, WholeFiles)


@contextlib.contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Turn errors of reading a data file into errors of cdfd that name the file."""
    try:
        yield
    except CdfdError as error:
        raise error.within(path=path) from None
    except ERRORS_OF_FILES as error:
        if is_transient(error):
            raise StorageError(f"the file cannot be read: {error}", path=path, retriable=True) from error
        raise DataError(f"the file cannot be read: {error}", path=path, hint=DAMAGED_HINT) from error
