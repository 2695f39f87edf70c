"""One file scan -> record batches. *How* it runs is free: in a thread of the daemon, or in a Spark executor; both call this.

Rows stay in Arrow buffers. What is resolved once per file (which column is which, which rows are hidden) is resolved before the first batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.changes.columns import CHANGE_TYPE, constant_type, types_as_written
from cdfd.changes.images import Halves, Shelf
from cdfd.changes.layout import Layout, Layouts
from cdfd.changes.parquet import opened
from cdfd.changes.plan import FileScan, Images
from cdfd.delta import deletion_vector, paths, values
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.schema import TableSchema
from cdfd.errors import CdfdError, DataError, MissingFileError, NotFoundError, PathError
from cdfd.storage.base import ReadsAhead, Storage

BATCH_BYTES = 8 << 20
"""Uncompressed bytes that a batch should have; rows of any width cost about the same memory."""
BATCH_ROWS = 65_536
"""Rows of a batch, at most: enough that what a batch costs by itself does not count."""

DAMAGED = "It is truncated or damaged"
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

    def rows(self, descriptor: DeletionVectorDescriptor | None) -> RowSet | None:
        """The rows that a deletion vector holds; None for no vector.

        Raises:
            DataError: the vector is missing, damaged, or not what its descriptor says.
        """
        if descriptor is None:
            return None
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


def _types(file: pq.ParquetFile) -> Iterator[pa.Array]:
    """The `_change_type` column of a change data file."""
    if CHANGE_TYPE not in file.schema_arrow.names:
        raise DataError("a change data file without a _change_type column")
    for batch in file.iter_batches(columns=[CHANGE_TYPE], use_threads=False):
        yield batch.column(0)


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
        opened(source, announce=partial(_announce, source, schema, scan, files.layouts)) as file,
    ):
        reader = _Reader.prepare(file, schema, scan, files)
        if scan.only is not None and _reads_ahead(source.__class__):
            source.will_read(reader.names, {group for _, groups in reader.row_groups() for group in groups})
        if scan.change_type is None:
            yield from _in_halves(reader, scan.images, Shelf() if shelf is None else shelf, (batch_rows, use_threads))
        else:
            yield from map(Rows, reader.batches(batch_rows, use_threads))


def _announce(source: Any, schema: TableSchema, scan: FileScan, layouts: Layouts, file: pq.ParquetFile) -> None:
    """Let a file in a store fetch what will be read; where only some rows are wanted, which is not known yet."""
    if scan.only is None and _reads_ahead(source.__class__):
        source.will_read(layouts.of(schema, file.schema_arrow).names(scan.change_type))


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
        rest = replace(reader, only=RowSet.of(range(shelf.again, count)), without=late)
        yield from rest.batches(*options)


def _late(reader: _Reader, late: RowSet, shelf: Shelf, options: tuple[int, bool]) -> Iterator[pa.RecordBatch]:
    yield from shelf.take()
    if shelf.again is not None:
        yield from replace(reader, only=late.difference(RowSet.of(range(shelf.again)))).batches(*options)


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

    file: pq.ParquetFile
    layout: Layout
    partition_values: Mapping[str, pa.Scalar]
    change_type: str | None
    only: RowSet | None
    without: RowSet | None

    @classmethod
    def prepare(cls, file: pq.ParquetFile, schema: TableSchema, scan: FileScan, files: TableFiles) -> _Reader:
        _check_groups(file.metadata)
        only, without = files.rows(scan.only), files.rows(scan.without)
        for rows in (only, without):
            _check_rows(rows, file.metadata.num_rows)
        return cls(
            file,
            files.layouts.of(schema, file.schema_arrow),
            values.parse_partition(scan.partition_values, schema),
            scan.change_type,
            only,
            without,
        )

    def batches(self, batch_rows: int, use_threads: bool) -> Iterator[pa.RecordBatch]:
        names = self.names
        for first_row, groups in self.row_groups():
            row = first_row
            for batch in self.file.iter_batches(
                batch_size=self._batch_rows(batch_rows), row_groups=groups, columns=names, use_threads=use_threads
            ):
                # What is made of views can be filtered.
                views = self.layout.views
                kept = self._kept(self._logical(batch), row) if views else self._logical(self._kept(batch, row))
                row += batch.num_rows
                if kept.num_rows:
                    yield kept

    @property
    def names(self) -> list[str]:
        """Columns of the file to read."""
        return self.layout.names(self.change_type)

    def row_groups(self) -> Iterator[tuple[int, list[int]]]:
        """Row groups to read, with the number of their first row; neighbours together, those without a wanted row left out."""
        metadata = self.file.metadata
        row, start, run = 0, 0, list[int]()
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            if self._wants(row, count):
                start = start if run else row
                run.append(group)
            elif run:
                yield start, run
                run = []
            row += count
        if run:
            yield start, run

    def _wants(self, row: int, count: int) -> bool:
        if self.without is not None and self.without.contains_range(row, count):
            return False
        return self.only is None or self.only.count(row, count) > 0

    def _batch_rows(self, most: int) -> int:
        metadata = self.file.metadata
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        return max(1, min(most, BATCH_BYTES * int(metadata.num_rows) // max(int(size), 1)))

    def _kept(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        if self.only is None and self.without is None:
            return batch
        keep = np.ones(batch.num_rows, dtype=bool) if self.only is None else self.only.mask(first_row, batch.num_rows)
        if self.without is not None:
            keep &= ~self.without.mask(first_row, batch.num_rows)
        return batch if keep.all() else batch.filter(pa.array(keep))

    def _logical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.change_type is None:
            types = types_as_written(batch.column(CHANGE_TYPE))
        else:
            types = constant_type(self.change_type, batch.num_rows)
        columns = self.layout.projection.apply(batch, self.partition_values)
        return pa.RecordBatch.from_arrays([*columns, types], schema=self.layout.schema)


def _check_groups(metadata: pq.FileMetaData) -> None:
    """A row's number in the file, which deletion vectors go by, is counted over row groups: those must add up."""
    counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
        raise DataError(
            f"the file says that it has {metadata.num_rows} rows and {sum(counts)} in its row groups", hint=DAMAGED
        )


def _check_rows(rows: RowSet | None, count: int) -> None:
    last = None if rows is None else rows.max()
    if last is not None and last >= count:
        raise DataError(f"the deletion vector hides row {last} of a file of {count} rows")


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """What goes wrong with a data file, as an error that names it."""
    try:
        yield
    except CdfdError as error:
        raise error.within(path=path) from None
    # UnicodeDecodeError: names of columns are not text.
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"the file cannot be read: {error}", path=path, hint=DAMAGED) from error
