"""The rows that a delivery deletes in a mirror: found by the hashes of their keys, and put into deletion vectors.

Each deleted row is in the mirror, because the mirror has all rows of the source. So if as many rows of the mirror have a hash as rows with
that hash are deleted, they are these rows, whatever their keys. Only if there are more rows, because keys repeat or hashes collide, all
columns are read and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64, FrozenBitMap64

from cdfd.delta import deletion_vector
from cdfd.delta.actions import Add, DeletionVectorDescriptor
from cdfd.delta.deletion_vector import RowSet
from cdfd.errors import SinkError
from cdfd.runtime.arrays import array_of
from cdfd.scan.updates.matching import by_key
from cdfd.sinks.delta.mirror.live_files import LiveFile, contains
from cdfd.sinks.delta.mirror.sorted_run import Hashes, Rows
from cdfd.sinks.delta.mirror.table import MirrorTable

INLINE_BYTES = 256
"""Bytes of a deletion vector that is stored in the log itself, at most."""


@dataclass(eq=False)
class Removal:
    """Collects rows of one delivery. Rows are numbers of the table's live files."""

    table: MirrorTable
    _parts: list[tuple[Hashes, pa.Table]] = field(default_factory=list, init=False)
    _taken: BitMap64 = field(default_factory=BitMap64, init=False)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def take(self, rows: pa.Table) -> None:
        """Delete rows, whose columns are as the table has them.

        Raises:
            SinkError: the mirror does not have a row.
        """
        hashes = self.table.hashes(rows)
        several = self._take(hashes, rows)
        # Rows that were compared are compared again if another writer moves rows before the commit.
        self._parts.append((hashes, rows if several else rows.slice(0, 0)))

    def again(self) -> None:
        """Find the same rows after another writer has moved some."""
        self._taken = BitMap64()
        for hashes, rows in self._parts:
            self._take(hashes, rows)

    def vectors(self) -> Iterator[tuple[LiveFile, RowSet | None]]:
        """The files with deleted rows, and all rows that are deleted in each; None: no row is left."""
        if not self._parts:
            return
        for file, positions in self.table.live.split(RowSet(FrozenBitMap64(self._taken)).to_array()):
            rows = RowSet.of_array(positions)
            deleted = rows if file.deleted is None else rows.union(file.deleted)
            yield file, None if len(deleted) == file.rows else deleted

    def _take(self, hashes: Hashes, rows: pa.Table) -> bool:
        """Whether rows had to be compared."""
        distinct, places, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        owners, numbers = self.table.index.find(distinct)
        if self._taken:
            left = ~contains(RowSet(FrozenBitMap64(self._taken)), numbers)
            owners, numbers = owners[left], numbers[left]
        matches = np.bincount(owners, minlength=len(distinct))
        if (matches < counts).any():
            raise self._missing(int((counts - np.minimum(matches, counts)).sum()))
        several = matches > counts
        if several.any():
            among = several[owners]
            chosen = self._compare(rows.filter(array_of(several[places])), numbers[among])
            numbers = np.concatenate([numbers[~among], chosen])
        self._taken |= RowSet.of_array(np.sort(numbers)).bitmap
        return bool(several.any())

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


class Vectors:
    """The deletion vectors of a version: small ones in the log, the others in one file.

    Attributes:
        emptied: files without a row that is left.
        changed: the other files, with their vector and how many rows they have, with deleted ones.
        rows: the rows of each vector, by its id.
        path, data: the file; no bytes if no vector is in it.
    """

    def __init__(self, removal: Removal) -> None:
        self.emptied: list[Add] = []
        self.changed: list[tuple[Add, DeletionVectorDescriptor, int]] = []
        self.rows: dict[str, RowSet] = {}
        stored: list[tuple[LiveFile, RowSet]] = []
        for file, deleted in removal.vectors():
            if deleted is None:
                self.emptied.append(file.add)
                continue
            inline = deletion_vector.inline(deleted) if len(deleted) < INLINE_BYTES else None
            if inline is None or inline.size_in_bytes > INLINE_BYTES:
                stored.append((file, deleted))
            else:
                self._change(file, inline, deleted)
        uuid = uuid4()
        content, places = deletion_vector.store([deleted for _, deleted in stored])
        for (file, deleted), (offset, size) in zip(stored, places, strict=True):
            self._change(file, deletion_vector.describe(uuid, "", offset, size, len(deleted)), deleted)
        self.path = f"deletion_vector_{uuid}.bin"
        self.data = content if stored else b""

    def _change(self, file: LiveFile, vector: DeletionVectorDescriptor, deleted: RowSet) -> None:
        self.changed.append((file.add, vector, file.rows))
        self.rows[vector.unique_id] = deleted
