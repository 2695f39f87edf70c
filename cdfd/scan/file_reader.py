"""An open data file -> batches of its selected rows, as the table's columns.

Rows stay in Arrow buffers. Columns and hidden rows are resolved once per file, before its first batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from cdfd.delta.types import values
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import DataError
from cdfd.model.columns import CHANGE_TYPE, constant_type, types_as_written
from cdfd.model.file_scan import FileScan
from cdfd.scan.data_files import ColumnSizes, DataFile, Footer, SkipsRows, has_ability
from cdfd.scan.parquet.reader import FilesTogether
from cdfd.scan.projection import Projection
from cdfd.scan.row_selection import DAMAGED_HINT, RowSelection
from cdfd.scan.table_files import TableFiles
from cdfd.scan.updates.row_ids import ROW_ID, ROW_ID_FIELDS, ROW_VERSION, FileRowIds

BATCH_BYTES = 8 << 20
"""Uncompressed bytes of a batch, about: so a batch takes the same memory for rows of any width."""
BATCH_ROWS = 65_536
"""Rows of a batch, at most. With so many rows, the fixed cost of a batch is negligible."""


def rows_at_once(count: int, size: int, most: int = BATCH_ROWS) -> int:
    """How many rows a batch has, `most` at most, where `count` rows have so many bytes: about `BATCH_BYTES`, by their average size."""
    return max(1, min(most, BATCH_BYTES * count // max(size, 1)))


def check_change_type(file: DataFile | FilesTogether) -> None:
    """DataError unless a change data file has one column of change types."""
    count = file.schema_arrow.names.count(CHANGE_TYPE)
    if count != 1:
        raise DataError(f"the change data file has {count} _change_type columns instead of one")


@dataclass(frozen=True, slots=True)
class FileReader:
    """An open file, with columns, partition values and selected rows resolved.

    Attributes:
        file: the file.
        projection: of its columns.
        partition_values: by name of the column.
        change_type: of all rows; None if a column has it.
        selection: the rows to read.
        row_ids: where row ids are; None if they are not read. With them, rows have `ROW_ID_FIELDS` instead of a change type.
    """

    file: DataFile
    projection: Projection
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
        return cls(file, files.projections.of(schema, file.schema_arrow), partition_values, scan.change_type, selection)

    def batches(self, batch_rows: int, use_threads: bool) -> Iterator[pa.RecordBatch]:
        """The selected rows, in order."""
        metadata = self.file.metadata
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        if size > BATCH_BYTES and has_ability(self.file.__class__, ColumnSizes):
            size = cast(ColumnSizes, self.file).size_of(self.names)
        # The footer is not trusted: whatever it says, a batch has at most `batch_rows` rows.
        most = rows_at_once(int(metadata.num_rows), int(size), batch_rows)
        names, projection, ids = self.names, self.projection, self.row_ids
        schema = projection.row_schema if ids is None else pa.schema([*projection.schema, *ROW_ID_FIELDS])
        skips = ids is None and has_ability(self.file.__class__, SkipsRows)
        for row, groups in self.row_groups():
            # The rows of consecutive row groups to decode, if not all of them are.
            count = sum(metadata.row_group(group).num_rows for group in groups)
            runs = self.selection.runs(row, count) if skips else None
            if runs is None:
                batches = self.file.batches(names, groups, rows=most, use_threads=use_threads)
            else:
                file = cast(SkipsRows, self.file)
                batches = file.selected_batches(names, groups, runs, rows=most, use_threads=use_threads)
            selects = runs is None and (self.selection.only is not None or self.selection.without is not None)
            for batch in batches:
                if ids is not None:
                    batch = ids.extend(batch, row)
                first, row = row, row + batch.num_rows
                # pyarrow cannot filter views, but can filter the columns that are made from them.
                if selects and not projection.views:
                    batch = self.selection.filter(batch, first)
                for part, columns in projection.parts(batch, self.partition_values):
                    if ids is not None:
                        columns += [part.column(ROW_ID), part.column(ROW_VERSION)]
                    elif self.change_type is None:
                        columns.append(types_as_written(part.column(CHANGE_TYPE)))
                    else:
                        columns.append(constant_type(self.change_type, part.num_rows))
                    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
                    if selects and projection.views:
                        rows = self.selection.filter(rows, first)
                        first += part.num_rows
                    if rows.num_rows:
                        yield rows

    @property
    def names(self) -> list[str]:
        """Columns of the file to read."""
        names = self.projection.names(self.change_type)
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


def selection_of(scan: FileScan, files: TableFiles, metadata: Footer) -> RowSelection:
    """The rows of a file that a scan reads. Raises what `read` does."""
    # Deletion vectors name rows by their number in the file, which is counted over row groups.
    counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
        raise DataError(
            f"the file's footer says {metadata.num_rows} rows, its row groups say {sum(counts)}", hint=DAMAGED_HINT
        )
    rows = metadata.num_rows
    if scan.num_records not in (None, rows):
        raise DataError(f"the file has {rows} rows, and the log says {scan.num_records}", hint=DAMAGED_HINT)
    vectors = files.vector_rows(scan.only, rows), files.vector_rows(scan.without, rows)
    for vector in vectors:
        last = None if vector is None else vector.max()
        if last is not None and last >= rows:
            raise DataError(f"the deletion vector hides row {last} of a file of {rows} rows")
    only, without = vectors
    if only is not None and without is not None:
        # A row group of which the vectors leave no row is not read.
        only, without = only.difference(without), None
    return RowSelection(only, without, scan.piece)
