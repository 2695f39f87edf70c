"""Records of many rows: each value is an Arrow IPC stream, for readers who want volume.

A stream holds the schema and one record batch. Records have no key, for their rows have many; but where the table has one,
the rows of each key stay together: a record holds rows of one partition only, the one that a record with that key goes to,
in order. So a reader of one partition sees all changes of its keys, as in the other formats. There are no tombstones.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from cdfd.encode.cells.pieces import Integers, pool_from_parts
from cdfd.encode.encoding import Rows
from cdfd.encode.images import KeyedRows
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
        # The start of a stream, before the message of the rows: the schema and the dictionaries, which slices of a batch share.
        out, empty = pa.BufferOutputStream(), keyed.batch.slice(0, 0)
        with pa.ipc.new_stream(out, keyed.batch.schema) as writer:
            writer.write_batch(empty)
        head = out.getvalue().to_pybytes()[: -pa.ipc.get_record_batch_size(empty) - len(_END)]
        limit = self._record_bytes - len(head) - len(_END)
        parts = [(where, list(self._pieces(rows, limit))) for where, rows in self._by_partition(keyed)]
        pieces = [piece for _, of_partition in parts for piece in of_partition]
        places = np.cumsum([len(head), *(size for _, size in pieces)], dtype=np.int64)
        # One stream of all messages, in memory of its size.
        data = pa.allocate_buffer(int(places[-1]) + len(_END), pa.system_memory_pool())
        with pa.ipc.new_stream(pa.FixedSizeBufferWriter(data), batch.schema) as writer:
            for rows, _ in pieces:
                writer.write_batch(rows)
        values = pool_from_parts(places, data)
        records, start = [], 0
        for partition, of_partition in parts:
            own = values.slice(start, len(of_partition))
            records.append(Records(None, own, partition=partition, value_wrapping=(head, _END)))
            start += len(of_partition)
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

    def _pieces(self, batch: pa.RecordBatch, limit: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The rows cut in two until the message of each piece is short enough, and the bytes of that message."""
        size = pa.ipc.get_record_batch_size(batch)
        if batch.num_rows <= 1 or size <= limit:
            yield batch, size
            return
        half = (batch.num_rows + 1) // 2
        yield from self._pieces(batch.slice(0, half), limit)
        yield from self._pieces(batch.slice(half), limit)
