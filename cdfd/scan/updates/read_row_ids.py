"""Reads row ids: alone, to find the rows that only moved, and with the rows that are left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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


def read_row_ids(
    scan: FileScan, files: TableFiles, tracking: RowTracking
) -> Iterator[tuple[Integers, Integers, Integers]]:
    """The row ids of the rows of a scan, batch by batch. Other columns are not read. Raises what `read` does.

    Yields:
        Numbers of rows in the file, ascending; the row id and the commit version of each.
    """
    with files.open_scan(scan) as (_, file):
        assert scan.row_ids is not None
        row_ids = FileRowIds.of(scan.row_ids, tracking, file.schema_arrow)
        selection = selection_of(scan, files, file.metadata)
        for group, first, count in selection.row_groups(file.metadata):
            # Without stored ids, nothing is read.
            batches = file.batches(row_ids.names, [group], rows=ID_ROWS) if row_ids.names else (None,)
            for batch in batches:
                ids, versions = row_ids.infer(first, count) if batch is None else row_ids.of_batch(batch, first)
                rows = np.arange(first, first + len(ids), dtype=np.int64)
                kept = selection.mask(first, len(ids))
                yield (rows, ids, versions) if kept is None else (rows[kept], ids[kept], versions[kept])
                first += len(ids)


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
