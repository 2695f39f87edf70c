"""The live files of a version in ranges of their paths, so that no process has to list all of them.

    bounds = sampled_bounds(live, storage)                 # cut the paths into ranges of similar size
    ranges = counted_ranges(live, bounds, storage, ...)    # how many files, bytes and rows each range has
    ranges.between(3, 7).files(storage)                    # the files of some ranges, by path: anywhere, from the checkpoint again

A snapshot has its files in order of their paths, and its rows have ordinals in that order. A checkpoint has its files in any order. So both
passes and each reader of ranges read the paths of the whole checkpoint, and keep only what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.delta.actions import Add
from cdfd.delta.checkpoint import counted
from cdfd.delta.files import FILES, TEXT, PackedFiles
from cdfd.delta.statistics import record_counts
from cdfd.errors import LogError
from cdfd.log.listing import Listing, LiveListing, without
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import LiveScans
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import array_of, scalar_of, to_numpy
from cdfd.scan.splits import FILE_BYTES, shares
from cdfd.storage.base import Storage

LARGE_BYTES: Final = 128 << 20
"""Bytes of a checkpoint from which its files are listed by ranges: these are one to two million, and would take a process 1 GB."""

SnapshotPlanning = Literal["auto", "driver", "executors"]
"""Which processes list the files of a snapshot. `auto`: executors, if the checkpoint has `LARGE_BYTES`."""

MOST_RANGES = 16_384
"""Ranges of a version, about. They have similar numbers of files, because their bounds are a sample of the paths. Another number is another
cut: jobs that an older release began could not go on.
"""

Counts: TypeAlias = npt.NDArray[np.int64]

RowCounter: TypeAlias = Callable[[Sequence[FileScan]], Iterator[int] | None]
"""Counts the rows of each of some files whose counts are not in the log; None: no rows of any file are counted then."""

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def least_bytes(planning: SnapshotPlanning) -> int:
    """Bytes of a checkpoint from which its files are listed by ranges, unless the driver lists them."""
    return LARGE_BYTES if planning == "auto" else 0


@dataclass(frozen=True, slots=True)
class PathRange:
    """The live files from one path up to another one. A value; it pickles, and is small.

    Attributes:
        listing: of the checkpoint.
        lower: the first path; None for the first one of all.
        upper: the path after the last one; None for the end.
        changed: paths of the range that commits after the checkpoint name.
        others: the live files with these paths.
        count: number of live files.
    """

    listing: Listing
    lower: str | None
    upper: str | None
    changed: tuple[str, ...]
    others: PackedFiles[Add]
    count: int

    def files(self, storage: Storage) -> PackedFiles[Add]:
        """The live files, by path, with their row counts, where the log has them. Reads the checkpoint.

        Raises:
            LogError: the checkpoint lists other files than when they were counted.
            CdfdError: the checkpoint cannot be read; it names table, version and file.
        """
        changed = array_of(self.changed, TEXT)
        listed = self.listing.batches(storage, with_stats=True)
        between = (_between(batch, self.lower, self.upper) for batch in listed)
        in_range = self.listing.kept(without(counted(batch), changed) for batch in between)
        files = PackedFiles(
            Add, pa.concat_tables([pa.Table.from_batches(in_range, FILES), self.others.table])
        ).by_path()
        if len(files) != self.count:
            raise LogError(
                f"the checkpoint lists {len(files)} files of a range, but {self.count} when the snapshot was planned",
                table=storage.uri,
                version=self.listing.version,
                hint="Another process wrote the checkpoint again. Start the read again",
            )
        return files


@dataclass(frozen=True, slots=True)
class PathRanges:
    """Ranges of paths, and how much is in them.

    Attributes:
        others: the live files whose paths commits after the checkpoint name.
        bounds: the paths between ranges, ascending. Range number i ends before bound number i; there is one more range than bounds.
        files, bytes: number of files, and their bytes, by range.
        rows: number of live rows by range; None if they are not counted.
    """

    live: LiveListing
    others: pa.Table
    bounds: pa.Array
    files: Counts
    bytes: Counts
    rows: Counts | None

    @property
    def weight(self) -> int:
        """Bytes of all files, and `FILE_BYTES` for each."""
        return int(self.bytes.sum() + FILE_BYTES * self.files.sum())

    def runs(self, limit: int) -> Iterator[tuple[int, int]]:
        """Runs of ranges, `[first, end)`, of at most `limit` bytes or a single range. Each has a file."""
        ends = np.cumsum(self.bytes + FILE_BYTES * self.files)
        first = 0
        while first < len(ends):
            before = ends[first - 1] if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + limit, "right")))
            if self.files[first:end].any():
                yield first, end
            first = end

    def between(self, first: int, end: int) -> PathRange:
        """Ranges `first` to `end`, not included, as one."""
        lower = self.bounds[first - 1].as_py() if first else None
        upper = self.bounds[end - 1].as_py() if end <= len(self.bounds) else None
        changed = _between(pa.record_batch([self.live.changed], names=["path"]), lower, upper)
        others = PackedFiles(Add, _between(self.others, lower, upper))
        count = int(self.files[first:end].sum())
        return PathRange(self.live.listing, lower, upper, tuple(changed.column(0).to_pylist()), others, count)


def sampled_bounds(live: LiveListing, storage: Storage, most: int = MOST_RANGES) -> pa.Array:
    """At most about `most` live paths, ascending, with similar numbers of files between them. Any checkpoint of the version gives the same.

    Raises:
        CdfdError: the checkpoint cannot be read; it names table, version and file.
    """
    # The sample is thinned out whenever it becomes too large, because the number of files is not known before.
    highest, sample = 2**64 - 1, array_of([], TEXT)
    for paths in live.paths(storage):
        sample = pa.concat_arrays([sample, _up_to(highest, paths)])
        while highest and len(sample) > 2 * most:
            highest >>= 1
            sample = _up_to(highest, sample.unique())
    sample = sample.unique()
    return sample.take(pc.sort_indices(sample))


def _up_to(highest: int, paths: pa.Array) -> pa.Array:
    """The paths whose pseudo-random number is at most `highest`."""
    # SplitMix64 of a checksum. Neither writers nor the order of a checkpoint have a say in it.
    encoded = paths.cast(pa.large_binary()).to_pylist()
    mixed = np.fromiter(map(crc32, encoded), np.uint64, len(encoded)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return paths.filter(array_of(mixed <= np.uint64(highest)))


def counted_ranges(live: LiveListing, bounds: pa.Array, storage: Storage, count_rows: RowCounter | None) -> PathRanges:
    """Files, bytes and rows of each range. Holds one batch of the checkpoint at a time.

    Args:
        count_rows: counts the rows of files that the log has no counts of. None if no rows are to be counted.

    Raises:
        CdfdError: the checkpoint cannot be read; it names table, version and file. Also what `count_rows` raises.
    """
    ranges = len(bounds) + 1
    files, sizes = np.zeros(ranges, np.int64), np.zeros(ranges, np.int64)
    rows = None if count_rows is None else np.zeros(ranges, np.int64)
    others = live.state.live().table
    checkpoint = live.listing.batches(storage, with_stats=count_rows is not None, with_partitions=False)
    for batch in chain((without(batch, live.changed) for batch in checkpoint), others.to_batches()):
        batch_files = PackedFiles(Add, pa.Table.from_batches([batch], FILES))
        numbers = range_numbers(bounds, batch.column("path"))
        np.add.at(files, numbers, 1)
        np.add.at(sizes, numbers, shares(LiveScans(batch_files)))
        if count_rows is not None and rows is not None:
            counts = _rows(batch_files, batch, count_rows)
            if counts is None:
                rows = None
            else:
                np.add.at(rows, numbers, counts)
    return PathRanges(live, others, bounds, files, sizes, rows)


def range_numbers(bounds: pa.Array, paths: pa.Array) -> Counts:
    """The number of the range of each path: how many bounds are not after it."""
    # A stable sort puts a bound before the paths that are equal to it.
    order = to_numpy(pc.sort_indices(pa.concat_arrays([bounds, paths])))
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(order < len(bounds))
    return numbers[len(bounds) :]


def _rows(files: PackedFiles[Add], batch: pa.RecordBatch, count_rows: RowCounter) -> Counts | None:
    """The live rows of each file; None if they are not counted."""
    hidden = pc.fill_null(pc.struct_field(batch.column("deletion_vector"), "cardinality"), 0)
    counts = pc.subtract(record_counts(batch.column("stats")), hidden)
    counted = to_numpy(pc.fill_null(pc.greater_equal(counts, 0), False))
    rows: Counts = to_numpy(pc.fill_null(counts, 0)).astype(np.int64)
    unknown = np.flatnonzero(~counted)
    if len(unknown):
        scans = LiveScans(PackedFiles(Add, files.table.take(array_of(unknown))))
        counted_rows = count_rows(scans)
        if counted_rows is None:
            return None
        rows[unknown] = list(counted_rows)
    return rows


def _between(rows: Rows, lower: str | None, upper: str | None) -> Rows:
    """The rows whose path is not before `lower`, and before `upper`."""
    paths = rows.column("path")
    after = None if lower is None else pc.greater_equal(paths, scalar_of(lower, TEXT))
    before = None if upper is None else pc.less(paths, scalar_of(upper, TEXT))
    masks = [mask for mask in (after, before) if mask is not None]
    return rows if not masks else rows.filter(masks[0] if len(masks) == 1 else pc.and_(*masks))
