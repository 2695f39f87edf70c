"""Records of many rows: each value is an Arrow IPC stream, for readers who want volume.

A stream holds the schema and one record batch. Records have no key, for their rows have many; but where the table has one,
the rows of each key stay together: a record holds rows of one partition only, the one that a record with that key goes to,
in order. So a reader of one partition sees all changes of its keys, as in the other formats. There are no tombstones.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from cdfd.encode.images import KeyedRows
from cdfd.encode.keys import Rows
from cdfd.encode.pieces import Integers, pool_from_parts
from cdfd.encode.records import Records, SnapshotPart
from cdfd.runtime.arrays import array_of, stable_order

Partitioner = Callable[[pa.Array], Integers]
"""The partition of each key."""

RECORD_BYTES: Final = 512 * 1024
"""Rows of a record end before this; half of a broker's default limit."""

_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream."""


class ArrowRecords:
    """A record for as many rows as fit.

    Args:
        keys: makes keys of rows; None for none.
        partitioner: which partition a key belongs to; needed with keys.
        record_bytes: length of values, at most; but a single row may be longer.
    """

    def __init__(
        self, keys: Rows | None = None, partitioner: Partitioner | None = None, *, record_bytes: int = RECORD_BYTES
    ) -> None:
        self._keys = keys
        self._partitioner = partitioner
        self._record_bytes = record_bytes

    def encode(
        self, batch: pa.RecordBatch, *, snapshot: bool = False, part: SnapshotPart = SnapshotPart.MIDDLE
    ) -> list[Records]:
        """As `RecordEncoder.encode`."""
        keyed = KeyedRows.of(batch, self._keys)
        head, records = _head(keyed.batch), []
        for partition, rows in self._by_partition(keyed):
            messages = list(self._messages(rows, self._record_bytes - len(head) - len(_END)))
            ends = np.cumsum([0, *(len(head) + message.size + len(_END) for message in messages)], dtype=np.int64)
            data = b"".join(piece for message in messages for piece in (head, message, _END))
            records.append(Records(None, pool_from_parts(ends, pa.py_buffer(data)), partition=partition))
        return records

    def _by_partition(self, rows: KeyedRows) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        batch = rows.batch
        if not batch.num_rows:
            return
        if rows.keys is None or self._partitioner is None:
            yield None, batch
            return
        partitions = self._partitioner(rows.keys)
        counts = np.bincount(partitions)
        used = np.flatnonzero(counts).tolist()
        if len(used) == 1:
            yield used[0], batch
            return
        sorted_rows, start = batch.take(array_of(stable_order(partitions, len(counts)))), 0
        for partition in used:
            yield partition, sorted_rows.slice(start, counts[partition])
            start += int(counts[partition])

    def _messages(self, batch: pa.RecordBatch, limit: int) -> Iterator[pa.Buffer]:
        """Messages of the rows, cut in two until each is short enough."""
        if batch.num_rows <= 1 or pa.ipc.get_record_batch_size(batch) <= limit:
            yield batch.serialize()
            return
        half = (batch.num_rows + 1) // 2
        yield from self._messages(batch.slice(0, half), limit)
        yield from self._messages(batch.slice(half), limit)


def _head(batch: pa.RecordBatch) -> memoryview:
    """The start of a stream, before the message of the rows: the schema and the dictionaries, which slices of a batch share."""
    out, empty = pa.BufferOutputStream(), batch.slice(0, 0)
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(empty)
    return memoryview(out.getvalue())[: -pa.ipc.get_record_batch_size(empty) - len(_END)]
