"""How a version is cut: into splits that can be read anywhere, and into deliveries of whole scans. The same cut at any time. Pure.

    splits = plan_splits(plan, 128 << 20)
    if not all(each.is_placed for each in splits):
        splits = place_splits(plan, splits, [measure(each, execution) for each in splits])

`plan_splits` says what each split reads, from the log alone. Each but the first begins with a row whose number in the version is not known
yet. Where that is asked for, splits are measured (see `cdfd.deliver.splits`), and `place_splits` gives them ordinals.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.delta.statistics import record_counts
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import Position
from cdfd.runtime.arrays import to_numpy
from cdfd.scan.image_order import ImageCounts

FILE_BYTES = 128 << 10
"""Added to the bytes of each file: about as much is decoded while a file is opened."""

MOST_BYTES = 1 << 40
"""Upper bound of a file's weight, if the log claims more."""

MOST_PIECES = 1024
"""Of one file; opening it in each costs more than reading it, from there on. Numbers of deliveries depend on it: see `Assignment`."""


@dataclass(frozen=True, slots=True)
class Split:
    """Some scans of a version. A value; it pickles as what it holds, not as what it was cut from.

    Attributes:
        plan: the version's, with the scans of this split alone.
        part: scans of the version before this split, those that are cut in pieces among them.
        ordinal: `_change_ordinal` of its first row; None where it is not known.
        following: `_change_ordinal` of the row after its last one; None where it is not known.
        looks: change data files whose types are counted where this split is measured. Each file is looked at once.
        rows: number of its rows before any filter, if it was measured; None where it was not.
    """

    plan: ChangePlan
    part: int
    ordinal: int | None = None
    following: int | None = None
    looks: tuple[FileScan, ...] = ()
    rows: int | None = None

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return self.plan.size

    @property
    def count(self) -> int:
        """Number of its scans."""
        return len(self.plan.scans)

    @property
    def weight(self) -> int:
        """Bytes of its files, and `FILE_BYTES` for each."""
        return self.size + FILE_BYTES * self.count

    @property
    def is_placed(self) -> bool:
        """Whether it is known where its rows stand in the version."""
        return self.ordinal is not None


Part = tuple[int, Split]
"""A split, and the number under which it is delivered."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The contents of a split.

    Attributes:
        rows: of its scans of data files.
        images: by path, of the change data files that it looks at.
    """

    rows: int
    images: Mapping[str, ImageCounts] = field(default_factory=dict)


def plan_splits(
    plan: ChangePlan,
    limit: int,
    *,
    start: Position | None = None,
    end: int | None = None,
    ordered: bool = True,
) -> list[Split]:
    """Slices of at most `limit` bytes or a single scan, in order; a larger data file in pieces. A plan gives the same ones at any time.

    Args:
        plan: of a version.
        limit: bytes of files; each file weighs `FILE_BYTES` besides.
        start: where to begin, with the ordinal of the first row; None for the beginning.
        end: the number of the scan to end before; None for the end.
        ordered: False if neither the order of rows nor their ordinals are needed. No change data file is read twice then, unless the key
            orders its images: only neighbours are pairs.
    """
    part, ordinal = (0, 0) if start is None else (start.part, start.ordinal)
    stop = len(plan.scans) if end is None else min(end, len(plan.scans))
    scans = plan.scans[part:stop]
    whole = not ordered and not plan.key and len(scans) == len(plan.scans) and not isinstance(scans, LiveScans)
    if whole and scans and scans[0].change_type is None and scans[0].bucket is None:
        # Change data files, which are not read in halves.
        scans = tuple(replace(scan, image_phase="as_written") for scan in scans if scan.image_phase != "late")
    splits, seen = list[Split](), set[str]()
    for first, run in _scan_runs(scans, limit):
        first_known = not splits
        if run[0].bucket is not None:
            splits.append(
                Split(replace(plan, scans=run), part + first, ordinal if first_known else run[0].bucket.ordinal)
            )
            continue
        looks = dict[str, FileScan]()
        if run[0].change_type is None:
            looked_at = (*run, *plan.cross_partition) if first_known and len(scans) < len(plan.scans) else run
            looks = {scan.path: scan for scan in looked_at if scan.path not in seen}
            seen.update(looks)
        known = ordinal if first_known else None
        splits.append(Split(replace(plan, scans=run), part + first, known, None, tuple(looks.values())))
    return splits


