"""A snapshot that is read in several micro-batches: of a large one, the driver lists the files of one window of paths at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cdfd.deliver.path_ranges import PathRanges
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.storage.base import Storage

WINDOW_FILES = 1 << 18
"""Files of a window, about. They take some 100 MB, and the checkpoint is read once for each window."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some scans of a snapshot, in order.

    Attributes:
        plan: of the snapshot, with these scans alone.
        first: number of the first scan in the snapshot.
        ordinal: of the first row.
        total: number of scans of the snapshot.
        after: bytes of files after the window.
    """

    plan: ChangePlan
    first: int
    ordinal: int
    total: int
    after: int

    @property
    def end(self) -> int:
        """The number of the scan after the last one."""
        return self.first + len(self.plan.scans)

    def within(self, position: Position) -> Position:
        """A position in the snapshot as one in the plan of the window."""
        return replace(position, part=position.part - self.first)


@dataclass(slots=True)
class SnapshotWindows:
    """The windows of a snapshot.

    Attributes:
        version: the snapshot; its plan has no scans if there are ranges.
        ranges: of its files, with the numbers of their rows; None: the snapshot is small, and one window has all of it.
        storage: of the table.
    """

    version: Version
    ranges: PathRanges | None
    storage: Storage
    _window: Window | None = field(default=None, repr=False)

    def at(self, part: int) -> Window:
        """The window with scan number `part`; the last one if there is no such scan.

        Raises:
            CdfdError: as `PathRange.files` says.
        """
        ranges, plan = self.ranges, self.version.plan
        if ranges is None:
            return Window(plan, 0, 0, len(plan.scans), 0)
        if self._window is not None and self._window.first <= part < self._window.end:
            return self._window
        self._window = None  # before the next one is read
        ends = np.cumsum(ranges.files)
        last = len(ends) - 1
        first = min(int(np.searchsorted(ends, part, "right")), last)
        before = int(ends[first] - ranges.files[first])
        end = max(first + 1, int(np.searchsorted(ends, before + WINDOW_FILES, "right")))
        files = ranges.between(first, end).files(self.storage)
        plan = replace(plan, scans=LiveScans(files))
        rows = 0 if ranges.rows is None else int(ranges.rows[:first].sum())
        self._window = Window(plan, before, rows, int(ends[last]), int(ranges.bytes[end:].sum()))
        return self._window
