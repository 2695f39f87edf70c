"""Accumulates the rows of a delivery into chunks, so that many small versions cost no more than one large version."""

from collections.abc import Iterable
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
        version: version of the last row.
        part: which ones of the live rows.
    """

    batches: list[pa.RecordBatch]
    snapshot: bool
    version: int
    part: SnapshotPart = SnapshotPart.MIDDLE

    @property
    def oldest(self) -> int:
        """Version of the first row."""
        place = self.batches[0].schema.get_field_index(COMMIT_VERSION)
        return self.version if place < 0 else int(self.batches[0].column(place)[0].as_py())

    def rows(self) -> list[pa.RecordBatch]:
        """The rows as one batch, or as several if Arrow cannot concatenate them (dictionaries that differ within lists, or too many)."""
        if len(self.batches) == 1:
            return self.batches
        try:
            return [pa.concat_batches(self.batches)]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return self.batches


@dataclass(slots=True)
class Chunk:
    """Rows, and records for side topics about their versions, by topic. Side topics have one partition."""

    groups: list[RowGroup] = field(default_factory=list)
    side_records: dict[str, list[Records]] = field(default_factory=dict)

    @property
    def version(self) -> int | None:
        """The version of all rows; None if there is not exactly one."""
        known = {version for group in self.groups for version in (group.oldest, group.version)}
        return known.pop() if len(known) == 1 else None


class Accumulator:
    """Fills chunks.

    Args:
        limit: bytes of a full chunk. A batch of this size gets a row group of its own.
    """

    def __init__(self, limit: int = CHUNK_BYTES) -> None:
        self._limit = limit
        self._chunk = Chunk()
        self._bytes = self._rows = 0

    @property
    def full(self) -> bool:
        """Whether the chunk is large enough to be encoded and sent."""
        return (
            self._bytes >= self._limit
            or self._rows >= CHUNK_ROWS
            or sum(map(len, self._chunk.side_records.values())) >= _CHUNK_SIDE_RECORDS
        )

    def add(
        self, batch: pa.RecordBatch, *, snapshot: bool, version: int, part: SnapshotPart = SnapshotPart.MIDDLE
    ) -> None:
        """Append rows of a version, or of several up to it. The last rows of a snapshot end their group."""
        size = batch.nbytes
        groups = self._chunk.groups
        last = groups[-1] if groups and size < self._limit else None
        same = last is not None and last.snapshot == snapshot and last.part in (part, SnapshotPart.MIDDLE)
        if last is not None and same and last.batches[0].schema == batch.schema:
            last.batches.append(batch)
            last.version, last.part = version, part
        else:
            groups.append(RowGroup([batch], snapshot, version, part))
        self._bytes += size
        self._rows += batch.num_rows

    def add_side_records(self, records: Iterable[tuple[str, Records]]) -> None:
        """Append records for side topics, each with its topic. They may be sent after rows that are added later."""
        for topic, record in records:
            self._chunk.side_records.setdefault(topic, []).append(record)

    def take(self) -> Chunk:
        """The current chunk. A new, empty chunk replaces it."""
        taken, self._chunk = self._chunk, Chunk()
        self._bytes = self._rows = 0
        return taken
