"""Writes a file: a header, which says where the columns begin, then the columns. So the blocks are kept until all of them are known."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.codecs import Codec
from cdfd.trevni.column_writer import BLOCK_BYTES, ColumnWriter
from cdfd.trevni.metadata import ColumnMetadata, FileMetadata, check_column, header_bytes
from cdfd.trevni.rows import Run, run_all
from cdfd.trevni.values.lengths import Numbers


class ColumnRows(NamedTuple):
    """Rows of one column to write: see `ColumnWriter.write`."""

    lengths: Numbers | None
    values: pa.Array
    entries: Numbers


class BlockStore(Protocol):
    """Keeps blocks until the file is complete."""

    def add(self, column: int, data: bytes | memoryview) -> None:
        """Append bytes to a column. Columns may be appended to in parallel."""

    def parts(self, column: int) -> Iterable[bytes | memoryview]:
        """The bytes of a column, in order."""


class FileWriter:
    """Writes the columns of one file.

    Args:
        columns: to write. A parent precedes its children.
        store: keeps the blocks.
        codec: default of the columns.
        checksum: default of the columns.
        metadata: of the file; keys that begin with `trevni.` are ignored.
        block_bytes: size from which a block ends.

    Raises:
        TrevniError: columns that no file can have.
    """

    def __init__(
        self,
        columns: Sequence[ColumnMetadata],
        store: BlockStore,
        *,
        codec: Codec = Codec.SNAPPY,
        checksum: Checksum = Checksum.CRC32,
        metadata: Mapping[str, bytes] | None = None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        before: dict[str, ColumnMetadata] = {}
        for column in columns:
            try:
                check_column(column, before)
            except TrevniError as error:
                raise error.at(column=column.name) from None
            before[column.name] = column
        self.num_rows = 0
        self._file = FileMetadata(2, 0, tuple(columns), (), codec, checksum, metadata or {})
        self._store = store
        self._writers = [
            ColumnWriter(column, partial(self._store.add, number), block_bytes) for number, column in enumerate(columns)
        ]

    def write(self, rows: int, columns: Sequence[ColumnRows], run: Run = run_all) -> None:
        """Append rows of all columns.

        Args:
            rows: how many.
            columns: their rows.
            run: encodes columns in parallel.

        Raises:
            TrevniError: a row is larger than a block can be.
        """
        self.num_rows += rows
        run([partial(writer.write, *each) for writer, each in zip(self._writers, columns, strict=True)])

    def finish(self, run: Run = run_all) -> Iterable[bytes | memoryview]:
        """The bytes of the file, in parts."""
        sizes = [0] * len(self._writers)

        def finish(number: int) -> None:
            sizes[number] = self._writers[number].finish()

        run([partial(finish, number) for number in range(len(sizes))])
        yield header_bytes(replace(self._file, num_rows=self.num_rows), sizes)
        for number, writer in enumerate(self._writers):
            yield writer.descriptors()
            yield from self._store.parts(number)
