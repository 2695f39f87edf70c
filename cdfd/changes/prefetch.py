"""Prefetching data files: a remote store starts to fetch them some files before the reader needs them."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from cdfd.changes.plan import ChangePlan, FileScan
from cdfd.changes.read import TableFiles
from cdfd.errors import CdfdError

FILES = 6
"""Files to prefetch, at least, beyond the one that is read next. Where plans hold more files, up to three times as many."""


def prefetch_plans(
    plans: Iterable[ChangePlan], first_part: int, files: TableFiles, whole: bool = False
) -> Iterator[ChangePlan]:
    """The plans. They are taken early enough to prefetch `FILES` files; an error is raised after the plans that come before it."""
    source = iter(plans)
    waiting: deque[ChangePlan] = deque()
    known, failed, more = 0, None, True
    while True:
        while more and known < FILES:
            try:
                plan = next(source, None)
            except CdfdError as error:
                plan, failed = None, error
            if plan is None:
                more = False
                break
            for scan in plan.scans[first_part : first_part + FILES]:
                _prefetch(scan, files, whole)
            first_part = 0
            waiting.append(plan)
            known += len(plan.scans)
        if waiting:
            plan = waiting.popleft()
            known -= len(plan.scans)
            yield plan
        elif failed is not None:
            raise failed
        else:
            return


def prefetch_later_scan(scans: Sequence[FileScan], number: int, files: TableFiles, whole: bool = False) -> None:
    """Prefetch the file of the scan that comes `FILES` scans after that number, which is read next."""
    if number + FILES < len(scans):
        _prefetch(scans[number + FILES], files, whole)


def _prefetch(scan: FileScan, files: TableFiles, whole: bool) -> None:
    if scan.bucket is not None:
        return
    # A scan of some rows skips row groups, so only a scan of all rows reads the whole file.
    files.prefetch(scan.path, scan.size, whole=whole and scan.only is None and scan.piece is None)
