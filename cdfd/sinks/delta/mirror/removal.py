"""The rows that a delivery deletes in a mirror: found by the hashes of their keys, and put into deletion vectors.

Each deleted row is in the mirror, because the mirror has all rows of the source. So if as many rows of the mirror have a hash as rows with
that hash are deleted, they are these rows, whatever their keys. Only if there are more rows, because keys repeat or hashes collide, all
columns are read and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64, FrozenBitMap64

from cdfd.delta import deletion_vector
from cdfd.delta.actions import Add, DeletionVectorDescriptor
from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.file_actions import removals, replacements
from cdfd.errors import SinkError
from cdfd.runtime.arrays import array_of
from cdfd.scan.updates.matching import by_key
from cdfd.sinks.delta.mirror.live_files import LiveFile, contains
from cdfd.sinks.delta.mirror.sorted_run import Hashes, Rows
from cdfd.sinks.delta.mirror.table import MirrorTable
from cdfd.sinks.ledger.txn_state import Action

INLINE_BYTES = 256
"""Bytes of a deletion vector that is stored in the log itself, at most."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The deletion vectors of a version: small ones in the log, the others in one file.

    Attributes:
        actions: remove the files without a row that is left, and replace those of the other files.
        rows: the rows of each vector, by its id.
        path, data: the file; no bytes if no vector is in it.
    """

    actions: Sequence[Action]
    rows: Mapping[str, RowSet]
    path: str
    data: bytes


@dataclass(eq=False)
class Removal:
    """Collects rows of one delivery. Rows are numbers of the table's live files.

    Attributes:
        table: of the rows.
        parts: the hashes of the keys that were taken, with the rows themselves if they had to be compared.
    """

    table: MirrorTable
    parts: list[tuple[Hashes, pa.Table]] = field(default_factory=list, init=False)
    _taken: BitMap64 = field(default_factory=BitMap64, init=False)

    def take(self, rows: pa.Table) -> None:
        """Delete rows, whose columns are as the table has them.

        Raises:
            SinkError: the mirror does not have a row.
        """
        hashes = self.table.hashes(rows)
        compared = self._take(hashes, rows)
        # Rows that were compared are compared again if another writer moves rows before the commit.
        self.parts.append((hashes[~compared], rows.schema.empty_table()))
        if compared.any():
            self.parts.append((hashes[compared], rows.filter(array_of(compared))))

    def again(self) -> None:
        """Find the same rows after another writer has moved some."""
        self._taken = BitMap64()
        for hashes, rows in self.parts:
            self._take(hashes, rows)

    def vectors(self, now_ms: int) -> Vectors:
        """The deletion vectors of all files with deleted rows. Many of them take seconds."""
        emptied: list[Add] = []
        inline: list[tuple[LiveFile, RowSet, DeletionVectorDescriptor]] = []
        stored: list[tuple[LiveFile, RowSet]] = []
        numbers = RowSet(FrozenBitMap64(self._taken)).to_array()
        for file, positions in self.table.live.split(numbers):
            rows = RowSet.of_array(positions)
            deleted = rows if file.deleted is None else rows.union(file.deleted)
            if len(deleted) == file.rows:
                emptied.append(file.add)
                continue
            vector = deletion_vector.inline(deleted) if len(deleted) < INLINE_BYTES else None
            if vector is None or vector.size_in_bytes > INLINE_BYTES:
                stored.append((file, deleted))
            else:
                inline.append((file, deleted, vector))
        uuid = uuid4()
        content, places = deletion_vector.store([deleted for _, deleted in stored])
        changed = inline + [
            (file, deleted, deletion_vector.describe(uuid, "", offset, size, len(deleted)))
            for (file, deleted), (offset, size) in zip(stored, places, strict=True)
        ]
        return Vectors(
            [
                *removals(emptied, now_ms),
                *replacements([(file.add, vector, file.rows) for file, _, vector in changed], now_ms),
            ],
            {vector.unique_id: deleted for _, deleted, vector in changed},
            f"deletion_vector_{uuid}.bin",
            content if stored else b"",
        )

    def _take(self, hashes: Hashes, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """For each row, whether it had to be compared."""
        distinct, places, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        assert self.table.index is not None
        owners, numbers = self.table.index.find(distinct)
        if self._taken:
            left = ~contains(RowSet(FrozenBitMap64(self._taken)), numbers)
            owners, numbers = owners[left], numbers[left]
        matches = np.bincount(owners, minlength=len(distinct))
        if (matches < counts).any():
            raise self._missing(int((counts - np.minimum(matches, counts)).sum()))
        several = matches > counts
        compared: npt.NDArray[np.bool_] = several[places]
        if several.any():
            among = several[owners]
            chosen = self._compare(rows.filter(array_of(compared)), numbers[among])
            numbers = np.concatenate([numbers[~among], chosen])
        self._taken |= RowSet.of_array(np.sort(numbers)).bitmap
        return compared

    def _compare(self, rows: pa.Table, numbers: Rows) -> Rows:
        """Those of the numbered rows that are equal to `rows`."""
        numbers = np.sort(numbers)
        stored = self.table.read_rows(numbers, rows.column_names)
        stored = pa.table(stored.columns, schema=rows.schema)
        matched = by_key(rows, stored, ())
        if len(matched.deleted):
            raise self._missing(len(matched.deleted))
        chosen = np.ones(len(numbers), np.bool_)
        chosen[matched.inserted] = False
        return numbers[chosen]

    def _missing(self, count: int) -> SinkError:
        return SinkError(
            f"the mirror lacks rows that the source deletes or updates: {count}",
            hint="The mirror is not a copy of the source. Start it from a snapshot: remove or rename the target, then run "
            "`cdfd progress reset`",
        )
