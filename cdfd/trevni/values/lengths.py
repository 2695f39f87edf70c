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
        each, counts = self._runs(start, end)
        return int((each * counts).sum())

    def expand(self, start: int, end: int) -> Numbers:
        """The lengths `[start, end)`."""
        if self.ends is None:
            return self.each[start:end]
        return np.repeat(*self._runs(start, end))

    def _runs(self, start: int, end: int) -> tuple[Numbers, Numbers]:
        """The length that each of those runs repeats, and how often."""
        assert self.ends is not None
        first, last = 0, 0
        if end > start:
            first, last = int(np.searchsorted(self.ends, start, "right")), int(np.searchsorted(self.ends, end)) + 1
        ends = np.minimum(self.ends[first:last], end)
        before = np.empty_like(ends)
        if len(ends):
            before[0] = start
            before[1:] = ends[:-1]
        return self.each[first:last], ends - before


def sums(numbers: Numbers) -> Numbers:
    """0, the first, the first two, ..."""
    result = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=result[1:])
    return result


class Decoded(NamedTuple):
    """The content of some consecutive blocks.

    Attributes:
        lengths: of array columns; None for others.
        values: Arrow values. For booleans of a column with a parent, whose number the blocks do not say, all bits that there are.
    """

    lengths: Lengths | None
    values: pa.Array
