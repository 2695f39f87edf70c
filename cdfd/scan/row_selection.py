"""Row selection: which rows of a data file a scan reads, from deletion vectors and, for a part of a large file, its row groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.delta.roaring import RowSet
from cdfd.runtime.arrays import array_of
from cdfd.scan.data_files import Footer

DAMAGED_HINT = "The file is truncated or damaged: restore it, or rewrite it"
_MOST_ROWS = 1 << 24
_MOST_RUNS = 1 << 20


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows of one file that a scan reads; see `FileScan`.

    Attributes:
        only: rows to read; None for all.
        without: rows to leave out; None for none.
        piece: (number, of how many) of the piece of the file to read; None for all of it.
        groups: row groups to read; None for all.
    """

    only: RowSet | None = None
    without: RowSet | None = None
    piece: tuple[int, int] | None = None
    groups: frozenset[int] | None = None

    def row_groups(self, metadata: Footer) -> Iterator[tuple[int, int, int]]:
        """Row groups with at least one selected row: number, first row, number of rows."""
        groups = range(metadata.num_row_groups)
        mine: Collection[int] = groups
        if self.piece is not None:
            # The row groups of a piece are those whose middle, by uncompressed bytes, lies in it.
            number, pieces = self.piece
            sizes = [max(0, metadata.row_group(group).total_byte_size) for group in groups]
            whole = max(2 * sum(sizes), 1)
            places = [(2 * end - size) * pieces // whole for end, size in zip(accumulate(sizes), sizes, strict=True)]
            mine = {group for group, place in enumerate(places) if min(place, pieces - 1) == number}
        row = 0
        for group in groups:
            rows = metadata.row_group(group).num_rows
            is_selected = self.without is None or self.without.count(row, rows) < rows
            is_selected = is_selected and (self.only is None or self.only.count(row, rows) > 0)
            if is_selected and group in mine and (self.groups is None or group in self.groups):
                yield group, row, rows
            row += rows

    def count_in(self, row: int, rows: int) -> int:
        """How many of `rows` rows from row `row` on are selected."""
        if self.only is not None:
            return self.only.count(row, rows)
        return rows - (0 if self.without is None else self.without.count(row, rows))

    def mask(self, first_row: int, count: int) -> npt.NDArray[np.bool_] | None:
        """For each of `count` rows from row `first_row` of the file on, whether it is selected. None: all."""
        if self.only is None and self.without is None:
            return None
        keep = np.ones(count, dtype=bool) if self.only is None else self.only.mask(first_row, count)
        if self.without is not None:
            keep &= ~self.without.mask(first_row, count)
        return keep

    def runs(self, first_row: int, count: int) -> npt.NDArray[np.uint64] | None:
        """Of `count` rows from row `first_row` of the file on, how many are skipped, selected, skipped, and so on.

        None if all are selected, or if the runs are so many that filtering takes less time.
        """
        mask = self.mask(first_row, count) if count <= _MOST_ROWS else None
        if mask is None:
            return None
        bounds = np.flatnonzero(mask[1:] != mask[:-1]) + 1
        if len(bounds) > min(count // 5, _MOST_RUNS):
            return None
        starts = [] if count and not mask[0] else [0]  # a first run of no rows is skipped
        return np.diff(np.concatenate([[0], starts, bounds, [count]])).astype(np.uint64)

    def filter(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """The selected rows of a batch whose first row is row `first_row` of the file."""
        keep = self.mask(first_row, batch.num_rows)
        return batch if keep is None or keep.all() else batch.filter(array_of(keep))
