"""Looking ahead of the files that are read, where each of them is a round trip away: their stores begin to fetch them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from cdfd.changes.plan import ChangePlan, FileScan
from cdfd.changes.read import TableFiles
from cdfd.errors import CdfdError

FILES = 6
"""Files to be ahead, at least, of the one that is read next; where plans hold more than that, up to three times as many."""


def in_sight(
    plans: Iterable[ChangePlan], first_part: int, files: TableFiles, whole: bool = False
) -> Iterator[ChangePlan]:
    """The plans. As many are taken ahead as it needs for `FILES` files; what an error ends comes before that error."""
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
                _expect(scan, files, whole)
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


def further(scans: Sequence[FileScan], number: int, files: TableFiles, whole: bool = False) -> None:
    """The scan of that number is next: have one more of its plan in sight."""
    if number + FILES < len(scans):
        _expect(scans[number + FILES], files, whole)


def _expect(scan: FileScan, files: TableFiles, whole: bool) -> None:
    # Where only some rows are wanted, row groups are left out.
    files.expect(scan.path, scan.size, whole=whole and scan.only is None and scan.piece is None)
