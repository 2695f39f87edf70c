"""The limits of a micro-batch: how many scans of a version it takes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from cdfd.deliver.splits import RangeSplit
from cdfd.errors import CdfdError, MissingFileError
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.runtime.ordered_pool import map_in_order
from cdfd.scan.execute import Execution
from cdfd.scan.read import count_rows
from cdfd.scan.splits import Split, shares

Counts = npt.NDArray[np.int64]

_WORTH_OPENING: Final = 256 << 10
"""Bytes of a file whose rows take longer through the JVM than its footer."""
_AT_ONCE = 64
"""Files whose rows are counted before the limit is looked at again."""


@dataclass(slots=True)
class Budget:
    """The remaining capacity of a micro-batch. Its first file always fits, because the stream would otherwise stop.

    Attributes:
        files, bytes, versions, rows: the remaining capacity; None: unlimited.
        used: whether the batch has a file.
    """

    files: int | None = None
    bytes: int | None = None
    versions: int | None = None
    rows: int | None = None
    used: bool = False

    @property
    def limits_files(self) -> bool:
        """Whether a batch may end within a version."""
        return (self.files, self.bytes, self.rows) != (None, None, None)

    def take(self, plan: ChangePlan, part: int, count: Callable[[ChangePlan, int, int], Counts]) -> int:
        """Take scans from `part` on; the number of the first scan that does not fit. `count` is `row_counts`, for a limit of rows."""
        scans = plan.scans[part:]
        if not self.limits_files or not scans:
            self.used = self.used or len(scans) > 0
            return len(plan.scans)
        ends = np.cumsum(shares(scans), dtype=np.int64)
        rows = None if self.rows is None else np.cumsum(count(plan, part, self.rows), dtype=np.int64)
        if plan.origin == "cdc":
            # Each change data file has scans for both images. A cut between them would read files twice.
            files = len({scan.path for scan in scans})
            fits = (self.files is None or files <= self.files) and (self.bytes is None or ends[-1] <= self.bytes)
            fits = fits and (rows is None or self.rows is None or rows[-1] <= self.rows)
            fit = len(scans) if fits or not self.used else 0
        else:
            fit = len(scans) if self.files is None else min(len(scans), self.files)
            if self.bytes is not None:
                fit = min(fit, int(np.searchsorted(ends, self.bytes, "right")))
            if rows is not None and self.rows is not None:
                fit = min(fit, int(np.searchsorted(rows, self.rows, "right")))
            fit = files = max(fit, 0 if self.used else 1)
        if fit:
            self.used = True
            self.files = None if self.files is None else max(0, self.files - files)
            self.bytes = None if self.bytes is None else max(0, self.bytes - int(ends[fit - 1]))
            if rows is not None and self.rows is not None:
                self.rows = max(0, self.rows - int(rows[min(fit, len(rows)) - 1]))
        return part + fit


def row_counts(plan: ChangePlan, part: int, most: int, *, execution: Execution) -> Counts:
    """Rows of each scan of a plan from `part` on: of the files, before any filter.

    Counts end after they exceed `most`. Change data files have one count for all of them. A part of a refined version has its share of the
    rows that the version removes and adds.

    Raises:
        CdfdError: as `count_rows` says; it names table, version and file. A missing file is for `execution.on_missing`.
    """
    scans = plan.scans[part:]
    if isinstance(scans, LiveScans) and (noted := scans.counts()) is not None:
        return np.asarray(noted.to_numpy(), dtype=np.int64)
    if plan.refinement is not None:
        total = sum(count_each(plan.version, plan.refinement.sources, execution))
        return np.full(len(scans), -(-total // len(plan.scans)), dtype=np.int64)
    if plan.origin == "cdc":
        files = {scan.path: scan for scan in scans}
        return np.array([sum(count_each(plan.version, list(files.values()), execution))], dtype=np.int64)
    counts, rows = list[int](), 0
    for first in range(0, len(scans), _AT_ONCE):
        for count in count_each(plan.version, scans[first : first + _AT_ONCE], execution):
            counts.append(count)
            rows += count
        if rows > most:
            break
    return np.array(counts, dtype=np.int64)


def portion_rows(splits: Sequence[Split], execution: Execution) -> int | None:
    """How many rows splits have before any filter, from the log and the footers of files.

    Raises what `row_counts` does.

    Returns:
        None if only reading tells, or takes little longer than opening many small files for their footers.
    """
    count, unopened = 0, list[tuple[int, list[FileScan]]]()
    for split in splits:
        plan, scans = split.plan, split.plan.scans
        if plan.refinement is not None:
            return None
        if split.rows is not None:
            count += split.rows
        elif isinstance(split, RangeSplit):
            if split.ordinal is None or split.following is None:
                return None
            count += split.following - split.ordinal
        elif isinstance(scans, LiveScans) and (noted := scans.rows()) is not None:
            count += noted
        else:
            # The late phase of a change data file has the other rows of the early one.
            early, late = ({scan.path for scan in scans if scan.image_phase == half} for half in ("early", "late"))
            if early != late:
                return None
            counts = [(scan, _noted(scan)) for scan in scans if scan.image_phase != "late"]
            count += sum(rows for _, rows in counts if rows is not None)
            unopened.append((plan.version, [scan for scan, rows in counts if rows is None]))
    files = [scan for _, version_files in unopened for scan in version_files]
    if sum(scan.share for scan in files) < len(files) * _WORTH_OPENING:
        return None
    return count + sum(sum(count_each(version, scans, execution)) for version, scans in unopened if scans)


def _noted(scan: FileScan) -> int | None:
    """Rows of a scan as the log has them."""
    if scan.change_type is None or scan.num_records is None or (scan.only, scan.piece) != (None, None):
        return None
    return scan.num_records - (0 if scan.without is None else scan.without.cardinality)


def count_each(version: int, scans: Sequence[FileScan], execution: Execution) -> Iterator[int]:
    """The rows of data files, by their footers, several at a time. Raises what `row_counts` does."""
    workers = _AT_ONCE // 4 if execution.files.storage.remote else execution.threads
    count = partial(_count, version=version, execution=execution)
    return map_in_order(count, scans, workers=max(1, min(workers, len(scans))))


def _count(scan: FileScan, version: int, execution: Execution) -> int:
    uri = execution.files.storage.uri
    try:
        return count_rows(scan, execution.files)
    except MissingFileError as error:
        execution.on_missing(error.within(table=uri, version=version))
        return 0
    except CdfdError as error:
        raise error.within(table=uri, version=version, path=scan.path) from None
