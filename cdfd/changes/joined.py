"""Reads small data files of a version together: files of one schema are joined in memory (`cdfd.parquet.joining`), and decoded as one.

The rows are the same, in the same order, but a batch has rows of several files. Each file that does not fit, is gone or is damaged is read by
itself, which gives its rows or the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.changes.columns import constant_type
from cdfd.changes.data_files import is_parquet
from cdfd.changes.plan import FileScan
from cdfd.changes.read import BATCH_BYTES, TableFiles
from cdfd.delta import values
from cdfd.delta.schema import TableSchema
from cdfd.errors import DataError
from cdfd.parquet.joining import FEW, Joined, joined
from cdfd.parquet.reader import opened

FILE_BYTES = 1 << 20
"""Bytes of a file, at most, to join it with others. Opening a larger one is a small part of reading it."""
JOINED_BYTES = 2 << 20
"""Bytes of files that are joined, at most."""
JOINED_FILES = 64
"""Files that are joined, at most."""


def groups_of(scans: Iterable[FileScan]) -> Iterator[Sequence[FileScan]]:
    """The scans in order: those of consecutive small files in one group, and each other scan by itself."""
    group, size = list[FileScan](), 0
    for scan in scans:
        fits = _is_joinable(scan)
        if group and not (
            fits
            and len(group) < JOINED_FILES
            and size + scan.size <= JOINED_BYTES
            and scan.change_type == group[0].change_type
            and scan.schema == group[0].schema
        ):
            yield from _parts(group)
            group, size = [], 0
        if fits:
            group.append(scan)
            size += scan.size
        else:
            yield (scan,)
    yield from _parts(group)


def _parts(group: list[FileScan]) -> Iterator[Sequence[FileScan]]:
    if len(group) >= FEW:
        yield group
    else:
        yield from ((scan,) for scan in group)


def _is_joinable(scan: FileScan) -> bool:
    return (
        scan.change_type is not None
        and 0 < scan.size <= FILE_BYTES
        and scan.only is None
        and scan.without is None
        and scan.piece is None
        and scan.row_ids is None
        and scan.bucket is None
        and is_parquet(scan.path)
    )


def read_joined(
    scans: Sequence[FileScan], schema: TableSchema, files: TableFiles, *, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The change rows of scans that `groups_of` put together, in order. Batches have the columns that `read` gives them.

    Raises:
        CdfdError, pa.ArrowException, OSError, ValueError, OverflowError, MemoryError: they cannot be read together from here on.
    """
    found = files.read_whole([scan.path for scan in scans], [scan.size for scan in scans])
    parts = () if found is None else joined(found)
    if not parts:
        raise DataError("the files differ")
    at = 0
    for part in parts:
        yield from _rows(part, scans[at : at + len(part.rows)], schema, files, batch_rows)
        at += len(part.rows)


def _rows(
    part: Joined, scans: Sequence[FileScan], schema: TableSchema, files: TableFiles, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    change_type = scans[0].change_type
    assert change_type is not None
    total, row = sum(part.rows), 0
    constants = _Constants(scans, part.rows, schema)
    most = max(1, min(batch_rows, BATCH_BYTES * total // max(part.size, 1)))
    with opened(pa.BufferReader(part.data), bounded=part.bounded) as file:
        layout = files.layouts.of(schema, file.schema_arrow)
        waiting: pa.RecordBatch | None = None
        for batch in file.batches(layout.names(change_type), rows=most):
            if waiting is not None:
                yield waiting
            columns = layout.projection.apply(batch, constants.of(row, batch.num_rows))
            types = constant_type(change_type, batch.num_rows)
            waiting = pa.RecordBatch.from_arrays([*columns, types], schema=layout.schema)
            row += batch.num_rows
    # Before the last batch is handed out, it is certain that there is no other row.
    if row != total or waiting is None:
        raise DataError(f"{row} rows were read of {total}")
    yield waiting


class _Constants:
    """Partition values of the rows of several files."""

    def __init__(self, scans: Sequence[FileScan], rows: Sequence[int], schema: TableSchema) -> None:
        self._starts = [0, *accumulate(rows)]
        first = scans[0].partition_values
        several = any(scan.partition_values != first for scan in scans)
        each = [values.parse_partition(scan.partition_values, schema) for scan in (scans if several else scans[:1])]
        self._same: dict[str, Any] = {} if several else each[0]
        self._each: dict[str, Any] = {}
        for child in schema.partition_fields if several else ():
            found = [values_of.get(child.name) for values_of in each]
            known = [value for value in found if value is not None]
            if known:
                self._each[child.name] = pa.array(
                    [None if value is None else value.as_py() for value in found], known[0].type
                )

    def of(self, row: int, count: int) -> dict[str, Any]:
        """The values for `count` rows from row `row` on."""
        if not self._each:
            return self._same
        ends = np.clip(self._starts, row, row + count)
        numbers = pa.array(np.repeat(np.arange(len(ends) - 1), np.diff(ends)))
        return {name: column.take(numbers) for name, column in self._each.items()}
