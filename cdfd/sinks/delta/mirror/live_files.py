"""The data files of a mirror, and the numbers of their rows: the first row of a file follows the last row of the file before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cdfd.delta.actions import Add
from cdfd.delta.deletion_vector import RowSet
from cdfd.sinks.delta.mirror.sorted_run import Rows


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file.

    Attributes:
        add: its action in the log.
        first: number of its first row.
        rows: how many it has, with deleted ones.
        deleted: rows that are deleted, by their position in the file; None: none.
    """

    add: Add
    first: int
    rows: int
    deleted: RowSet | None


@dataclass(eq=False)
class LiveFiles:
    """The files that were ever live, in the order in which they became it. A file that is not live any more keeps its numbers."""

    _files: list[LiveFile | None] = field(default_factory=list, init=False)
    _places: dict[str, int] = field(default_factory=dict, init=False)
    _firsts: list[int] = field(default_factory=list, init=False)
    _sorted: Rows | None = field(default=None, init=False)
    next_row: int = field(default=0, init=False)

    def rows_of(self, path: str) -> int | None:
        """How many rows a live file has, with deleted ones; None if there is no such file."""
        file = self._files[self._places[path]] if path in self._places else None
        return None if file is None else file.rows

    def append(self, add: Add, rows: int, deleted: RowSet | None) -> LiveFile:
        """A new file."""
        file = LiveFile(add, self.next_row, rows, deleted)
        self._places[add.path] = len(self._files)
        self._files.append(file)
        self._firsts.append(file.first)
        self._sorted = None
        self.next_row += rows
        return file

    def update(self, add: Add, deleted: RowSet | None) -> None:
        """Another action for a live file, with another deletion vector."""
        place = self._places[add.path]
        file = self._files[place]
        assert file is not None
        self._files[place] = replace(file, add=add, deleted=deleted)

    def remove(self, path: str) -> None:
        """A file that is not live any more, if it was."""
        place = self._places.pop(path, None)
        if place is not None:
            self._files[place] = None

    def exist(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """For each row number, whether the row is in a live file and is not deleted."""
        exist = np.zeros(len(rows), np.bool_)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for place, start, end in self._runs(ordered):
            file = self._files[place]
            if file is None:
                continue
            there = np.ones(end - start, np.bool_)
            if file.deleted is not None:
                there = ~contains(file.deleted, ordered[start:end] - file.first)
            exist[order[start:end]] = there
        return exist

    def split(self, rows: Rows) -> Iterator[tuple[LiveFile, Rows]]:
        """Ascending numbers of rows that exist, as positions in each file."""
        for place, start, end in self._runs(rows):
            file = self._files[place]
            assert file is not None
            yield file, rows[start:end] - file.first

    def _runs(self, ordered: Rows) -> Iterator[tuple[int, int, int]]:
        """The place of each file that has some of these rows, and where they start and end."""
        if not len(ordered):
            return
        if self._sorted is None:
            self._sorted = np.array(self._firsts, np.int64)
        # Files without rows share the number of the next file, which is the last of them.
        places = np.searchsorted(self._sorted, ordered, side="right") - 1
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(ordered)], strict=True):
            yield int(places[start]), int(start), int(end)


def contains(rows: RowSet, positions: Rows) -> npt.NDArray[np.bool_]:
    """For each position, whether a set has it. Costs the positions, and one pass over the set."""
    common = RowSet.of_array(np.unique(positions)).intersection(rows).to_array()
    return np.isin(positions, common, assume_unique=False)
