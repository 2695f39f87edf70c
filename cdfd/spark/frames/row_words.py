"""Deletion vectors as columns of Spark: the bits of a set of rows, 64 in a word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdfd.delta.roaring import RowSet
from cdfd.errors import DataError
from cdfd.scan.table_files import TableFiles
from cdfd.spark.frames.groups import FileRows

UNKNOWN_ROWS = 1 << 48
"""Rows of a file, at most, if the log does not say how many it has."""


@dataclass(frozen=True, slots=True)
class RowWords:
    """A set of rows of a file.

    Attributes:
        first: number of the first word.
        words: bits of rows, the lowest of a word first.
        keeps: whether the rows of the set are read, or all others.
    """

    first: int
    words: npt.NDArray[np.int64]
    keeps: bool

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Rows of the set in each word."""
        return np.bitwise_count(self.words.view(np.uint64)).astype(np.int64)

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """Rows of the set up to each word, included."""
        return np.cumsum(self.counts)

    @classmethod
    def of(cls, rows: RowSet, *, keeps: bool) -> RowWords:
        """Those of a set."""
        low, high = rows.min(), rows.max()
        if low is None or high is None:
            return cls(0, np.zeros(0, np.int64), keeps)
        first = low >> 6
        mask = rows.mask(first << 6, ((high >> 6) - first + 1) << 6)
        return cls(first, np.packbits(mask, bitorder="little").view(np.int64), keeps)


def row_words(each: FileRows, files: TableFiles) -> RowWords:
    """The rows of a file that its deletion vectors select.

    Raises:
        DataError: a vector is missing or damaged, or names rows that the file does not have; it names version and file.
    """
    scan = each.scan
    rows = UNKNOWN_ROWS if scan.num_records is None else scan.num_records
    only, without = (files.vector_rows(vector, rows) for vector in each.vectors)
    for vector in (only, without):
        last = None if vector is None else vector.max()
        if last is not None and last >= rows:
            raise DataError(f"the deletion vector hides row {last} of a file of {rows} rows", path=scan.path)
    if only is not None:
        return RowWords.of(only if without is None else only.difference(without), keeps=True)
    assert without is not None
    return RowWords.of(without, keeps=False)
