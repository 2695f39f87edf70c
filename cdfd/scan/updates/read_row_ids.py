"""Reads row ids: alone, to find the rows that only moved, and with the rows that are left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.types.schema import TableSchema
from cdfd.model.file_scan import FileScan
from cdfd.model.refinement import RowTracking
from cdfd.scan.data_files import prefetch_columns
from cdfd.scan.file_reader import BATCH_ROWS, FileReader, selection_of
from cdfd.scan.row_selection import RowSelection
from cdfd.scan.table_files import TableFiles
from cdfd.scan.updates.equality import Integers
from cdfd.scan.updates.row_ids import FileRowIds

ID_ROWS = 1 << 20
"""Rows of a batch of row ids."""


class IdBatch(NamedTuple):
    """Row ids of a run of rows of a file.

    Attributes:
        rows: numbers of the rows in the file, ascending.
        ids, versions: row id and commit version of each.
    """

    rows: Integers
    ids: Integers
    versions: Integers


def read_row_ids(scan: FileScan, files: TableFiles, tracking: RowTracking) -> Iterator[IdBatch]:
    """The row ids of the rows of a scan. Other columns are not read. Raises what `read` does."""
    with files.open_scan(scan) as (_, file):
        assert scan.row_ids is not None
        row_ids = FileRowIds.of(scan.row_ids, tracking, file.schema_arrow)
        selection = selection_of(scan, files, file.metadata)
        for group, start, count in selection.row_groups(file.metadata):
            if not row_ids.names:
                ids, versions = row_ids.infer(start, count)
                yield IdBatch(*_select(selection, start, ids, versions))
                continue
            row = start
            for batch in file.batches(row_ids.names, [group], rows=ID_ROWS):
                ids, versions = row_ids.of_batch(batch, row)
                yield IdBatch(*_select(selection, row, ids, versions))
                row += batch.num_rows


def _select(
    selection: RowSelection, first: int, ids: Integers, versions: Integers
) -> tuple[Integers, Integers, Integers]:
    rows = np.arange(first, first + len(ids), dtype=np.int64)
    kept = selection.mask(first, len(ids))
    return (rows, ids, versions) if kept is None else (rows[kept], ids[kept], versions[kept])


def read_with_ids(
    scan: FileScan,
    schema: TableSchema,
    files: TableFiles,
    tracking: RowTracking,
    rows: RowSet,
) -> Iterator[pa.RecordBatch]:
    """Some rows of a file: the table's columns, then `ROW_ID_FIELDS`. Row groups without such a row are skipped. Raises what `read` does."""
    with files.open_scan(scan) as (source, file):
        assert scan.row_ids is not None
        row_ids = FileRowIds.of(scan.row_ids, tracking, file.schema_arrow)
        reader = replace(FileReader.prepare(file, schema, scan, files), selection=RowSelection(rows), row_ids=row_ids)
        prefetch_columns(source, file, reader.names, {group for _, groups in reader.row_groups() for group in groups})
        yield from reader.batches(BATCH_ROWS, use_threads=False)
