"""Splits of a version (`cdfd.scan.splits`), measured and read: in threads, or by the executors of a cluster.

    read_splits(splits, execution)           # the rows of execution.batches([plan])

To be measured, a split is not read: only footers, and the change types of change data files.

A snapshot of many files is cut into ranges of paths. The processes that read them list their files:

    splits = list(range_splits(ranges, plan, 10 << 30))     # small values, however many files
    splits[3].with_files(storage)                           # anywhere: the split with its files, from the checkpoint

The live files of a version, and not its checkpoint, decide the cut: it is the same at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from cdfd.deliver.path_ranges import PathRange, PathRanges
from cdfd.errors import CdfdError, DataError, MissingFileError
from cdfd.model.batch import ChangeBatch
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import Position
from cdfd.scan import splits as cutting
from cdfd.scan.execute import Execution
from cdfd.scan.image_order import ImageCounts
from cdfd.scan.read import count_images, count_rows, raise_missing
from cdfd.scan.splits import FILE_BYTES, Measured, Split
from cdfd.storage.base import Storage

MARK = "paths-"
"""How digests of ranges of paths begin. Those of splits of files are hexadecimal."""


def measure(split: Split, execution: Execution) -> Measured:
    """The contents of a split without its rows, for `place_splits`. Live files whose row counts are in the log are not opened.

    Raises:
        CdfdError: as `read` says; it names table, version and file. A file that is gone is for `execution.on_missing`. Also what
            `PathRange.files` raises.
    """
    split = list_files(split, execution.files.storage)
    if isinstance(split.plan.scans, LiveScans) and (noted := split.plan.scans.rows()) is not None:
        return Measured(noted)
    rows, images = 0, dict[str, ImageCounts]()
    uri, version = execution.files.storage.uri, split.plan.version
    for scan in split.looks or split.plan.scans:
        try:
            if scan.change_type is not None:
                rows += count_rows(scan, execution.files)
            elif split.looks:
                images[scan.path] = ImageCounts()
                images[scan.path] = count_images(scan, execution.files, split.plan.key_schema)
        except MissingFileError as error:
            execution.on_missing(error.within(table=uri, version=version))
        except CdfdError as error:
            raise error.within(table=uri, version=version, path=scan.path) from None
    return Measured(rows, images)


def read_splits(splits: Sequence[Split], execution: Execution) -> Generator[ChangeBatch, None, None]:
    """The change rows of splits, one after the other, as `execution.batches` gives them. Ordinals of one that is not placed count from 0.

    Raises:
        CdfdError: as `read` says; it names table, version and file.
        DataError: after its last row, a split that has other rows than was measured.
    """
    for run in _runs(splits):
        first = run[0]
        start = Position("", first.plan.version, ordinal=first.ordinal or 0)
        ends = {split.plan.version: split.ordinal or 0 for split in run}
        for batch in execution.batches([split.plan for split in run], start):
            ends[batch.plan.version] = batch.following
            yield batch
        # Rows of other splits have numbers by what was measured.
        for split in run if execution.on_missing is raise_missing else ():
            version = split.plan.version
            if split.following is not None and ends[version] != split.following:
                raise DataError(
                    f"rows up to number {ends[version]} were read, but the log or the files' footers promise {split.following}",
                    table=execution.files.storage.uri,
                    version=version,
                    hint="The statistics of a file are wrong. Write them again, or read without `_change_ordinal`",
                )


def _runs(splits: Sequence[Split]) -> Iterator[list[Split]]:
    """Splits that can be read as if they were whole versions: ordinals begin at 0 in each version after the first."""
    run: list[Split] = []
    for split in splits:
        if run and (split.ordinal != 0 or split.plan.version == run[-1].plan.version):
            yield run
            run = []
        run.append(split)
    if run:
        yield run


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSplit(Split):
    """A split whose plan has no scans until they are listed.

    Attributes:
        files: the range of paths.
        bytes: of its files.
    """

    files: PathRange
    bytes: int

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return self.bytes

    @property
    def count(self) -> int:
        """Number of its files."""
        return self.files.count

    def with_files(self, storage: Storage) -> Split:
        """The split with its scans; see `PathRange.files`."""
        files = self.files.files(storage)
        return Split(replace(self.plan, scans=LiveScans(files)), self.part, self.ordinal, self.following)


def list_files(split: Split, storage: Storage) -> Split:
    """A split with all of its scans. Raises what `PathRange.files` does."""
    return split.with_files(storage) if isinstance(split, RangeSplit) else split


def range_splits(ranges: PathRanges, plan: ChangePlan, limit: int) -> Iterator[RangeSplit]:
    """Splits of at most `limit` bytes or a single range, in order; `FILE_BYTES` are added to the bytes of each file."""
    part, ordinal = 0, None if ranges.rows is None else 0
    for first, end in ranges.runs(max(limit, FILE_BYTES)):
        files = ranges.between(first, end)
        following = None if ranges.rows is None else (ordinal or 0) + int(ranges.rows[first:end].sum())
        yield RangeSplit(plan, part, ordinal, following, files=files, bytes=int(ranges.bytes[first:end].sum()))
        part, ordinal = part + files.count, following


def digest(splits: Sequence[Split]) -> str:
    """A hash that identifies a cut: of ranges of paths by their bounds, files, bytes and ordinals, of others as `splits.digest` does."""
    ranges = [part for part in splits if isinstance(part, RangeSplit)]
    if not ranges:
        return cutting.digest(splits)
    summed = hashlib.sha256()
    for part in ranges:
        plan, files = part.plan, part.files
        identity = (plan.version, plan.timestamp_ms, part.part, files.count, part.bytes, part.ordinal, part.following)
        summed.update(repr((identity, files.lower, files.upper)).encode())
    return MARK + summed.hexdigest()[:16]
