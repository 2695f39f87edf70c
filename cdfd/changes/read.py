"""One file scan -> record batches. *How* it runs is free: in a thread of the daemon, or in a Spark executor; both call this.

Rows stay in Arrow buffers. What is resolved once per file (which column is which, which rows are hidden) is resolved before the first batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.changes.columns import CHANGE_TYPE, constant_type, types_as_written
from cdfd.changes.image_order import Halves, ImageCounts, Shelf
from cdfd.changes.layout import Layout, Layouts
from cdfd.changes.plan import FileScan, Images
from cdfd.changes.row_selection import DAMAGED, Wanted, check_groups
from cdfd.delta import deletion_vector, paths, values
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.schema import TableSchema
from cdfd.errors import CdfdError, DataError, MissingFileError, NotFoundError, PathError, StorageError
from cdfd.parquet.reader import ParquetReader, opened
from cdfd.storage.base import ReadsAhead, Storage
from cdfd.storage.durable import is_transient

BATCH_BYTES = 8 << 20
"""Uncompressed bytes that a batch should have; rows of any width cost about the same memory."""
BATCH_ROWS = 65_536
"""Rows of a batch, at most: enough that what a batch costs by itself does not count."""

MISSING = "VACUUM may have removed it; read on from a newer version or a snapshot, or see `on_missing_file`"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Finds a table's files in stores.

    Attributes:
        storage: the table's root.
        open_root: opens the store of an allowed root.
        allowed_roots: where absolute paths may lead besides.
        layouts: of the files that were read last.
    """

    storage: Storage
    open_root: Callable[[str], Storage]
    allowed_roots: tuple[str, ...] = ()
    layouts: Layouts = field(default_factory=Layouts, compare=False, repr=False)

    def locate(self, path: str) -> tuple[Storage, str]:
        """The store of a path from the log, and the path in it.

        Raises:
            PathError: it leads out of the table and of the allowed roots.
        """
        location = paths.resolve(self.storage.uri, path, self.allowed_roots)
        inside = location.root == self.storage.uri
        return self.storage if inside else self.open_root(location.root), location.path

    @contextlib.contextmanager
    def open(self, path: str, size: int | None = None) -> Iterator[Any]:
        """A file for random access. MissingFileError where it is gone."""
        storage, inside = self.locate(path)
        try:
            file = storage.open_columns(inside, size)
        except NotFoundError:
            raise MissingFileError("the file is gone", path=path, hint=MISSING) from None
        with file:
            try:
                yield file
            except NotFoundError:
                # Removed while it was read: a store has no hold on what is open.
                raise MissingFileError("the file is gone", path=path, hint=MISSING) from None

    def expect(self, path: str, size: int, *, whole: bool = False) -> None:
        """A file that will be opened soon, and with `whole` read with all its columns. Where it cannot be, opening it says why."""
        with contextlib.suppress(PathError):
            storage, inside = self.locate(path)
            storage.expect(inside, size or None, whole=whole)

    def rows(self, descriptor: DeletionVectorDescriptor | None, most: int) -> RowSet | None:
        """The rows that a deletion vector holds, of a file of `most` rows; None for no vector.

        Raises:
            DataError: the vector is missing, damaged, or not what its descriptor says.
        """
        if descriptor is None:
            return None
        if descriptor.cardinality > most:
            raise DataError(f"the deletion vector hides {descriptor.cardinality} rows of a file of {most} rows")
        path, wanted = deletion_vector.path_of(descriptor), deletion_vector.range_of(descriptor)
        if path is None or wanted is None:
            return deletion_vector.decode_inline(descriptor)
        start, length = wanted
        with _named(path), self.open(path) as file:
            file.seek(0, 2)
            # The log says how long the vector is, the file how long it can be: a hostile length allocates nothing.
            length = max(0, min(length, file.tell() - start))
            file.seek(start)
            return deletion_vector.decode_stored(descriptor, file.read(length))


def look(scan: FileScan, files: TableFiles) -> Halves:
    """Which rows of a change data file are late, by itself. Raises what `read` does."""
    with _named(scan.path), files.open(scan.path, scan.size or None) as source, opened(source, [CHANGE_TYPE]) as file:
        return Halves.of(lambda: _types(file))


def count(scan: FileScan, files: TableFiles) -> int:
    """How many rows a scan of a data file has, without reading them. Raises what `read` does."""
    with _named(scan.path), files.open(scan.path, scan.size or None) as source, opened(source) as file:
        return _wanted(scan, files, file.metadata).count(file.metadata)


