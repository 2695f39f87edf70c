"""Which row groups are read, from deletion vectors."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.changes.row_selection import RowSelection
from cdfd.delta.roaring import RowSet


def footer(groups: int, rows: int) -> pq.FileMetaData:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(groups * rows)}), sink, row_group_size=rows)
    return pq.read_metadata(io.BytesIO(sink.getvalue()))


def test_a_row_group_whose_rows_are_in_both_vectors_is_not_read() -> None:
    metadata, old, new = footer(3, 10), RowSet.of([1, 12, 25]), RowSet.of([1, 2, 12, 13])
    assert list(RowSelection(old, new).reduced().row_groups(metadata)) == [(2, 20, 10)]
    assert list(RowSelection(old, old).reduced().row_groups(metadata)) == []


def test_a_reduced_selection_has_the_same_rows() -> None:
    old, new = RowSet.of([1, 12, 25]), RowSet.of([1, 2, 12, 13])
    for selection in (RowSelection(old, new), RowSelection(old), RowSelection(None, new), RowSelection()):
        batch = pa.record_batch({"id": range(30)})
        assert selection.reduced().filter(batch, 0).equals(selection.filter(batch, 0))
