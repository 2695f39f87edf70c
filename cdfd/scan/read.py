"""One file scan -> record batches. Errors name table, version and file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING

import pyarrow as pa

from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.types import values
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import CdfdError, MissingFileError, UnsupportedError
from cdfd.model.columns import CHANGE_NAMES, CHANGE_TYPE
from cdfd.model.file_scan import FileScan, ImagePhase
from cdfd.model.plan import ChangePlan
from cdfd.scan.data_files import DataFile, prefetch_columns
from cdfd.scan.file_reader import BATCH_ROWS, FileReader, check_change_type, selection_of
from cdfd.scan.image_order import Codes, ImageCounts, ImageOrder, ReorderBuffer, codes_of, codes_with_keys
from cdfd.scan.joined import Scanned
from cdfd.scan.row_selection import RowSelection
from cdfd.scan.table_files import LIVE_HINT, TableFiles

if TYPE_CHECKING:
    from cdfd.plan.shape.predicate import Predicate

SMALL_PLAN_BYTES = 256 << 10
"""Bytes of a plan's files below which one thread reads them faster than several: starting a thread takes longer."""

Select = Callable[[TableSchema], TableSchema]
"""Chooses columns: from the schema of a version to the schema to read it in."""

OnMissingFile = Callable[[MissingFileError], None]
"""Called if the file of a scan is gone. It raises, or returns to continue without the file's rows."""

SkippedRows = tuple[pa.RecordBatch, int]
"""Change rows of one scan, and the ordinals before these that are left out; see `Scanned`."""


def read_image_order(scan: FileScan, files: TableFiles, key: TableSchema | None) -> ImageOrder:
    """The image order of a change data file by itself. `key` is the schema of the key, if there is one. Raises what `read` does."""
    with files.open_scan(scan, [CHANGE_TYPE]) as (_, file):
        return ImageOrder.of(lambda: _types(file, scan, files, key))


def count_rows(scan: FileScan, files: TableFiles) -> int:
    """How many rows a scan of a data file returns, from the footer alone. Raises what `read` does."""
    with files.open_scan(scan) as (_, file):
        selection = selection_of(scan, files, file.metadata)
        return sum(selection.count_in(row, rows) for _, row, rows in selection.row_groups(file.metadata))


def count_images(scan: FileScan, files: TableFiles, key: TableSchema | None) -> ImageCounts:
    """How many rows of each change type a change data file has. `key` is the schema of the key. Raises what `read` does."""
    with files.open_scan(scan, [CHANGE_TYPE]) as (_, file):
        return ImageCounts.of(_types(file, scan, files, key))


def _types(file: DataFile, scan: FileScan, files: TableFiles, key: TableSchema | None) -> Iterator[Codes]:
    """The codes of the change types of a change data file."""
    check_change_type(file)
    if key is None:
        return codes_of(batch.column(0) for batch in file.batches([CHANGE_TYPE], rows=BATCH_ROWS))
    projection = files.projections.of(key, file.schema_arrow)
    constants = values.parse_partition(scan.partition_values, key)
    return codes_with_keys(
        (part.column(CHANGE_TYPE), columns)
        for batch in file.batches(projection.names(None), rows=BATCH_ROWS)
        for part, columns in projection.parts(batch, constants)
    )


def is_small(size: int) -> bool:
    """Whether one thread reads files of so many bytes faster than several. A size of 0 is unknown: the log does not say it."""
    return 0 < size <= SMALL_PLAN_BYTES


def raise_missing(error: MissingFileError) -> None:
    """The default for a file that is gone: reading ends with the error."""
    raise error


@contextmanager
def scan_errors(plan: ChangePlan, scan: FileScan, table: str, on_missing: OnMissingFile) -> Iterator[None]:
    """Errors raised inside name the table, its version and the file of a scan. A file that is gone is left to `on_missing`."""
    try:
        yield
    except MissingFileError as error:
        if plan.origin == "snapshot":
            error.hint = LIVE_HINT
        on_missing(error.within(table=table, version=plan.version))
    except CdfdError as error:
        raise error.within(table=table, version=plan.version, path=scan.path) from None


