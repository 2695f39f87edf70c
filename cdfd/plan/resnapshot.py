"""Which files of an incremental snapshot are published, while the table changes. Pure.

An incremental snapshot publishes the files that are live at one version S, numbered in the order of their paths. The stream continues.
Each file is read when the stream has reached a version at which the file is still live, exactly as it was at S:

1. Files are published in the order of their numbers, between versions of the stream.
2. Before a version is delivered that removes files, those of them that are not published yet are published first. A new deletion vector
   removes a file, too. A remove that names another deletion vector removes it as well.
3. Before a version is delivered that brings a published file back (RESTORE), all files up to it are published, so that the first
   number that is left is higher.

So no row is left out: its file is published, or the version that brought its file is delivered by the stream. And no row is published twice.

After a restart, the files that are not published are those from `next` on that are still live: by rule 2, a file that is gone was published.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.delta.actions import Add, Remove
from cdfd.delta.commit import Commit
from cdfd.delta.files import PackedFiles
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import LiveScans
from cdfd.model.version import Touched
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import to_numpy

CHUNK_BYTES, CHUNK_FILES = 32 << 20, 1000
"""Limits of the files of one chunk, between which the stream delivers its versions. A larger file is a chunk of its own."""


class NumberedFiles:
    """The live files of a version, in the order of their paths. Immutable.

    Args:
        scans: the plan of the version's live rows.
    """

    def __init__(self, scans: LiveScans) -> None:
        self.scans = scans
        combined = scans.files.paths.combine_chunks()
        self._paths: pa.Array = combined if isinstance(combined, pa.Array) else combined.chunk(0)

    def __len__(self) -> int:
        return len(self.scans)

    def touched(self, commit: Commit) -> Touched:
        """The files that a commit touches. Costs the commit's actions."""
        removed, added = set(self._numbers(commit.removes)), set(self._numbers(commit.adds))
        returned = {number for number, same in added if same}
        # Some deployed writers remove a file with another deletion vector than it has, and mean the file. If it was removed before, nothing
        # of it is left to publish. A file that is both removed and added stays: the writer replaced the entry, not the file.
        gone = {number for number, _ in removed} - returned
        return Touched(tuple(sorted(gone)), tuple(sorted(returned - {number for number, same in removed if same})))

    def live_in(self, files: PackedFiles[Add]) -> npt.NDArray[np.bool_]:
        """For each file, whether it is among the live files of another version, as it was."""
        live = np.zeros(len(self), np.bool_)
        others = files.table.filter(pc.is_in(files.paths, value_set=self._paths))
        numbers = pc.index_in(others.column("path"), value_set=self._paths)
        own = PackedFiles(Add, self.scans.files.table.take(numbers))
        same = [key == other for key, other in zip(own.keys(), PackedFiles(Add, others).keys(), strict=True)]
        live[to_numpy(numbers)[np.array(same, np.bool_)]] = True
        return live

    def _numbers(self, actions: Iterable[Add | Remove]) -> Iterator[tuple[int, bool]]:
        """The numbers of the files with the paths of actions, and whether the deletion vector is the same."""
        for action in actions:
            # Files are numbered in the order of their paths as UTF-8.
            encoded = action.path.encode("utf-8", "surrogatepass")
            place = bisect_left(self._paths, encoded, key=lambda path: path.as_py().encode("utf-8", "surrogatepass"))
            if place < len(self._paths) and self._paths[place].as_py() == action.path:
                vector = self.scans[place].without
                yield place, action.key == (action.path, None if vector is None else vector.unique_id)


class PendingFiles:
    """The files of an incremental snapshot that are not published yet.

    Args:
        files: all files.
        selected: for each file, whether the incremental snapshot publishes it.
        live: for each file, whether it is live where the stream is.
        next: files before this number are published.
        chunk_bytes: limit of the files of a chunk.
    """

    def __init__(
        self,
        files: NumberedFiles,
        selected: npt.NDArray[np.bool_],
        live: npt.NDArray[np.bool_],
        next: int,
        chunk_bytes: int,
    ) -> None:
        self._files = files
        self._selected = selected
        self._pending = selected & live
        self._pending[:next] = False
        self._next = next
        self._chunk_bytes = chunk_bytes

    @property
    def selected(self) -> int:
        """How many files the incremental snapshot publishes."""
        return int(np.count_nonzero(self._selected))

    def __len__(self) -> int:
        return int(np.count_nonzero(self._pending))

    def in_order(self, until: int | None = None) -> list[int]:
        """The next chunk: numbers of files, below `until`."""
        return self._chunk(np.flatnonzero(self._pending[:until])[:CHUNK_FILES].tolist())

    def before(self, touched: Touched) -> list[int]:
        """The files that must be published before a version is delivered that removes them."""
        return [number for number in touched.removed if self._pending[number]]

    def until(self, touched: Touched) -> int:
        """The number up to which files must be published in order before a version is delivered that brings published ones back."""
        back = (each for each in touched.returned if self._selected[each] and not self._pending[each])
        return max((each + 1 for each in back if each >= self._next), default=0)

    def chunks(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Files in chunks."""
        remaining = list(numbers)
        while remaining:
            chunk = self._chunk(remaining[:CHUNK_FILES])
            yield chunk
            remaining = remaining[len(chunk) :]

    def published(self, numbers: Sequence[int]) -> None:
        """These files are published."""
        self._pending[list(numbers)] = False

    def advance(self, next: int) -> None:
        """Files before this number are published."""
        self._next = max(self._next, next)

    def scans(self, numbers: Sequence[int]) -> tuple[FileScan, ...]:
        """The scans of files."""
        return tuple(self._files.scans[number] for number in numbers)

    def _chunk(self, numbers: list[int]) -> list[int]:
        size = 0
        for count, number in enumerate(numbers):
            size += self._files.scans[number].size
            if count and size > self._chunk_bytes:
                return numbers[:count]
        return numbers
