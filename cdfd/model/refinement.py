"""Values of a plan that refinement needs. Pure.

The files that a version removes and adds hold rows that only moved. Refinement matches the rows of both sides, by their row ids or by a key,
and leaves the true changes. The images of change data files are matched by a key, because writers may put those of an update apart.

Rows with the same id or key are in the same *bucket*, so buckets can be read one at a time, or apart. The number of buckets comes from the
log alone: a bucket holds the same rows wherever it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cdfd.model.file_scan import FileScan

Refine = Literal["off", "rows", "key", "auto"]
"""How updates are found that a table does not record: not at all, by row ids, by a key, or as the table allows."""

ROW_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
ROW_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"

BUCKET_BYTES = 32 << 20
"""Bytes of files of one bucket, about."""

MOST_BUCKETS = 4096


@dataclass(frozen=True, slots=True)
class RowTracking:
    """Names of the columns in data files that hold the ids and commit versions of rows that were copied; None if there are none."""

    row_id: str | None
    row_version: str | None

    @classmethod
    def of(cls, configuration: Mapping[str, str]) -> RowTracking:
        """As the table's properties name them."""
        return cls(configuration.get(ROW_ID_COLUMN), configuration.get(ROW_VERSION_COLUMN))


@dataclass(frozen=True, slots=True)
class Refinement:
    """How the true changes of a version are found.

    Attributes:
        sources: scans of the rows that its files remove and add: deletes, then inserts, each by path; or of change data files.
        key: columns that identify a row.
        tracking: where row ids are. None: rows are matched by the key.
        images: whether the sources are change data files, which say what changed. Only the images of updates are matched.
    """

    sources: Sequence[FileScan]
    key: tuple[str, ...] = ()
    tracking: RowTracking | None = None
    images: bool = False
