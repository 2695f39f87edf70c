"""Net changes: for each key, its first image before a range of versions and its last one after it. Nothing for a key that is as it was.

A row that is removed counts -1, and a row that is added +1. The sums over all versions are the rows that are gone, and those that are
new: multisets, whose difference does not depend on the versions between. So net changes of net changes are those of the whole range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.model.columns import (
    CHANGE_COLUMNS,
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    change_codes,
    change_schema,
)
from cdfd.runtime.arrays import array_of
from cdfd.scan.file_reader import rows_at_once
from cdfd.scan.image_order import DELETE, INSERT, POST_IMAGE, PRE_IMAGE
from cdfd.scan.updates.equality import Integers, hashes
from cdfd.scan.updates.matching import Matched, by_key
from cdfd.scan.updates.spill import Buckets, SpillSpace, capacity_errors

BUCKETS = 64
SMALL_BYTES = 64 << 20
"""Bytes of rows that are matched at once. More are divided into `BUCKETS` buckets by their key."""
BATCH_ROWS = 16_384


class NetChanges:
    """Takes change rows, in order, and gives their net changes.

    Args:
        schema: of the table's columns.
        key: columns that identify a row. Without any, updates are deletes and inserts.
        space: local disk, for rows that do not fit into memory.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str], space: SpillSpace) -> None:
        self.schema = change_schema(schema)
        self._names = schema.names
        self._key = tuple(key)
        self._space = space
        self._rows = pa.schema([*schema, CHANGE_COLUMNS[1], CHANGE_COLUMNS[2]])
        self._held: list[tuple[int, pa.RecordBatch]] = []
        self._bytes = 0
        self._sides = [Buckets(space, 1, self._rows) for _ in range(2)]

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows: the table's columns, then the change columns.

        Raises:
            StorageError: they do not fit on the disk.
        """
        types = change_codes(batch.column(CHANGE_TYPE))
        rows = batch.select(self._rows.names)
        added = (types == INSERT) | (types == POST_IMAGE)
        for side, chosen in enumerate((~added, added)):
            if not chosen.any():
                continue
            of_side = rows if chosen.all() else rows.filter(array_of(chosen))
            of_side = pa.RecordBatch.from_arrays(of_side.columns, schema=self._rows)
            self._held.append((side, of_side))
            self._bytes += of_side.nbytes
        if self._bytes > SMALL_BYTES:
            if self._sides[0].count == 1:
                self._sides = [Buckets(self._space, BUCKETS, self._rows) for _ in range(2)]
            for side, of_side in self._held:
                # Without a key, rows that are equal must meet.
                columns = [of_side.column(name) for name in self._key or self._names]
                buckets = (hashes(columns, of_side.num_rows) % np.uint64(BUCKETS)).astype(np.int64)
                self._sides[side].add(of_side, buckets)
            self._held = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The net changes: deletes, updates and inserts of one bucket after the other.

        `_commit_version` and `_commit_timestamp` are those of the last change of the row; both images of an update have those of its
        post-image. `_change_ordinal` counts all rows.

        Raises:
            DataError: a bucket has more text than Arrow holds in a column.
        """
        for side, rows in self._held:
            self._sides[side].add(rows)
        self._held = []
        ordinal = 0
        for bucket in range(self._sides[0].count):
            removed, added = (side.rows(bucket) for side in self._sides)
            with capacity_errors(removed, added):
                for rows, types in self._match(removed.combine_chunks(), added.combine_chunks()):
                    columns = rows.combine_chunks().to_batches()[0].columns
                    kinds = pa.DictionaryArray.from_arrays(array_of(types), CHANGE_TYPES)
                    ordinals = array_of(np.arange(ordinal, ordinal + len(types), dtype=np.int64))
                    columns = [*columns[: len(self._names)], kinds, *columns[len(self._names) :], ordinals]
                    yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
                    ordinal += rows.num_rows
        for done in self._sides:
            done.close()

    def _match(self, removed: pa.Table, added: pa.Table) -> Iterator[tuple[pa.Table, npt.NDArray[np.int8]]]:
        matched = by_key(removed.select(self._names), added.select(self._names), self._key)
        return _changes(removed, added, matched)


def _changes(removed: pa.Table, added: pa.Table, matched: Matched) -> Iterator[tuple[pa.Table, npt.NDArray[np.int8]]]:
    yield from _constant(removed, matched.deleted, DELETE)
    step = min(rows_at_once(side.num_rows, side.nbytes, BATCH_ROWS // 2) for side in (removed, added))
    for start in range(0, len(matched.before), step):
        old = removed.take(array_of(matched.before[start : start + step]))
        new = added.take(array_of(matched.after[start : start + step]))
        for name in (COMMIT_VERSION, COMMIT_TIMESTAMP):
            place = old.schema.get_field_index(name)
            old = old.set_column(place, old.schema.field(place), new.column(name))
        order = np.arange(2 * old.num_rows).reshape(2, -1).T.reshape(-1)
        types = np.tile(np.array([PRE_IMAGE, POST_IMAGE], np.int8), old.num_rows)
        yield pa.concat_tables([old, new]).take(array_of(order)), types
    yield from _constant(added, matched.inserted, INSERT)


def _constant(rows: pa.Table, chosen: Integers, change_type: int) -> Iterator[tuple[pa.Table, npt.NDArray[np.int8]]]:
    step = rows_at_once(rows.num_rows, rows.nbytes, BATCH_ROWS)
    for start in range(0, len(chosen), step):
        part = rows.take(array_of(chosen[start : start + step]))
        yield part, np.full(part.num_rows, change_type, np.int8)
