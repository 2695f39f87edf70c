"""What is written to a delivery, put together into parcels: a thousand versions of one row are as cheap as one of a thousand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from cdfd.encoding.records import Records

PARCEL_BYTES = 64 * 1024
PARCEL_ROWS = 4096
_PARCEL_NOTES = 2048


@dataclass(slots=True)
class Lot:
    """Rows that are encoded at once.

    Attributes:
        batches: of one schema.
        snapshot: whether they are live rows of a version.
        oldest: version of the first of them.
        version: of the last of them.
    """

    batches: list[pa.RecordBatch]
    snapshot: bool
    oldest: int
    version: int

    def rows(self) -> list[pa.RecordBatch]:
        """The rows in one batch, or in several where Arrow cannot put them together (other dictionaries within lists, or too many)."""
        if len(self.batches) == 1:
            return self.batches
        try:
            return [pa.concat_batches(self.batches)]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return self.batches


@dataclass(frozen=True, slots=True, eq=False)
class Note:
    """A record for a side topic.

    Attributes:
        topic: of one partition.
        record: one.
    """

    topic: str
    record: Records


@dataclass(slots=True)
class Parcel:
    """Rows, and notes about their versions."""

    lots: list[Lot] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    @property
    def version(self) -> int | None:
        """Of all rows, where it is one."""
        known = {version for lot in self.lots for version in (lot.oldest, lot.version)}
        return known.pop() if len(known) == 1 else None


class Gathering:
    """Fills parcels.

    Args:
        limit: bytes from which a batch is not put together with others.
    """

    def __init__(self, limit: int = PARCEL_BYTES) -> None:
        self._limit = limit
        self._parcel = Parcel()
        self._bytes = self._rows = 0

    @property
    def full(self) -> bool:
        """Whether what is there is worth handing over."""
        return self._bytes >= self._limit or self._rows >= PARCEL_ROWS or len(self._parcel.notes) >= _PARCEL_NOTES

    def add(self, batch: pa.RecordBatch, *, snapshot: bool, version: int) -> None:
        """Rows that follow those before."""
        size = batch.nbytes
        lots = self._parcel.lots
        last = lots[-1] if lots and size < self._limit else None
        if last is not None and last.snapshot == snapshot and last.batches[0].schema == batch.schema:
            last.batches.append(batch)
            last.version = version
        else:
            lots.append(Lot([batch], snapshot, version, version))
        self._bytes += size
        self._rows += batch.num_rows

    def note(self, note: Note) -> None:
        """A record for a side topic. It may be sent after rows that are added later."""
        self._parcel.notes.append(note)

    def take(self) -> Parcel:
        """All that is there. What comes next begins another parcel."""
        taken, self._parcel = self._parcel, Parcel()
        self._bytes = self._rows = 0
        return taken
