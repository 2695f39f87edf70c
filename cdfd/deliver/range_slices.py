"""How a snapshot of many files is cut: into ranges of paths, whose files are listed by the processes that read them.

    slices = list(range_slices(ranges, plan, 10 << 30))     # small values, however many files
    slices[3].listed(storage)                               # anywhere: the slice with its files, from the checkpoint

The live files of a version, and not its checkpoint, decide the cut: it is the same at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdfd.deliver.path_ranges import PathRange, PathRanges
from cdfd.deliver.slices import measure
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.scan import splits as cutting
from cdfd.scan.execute import Execution
from cdfd.scan.splits import FILE_BYTES, Measured, Slice
from cdfd.storage.base import Storage

MARK = "paths-"
"""How digests of such cuts begin. Those of cuts by files are hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeSlice(Slice):
    """A slice whose plan has no scans until they are listed.

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

    def listed(self, storage: Storage) -> Slice:
        """The slice with its scans; see `PathRange.files`."""
        files = self.files.files(storage)
        return Slice(replace(self.plan, scans=LiveScans(files)), self.part, self.ordinal, self.following)


def listed(part: Slice, storage: Storage) -> Slice:
    """A slice with all of its scans. Raises what `PathRange.files` does."""
    return part.listed(storage) if isinstance(part, RangeSlice) else part


def listed_and_measured(part: Slice, execution: Execution) -> Measured:
    """The contents of a slice; see `measure`. Raises what `PathRange.files` does, too."""
    return measure(listed(part, execution.files.storage), execution)


def range_slices(ranges: PathRanges, plan: ChangePlan, limit: int) -> Iterator[RangeSlice]:
    """Slices of at most `limit` bytes or a single range, in order; `FILE_BYTES` are added to the bytes of each file."""
    part, ordinal = 0, None if ranges.rows is None else 0
    for first, end in ranges.runs(max(limit, FILE_BYTES)):
        files = ranges.between(first, end)
        following = None if ranges.rows is None else (ordinal or 0) + int(ranges.rows[first:end].sum())
        yield RangeSlice(plan, part, ordinal, following, files=files, bytes=int(ranges.bytes[first:end].sum()))
        part, ordinal = part + files.count, following


def digest(slices: Sequence[Slice]) -> str:
    """A hash that identifies a cut: of ranges of paths by their bounds, files, bytes and ordinals, of others as `cutting.digest` does."""
    ranges = [part for part in slices if isinstance(part, RangeSlice)]
    if not ranges:
        return cutting.digest(slices)
    summed = hashlib.sha256()
    for part in ranges:
        plan, files = part.plan, part.files
        held = (plan.version, plan.timestamp_ms, part.part, files.count, part.bytes, part.ordinal, part.following)
        summed.update(repr((held, files.lower, files.upper)).encode())
    return MARK + summed.hexdigest()[:16]