def count_images(scan: FileScan, files: TableFiles) -> ImageCounts:
    """How many rows of which type a change data file has. Raises what `read` does."""
    with _named(scan.path), files.open(scan.path, scan.size or None) as source, opened(source, [CHANGE_TYPE]) as file:
        return ImageCounts.of(_types(file))


def _types(file: ParquetReader) -> Iterator[pa.Array]:
    """The `_change_type` column of a change data file."""
    _check_change_type(file)
    for batch in file.batches([CHANGE_TYPE], rows=BATCH_ROWS):
        yield batch.column(0)


def _check_change_type(file: ParquetReader) -> None:
    found = file.schema_arrow.names.count(CHANGE_TYPE)
    if found != 1:
        raise DataError(f"a change data file with {found} _change_type columns, not one")


class Rows(NamedTuple):
    """Change rows of one scan.

    Attributes:
        batch: the columns of the table, then `_change_type`.
        apart: whether the first row, a post-image, does not belong to the row before it, even if that is a pre-image.
    """

    batch: pa.RecordBatch
    apart: bool = False


def read(
    scan: FileScan,
    schema: TableSchema,
    files: TableFiles,
    *,
    batch_rows: int = BATCH_ROWS,
    use_threads: bool = False,
    shelf: Shelf | None = None,
) -> Iterator[Rows]:
    """The change rows of one scan, in the order of the file; of a change data file the early half first (see `images`).

    Args:
        scan: what to read.
        schema: in which to read it, with the columns that are wanted.
        files: where the table's files are.
        batch_rows: rows of a batch, at most.
        use_threads: decode columns in parallel.
        shelf: where a change data file's late rows wait between the scan of its early half and that of its late half.

    Raises:
        MissingFileError: the data file or deletion vector is gone.
        DataError: it is truncated, corrupt, or does not match the schema.
        LogError: a partition value that does not parse.
        PathError: it lies outside the table.
    """
    if scan.images == "late" and shelf is not None and shelf.again is None:
        yield from _first_apart(shelf, shelf.take())
        return
    with (
        _named(scan.path),
        files.open(scan.path, scan.size or None) as source,
        opened(source, [CHANGE_TYPE]) as file,
    ):
        _announce(source, schema, scan, files.layouts, file)
        reader = _Reader.prepare(file, schema, scan, files)
        if _some_groups(scan) and _reads_ahead(source.__class__):
            source.will_read(reader.names, {group for _, groups in reader.row_groups() for group in groups})
        if scan.change_type is None and scan.images != "as_written":
            shelf = Shelf(pairs=scan.pairs) if shelf is None else shelf
            yield from _in_halves(reader, scan.images, shelf, (batch_rows, use_threads))
        else:
            yield from map(Rows, reader.batches(batch_rows, use_threads))


def _announce(source: Any, schema: TableSchema, scan: FileScan, layouts: Layouts, file: ParquetReader) -> None:
    """Let a file in a store fetch what will be read; where only some rows are wanted, which is not known yet."""
    if not _some_groups(scan) and _reads_ahead(source.__class__):
        source.will_read(layouts.of(schema, file.schema_arrow).names(scan.change_type))


def _some_groups(scan: FileScan) -> bool:
    """Whether a scan may leave row groups out."""
    return scan.only is not None or scan.piece is not None


@cache
def _reads_ahead(kind: type) -> bool:
    """Whether files of that class do. Asking a protocol takes as long as opening a file."""
    return issubclass(kind, ReadsAhead)


def _in_halves(reader: _Reader, images: Images | None, shelf: Shelf, options: tuple[int, bool]) -> Iterator[Rows]:
    """Rows of a change data file: those of one half, or of both, the early ones first."""
    if shelf.halves is None:
        shelf.halves = Halves.of(lambda: _types(reader.file), pairs=shelf.pairs)
    halves = shelf.halves
    if not halves.late or (halves.in_order and images is None):
        shelf.again = None
        if images != "late":
            yield from _cut(reader.batches(*options), halves.late.min() if halves.apart else None)
        return
    if images != "late":
        yield from map(Rows, _early(reader, halves.late, shelf, options))
    if images != "early":
        yield from _first_apart(shelf, _late(reader, halves.late, shelf, options))


