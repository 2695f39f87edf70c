"""Image ordering: which rows of a version's change data files come first, so that consumers that keep the last change of a key are correct.

Writers put the images of an update in different places. Spark writes them side by side, except where the update moves the row to another
partition: then they are in two files. delta-rs writes a block of pre-images and a block of post-images, in either order. A MERGE or
partial overwrite may insert a key in one file and delete it in another. Keys are not known here, so a version is delivered in two phases:

| images of the version            | early phase                        | late phase           |
|----------------------------------|------------------------------------|----------------------|
| all in adjacent pairs            | deletes, and the paired images     | inserts              |
| any not in a pair                | deletes, pre-images                | inserts, post-images |

With a key, a pair whose key changes is taken apart, too: its post-image is late. So the row that has the new key until then is gone before.

If one image is not in a pair, other adjacent images may belong to different rows. An update that swaps the partitions of two rows writes

    p=0:  pre a, post b        p=1:  post a, pre b
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64, FrozenBitMap64

from cdfd.delta.roaring import RowSet
from cdfd.model.columns import CHANGE_TYPES, change_codes
from cdfd.runtime.arrays import array_of
from cdfd.scan.updates.equality import same

INSERT, PRE_IMAGE, POST_IMAGE, DELETE = range(len(CHANGE_TYPES))
"""Positions in `CHANGE_TYPES`."""

MOVED = len(CHANGE_TYPES)
"""The code of a post-image whose key is not that of the pre-image before it."""

LONE_IMAGE, NO_IMAGE = -1, -2
"""Numbers of rows that are in no pair of images."""

REORDER_BUFFER_BYTES = 32 << 20
"""Bytes of a version's late rows that wait in memory, at most; the rest is read a second time. It is about as much as is in flight."""

MOST_BLOCKS = 4
"""Boundaries between early and late rows of a batch, up to which its rows are not copied. Each slice is a batch for all that follows."""

KEPT_CODES = 4 << 20
"""Codes of change types to keep, of one byte each, at most."""

Codes = npt.NDArray[np.int8]
Blocks = tuple[list[pa.RecordBatch], list[pa.RecordBatch]]
"""Early rows, and late ones."""


@dataclass(frozen=True, slots=True)
class ImageOrder:
    """The order in which the rows of a change data file are delivered.

    Attributes:
        paired: whether all images of updates are in adjacent pairs, and count as pairs.
        late: rows of the late phase.
        in_order: whether all early rows precede all late ones in the file.
        late_starts_with_post: whether the first late row is a post-image; consumers must not pair it with the row before it.
        moves: whether a pair changes the key.
    """

    paired: bool
    late: RowSet
    in_order: bool
    late_starts_with_post: bool
    moves: bool = False

    @property
    def by_key(self) -> bool:
        """Whether all images of updates are in adjacent pairs of one key: nothing is left to match by the key."""
        return self.paired and not self.moves

    @classmethod
    def of(cls, types: Callable[[], Iterable[Codes]], *, pairs: bool = True) -> ImageOrder:
        """Computed from the change types, batch by batch. Memory depends on how often the rows alternate.

        Args:
            types: returns the codes of the change types from their start, each time it is called (see `codes_of`).
            pairs: False if adjacent images do not count as pairs.

        Raises:
            DataError: a value that is no change type.
        """
        codes: Iterable[Codes] = types()
        if pairs:
            source, first, rows = iter(codes), list[Codes](), 0

            def keep_first() -> Iterator[Codes]:
                """The codes. The first ones are kept, and not read again: the order is mostly known after a few of them."""
                nonlocal rows
                for each in source:
                    rows += len(each)
                    if rows <= KEPT_CODES:
                        first.append(each)
                    else:
                        first.clear()
                    yield each

            if (order := cls._of(keep_first(), pairs=True)) is not None:
                return order
            codes = chain(first, source) if rows <= KEPT_CODES else types()
        order = cls._of(codes, pairs=False)
        assert order is not None
        return order

    @classmethod
    def _of(cls, types: Iterable[Codes], *, pairs: bool) -> ImageOrder | None:
        """None if images should be pairs and some are not. In pairs, a post-image follows each pre-image and no other row."""
        late, row, starts_with_post, moves, last = BitMap64(), 0, False, False, DELETE
        for codes in types:
            is_moved, is_post = _posts(codes)
            if pairs and not _are_paired(codes, is_post, last):
                return None
            late_mask = (codes == INSERT) | (is_moved if pairs else is_post)
            if late_mask.any():
                starts_with_post = starts_with_post if late else bool(is_post[late_mask.argmax()])
                if late_mask.all():
                    late.add_range(row, row + len(late_mask))
                else:
                    late |= RowSet.of_array(np.flatnonzero(late_mask) + row).bitmap
            row, moves, last = row + len(codes), moves or bool(is_moved.any()), codes[-1]
        if pairs and last == PRE_IMAGE:
            return None
        in_order = not late or late.min() + len(late) == row
        return cls(pairs, RowSet(FrozenBitMap64(late)), in_order, starts_with_post, moves)


