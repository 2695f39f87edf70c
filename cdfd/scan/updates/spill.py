"""Rows in buckets: in memory while they fit, and on local disk beyond.

The file has no name: it is gone with the process, however that ends, and leaves nothing to clean up.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.errors import ConfigError, DataError, StorageError
from cdfd.runtime.arrays import array_of

MEMORY_BYTES = 128 << 20
"""Bytes of rows in memory before they are written to disk."""

FEW_RUNS = 16
"""Runs of rows of one bucket, up to which a batch is divided without sorting it."""

MAX_BYTES = 64 << 30
"""Default limit of disk space."""

TEXT_BYTES = (1 << 31) - 1
"""Bytes of text in a column of a bucket, at most: Arrow's kernels join its rows, and 32-bit offsets reach no further."""


@dataclass(slots=True)
class SpillSpace:
    """Local disk space for rows that do not fit into memory. Threads and tables of a process share it.

    Attributes:
        path: a folder; None for the system's folder for temporary files.
        max_bytes: of all files together.
    """

    path: str | None = None
    max_bytes: int = MAX_BYTES
    used: int = 0
    _lock: Lock = field(default_factory=Lock)

    def open(self) -> IO[bytes]:
        """A new file without a name.

        Raises:
            ConfigError: the folder is not there, or cannot be written to.
        """
        import tempfile  # with `shutil` and three codecs, and few tables spill

        try:
            return tempfile.TemporaryFile(dir=self.path, prefix="cdfd-spill-")
        except OSError as error:
            place = self.path or tempfile.gettempdir()
            raise ConfigError(
                f"rows cannot be spilled to {place!r:.200}: {error.strerror or error}",
                hint="Set `spill.path` to a local folder that can be written to",
            ) from error

    def take(self, size: int) -> None:
        """Take so many bytes.

        Raises:
            StorageError: the limit is reached.
        """
        with self._lock:
            if self.used + size > self.max_bytes:
                raise StorageError(
                    f"refinement needs more than {self.max_bytes} bytes of local disk",
                    hint="Raise `spill.max_bytes`, or set `refine: off` for this table",
                )
            self.used += size

    def give_back(self, size: int) -> None:
        """Return so many bytes."""
        with self._lock:
            self.used -= size


@lru_cache(maxsize=8)
def spill_space(path: str | None = None, max_bytes: int = MAX_BYTES) -> SpillSpace:
    """The space at a place, shared by the tables of this process."""
    return SpillSpace(path, max_bytes)


class Buckets:
    """Batches of rows by bucket, in the order in which they were added. One thread adds; then several may read.

    Args:
        space: local disk.
        count: number of buckets.
        schema: of the rows.
        compressed: whether rows are compressed on disk. Row ids hardly get smaller.
    """

    def __init__(self, space: SpillSpace, count: int, schema: pa.Schema, *, compressed: bool = True) -> None:
        self.count = count
        self.schema = schema
        self._space = space
        self._options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None)
        self._held: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._end = 0
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(count)]

    def add(self, rows: pa.RecordBatch, buckets: npt.NDArray[np.int64] | None = None) -> None:
        """Add rows, given the bucket of each; None: the first bucket.

        Raises:
            StorageError: they fit neither into memory nor on disk.
        """
        if not rows.num_rows:
            return
        for bucket, part in _divide(rows, buckets):
            self._held[bucket].append(part)
            self._bytes += part.nbytes
        if self._bytes > MEMORY_BYTES:
            self._file = self._file or self._space.open()
            for bucket, batches in enumerate(self._held):
                if not batches:
                    continue
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, self.schema, options=self._options) as stream:
                    for batch in batches:
                        stream.write_batch(batch)
                data = sink.getvalue()
                self._space.take(data.size)
                self._places[bucket].append((self._end, data.size))
                self._end += data.size
                try:
                    self._file.write(data)
                except OSError as error:
                    raise StorageError(
                        f"rows cannot be spilled: {error.strerror or error}",
                        hint="Free disk space, or set `spill.path`",
                    ) from error
                batches.clear()
            self._file.flush()
            self._bytes = 0

    def rows(self, bucket: int) -> pa.Table:
        """The rows of a bucket."""
        batches = list[pa.RecordBatch]()
        for start, size in self._places[bucket]:
            assert self._file is not None
            data = os.pread(self._file.fileno(), size, start)
            while len(data) < size and (more := os.pread(self._file.fileno(), size - len(data), start + len(data))):
                data += more
            batches += pa.ipc.open_stream(pa.py_buffer(data))
        return pa.Table.from_batches([*batches, *self._held[bucket]], self.schema)

    def close(self) -> None:
        """Forget all rows, and return the disk space."""
        self._held = [[] for _ in range(self.count)]
        if self._file is not None:
            self._file.close()
            self._file = None
            self._space.give_back(self._end)
            self._end = 0

    def __del__(self) -> None:
        # The space is shared: rows that have no reader any more must not fill it.
        self.close()


@contextmanager
def capacity_errors(*sides: pa.Table) -> Iterator[None]:
    """Raise DataError where Arrow fails because the rows of a bucket have too much text."""
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        if sum(side.nbytes for side in sides) <= TEXT_BYTES:
            raise
        raise DataError(
            "the rows to match have more than 2 GiB in one column",
            hint="Leave columns of long text out with `columns`, or set `refine: off`; for net changes, read fewer versions",
        ) from error


def _divide(rows: pa.RecordBatch, buckets: npt.NDArray[np.int64] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each bucket, in their order."""
    if buckets is None or int(buckets.min()) == int(buckets.max()):
        yield 0 if buckets is None else int(buckets[0]), rows
        return
    ends = [*(np.flatnonzero(np.diff(buckets)) + 1), len(buckets)]
    if len(ends) <= FEW_RUNS:
        # Row ids of a file often follow each other.
        for start, end in zip([0, *ends], ends, strict=False):
            yield int(buckets[start]), rows.slice(start, end - start)
        return
    order = np.argsort(buckets, kind="stable")
    sorted_buckets = buckets[order]
    starts = np.flatnonzero(np.diff(sorted_buckets, prepend=-1))
    sorted_rows = rows.take(array_of(order))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield int(sorted_buckets[start]), sorted_rows.slice(start, end - start)
