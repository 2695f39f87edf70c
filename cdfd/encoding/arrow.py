"""Records of many rows: each value is an Arrow IPC stream, for readers who want volume.

A stream holds the schema and one record batch. Records have no key, for their rows have many; but where the table has one,
the rows of each key stay together: a record holds rows of one partition only, the one that a record with that key goes to,
in order. So a reader of one partition sees all changes of its keys, as in the other formats. There are no tombstones, and
a changed key stays an update, whose images may then be in two partitions.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from cdfd.encoding.images import check_change_columns
from cdfd.encoding.keys import Rows
from cdfd.encoding.pieces import Integers, pool
from cdfd.encoding.records import Records

Partitioner = Callable[[pa.Array], Integers]
"""The partition of each key."""

RECORD_BYTES: Final = 512 * 1024
"""Rows of a record end before this; half of a broker's default limit."""


class ArrowRecords:
    """A record for as many rows as fit. Rows do not wait for those of the next batch.

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

    def encode(self, batch: pa.RecordBatch, *, snapshot: bool = False) -> list[Records]:
        """As `RecordEncoder.encode`."""
        check_change_columns(batch.schema)
        if not batch.num_rows:
            return []
        return [
            Records(None, pool(*self._streams(rows)), partition=partition)
            for partition, rows in self._by_partition(batch)
        ]

    def flush(self) -> list[Records]:
        """Nothing is held back."""
        return []

    def _by_partition(self, batch: pa.RecordBatch) -> Iterator[tuple[int | None, pa.RecordBatch]]:
        if self._keys is None or self._partitioner is None:
            yield None, batch
            return
        partitions = self._partitioner(self._keys(batch))
        order = np.argsort(partitions, kind="stable")
        found, starts = np.unique(partitions[order], return_index=True)
        if len(found) == 1:
            yield int(found[0]), batch
            return
        for partition, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            yield partition, batch.take(pa.array(rows))

    def _streams(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Streams of the rows, cut in two until each is short enough."""
        if batch.num_rows == 1 or batch.nbytes <= self._record_bytes:
            stream = _stream(batch)
            if batch.num_rows == 1 or len(stream) <= self._record_bytes:
                yield stream
                return
        half = (batch.num_rows + 1) // 2
        yield from self._streams(batch.slice(0, half))
        yield from self._streams(batch.slice(half))


def _stream(batch: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(out.getvalue())
