"""Chunks of a delivery: rows that are encoded and sent together, so that many small versions cost no more than one large version."""

from collections import defaultdict
from dataclasses import dataclass, field

import pyarrow as pa

from cdfd.encode.records import Records, SnapshotPart
from cdfd.model.columns import COMMIT_VERSION

CHUNK_BYTES = 64 * 1024
CHUNK_ROWS = 4096
_CHUNK_SIDE_RECORDS = 2048


@dataclass(slots=True)
class RowGroup:
    """Rows that are encoded together.

    Attributes:
        batches: the rows; all batches have the same schema.
        snapshot: whether they are live rows of a version.
        oldest, version: versions of the first and the last row.
        part: which ones of the live rows.
    """

    batches: list[pa.RecordBatch]
    snapshot: bool
    oldest: int
    version: int
    part: SnapshotPart = SnapshotPart.MIDDLE


@dataclass(slots=True)
class Chunk:
    """Rows, and records for side topics about their versions, by topic. Side topics have one partition.

    Attributes:
        limit: bytes of a full chunk. A batch of this size gets a row group of its own.
        groups: the rows.
        side_records: by topic. They may be sent after rows that are added later.
    """

    limit: int = CHUNK_BYTES
    groups: list[RowGroup] = field(default_factory=list)
    side_records: defaultdict[str, list[Records]] = field(default_factory=lambda: defaultdict(list))
    _bytes: int = 0
    _rows: int = 0

    @property
    def version(self) -> int | None:
        """The version of all rows; None if there is not exactly one."""
        versions = {version for group in self.groups for version in (group.oldest, group.version)}
        return versions.pop() if len(versions) == 1 else None

    @property
    def full(self) -> bool:
        """Whether it is large enough to be encoded and sent."""
        return (
            self._bytes >= self.limit
            or self._rows >= CHUNK_ROWS
            or sum(map(len, self.side_records.values())) >= _CHUNK_SIDE_RECORDS
        )

    def add(
        self, batch: pa.RecordBatch, *, snapshot: bool, version: int, part: SnapshotPart = SnapshotPart.MIDDLE
    ) -> None:
        """Append rows of a version, or of several up to it."""
        size = batch.nbytes
        last = self.groups[-1] if self.groups and size < self.limit else None
        same = last is not None and (last.snapshot, last.part) == (snapshot, part)
        if last is not None and same and last.batches[0].schema == batch.schema:
            last.batches.append(batch)
            last.version = version
        else:
            place = batch.schema.get_field_index(COMMIT_VERSION)
            oldest = version if place < 0 else int(batch.column(place)[0].as_py())
            self.groups.append(RowGroup([batch], snapshot, oldest, version, part))
        self._bytes += size
        self._rows += batch.num_rows