def _scan_runs(scans: Sequence[FileScan], limit: int) -> Iterator[tuple[int, Sequence[FileScan]]]:
    """Runs of scans, each with the number of its first one."""
    ends = np.cumsum(shares(scans) + FILE_BYTES)
    start = 0
    while start < len(scans):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + limit, "right")))
        scan, pieces = scans[start], 1
        # An image phase is not a place in a file.
        is_divisible = scan.image_phase == "as_written" or (scan.change_type is not None and scan.image_phase is None)
        if end == start + 1 and is_divisible:
            pieces = min(-(-scan.share // max(limit, 1)), MOST_PIECES)
        if pieces > 1:
            for number in range(pieces):
                yield start, (replace(scan, piece=(number, pieces)),)
        else:
            yield start, scans[start:end]
        start = end


def shares(scans: Sequence[FileScan]) -> npt.NDArray[np.int64]:
    """Bytes of the files of each scan, at most `MOST_BYTES`."""
    if isinstance(scans, LiveScans):
        # A million files are no million objects.
        sizes = to_numpy(scans.files.table.column("size").fill_null(0))
        return np.clip(np.asarray(sizes, dtype=np.int64), 0, MOST_BYTES)
    return np.fromiter((max(0, min(scan.share, MOST_BYTES)) for scan in scans), np.int64, len(scans))


def place_splits(plan: ChangePlan, splits: Sequence[Split], measured: Sequence[Measured]) -> list[Split]:
    """The splits with the ordinals of their rows; executors need not look at other files than their own any more.

    Args:
        plan: what was cut, in order of its rows.
        splits: all that `plan_splits` gave, in order.
        measured: what `measure` says of each of them.
    """
    images = {path: counts for each in measured for path, counts in each.images.items()}
    pairs = not plan.cross_partition or all(counts.paired for counts in images.values())
    ordinal = (splits[0].ordinal or 0) if splits else 0
    placed = []
    for each, content in zip(splits, measured, strict=True):
        rows = content.rows + sum(_rows(scan, images, pairs) for scan in each.plan.scans)
        following = ordinal + rows + sum(_gap(scan, images, pairs) for scan in each.plan.scans)
        scans = each.plan.scans if pairs else tuple(replace(scan, pairs=False) for scan in each.plan.scans)
        there = replace(each.plan, scans=scans, cross_partition=())
        placed.append(replace(each, plan=there, ordinal=ordinal, following=following, looks=(), rows=rows))
        ordinal = following
    return placed


def _rows(scan: FileScan, images: Mapping[str, ImageCounts], pairs: bool) -> int:
    """Rows of a scan of a change data file."""
    if scan.change_type is not None:
        return 0
    counts = images[scan.path]
    late = counts.late(pairs=pairs)
    if scan.image_phase == "late":
        return late
    return counts.rows - late if scan.image_phase == "early" else counts.rows


def _gap(scan: FileScan, images: Mapping[str, ImageCounts], pairs: bool) -> int:
    """Ordinals without a row that a scan of a change data file takes up."""
    if scan.change_type is not None or scan.image_phase == "early":
        return 0
    return images[scan.path].gap(pairs=pairs)


def stages(splits: Sequence[Split]) -> Iterator[list[Part]]:
    """Parts that may be delivered side by side, and after all those of the stage before.

    Within a version a key may be deleted and inserted again. All deletes come before all inserts. A consumer that keeps the last change of
    each key has the right one: also where one part of a version arrives before another.
    """
    kinds = (
        {scan.image_phase if scan.change_type is None else scan.change_type for scan in split.plan.scans}
        for split in splits
    )
    for _, stage in groupby(zip(kinds, enumerate(splits), strict=True), lambda each: each[0]):
        yield [part for _, part in stage]


def digest(splits: Sequence[Split]) -> str:
    """A hash that identifies a cut of a version: the ordinals and the files at both ends of each split."""
    summed = hashlib.sha256()
    for part in splits:
        plan = part.plan
        ends = [(scan.path, scan.change_type, scan.image_phase, scan.piece) for scan in (plan.scans[0], plan.scans[-1])]
        told = (plan.version, plan.timestamp_ms, part.part, len(plan.scans), part.ordinal, part.following, ends)
        summed.update(repr(told).encode())
    return summed.hexdigest()[:16]


ROW_BYTES = 32
"""Bytes that a row counts for at least. Compressed rows may have a byte each, take as long as others, and a transaction has a time limit."""


def ranges(plan: ChangePlan, first: int, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of scans, `[start, end)`, from scan number `first` on, each of at most `limit` bytes or a single scan; see `ROW_BYTES`.

    A version without scans is one empty range: it is delivered too, so that the position moves on. Where a range ends depends on the scans
    from its start on only, so resuming at a range's start gives the ranges that were not delivered.
    """
    limit = min(limit, MOST_BYTES - 1)  # less than a file weighs whose size is bounded
    start, size = first, 0
    for begin in range(first, len(plan.scans), _SCANS_AT_ONCE):
        ends, before = np.cumsum(_weights(plan.scans[begin : begin + _SCANS_AT_ONCE])), 0
        while True:
            index = begin + int(np.searchsorted(ends, before + limit - size, "right"))
            if index == start:
                index += 1
            if index >= begin + len(ends):
                size += int(ends[-1]) - before
                break
            yield start, index
            start, size, before = index, 0, int(ends[index - begin - 1]) if index > begin else 0
    yield start, len(plan.scans)


def ranges_of_one_schema(plan: ChangePlan, first: int, limit: int) -> Iterator[tuple[int, int]]:
    """As `ranges`, which end where rows of another schema follow: a version that replaces the schema deletes rows of the earlier one."""
    for start, end in ranges(plan, first, limit):
        for cut in range(start + 1, end) if plan.earlier_schema is not None else ():
            if plan.scans[cut].schema != plan.scans[cut - 1].schema:
                yield start, cut
                start = cut
        yield start, end


_SCANS_AT_ONCE = 1 << 16


def _weights(scans: Sequence[FileScan]) -> npt.NDArray[np.int64]:
    """The bytes that each scan counts for; see `ROW_BYTES`."""
    if isinstance(scans, LiveScans):
        counts = [record_counts(chunk) for chunk in scans.files.table.column("stats").chunks]
        rows = to_numpy(pa.chunked_array(counts, pa.int64()).fill_null(0))
    else:
        rows = np.fromiter((scan.num_records or 0 for scan in scans), np.int64, len(scans))
    weights: npt.NDArray[np.int64] = np.maximum(shares(scans), ROW_BYTES * rows)
    return weights
