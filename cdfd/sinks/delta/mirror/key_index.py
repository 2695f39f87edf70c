"""Finds the rows of a mirror by the hashes of their keys.

The index is a list of sorted runs: the newest in memory, older ones on local disk. A new row is added to it. A deleted row stays in it until
runs are merged, because the deletion vectors say which rows are still there. The index belongs to one process: the next one reads the keys
of the target again.
"""

from __future__ import annotations

import numpy as np

from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.delta.mirror.sorted_run import Hashes, Keep, Rows, SortedRun, StoredRun

MEMORY_PAIRS = 1 << 21
"""Pairs in memory before they are written to disk."""
MOST_STORED = 8
"""Runs on disk. One more merges all of them."""


class KeyIndex:
    """Row numbers by hash.

    Args:
        space: local disk.
        keep: tells which rows are still there.
        memory: pairs in memory, at most.
    """

    def __init__(self, space: SpillSpace, keep: Keep, memory: int = MEMORY_PAIRS) -> None:
        self._space = space
        self._keep = keep
        self._memory = memory
        self._pending: list[tuple[Hashes, Rows]] = []
        self._pending_pairs = 0
        self._recent: list[SortedRun] = []
        self._stored: list[SortedRun] = []

    @property
    def pairs(self) -> int:
        """Pairs, with those of deleted rows that are not left out yet."""
        return self._pending_pairs + sum(map(len, (*self._recent, *self._stored)))

    def add(self, hashes: Hashes, first: int) -> None:
        """Add consecutive rows. `first` is the number of the first one.

        Raises:
            StorageError: they do not fit on the disk.
        """
        if len(hashes):
            self._pending.append((hashes, np.arange(first, first + len(hashes), dtype=np.int64)))
            self._pending_pairs += len(hashes)
            if self._pending_pairs + sum(map(len, self._recent)) >= self._memory:
                self._store()

    def find(self, wanted: Hashes) -> tuple[Rows, Rows]:
        """The rows with some hashes that are still there.

        Args:
            wanted: ascending, without repeats.

        Returns:
            For each row, the place of its hash in `wanted`, and its number.
        """
        self._sort_pending()
        found = [run.find(wanted) for run in (*self._stored, *self._recent)]
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        places, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        kept = self._keep(rows)
        return places[kept], rows[kept]

    def close(self) -> None:
        """Forget all rows, and return the disk space."""
        for run in self._stored:
            run.close()
        self._pending, self._recent, self._stored = [], [], []
        self._pending_pairs = 0

    def _sort_pending(self) -> None:
        if not self._pending:
            return
        hashes, rows = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._pending_pairs = [], 0
        self._recent.append(SortedRun.of(hashes, rows))
        # Each run is at least twice as large as the next one, so there are few, and a pair is merged few times.
        while len(self._recent) > 1 and len(self._recent[-2]) < 2 * len(self._recent[-1]):
            newer, older = self._recent.pop(), self._recent.pop()
            hashes = np.concatenate([older.hashes, newer.hashes])
            self._recent.append(SortedRun.of(hashes, np.concatenate([older.rows, newer.rows])))

    def _store(self) -> None:
        self._sort_pending()
        self._stored.append(StoredRun.merged(self._space, self._recent, self._keep))
        self._recent = []
        if len(self._stored) > MOST_STORED:
            merged = StoredRun.merged(self._space, self._stored, self._keep)
            for run in self._stored:
                run.close()
            self._stored = [merged]
