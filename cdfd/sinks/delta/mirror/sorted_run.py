"""Pairs of a key's hash and a row's number, sorted by hash: in memory, or in files without names on local disk."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt

from cdfd.errors import StorageError
from cdfd.scan.updates.spill import SpillSpace

Hashes: TypeAlias = "npt.NDArray[np.uint64]"
Rows: TypeAlias = "npt.NDArray[np.int64]"
Keep = Callable[[Rows], "npt.NDArray[np.bool_]"]
"""For each row number, whether the row is still there."""

PAIR_BYTES = 16
_WINDOW_BYTES = 32 << 20
"""Bytes of a file that are mapped into memory at the same time, about."""


@dataclass(eq=False)
class SortedRun:
    """Pairs in ascending order of hash. A hash may repeat.

    Attributes:
        hashes, rows: the pairs, of equal length.
    """

    hashes: Hashes
    rows: Rows

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def of(cls, hashes: Hashes, rows: Rows) -> SortedRun:
        """From pairs in any order."""
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], rows[order])

    def find(self, wanted: Hashes) -> tuple[Rows, Rows]:
        """The pairs with some hashes.

        Args:
            wanted: ascending, without repeats.

        Returns:
            For each pair found, the place of its hash in `wanted`, and its row number. Places ascend.
        """
        hashes = self.hashes
        starts = np.searchsorted(hashes, wanted)
        places = np.flatnonzero(self._is_at(starts, wanted))
        starts = starts[places]
        ends = starts + 1
        repeats = np.flatnonzero(self._is_at(ends, wanted[places]))
        if not len(repeats):
            return places, self.rows[starts]
        ends[repeats] = np.searchsorted(hashes, wanted[places[repeats]], side="right")
        counts = ends - starts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(places, counts), self.rows[np.repeat(starts, counts) + within]

    def _is_at(self, places: Rows, wanted: Hashes) -> npt.NDArray[np.bool_]:
        is_inside = places < len(self.hashes)
        is_inside[is_inside] = self.hashes[places[is_inside]] == wanted[is_inside]
        return np.asarray(is_inside)

    def close(self) -> None:
        """Forget the pairs."""


class StoredRun(SortedRun):
    """A run in files. Only the parts in use are mapped into memory: see `release`."""

    def __init__(self, space: SpillSpace, files: Sequence[IO[bytes]], count: int) -> None:
        self._space = space
        self._files = files
        self._bytes = 0  # no space to return, if the files cannot be mapped
        self._maps = [mmap.mmap(file.fileno(), count * 8, access=mmap.ACCESS_READ) for file in files]
        self._bytes = count * PAIR_BYTES
        hashes, rows = self._maps
        super().__init__(np.frombuffer(hashes, np.uint64), np.frombuffer(rows, np.int64))

    @classmethod
    def merged(cls, space: SpillSpace, runs: Sequence[SortedRun], keep: Keep) -> SortedRun:
        """The pairs of several runs whose rows are still there, in files.

        Raises:
            StorageError: they do not fit on the disk.
        """
        with ExitStack() as unused:
            files = [space.open() for _ in range(2)]
            unused.callback(_close, files)
            count, taken = 0, sum(map(len, runs)) * PAIR_BYTES
            space.take(taken)
            try:
                for hashes, rows in _merge(runs, keep):
                    for file, part in zip(files, (hashes, rows), strict=True):
                        file.write(np.ascontiguousarray(part).data)
                    count += len(rows)
                for file in files:
                    file.flush()
                space.give_back(taken - count * PAIR_BYTES)
                taken = count * PAIR_BYTES
                if not count:
                    return SortedRun(np.zeros(0, np.uint64), np.zeros(0, np.int64))
                run = cls(space, files, count)
            except OSError as error:
                space.give_back(taken)
                raise StorageError(
                    f"the index of keys cannot be written: {error.strerror or error}",
                    hint="Free disk space, or set `spill.path`",
                ) from error
            unused.pop_all()
            return run

    def find(self, wanted: Hashes) -> tuple[Rows, Rows]:
        """The pairs with some hashes; see `SortedRun`."""
        # Hashes are spread evenly, so a part of the wanted ones touches the same part of the run.
        parts = -(-self._bytes // _WINDOW_BYTES) if len(wanted) > 256 else 1
        by_part = []
        for part in range(parts):
            start, end = len(wanted) * part // parts, len(wanted) * (part + 1) // parts
            places, rows = super().find(wanted[start:end])
            by_part.append((places + start, rows))
            self.release()
        all_places, all_rows = (np.concatenate(each) for each in zip(*by_part, strict=True))
        return all_places, all_rows

    def release(self) -> None:
        """Unmap what was read. It stays in the system's cache while there is memory."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Remove the files, and return the disk space."""
        self.hashes, self.rows = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        _close(self._files)
        self._maps = []
        self._files = ()
        self._space.give_back(self._bytes)
        self._bytes = 0

    def __del__(self) -> None:
        # The space is shared: an index without users must not fill it.
        if self._bytes:
            self.close()


def _close(files: Iterable[IO[bytes]]) -> None:
    for file in files:
        with suppress(OSError):  # what was not written yet may not fit on the disk
            file.close()


_PART = 1 << 20
"""Pairs that are merged at once."""


def _merge(runs: Sequence[SortedRun], keep: Keep) -> Iterator[tuple[Hashes, Rows]]:
    """The pairs of several runs in order, in parts. A hash is never in two parts."""
    parts = max(1, sum(map(len, runs)) // _PART)
    step = (1 << 64) // parts
    starts = [0] * len(runs)
    for part in range(1, parts + 1):
        end = np.uint64(part * step) if part < parts else None
        ends = [len(run) if end is None else int(np.searchsorted(run.hashes, end)) for run in runs]
        spans = list(zip(runs, starts, ends, strict=True))
        hashes = np.concatenate([run.hashes[start:stop] for run, start, stop in spans])
        rows = np.concatenate([run.rows[start:stop] for run, start, stop in spans])
        kept = keep(rows)
        if not kept.all():
            hashes, rows = hashes[kept], rows[kept]
        order = np.argsort(hashes, kind="stable")
        yield hashes[order], rows[order]
        starts = ends
        for run in runs:
            if isinstance(run, StoredRun):
                run.release()
