"""Writes Arrow tables as Trevni files: named and shaped like `pyarrow.parquet`."""

import asyncio
import os
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Self

import pyarrow as pa

from cdfd.errors import ConfigError, StorageError
from cdfd.storage import durable
from cdfd.storage.local import LocalStorage
from cdfd.trevni.column_writer import BLOCK_BYTES
from cdfd.trevni.files.opening import StorageOptions, Where, in_threads, split
from cdfd.trevni.rows import run_all
from cdfd.trevni.table_writer import TableWriter

SPILL_BYTES = 32 << 20
"""Bytes of blocks that are kept in memory until a file is complete. More are kept in a temporary file."""


def write_table(
    table: pa.Table,
    where: Where,
    *,
    codec: str | Mapping[str, str] = "snappy",
    checksum: str | Mapping[str, str] = "crc32",
    first_values: Collection[str] = (),
    metadata: Mapping[str, str | bytes] | None = None,
    block_bytes: int = BLOCK_BYTES,
    use_threads: bool = True,
    storage_options: StorageOptions | None = None,
) -> None:
    """Write a file. It appears as a whole, or not at all.

    Args:
        table: the rows.
        where: a path, a URI, or a file that is open for writing.
        codec: `null`, `snappy`, `deflate` or `bzip2`; or by name of the physical column, with "" for the default.
        checksum: `crc32` or `null`, as `codec`.
        first_values: columns whose blocks have their first values in the column's table of blocks. `TrevniFile.find` needs them.
        metadata: of the file.
        block_bytes: size from which a block ends.
        use_threads: encode columns in parallel.
        storage_options: options of the store, for the URI's scheme.

    Raises:
        UnsupportedError: a column is of a type that files cannot have.
        DataError: a column has nulls and its field says that it has none, or a row is too large.
        StorageError: the file cannot be written.
        ConfigError: an unknown codec, checksum or column.
    """
    with TrevniWriter(
        where,
        table.schema,
        codec=codec,
        checksum=checksum,
        first_values=first_values,
        metadata=metadata,
        block_bytes=block_bytes,
        use_threads=use_threads,
        storage_options=storage_options,
    ) as writer:
        writer.write_table(table)


class TrevniWriter:
    """Writes a file batch by batch. Its arguments are those of `write_table`. Thread-safe: batches of several threads alternate.

    The file appears when the writer is closed. If an exception leaves a `with` block, or a write has failed, there is no file.

    Raises:
        CdfdError: as `write_table`.
    """

    def __init__(
        self,
        where: Where,
        schema: pa.Schema,
        *,
        codec: str | Mapping[str, str] = "snappy",
        checksum: str | Mapping[str, str] = "crc32",
        first_values: Collection[str] = (),
        metadata: Mapping[str, str | bytes] | None = None,
        block_bytes: int = BLOCK_BYTES,
        use_threads: bool = True,
        storage_options: StorageOptions | None = None,
    ) -> None:
        if not isinstance(where, str | os.PathLike) and not hasattr(where, "write"):
            hint = "Give a path, a URI or a file that is open for writing"
            raise ConfigError(f"the file is of type {type(where).__name__}", hint=hint)
        self._where = where
        self._options = storage_options
        self._closed = False
        self._lock = threading.Lock()
        with ExitStack() as stack:
            self._store = SpillStore()
            stack.callback(self._store.close)
            self._run = stack.enter_context(in_threads()) if use_threads else run_all
            self._writer = TableWriter(
                schema,
                self._store,
                codec=codec,
                checksum=checksum,
                first_values=first_values,
                metadata=metadata,
                block_bytes=block_bytes,
            )
            self._stack = stack.pop_all()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            CdfdError: as `write_table`.
        """
        with self._lock:
            if self._closed:
                raise ConfigError("the file is closed", hint="Write all rows before you close it")
            self._writer.write(batch, self._run)

    def write_table(self, table: pa.Table) -> None:
        """Append rows.

        Raises:
            CdfdError: as `write_table`.
        """
        for batch in table.to_batches():
            self.write_batch(batch)

    def close(self) -> None:
        """Complete the file. A writer that is closed already does nothing.

        Raises:
            StorageError: it cannot be written.
            DataError: an earlier write did not complete.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with self._stack:
            parts = self._writer.finish(self._run)
            if not isinstance(self._where, str | os.PathLike):
                try:
                    for part in parts:
                        self._where.write(part)
                except (OSError, ValueError) as error:  # ValueError: the file is closed, or open for reading
                    reason = (error.strerror if isinstance(error, OSError) else None) or error
                    raise StorageError(f"cannot write to the open file: {reason}") from error
                return
            storage, name = split(self._where, self._options)
            try:
                if isinstance(storage, LocalStorage):
                    with durable.replacing(os.path.join(storage.root, name), mode=0o666) as file:
                        for part in parts:
                            file.write(part)
                else:
                    # A thread of its own: a notebook's has a running event loop.
                    with ThreadPoolExecutor(1) as thread:
                        thread.submit(asyncio.run, storage.put(name, b"".join(parts))).result()
            except OSError as error:
                raise StorageError(f"cannot write: {error.strerror or error}", path=os.fspath(self._where)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            with self._lock:
                self._closed = True
            self._stack.close()


@dataclass(eq=False)
class SpillStore:
    """Keeps blocks in memory, and later ones in a temporary file."""

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _parts: dict[int, list[bytes | memoryview | tuple[int, int]]] = field(default_factory=dict, init=False)
    _bytes: int = field(default=0, init=False)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _file: IO[bytes] | None = field(default=None, init=False)

    def add(self, column: int, data: bytes | memoryview) -> None:
        """Append bytes to a column."""
        with self._lock:
            self._bytes += len(data)
            place: bytes | memoryview | tuple[int, int] = data
            if self._bytes > SPILL_BYTES:
                try:
                    if self._file is None:
                        self._file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # `close` closes it
                    place = self._file.seek(0, os.SEEK_END), len(data)
                    self._file.write(data)
                except OSError as error:
                    raise StorageError(f"cannot write a temporary file: {error.strerror or error}") from error
            self._parts.setdefault(column, []).append(place)

    def parts(self, column: int) -> Iterable[bytes | memoryview]:
        """The bytes of a column, in order."""
        for part in self._parts.get(column, ()):
            if isinstance(part, tuple):
                assert self._file is not None
                self._file.seek(part[0])
                yield self._file.read(part[1])
            else:
                yield part

    def close(self) -> None:
        """Remove the temporary file."""
        self._stack.close()