@dataclass(frozen=True, slots=True)
class ImageCounts:
    """How many rows of a change data file are read in each phase.

    Attributes:
        rows: all rows of the file.
        inserts, posts: how many of them are inserts and post-images.
        paired: whether all images of updates are in adjacent pairs.
        late_starts_with_post: if they are not, whether the first late row is a post-image (see `ImageOrder`).
        moved: how many post-images are of pairs whose key changes.
        late_starts_with_moved: if all images are paired, whether the first late row is such a post-image.
    """

    rows: int = 0
    inserts: int = 0
    posts: int = 0
    paired: bool = True
    late_starts_with_post: bool = False
    moved: int = 0
    late_starts_with_moved: bool = False

    @classmethod
    def of(cls, types: Iterable[Codes]) -> ImageCounts:
        """Counted from the codes of the change types, batch by batch."""
        counts = np.zeros(MOVED + 1, dtype=np.int64)
        paired, first_late, first_of_pairs, last = True, None, None, DELETE
        for codes in types:
            is_moved, is_post = _posts(codes)
            paired = paired and _are_paired(codes, is_post, last)
            counts += np.bincount(codes, minlength=MOVED + 1)
            is_insert = codes == INSERT
            first_late = _first(codes, is_post | is_insert) if first_late is None else first_late
            first_of_pairs = _first(codes, is_moved | is_insert) if first_of_pairs is None else first_of_pairs
            last = codes[-1]
        return cls(
            int(counts.sum()),
            int(counts[INSERT]),
            int(counts[POST_IMAGE] + counts[MOVED]),
            paired and last != PRE_IMAGE,
            first_late in (POST_IMAGE, MOVED),
            int(counts[MOVED]),
            first_of_pairs == MOVED,
        )

    def late(self, *, pairs: bool) -> int:
        """Rows of the late phase; `pairs` says whether adjacent images count as pairs."""
        return self.inserts + (self.moved if pairs and self.paired else self.posts)

    def gap(self, *, pairs: bool) -> int:
        """Ordinals that are skipped before the first late row."""
        return int(self.late_starts_with_moved if pairs and self.paired else self.late_starts_with_post)


def are_paired(codes: Codes) -> bool:
    """Whether all images of a file are in adjacent pairs. `codes` are of all its rows."""
    return _are_paired(codes, _posts(codes)[1], DELETE) and codes[-1] != PRE_IMAGE


def pair_numbers(codes: Codes, first: int) -> npt.NDArray[np.int64]:
    """For each row of a file the number of its pair, from `first` on, if all images are in adjacent pairs; else `LONE_IMAGE`.

    Other rows have `NO_IMAGE`.
    """
    pre = codes == PRE_IMAGE
    images = pre | (codes == POST_IMAGE)
    numbers = first + np.cumsum(pre) if len(codes) and are_paired(codes) else np.full(len(codes), LONE_IMAGE)
    return np.where(images, numbers, NO_IMAGE)


def late_rows(codes: Codes, *, pairs: bool) -> tuple[npt.NDArray[np.bool_], int | None]:
    """For each row of a file whether it is late, and the number of the first late row if that is a post-image.

    Args:
        codes: of all its rows.
        pairs: whether all its images are in adjacent pairs, and count as pairs.
    """
    is_moved, is_post = _posts(codes)
    late = (codes == INSERT) | (is_moved if pairs else is_post)
    first = int(late.argmax())
    return late, first if late[first] and is_post[first] else None


def _posts(codes: Codes) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """The post-images of pairs whose key changes, and all post-images."""
    is_moved = codes == MOVED
    return is_moved, is_moved | (codes == POST_IMAGE)


def _are_paired(codes: Codes, is_post: npt.NDArray[np.bool_], last: int) -> bool:
    """Whether a post-image follows each pre-image (the last row aside) and no other row; `last` is the type of the row before the first."""
    return bool(is_post[0] == (last == PRE_IMAGE) and np.array_equal(is_post[1:], codes[:-1] == PRE_IMAGE))


