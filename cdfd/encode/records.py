"""Encoded records for a sink: keys, values and headers of many records at once, as Arrow arrays.

A `RecordEncoder` makes them of change rows; `cdfd.encode.formats` has one for each `sink.format`. Records of one key
keep the order of their rows, and a consumer that folds by key is right at any point:

| rows                                       | records                                                             |
|--------------------------------------------|---------------------------------------------------------------------|
| insert, delete, update_preimage, _postimage | one each (Debezium: one for both images of an update)               |
| a delete, where tombstones are wanted      | the delete, then a null value of the same key                       |
| images of one update whose keys differ     | a `delete` of the old key, with a header that has the new one; its  |
|                                            | tombstone; an `insert` of the new key, with one that has the old    |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import numpy as np
import pyarrow as pa

from cdfd.encode.cells.pieces import Booleans, Integers
from cdfd.runtime.arrays import array_of

Headers = tuple[tuple[str, bytes], ...]
Wrapping = tuple[bytes, bytes]
"""The bytes before and after each of many texts. They are copied where texts become messages, not in memory for each of them."""

BARE: Wrapping = (b"", b"")


@dataclass(frozen=True, slots=True, eq=False)
class HeaderColumn:
    """A header with a value for each record.

    Attributes:
        name: of the header.
        values: `large_binary`, or `int64`, which are written in decimal; one per record, without their wrapping. A record whose value is
            null does not have the header.
        wrapping: of values.
    """

    name: str
    values: pa.Array
    wrapping: Wrapping = BARE

    @property
    def whole_values(self) -> list[bytes | None]:
        """The values as consumers have them, as objects."""
        texts = self.values.cast(pa.string()).cast(pa.binary()) if pa.types.is_int64(self.values.type) else self.values
        return _wrap(texts, self.wrapping)

    def take(self, records: pa.Array) -> HeaderColumn:
        """The values of these records, in this order; null where the record's number is null."""
        return replace(self, values=self.values.take(records))


HeaderColumns = tuple[HeaderColumn, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records in order. All arrays have one entry per record.

    Attributes:
        keys: `large_binary`, none null, without their wrapping; None where no record has a key.
        values: `large_binary`, without their wrapping; null is a tombstone, which has none.
        headers: the same for every record.
        header_columns: headers that differ from record to record, after those in `headers`. Most formats have them only where a row's
            key changes, which is rare: the way without them is the one to make fast.
        partition: where all of these records go, for records that hold rows of many keys; None leaves it to the key.
        key_wrapping: of keys.
        value_wrapping: of values.
    """

    keys: pa.Array | None
    values: pa.Array
    headers: Headers = ()
    header_columns: HeaderColumns = ()
    partition: int | None = None
    key_wrapping: Wrapping = BARE
    value_wrapping: Wrapping = BARE

    def __len__(self) -> int:
        return len(self.values)

    @property
    def whole_keys(self) -> list[bytes | None]:
        """The keys as consumers have them, as objects."""
        return [None] * len(self) if self.keys is None else _wrap(self.keys, self.key_wrapping)

    @property
    def whole_values(self) -> list[bytes | None]:
        """The values as consumers have them, as objects."""
        return _wrap(self.values, self.value_wrapping)


def _wrap(texts: pa.Array, wrapping: Wrapping) -> list[bytes | None]:
    before, after = wrapping
    return [None if text is None else before + text + after for text in texts.to_pylist()]


class SnapshotPart(Enum):
    """Which rows of a snapshot they are."""

    MIDDLE = "middle"
    """Others may follow."""

    END = "end"
    """The last of them is the last of the snapshot."""

    INCREMENTAL = "incremental"
    """They are rows of a snapshot on demand, while changes go on."""


class RecordEncoder(Protocol):
    """Makes records of one table's change rows. It keeps nothing of them; not to be shared by threads."""

    def encode(
        self, batch: pa.RecordBatch, *, snapshot: bool = False, part: SnapshotPart = SnapshotPart.MIDDLE
    ) -> list[Records]:
        """Records of the rows, in order.

        Args:
            batch: the table's columns, then the four change columns. It does not end between the images of an update.
            snapshot: the rows are the live rows of a version.
            part: which ones of these.

        Raises:
            DataError: a value that the format cannot represent, or rows without the change columns.
            UnsupportedError: a type that the format does not have.
            MissingColumnError: a key column that the table does not have.
            SinkError: a schema registry refuses the schema, or does not answer.
        """


@dataclass(frozen=True, slots=True)
class Origin:
    """The source and destination of records, for formats that contain them.

    Attributes:
        pipeline: name of the pipeline.
        table: name of the table in the configuration.
        table_id: `metaData.id`.
        topic: of the records.
    """

    pipeline: str
    table: str
    table_id: str
    topic: str


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The row of each record, and the records that are tombstones."""

    rows: Integers
    tombstones: Booleans

    @classmethod
    def of(cls, deleted: Booleans) -> Layout:
        """A record for each row, and a second one for each that is deleted.

        deleted 0 1 0   ->   rows 0 1 1 2, tombstones 0 0 1 0
        """
        if not deleted.any():
            return cls(np.arange(len(deleted)), deleted)
        rows = np.repeat(np.arange(len(deleted)), 1 + deleted)
        tombstones = np.zeros(len(rows), np.bool_)
        tombstones[1:] = rows[1:] == rows[:-1]
        return cls(rows, tombstones)


def with_tombstones(records: Records, layout: Layout) -> Records:
    """The records of rows, laid out. Tombstones have no headers of their own, only those that every record has."""
    if not layout.tombstones.any() or records.keys is None:
        return records
    without = array_of(layout.rows, mask=layout.tombstones)
    columns = tuple(column.take(without) for column in records.header_columns)
    keys = records.keys.take(array_of(layout.rows))
    return replace(records, keys=keys, values=records.values.take(without), header_columns=columns)
