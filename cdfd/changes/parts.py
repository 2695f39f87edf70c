"""A version cut into deliveries, where it is too large for one: whole file scans, the same cut after every restart."""

from __future__ import annotations

from collections.abc import Iterator

from cdfd.changes.plan import ChangePlan


def parts(plan: ChangePlan, first: int, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of scans, `[start, end)`, from scan number `first` on, each of at most `limit` bytes or a single scan.

    A version without scans is one empty range: it is delivered too, so that the position moves on. Where a range ends depends on the scans
    from its start on only, so resuming at a range's start gives the ranges that were not delivered.
    """
    start, size = first, 0
    for index, scan in enumerate(plan.scans[first:], first):
        if index > start and size + scan.share > limit:
            yield start, index
            start, size = index, 0
        size += scan.share
    yield start, len(plan.scans)