def _early(reader: _Reader, late: RowSet, shelf: Shelf, options: tuple[int, bool]) -> Iterator[pa.RecordBatch]:
    count = reader.file.metadata.num_rows
    if len(late) == count:
        return
    yield from shelf.part(reader.batches(*options), late)
    if shelf.again is not None:
        rest = reader.of_rows(Wanted(RowSet.of(range(shelf.again, count)), late))
        yield from rest.batches(*options)


def _late(reader: _Reader, late: RowSet, shelf: Shelf, options: tuple[int, bool]) -> Iterator[pa.RecordBatch]:
    yield from shelf.take()
    if shelf.again is not None:
        yield from reader.of_rows(Wanted(late.difference(RowSet.of(range(shelf.again))))).batches(*options)


def _first_apart(shelf: Shelf, batches: Iterator[pa.RecordBatch]) -> Iterator[Rows]:
    apart = shelf.halves is not None and shelf.halves.apart
    for batch in batches:
        yield Rows(batch, apart)
        apart = False


def _cut(batches: Iterator[pa.RecordBatch], row: int | None) -> Iterator[Rows]:
    """The batches, cut before that row, which is apart from the one before it. None for nowhere."""
    first = 0
    for batch in batches:
        last = first + batch.num_rows
        if row is None or not first <= row < last:
            yield Rows(batch)
        else:
            if row > first:
                yield Rows(batch.slice(0, row - first))
            yield Rows(batch.slice(row - first), apart=True)
        first = last


@dataclass(frozen=True, slots=True)
class _Reader:
    """A Parquet file with everything resolved that its batches have in common."""

    file: ParquetReader
    layout: Layout
    partition_values: Mapping[str, pa.Scalar]
    change_type: str | None
    wanted: Wanted

    @classmethod
    def prepare(cls, file: ParquetReader, schema: TableSchema, scan: FileScan, files: TableFiles) -> _Reader:
        if scan.change_type is None:
            _check_change_type(file)
        wanted = _wanted(scan, files, file.metadata)
        partition_values = values.parse_partition(scan.partition_values, schema)
        return cls(file, files.layouts.of(schema, file.schema_arrow), partition_values, scan.change_type, wanted)

    def of_rows(self, wanted: Wanted) -> _Reader:
        """The same for other rows of the file."""
        return replace(self, wanted=wanted)

    def batches(self, batch_rows: int, use_threads: bool) -> Iterator[pa.RecordBatch]:
        names = self.names
        for first_row, groups in self.row_groups():
            row = first_row
            for batch in self.file.batches(names, groups, rows=self._batch_rows(batch_rows), use_threads=use_threads):
                # What is made of views can be filtered.
                views = self.layout.views
                wanted = self.wanted
                kept = wanted.kept(self._logical(batch), row) if views else self._logical(wanted.kept(batch, row))
                row += batch.num_rows
                if kept.num_rows:
                    yield kept

    @property
    def names(self) -> list[str]:
        """Columns of the file to read."""
        return self.layout.names(self.change_type)

    def row_groups(self) -> Iterator[tuple[int, list[int]]]:
        """Row groups to read, with the number of their first row; neighbours together, those without a wanted row left out."""
        start, run = 0, list[int]()
        for group, row, _ in self.wanted.row_groups(self.file.metadata):
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
        # The footer says what it likes: more rows than fit into memory are not read at once for it.
        return max(1, min(most, BATCH_BYTES * int(metadata.num_rows) // max(int(size), 1)))

    def _logical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.change_type is None:
            types = types_as_written(batch.column(CHANGE_TYPE))
        else:
            types = constant_type(self.change_type, batch.num_rows)
        columns = self.layout.projection.apply(batch, self.partition_values)
        return pa.RecordBatch.from_arrays([*columns, types], schema=self.layout.schema)


def _wanted(scan: FileScan, files: TableFiles, metadata: pq.FileMetaData) -> Wanted:
    check_groups(metadata)
    rows = metadata.num_rows
    wanted = Wanted(files.rows(scan.only, rows), files.rows(scan.without, rows), scan.piece)
    wanted.check(rows)
    return wanted


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """What goes wrong with a data file, as an error that names it."""
    try:
        yield
    except CdfdError as error:
        raise error.within(path=path) from None
    # ValueError: UnicodeDecodeError, where names of columns are not text, among others. MemoryError: not of Arrow's, which is an
    # ArrowException.
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        if is_transient(error):
            raise StorageError(f"the file cannot be read: {error}", path=path, retriable=True) from error
        raise DataError(f"the file cannot be read: {error}", path=path, hint=DAMAGED) from error