@dataclass(frozen=True, slots=True)
class ScanReader:
    """Reads scans. Threads of the daemon and Spark executors both call this.

    Attributes:
        files: the table's files.
        select: from a version's schema, the columns to read.
        batch_rows: rows of a batch, at most.
        on_missing: called if a file is gone.
        where: the filter of the rows: parts of a data file without a row for it are not read. None for all rows.
        threads: cores to use.
    """

    files: TableFiles
    select: Select
    batch_rows: int = BATCH_ROWS
    on_missing: OnMissingFile = raise_missing
    where: Predicate | None = None
    threads: int = 1

    def read(self, plan: ChangePlan, scan: FileScan, buffer: ReorderBuffer | None = None) -> Iterator[Scanned]:
        """The change rows of a scan, in the order of the file. Early rows of a change data file precede late ones (see `image_order`).

        Args:
            plan: of the scan.
            scan: what to read.
            buffer: keeps a change data file's late rows from the scan of the early phase to that of the late phase.

        Raises:
            MissingFileError: the data file or deletion vector is gone, and `on_missing` raises the error.
            DataError: the file is truncated, corrupt, or does not match the schema.
            LogError: a partition value does not parse.
            PathError: the file lies outside the table.
            UnsupportedError: a column has the name of a change column.
        """
        use_threads = self.threads > 1 and not is_small(scan.size)
        # The filter leaves out parts of data files. Change data files are read whole.
        files, where = self.files, None if scan.change_type is None else self.where
        with scan_errors(plan, scan, files.storage.uri, self.on_missing):
            schema = self.schema_of(plan, scan)
            if scan.image_phase == "late" and buffer is not None and buffer.reread_from is None:
                for rows, skipped in _with_gap_first(buffer, buffer.drain()):
                    yield Scanned(((plan, rows.num_rows),), schema, rows, skipped)
                return
            with files.open_scan(scan, [CHANGE_TYPE]) as (source, file):
                skips = scan.only is not None or scan.piece is not None or where is not None
                if not skips:
                    prefetch_columns(
                        source, file, files.projections.of(schema, file.schema_arrow).names(scan.change_type)
                    )
                reader = FileReader.prepare(file, schema, scan, files)
                excluded = frozenset[int]()
                if where is not None:
                    from cdfd.scan.group_pruning import excluded_groups

                    excluded = excluded_groups(reader, schema, where)
                if skips:
                    wanted = {group for _, groups in reader.row_groups() for group in groups}
                    prefetch_columns(source, file, reader.names, wanted - excluded)
                options = self.batch_rows, use_threads
                if scan.change_type is None and scan.image_phase != "as_written":
                    types = partial(_types, file, scan, files, plan.key_schema)
                    buffer = ReorderBuffer(pairs=scan.pairs) if buffer is None else buffer
                    batches = _in_image_order(reader, scan, types, buffer, options)
                elif excluded:
                    from cdfd.scan.group_pruning import kept_batches

                    batches = kept_batches(reader, excluded, *options)
                else:
                    batches = zip(reader.batches(*options), repeat(0))
                for rows, skipped in batches:
                    yield Scanned(((plan, rows.num_rows),), schema, rows, skipped)

    def schema_of(self, plan: ChangePlan, scan: FileScan) -> TableSchema:
        """The schema to read a scan in, with the selected columns. UnsupportedError if one has the name of a change column."""
        schema = self.select(scan.schema or plan.schema)
        if shared := {child.name for child in schema.struct}.intersection(CHANGE_NAMES):
            shared_names = ", ".join(sorted(shared))
            raise UnsupportedError(
                f"the table has columns with the names of change columns: {shared_names}",
                hint="Leave them out with `columns`: a table of change rows cannot be followed as it is",
            )
        return schema


def _in_image_order(
    reader: FileReader,
    scan: FileScan,
    types: Callable[[], Iterator[Codes]],
    buffer: ReorderBuffer,
    options: tuple[int, bool],
) -> Iterator[SkippedRows]:
    """The rows of a change data file, whose change types are `types`, in the phase of its scan."""
    if buffer.order is None:
        buffer.order = ImageOrder.of(types, pairs=buffer.pairs)
    order = buffer.order
    if buffer.needs_pairs and not order.by_key:
        return iter(())
    if order.late and not (order.in_order and scan.image_phase is None):
        return _in_phases(reader, scan.image_phase, order.late, buffer, options)
    buffer.reread_from = None
    if scan.image_phase == "late":
        return iter(())
    if order.late_starts_with_post:
        return _split_at(reader.batches(*options), order.late.min())
    return zip(reader.batches(*options), repeat(0))


def _in_phases(
    reader: FileReader, image_phase: ImagePhase | None, late: RowSet, buffer: ReorderBuffer, options: tuple[int, bool]
) -> Iterator[SkippedRows]:
    """Rows of a change data file: those of one phase, or those of the early phase and then those of the late one."""
    count = reader.file.metadata.num_rows
    if image_phase != "late" and len(late) < count:
        yield from zip(buffer.split(reader.batches(*options), late), repeat(0))
        if buffer.reread_from is not None:
            selection = RowSelection(RowSet.of(range(buffer.reread_from, count)), late)
            others = replace(reader, selection=selection)
            yield from zip(others.batches(*options), repeat(0))
    if image_phase != "early":
        batches = buffer.drain()
        if buffer.reread_from is not None:
            selection = RowSelection(late.difference(RowSet.of(range(buffer.reread_from))))
            others = replace(reader, selection=selection)
            batches = chain(batches, others.batches(*options))
        yield from _with_gap_first(buffer, batches)


def _with_gap_first(buffer: ReorderBuffer, batches: Iterator[pa.RecordBatch]) -> Iterator[SkippedRows]:
    gap = buffer.order is not None and buffer.order.late_starts_with_post
    for batch in batches:
        yield batch, int(gap)
        gap = False


def _split_at(batches: Iterator[pa.RecordBatch], row: int | None) -> Iterator[SkippedRows]:
    """The batches, split before that row of the file, with a gap before it. None for no split."""
    first = 0
    for batch in batches:
        last = first + batch.num_rows
        if row is None or not first <= row < last:
            yield batch, 0
        else:
            if row > first:
                yield batch.slice(0, row - first), 0
            yield batch.slice(row - first), 1
        first = last
