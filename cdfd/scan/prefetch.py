"""Prefetching data files: a remote store starts to fetch them some files before the reader needs them."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from cdfd.errors import CdfdError
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.scan.table_files import TableFiles

FILES, SMALL_FILES = 6, 16
"""Files to prefetch, at least, beyond the one that is read next: of any size, and of those that are small. Where plans hold more files, up to
three times as many."""
SMALL_BYTES = 512 << 10
"""Bytes of a small file, on average: it takes less time than its round trip."""


def prefetch_plans(
    plans: Iterable[ChangePlan], first_part: int, files: TableFiles, whole: bool
) -> Iterator[ChangePlan]:
    """The plans. They are taken early enough to prefetch `files_ahead` files; an error is raised after the plans that come before it."""
    source = iter(plans)
    waiting: deque[ChangePlan] = deque()
    fetched, failed, more, ahead = 0, None, True, FILES
    while True:
        while more and fetched < ahead:
            try:
                plan = next(source, None)
            except CdfdError as error:
                plan, failed = None, error
            if plan is None:
                more = False
                break
            ahead = files_ahead(plan)
            for scan in plan.files[first_part : first_part + ahead]:
                _prefetch(scan, files, whole)
            first_part = 0
            waiting.append(plan)
            fetched += len(plan.files)
        if waiting:
            plan = waiting.popleft()
            fetched -= len(plan.files)
            yield plan
        elif failed is not None:
            raise failed
        else:
            return


def files_ahead(plan: ChangePlan) -> int:
    """How many files of a plan to prefetch."""
    return SMALL_FILES if 0 < plan.size <= SMALL_BYTES * len(plan.files) else FILES


def prefetch_scans(plan: ChangePlan, scans: Sequence[FileScan], files: TableFiles, whole: bool) -> Iterator[FileScan]:
    """Scans of a plan. With each, the file that comes `files_ahead` scans later is prefetched."""
    ahead = files_ahead(plan)
    for number, scan in enumerate(scans):
        if number + ahead < len(scans):
            _prefetch(scans[number + ahead], files, whole)
        yield scan


def _prefetch(scan: FileScan, files: TableFiles, whole: bool) -> None:
    if scan.image_phase == "late":
        # The scan of the early phase keeps the rows of the late one, so most files are opened once.
        return
    # A scan of some rows skips row groups, so only a scan of all rows reads the whole file.
    files.prefetch(scan.path, scan.size, whole=whole and scan.only is None and scan.piece is None)
