"""Lengths of an array column, whose runs are kept as runs until they are needed (specification, `trevni.array`).

A negative number is a run of lengths 0 or 1: -1 is two zeros, -2 two ones, -3 three zeros, -4 three ones. Five bytes can so be a thousand
million lengths, so they are expanded only for the rows that are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Lengths:
    """Consecutive lengths.

    Attributes:
        each: the length that each run repeats.
        ends: number of lengths up to the end of each run; None if no run has more than one.
    """

    each: Numbers
    ends: Numbers | None = None

    @classmethod
    def of(cls, numbers: Numbers) -> Lengths:
        """The lengths that numbers of a file stand for."""
        if not len(numbers) or numbers.min() >= 0:
            return cls(numbers)
        each = np.where(numbers < 0, (numbers + 1) & 1, numbers)
        counts = np.where(numbers < 0, ((1 - numbers) >> 1) + 1, 1)
        return cls(each, np.cumsum(counts))

    def __len__(self) -> int:
        if self.ends is None:
            return len(self.each)
        return int(self.ends[-1]) if len(self.ends) else 0

    def total(self, start: int, end: int) -> int:
        """The sum of the lengths `[start, end)`, without expanding them."""
        if self.ends is None:
            return int(self.each[start:end].sum())
        first, last = self._runs(start, end)
        return int((self.each[first:last] * self._counts(first, last, start, end)).sum())

    def expand(self, start: int, end: int) -> Numbers:
        """The lengths `[start, end)`."""
        if self.ends is None:
            return self.each[start:end]
        first, last = self._runs(start, end)
        return np.repeat(self.each[first:last], self._counts(first, last, start, end))

    def _runs(self, start: int, end: int) -> tuple[int, int]:
        """The runs with those lengths."""
        assert self.ends is not None
        if end <= start:
            return 0, 0
        return int(np.searchsorted(self.ends, start, "right")), int(np.searchsorted(self.ends, end)) + 1

    def _counts(self, first: int, last: int, start: int, end: int) -> Numbers:
        assert self.ends is not None
        ends = np.minimum(self.ends[first:last], end)
        before = np.empty_like(ends)
        if len(ends):
            before[0] = start
            before[1:] = ends[:-1]
        return ends - before


class Decoded(NamedTuple):
    """The content of some consecutive blocks.

    Attributes:
        lengths: of array columns; None for others.
        values: Arrow values. For booleans of a column with a parent, whose number the blocks do not say, all bits that there are.
    """

    lengths: Lengths | None
    values: pa.Array
