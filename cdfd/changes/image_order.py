"""Which rows of a version's change data files come first, so that whoever keeps the last change of each key keeps the right one.

Writers put the images of an update where it suits them. Spark writes them side by side, but in files of two partitions where the update moves
the row; delta-rs writes blocks of pre-images and of post-images, in either order; a MERGE or an overwrite of a part may insert a key in one
file that it deletes in another. Keys are not known here, so the rows of a version fall in two halves, and the late one follows the early one:

| images of the version            | early                              | late                 |
|----------------------------------|------------------------------------|----------------------|
| each with its other next to it   | deletes, and the images in pairs   | inserts              |
| any by itself                    | deletes, pre-images                | inserts, post-images |

Where one image is by itself, others that happen to meet may be of two rows: an update that swaps two rows' partitions writes

    p=0:  pre a, post b        p=1:  post a, pre b
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64, FrozenBitMap64

from cdfd.changes.columns import CHANGE_TYPES, types_from_file
from cdfd.delta.roaring import RowSet

INSERT, PRE_IMAGE, POST_IMAGE, DELETE = range(len(CHANGE_TYPES))
"""Positions in `CHANGE_TYPES`."""

HELD_BYTES = 32 << 20
"""Late rows of a version that wait in memory, at most; more are read a second time. A few batches: those in flight are as many."""

Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Halves:
    """The rows of a change data file.

    Attributes:
        paired: whether each image of an update has its other next to it, and they count as pairs.
        late: rows of the late half.
        in_order: whether the early ones come first in the file as it is.
        apart: whether the first late row is a post-image, which a pre-image must not seem to belong to.
    """

    paired: bool
    late: RowSet
    in_order: bool
    apart: bool

    @classmethod
    def of(cls, types: Callable[[], Iterable[pa.Array]], *, pairs: bool = True) -> Halves:
        """From the `_change_type` column, in pieces; memory is bounded by how much the rows alternate.

        Args:
            types: gives the column, each time it is called.
            pairs: False where images do not count as pairs, even if they look like some.

        Raises:
            DataError: a value that is no change type.
        """
        if pairs and (found := cls._of(types(), pairs=True)) is not None:
            return found
        found = cls._of(types(), pairs=False)
        assert found is not None
        return found

    @classmethod
    def _of(cls, types: Iterable[pa.Array], *, pairs: bool) -> Halves | None:
        """None where images should be pairs, and some are not: a post-image comes after each pre-image, and nowhere else."""
        late, row, apart, last = BitMap64(), 0, False, DELETE
        for codes in _codes(types):
            is_post = codes == POST_IMAGE
            if pairs and not _are_paired(codes, is_post, last):
                return None
            found = codes == INSERT
            if not pairs:
                found |= is_post
            if found.any():
                apart = apart if late else bool(is_post[found.argmax()])
                _add(late, row, found)
            row, last = row + len(codes), codes[-1]
        if pairs and last == PRE_IMAGE:
            return None
        return cls(pairs, RowSet(FrozenBitMap64(late)), not late or late.min() + len(late) == row, apart)


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """How many rows the halves of a change data file have.

    Attributes:
        rows: of the file.
        inserts, posts: how many of them are inserts and post-images.
        paired: whether each image of an update has its other next to it.
        apart: where it has not, whether the first late row is a post-image (see `Halves`).
    """

    rows: int = 0
    inserts: int = 0
    posts: int = 0
    paired: bool = True
    apart: bool = False

    @classmethod
    def of(cls, types: Iterable[pa.Array]) -> ImageCounts:
        """From the `_change_type` column, in pieces. DataError for a value that is no change type."""
        counts = np.zeros(len(CHANGE_TYPES), dtype=np.int64)
        paired, first_late, last = True, None, DELETE
        for codes in _codes(types):
            is_post = codes == POST_IMAGE
            paired = paired and _are_paired(codes, is_post, last)
            counts += np.bincount(codes, minlength=len(CHANGE_TYPES))
            is_late = is_post | (codes == INSERT)
            if first_late is None and is_late.any():
                first_late = codes[is_late.argmax()]
            last = codes[-1]
        return cls(
            int(counts.sum()),
            int(counts[INSERT]),
            int(counts[POST_IMAGE]),
            paired and last != PRE_IMAGE,
            first_late == POST_IMAGE,
        )

    def late(self, *, pairs: bool) -> int:
        """Rows of the late half, where images count as `pairs` or do not."""
        return self.inserts if pairs and self.paired else self.inserts + self.posts

    def gap(self, *, pairs: bool) -> int:
        """Ordinals that are left out before the late half."""
        return int(self.apart and not (pairs and self.paired))


def _are_paired(codes: Codes, is_post: npt.NDArray[np.bool_], last: int) -> bool:
    """Whether a post-image comes after each pre-image but the last row, and nowhere else; `last` is the row before."""
    return bool(is_post[0] == (last == PRE_IMAGE) and np.array_equal(is_post[1:], codes[:-1] == PRE_IMAGE))


def _codes(types: Iterable[pa.Array]) -> Iterator[Codes]:
    for column in types:
        if len(column):
            yield types_from_file(column).indices.to_numpy()


def _add(rows: BitMap64, first: int, found: npt.NDArray[np.bool_]) -> None:
    if found.all():
        rows.add_range(first, first + len(found))
    else:
        rows |= BitMap64(array("Q", (np.flatnonzero(found) + first).astype(np.uint64).tobytes()))


class Room:
    """How many bytes of rows may be held. Threads share it.

    Args:
        size: in bytes.
    """

    def __init__(self, size: int = HELD_BYTES) -> None:
        self._left = size
        self._lock = Lock()

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes; then they are taken."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
        return fits

    def give_back(self, size: int) -> None:
        """So many bytes are free again."""
        with self._lock:
            self._left += size


@dataclass(slots=True)
class Shelf:
    """Late rows of one file, which wait in memory until the early rows of all files are through.

    Attributes:
        room: of all files of a version.
        halves: of the file, once it is looked at.
        pairs: whether images of the file that look like pairs count as such.
        again: late rows from this one on are not held, and have to be read again; None where all are held, or there are none.
    """

    room: Room = field(default_factory=Room)
    halves: Halves | None = None
    pairs: bool = True
    again: int | None = 0
    _held: list[pa.RecordBatch] = field(default_factory=list)

    def part(self, batches: Iterator[pa.RecordBatch], late: RowSet) -> Iterator[pa.RecordBatch]:
        """The early rows of a file's batches, as long as there is room for the late ones; `again` tells how far it went."""
        row = 0
        for batch in batches:
            mask = late.mask(row, batch.num_rows)
            if mask.any():
                held = batch if mask.all() else batch.filter(pa.array(mask))
                if not self.room.take(held.nbytes):
                    self.again = row
                    return
                self._held.append(held)
            row += batch.num_rows
            if not mask.all():
                yield batch.filter(pa.array(~mask)) if mask.any() else batch
        self.again = None

    def take(self) -> Iterator[pa.RecordBatch]:
        """The late rows that are held."""
        while self._held:
            held = self._held.pop(0)
            self.room.give_back(held.nbytes)
            yield held
