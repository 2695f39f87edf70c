"""One file scan -> record batches. Threads of the daemon and Spark executors both call this."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.types import values
from cdfd.delta.types.schema import TableSchema
from cdfd.model.columns import CHANGE_TYPE
from cdfd.model.file_scan import FileScan, ImagePhase
from cdfd.plan.shape.predicate import Predicate
from cdfd.scan.data_files import DataFile, prefetch_columns
from cdfd.scan.file_reader import BATCH_ROWS, FileReader, check_change_type, selection_of
from cdfd.scan.group_pruning import excluded_groups, kept_batches
from cdfd.scan.image_order import Codes, ImageCounts, ImageOrder, ReorderBuffer, codes_of, codes_with_keys
from cdfd.scan.row_selection import RowSelection
from cdfd.scan.table_files import TableFiles


def read_image_order(scan: FileScan, files: TableFiles, key: TableSchema | None) -> ImageOrder:
    """The image order of a change data file by itself. `key` is the schema of the key, if there is one. Raises what `read` does."""
    with files.open_scan(scan, [CHANGE_TYPE]) as (_, file):
        return ImageOrder.of(lambda: _types(file, scan, files, key))


def count_rows(scan: FileScan, files: TableFiles) -> int:
    """How many rows a scan of a data file returns, from the footer alone. Raises what `read` does."""
    with files.open_scan(scan) as (_, file):
        return selection_of(scan, files, file.metadata).count(file.metadata)


def count_images(scan: FileScan, files: TableFiles, key: TableSchema | None) -> ImageCounts:
    """How many rows of each change type a change data file has. `key` is the schema of the key. Raises what `read` does."""
    with files.open_scan(scan, [CHANGE_TYPE]) as (_, file):
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


class RowBatch(NamedTuple):
    """Change rows of one scan.

    Attributes:
        batch: the columns of the table, then `_change_type`.
        skipped: ordinals before these: of rows that the filter excludes and that are not read, or one before a post-image that does not
            belong to the row before it.
        moved: the first and the end of the rows that are images of updates which change the key.
    """

    batch: pa.RecordBatch
    skipped: int = 0
    moved: tuple[int, int] = (0, 0)


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
    with files.open_scan(scan, [CHANGE_TYPE]) as (source, file):
        skips = scan.only is not None or scan.piece is not None or (where is not None and scan.change_type is not None)
        if not skips:
            prefetch_columns(source, file, files.layouts.of(schema, file.schema_arrow).names(scan.change_type))
        reader = FileReader.prepare(file, schema, scan, files)
        excluded = frozenset[int]()
        if where is not None and scan.change_type is not None:
            excluded = excluded_groups(reader, schema, where)
        if skips:
            wanted = {group for _, groups in reader.row_groups() for group in groups}
            prefetch_columns(source, file, reader.names, wanted - excluded)
        if scan.change_type is None and scan.image_phase != "as_written":
            buffer = ReorderBuffer(pairs=scan.pairs) if reorder_buffer is None else reorder_buffer
            if buffer.order is None:
                buffer.order = ImageOrder.of(lambda: _types(file, scan, files, key), pairs=buffer.pairs)
            order = buffer.order
            if buffer.needs_pairs and not order.by_key:
                return
            if order.late and not (order.in_order and scan.image_phase is None):
                yield from _in_phases(reader, scan.image_phase, order.late, buffer, (batch_rows, use_threads))
                return
            buffer.reread_from = None
            if scan.image_phase == "late":
                return
            if order.late_starts_with_post:
                yield from _split_at(reader.batches(batch_rows, use_threads), order.late.min())
                return
        if excluded:
            for batch, skipped in kept_batches(reader, excluded, batch_rows, use_threads):
                yield RowBatch(batch, skipped)
        else:
            yield from map(RowBatch, reader.batches(batch_rows, use_threads))


def _in_phases(
    reader: FileReader, image_phase: ImagePhase | None, late: RowSet, buffer: ReorderBuffer, options: tuple[int, bool]
) -> Iterator[RowBatch]:
    """Rows of a change data file: those of one phase, or those of the early phase and then those of the late one."""
    count = reader.file.metadata.num_rows
    if image_phase != "late" and len(late) < count:
        yield from map(RowBatch, buffer.split(reader.batches(*options), late))
        if buffer.reread_from is not None:
            others = reader.of_rows(RowSelection(RowSet.of(range(buffer.reread_from, count)), late))
            yield from map(RowBatch, others.batches(*options))
    if image_phase != "early":
        batches = buffer.drain()
        if buffer.reread_from is not None:
            others = reader.of_rows(RowSelection(late.difference(RowSet.of(range(buffer.reread_from)))))
            batches = chain(batches, others.batches(*options))
        yield from _with_gap_first(buffer, batches)


def _with_gap_first(buffer: ReorderBuffer, batches: Iterator[pa.RecordBatch]) -> Iterator[RowBatch]:
    gap = buffer.order is not None and buffer.order.late_starts_with_post
    for batch in batches:
        yield RowBatch(batch, int(gap))
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
            yield RowBatch(batch.slice(row - first), 1)
        first = last
