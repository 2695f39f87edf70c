"""The work that versions of a table are: rows, bytes and files, as the log tells them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, LiveScans

HOUR_MS = 3_600_000
MOST_FILES = 100_000
"""Added files of a table whose row counts are remembered."""
_COUNT = re.compile("[0-9]{1,19}")
_INSERTED = ("numtargetrowsinserted",)
_UPDATED = ("numtargetrowsupdated", "numupdatedrows")
_DELETED = ("numtargetrowsdeleted", "numdeletedrows")


@dataclass(frozen=True, slots=True)
class VersionWork:
    """The work of one version.

    Attributes:
        at_ms: when it was committed, in ms since the Unix epoch.
        rows: change rows.
        size: bytes of the files to read.
        files: how many files.
        refined: bytes of the files whose rows are matched to find updates; 0 if none are.
    """

    at_ms: int
    rows: float
    size: int
    files: int
    refined: int = 0


@dataclass(frozen=True, slots=True)
class TableWork:
    """The work of a table in the time that was looked at.

    Attributes:
        remote: whether it is in a store that counts requests.
        hours: how long that time is.
        versions: in order.
        live_rows, live_bytes: of the newest version: the first load.
    """

    name: str
    remote: bool
    hours: float
    versions: Sequence[VersionWork]
    live_rows: float
    live_bytes: int


@dataclass(slots=True)
class RowCounts:
    """Rows of files that the log has no count of: those of files that were added while one looked, else by their bytes.

    Attributes:
        rows_per_byte: of the table's live files.
    """

    rows_per_byte: float
    _added: dict[str, int] = field(default_factory=dict)

    def note(self, scans: Sequence[FileScan]) -> None:
        """Remember the counts of added files, as long as they are few: a remove has none."""
        if len(self._added) + len(scans) <= MOST_FILES:
            self._added.update({scan.path: scan.num_records for scan in scans if scan.num_records is not None})

    def of(self, scan: FileScan) -> float:
        """Rows of a scan."""
        hidden = 0 if scan.without is None else scan.without.cardinality
        if scan.only is not None:
            return max(0, scan.only.cardinality - hidden)
        count = self._added.get(scan.path) if scan.num_records is None else scan.num_records
        return max(0.0, (scan.share * self.rows_per_byte if count is None else count) - hidden)


def version_work(plan: ChangePlan, metrics: Mapping[str, str], counts: RowCounts) -> VersionWork:
    """The work of a version.

    Rows come from the statistics of files and deletion vectors. Change data files have none, and rows that are matched are fewer than their
    files have: those counts come from the metrics of the commit. Where these are missing too, files have as many rows a byte as the table.

    Args:
        metrics: `operationMetrics` of its `commitInfo`.
        counts: of files, which this version's are added to.
    """
    refinement = plan.refinement
    scans = plan.scans if refinement is None else refinement.sources
    size = scans.files.total_size() if isinstance(scans, LiveScans) else sum(scan.share for scan in scans)
    derived = plan.origin == "cdc" or refinement is not None
    rows = changed_rows(metrics) if derived else None
    if rows is None:
        rows = scanned_rows(scans, counts)
    counts.note(scans)
    files = len({scan.path for scan in scans})
    return VersionWork(plan.timestamp_ms, rows, size, files, 0 if refinement is None or refinement.images else size)


def changed_rows(metrics: Mapping[str, str]) -> float | None:
    """Change rows by the metrics of a commit, where an update is two; None if they do not say. Writers spell the names differently."""
    counts = {name.replace("_", "").lower(): value for name, value in metrics.items()}
    parts = [
        next((float(counts[name]) for name in names if _COUNT.fullmatch(str(counts.get(name, "")))), None)
        for names in (_INSERTED, _UPDATED, _DELETED)
    ]
    if all(part is None for part in parts):
        return None
    inserted, updated, deleted = (part or 0.0 for part in parts)
    return inserted + 2 * updated + deleted


def scanned_rows(scans: Sequence[FileScan], counts: RowCounts) -> float:
    """Rows of scans, by statistics and deletion vectors, else by their bytes."""
    if isinstance(scans, LiveScans) and (total := scans.rows()) is not None:
        return float(total)
    return sum(map(counts.of, scans))
