"""Runs of row ids, and which rows of a version only moved. Pure.

A *run* is some rows of a file that follow each other, whose ids follow each other, too, and whose commit version is the same. Writers copy
rows in order, so a rewritten file has few runs:

    row of the file   0  1  2  3  4        runs   id 40, 2 rows, version 1, row 0
    row id           40 41 42 43 44               id 42, 1 row,  version 2, row 2
    commit version    1  1  2  1  1               id 43, 2 rows, version 1, row 3

Runs are matched as intervals. Where rows were shuffled, most runs have one row. Then the rows themselves are matched, which is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from cdfd.delta.roaring import RowSet
from cdfd.runtime.arrays import array_of, to_numpy
from cdfd.scan.updates.equality import Integers, dense
from cdfd.scan.updates.matching import by_row_id

BLOCK_BITS = 20
"""Row ids of a block of 2^20 are in the same bucket: writers give rows of a file consecutive ids. No run goes beyond a block."""

LONG = 4
"""Rows of a run on average, from which on runs are matched as intervals."""

RUNS = pa.schema(
    [("id", pa.int64()), ("count", pa.int64()), ("version", pa.int64()), ("source", pa.int32()), ("row", pa.int64())]
)


class RepeatedRowId(Exception):
    """Two rows have the same id.

    Attributes:
        row_id: the id.
        source: number of a source that has it.
    """

    def __init__(self, row_id: int, source: int) -> None:
        super().__init__(row_id)
        self.row_id, self.source = row_id, source


def bucket_of(ids: Integers, count: int) -> Integers | None:
    """The bucket of each id; None if there is only one."""
    return None if count == 1 else (ids >> BLOCK_BITS) % count


def within_bucket(ids: Integers, count: int) -> Integers:
    """Smaller numbers for the ids of a bucket: without the gaps that other buckets have left."""
    return ((ids >> BLOCK_BITS) // count << BLOCK_BITS) | (ids & ((1 << BLOCK_BITS) - 1)) if count > 1 else ids


def runs_of(source: int, rows: Integers, ids: Integers, versions: Integers) -> pa.RecordBatch:
    """The runs of some rows of a source, in the schema `RUNS`. The rows are in ascending order."""
    begins = np.ones(len(ids), np.bool_)
    begins[1:] = np.diff(ids) != 1
    begins[1:] |= np.diff(rows) != 1
    begins[1:] |= versions[1:] != versions[:-1]
    begins[1:] |= (ids[1:] & ((1 << BLOCK_BITS) - 1)) == 0
    starts = np.flatnonzero(begins)
    counts = np.diff(starts, append=len(ids))
    sources = np.full(len(starts), source, np.int32)
    columns = [ids[starts], counts, versions[starts], sources, rows[starts]]
    return pa.RecordBatch.from_arrays(list(map(array_of, columns)), schema=RUNS)


class Rows(NamedTuple):
    """Ranges of rows of sources: in each, `counts` rows from `rows` on."""

    sources: Integers
    rows: Integers
    counts: Integers


def not_moved(removed: pa.Table, added: pa.Table, buckets: int) -> Iterator[Rows]:
    """The rows of both sides of a bucket that did not only move: first those that were removed, then those that were added.

    Args:
        removed, added: runs, in the schema `RUNS`.
        buckets: their number.

    Raises:
        RepeatedRowId: an id is there twice on one side.
    """
    gone, come = _Runs.of(removed), _Runs.of(added)
    runs, rows = len(gone.ids) + len(come.ids), int(gone.counts.sum() + come.counts.sum())
    return _of_intervals(gone, come) if runs * LONG <= rows else _of_rows(gone, come, buckets)


def add_rows(targets: Sequence[BitMap64], rows_to_add: Rows) -> None:
    """Add ranges of rows to the set of their source."""
    order = np.lexsort((rows_to_add.rows, rows_to_add.sources))
    sources, rows, counts = (each[order] for each in rows_to_add)
    # Ranges that follow each other are one.
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (sources[1:] != sources[:-1]) | (rows[1:] != rows[:-1] + counts[:-1])
    starts = np.flatnonzero(begins)
    totals = np.add.reduceat(counts, starts) if len(starts) else counts
    sources, rows = sources[starts], rows[starts]
    ends = np.flatnonzero(np.diff(sources, append=-1)) + 1
    for start, end in zip([0, *ends], ends, strict=False):
        target = targets[sources[start]]
        if end - start == 1:
            target.add_range(int(rows[start]), int(rows[start] + totals[start]))
        else:
            target |= RowSet.of_array(_expand(rows[start:end], totals[start:end])).bitmap


@dataclass(frozen=True, slots=True)
class _Runs:
    ids: Integers
    counts: Integers
    versions: Integers
    sources: Integers
    rows: Integers

    @classmethod
    def of(cls, table: pa.Table) -> _Runs:
        return cls(*(np.asarray(to_numpy(table.column(name))) for name in table.column_names))

    def sort_by_id(self) -> _Runs:
        """By id.

        Raises:
            RepeatedRowId: two runs overlap.
        """
        order = np.argsort(self.ids, kind="stable")
        runs = _Runs(*(each[order] for each in (self.ids, self.counts, self.versions, self.sources, self.rows)))
        twice = np.flatnonzero(runs.ids[1:] < runs.ids[:-1] + runs.counts[:-1])
        if len(twice):
            second = int(twice[0]) + 1
            raise RepeatedRowId(int(runs.ids[second]), int(runs.sources[second]))
        return runs


def _of_intervals(gone: _Runs, come: _Runs) -> Iterator[Rows]:
    sides = [gone.sort_by_id(), come.sort_by_id()]
    bounds = np.unique(np.concatenate([each for side in sides for each in (side.ids, side.ids + side.counts)]))
    starts, lengths = bounds[:-1], np.diff(bounds)
    places = [_place(side, starts) for side in sides]
    both = (places[0] >= 0) & (places[1] >= 0)
    moved = np.zeros(len(starts), np.bool_)
    moved[both] = sides[0].versions[places[0][both]] == sides[1].versions[places[1][both]]
    for side, place in zip(sides, places, strict=True):
        left = (place >= 0) & ~moved
        runs = place[left]
        yield Rows(side.sources[runs], side.rows[runs] + starts[left] - side.ids[runs], lengths[left])


def _place(runs: _Runs, starts: Integers) -> Integers:
    """For each id, the run that has it, or -1."""
    if not len(runs.ids):
        return np.full(len(starts), -1, np.int64)
    places = np.searchsorted(runs.ids, starts, "right") - 1
    return np.where((places >= 0) & (starts < (runs.ids + runs.counts)[places]), places, -1)


def _of_rows(gone: _Runs, come: _Runs, buckets: int) -> Iterator[Rows]:
    ids = [_expand(side.ids, side.counts) for side in (gone, come)]
    codes = dense(within_bucket(np.concatenate(ids), buckets))
    split = len(ids[0])
    sides = codes[:split], codes[split:]
    for side, of_side, numbers in zip((gone, come), sides, ids, strict=True):
        if len(of_side) and np.bincount(of_side).max() > 1:
            order = np.argsort(of_side, kind="stable")
            second = int(order[1:][np.diff(of_side[order]) == 0].min())
            run = int(np.searchsorted(np.cumsum(side.counts), second, "right"))
            raise RepeatedRowId(int(numbers[second]), int(side.sources[run]))
    versions = [np.repeat(side.versions, side.counts) for side in (gone, come)]
    is_gone, is_come, *_ = by_row_id(*sides, *versions)
    for side, mask in ((gone, is_gone), (come, is_come)):
        rows = _expand(side.rows, side.counts)[mask]
        yield Rows(np.repeat(side.sources, side.counts)[mask], rows, np.ones(len(rows), np.int64))


def _expand(starts: Integers, counts: Integers) -> Integers:
    """The numbers of ranges: each start, and those that follow it."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()), dtype=np.int64)
