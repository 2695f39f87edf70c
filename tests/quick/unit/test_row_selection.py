"""Which row groups are read, from deletion vectors."""

from __future__ import annotations

import io
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.delta.roaring import RowSet
from cdfd.scan.file_reader import selection_of
from cdfd.scan.row_selection import RowSelection


def footer(groups: int, rows: int) -> pq.FileMetaData:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(groups * rows)}), sink, row_group_size=rows)
    return pq.read_metadata(io.BytesIO(sink.getvalue()))


def selection(only: RowSet | None, without: RowSet | None, metadata: pq.FileMetaData) -> RowSelection:
    files: Any = SimpleNamespace(vector_rows=lambda vector, _: vector)
    scan: Any = SimpleNamespace(only=only, without=without, piece=None, num_records=None)
    return selection_of(scan, files, metadata)


def test_a_row_group_whose_rows_are_in_both_vectors_is_not_read() -> None:
    metadata, old, new = footer(3, 10), RowSet.of([1, 12, 25]), RowSet.of([1, 2, 12, 13])
    assert list(selection(old, new, metadata).row_groups(metadata)) == [(2, 20, 10)]
    assert list(selection(old, old, metadata).row_groups(metadata)) == []


def test_a_selection_has_the_rows_of_one_vector_that_are_not_in_the_other_one() -> None:
    metadata, batch = footer(3, 10), pa.record_batch({"id": range(30)})
    old, new = RowSet.of([1, 12, 25]), RowSet.of([1, 2, 12, 13])
    for only, without in ((old, new), (old, None), (None, new), (None, None)):
        expected = RowSelection(only, without).filter(batch, 0)
        assert selection(only, without, metadata).filter(batch, 0).equals(expected)


@pytest.mark.parametrize(("first", "count"), [(0, 400), (100, 250), (399, 1)])
@pytest.mark.parametrize(
    "rows", [range(0), range(400), range(1), range(399, 400), range(30, 90), [*range(5, 9), 20, 388]]
)
def test_runs_are_the_rows_of_the_mask(rows: Iterable[int], first: int, count: int) -> None:
    some = RowSet.of(rows)
    for selection in (RowSelection(only=some), RowSelection(without=some)):
        mask, runs = selection.mask(first, count), selection.runs(first, count)
        assert mask is not None
        assert runs is not None
        selected = np.zeros(len(runs), bool)
        selected[1::2] = True
        assert np.repeat(selected, runs.astype(np.int64)).tolist() == mask.tolist()


def test_rows_that_alternate_are_filtered() -> None:
    """A decoder that stops at every second row takes longer than one that decodes all of them."""
    assert RowSelection(only=RowSet.of(range(0, 400, 2))).runs(0, 400) is None
    assert RowSelection().runs(0, 400) is None