def _first(codes: Codes, chosen: npt.NDArray[np.bool_]) -> int | None:
    return int(codes[chosen.argmax()]) if chosen.any() else None


def codes_of(types: Iterable[pa.Array]) -> Iterator[Codes]:
    """The positions in `CHANGE_TYPES` of change types, batch by batch. DataError for a value that is no change type."""
    for column in types:
        if len(column):
            yield change_codes(column)


def codes_with_keys(batches: Iterable[tuple[pa.Array, Sequence[pa.Array]]]) -> Iterator[Codes]:
    """The same, with `MOVED` for post-images whose key is not that of the row before them.

    Args:
        batches: change types, and the columns of the key.
    """
    last: Sequence[pa.Array] | None = None
    for types, key in batches:
        if not len(types):
            continue
        codes = np.array(change_codes(types))
        columns = key
        if last is not None:
            columns = [pa.concat_arrays(pair) for pair in zip(last, key, strict=True)]
        first = len(columns[0]) - len(codes)
        posts = np.flatnonzero(codes == POST_IMAGE)
        # A post-image without a row before it has no pair, so that its key does not matter.
        posts = posts[posts + first > 0]
        if len(posts):
            changed = np.zeros(len(posts), np.bool_)
            now, before = array_of(posts + first), array_of(posts + first - 1)
            for column in columns:
                changed |= ~same(column.take(now), column.take(before))
            codes[posts[changed]] = MOVED
        last = [column.slice(len(column) - 1) for column in columns]
        yield codes


def divide(batch: pa.RecordBatch, late: npt.NDArray[np.bool_], *, copied: bool) -> Blocks:
    """The early rows and the late ones of a batch. Few blocks are slices, which are not copied; late ones are if that is wanted."""
    ends = np.flatnonzero(np.diff(late)) + 1
    if len(ends) > MOST_BLOCKS:
        return [batch.filter(array_of(~late))], [batch.filter(array_of(late))]
    blocks: Blocks = [], []
    for start, end in pairwise([0, *ends.tolist(), batch.num_rows]):
        blocks[bool(late[start])].append(batch.slice(start, end - start))
    # This copies, and needs no kernels, which a process imports in 50 ms.
    return (blocks[0], [pa.concat_batches(blocks[1])]) if copied and blocks[1] else blocks


class MemoryBudget:
    """Bytes of rows that may be buffered. Threads share it.

    Args:
        size: in bytes.
    """

    def __init__(self, size: int = REORDER_BUFFER_BYTES) -> None:
        self._left = size
        self._lock = Lock()

    def reserve(self, size: int) -> bool:
        """Reserve so many bytes; False, and nothing is reserved, if fewer are left."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
        return fits

    def release(self, size: int) -> None:
        """Return so many bytes to the budget."""
        with self._lock:
            self._left += size


@dataclass(slots=True)
class ReorderBuffer:
    """The late rows of one file. They wait in memory until the early rows of all files of the version are read.

    Attributes:
        budget: shared by all files of a version.
        order: of the file's rows, once it is known.
        pairs: whether adjacent images of the file count as pairs.
        needs_pairs: whether the file is read only if all its images are in adjacent pairs of one key.
        reread_from: late rows from this row on are not buffered and have to be read again; None if all are buffered, or there are none.
    """

    budget: MemoryBudget = field(default_factory=MemoryBudget)
    order: ImageOrder | None = None
    pairs: bool = True
    needs_pairs: bool = False
    reread_from: int | None = 0
    _buffered: list[pa.RecordBatch] = field(default_factory=list)

    def split(self, batches: Iterator[pa.RecordBatch], late: RowSet) -> Iterator[pa.RecordBatch]:
        """The early rows of a file's batches, as long as the late ones fit into the budget; `reread_from` is where that ended."""
        row = 0
        for batch in batches:
            count = batch.num_rows
            late_count = late.count(row, count)
            early_rows, late_rows = ([], [batch]) if late_count else ([batch], [])
            if 0 < late_count < count:
                # Slices hold the memory of the whole batch while they wait.
                early_rows, late_rows = divide(batch, late.mask(row, count), copied=2 * late_count < count)
            size = sum(rows.nbytes for rows in late_rows)
            if late_rows and not self.budget.reserve(size):
                self.reread_from = row
                return
            self._buffered += late_rows
            row += count
            yield from early_rows
        self.reread_from = None

    def drain(self) -> Iterator[pa.RecordBatch]:
        """The buffered late rows; each batch leaves the buffer."""
        while self._buffered:
            rows = self._buffered.pop(0)
            self.budget.release(rows.nbytes)
            yield rows
