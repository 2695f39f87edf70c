"""Formats of a delivery's file, by `sink.format`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.encode.json import LineEncoder
from cdfd.errors import SinkError

Encoder = Callable[[pa.RecordBatch], bytes | bytearray | memoryview | pa.Buffer]

# A row group is written at either limit: large enough for fast readers, small enough for memory.
_GROUP_ROWS = 256 * 1024
_GROUP_BYTES = 64 << 20


class RowsWriter(Protocol):
    """Writes the batches of one delivery into one file."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows. Blocks; memory is bounded whatever the number of batches."""

    def finish(self) -> None:
        """Write buffered rows, which completes the file. The file stays open."""

    def discard(self) -> None:
        """Release the file without completing it."""


class RowsFormat(Protocol):
    """A file format.

    Attributes:
        suffix: of file names, such as `.jsonl`: a dot, then lower-case letters and digits.
    """

    suffix: ClassVar[str]

    def writer(self, file: BinaryIO) -> RowsWriter:
        """A writer into an open, empty file."""


@dataclass(eq=False)
class JsonLines:
    """One JSON object a line.

    Attributes:
        encode: encodes a record batch as lines, each with its newline; by default as `flat` records.
    """

    suffix: ClassVar[str] = ".jsonl"

    encode: Encoder = field(default_factory=LineEncoder)

    def writer(self, file: BinaryIO) -> RowsWriter:
        """A writer of lines into an open file."""
        return _LinesWriter(file, self.encode)


@dataclass(eq=False)
class _LinesWriter:
    file: BinaryIO
    encode: Encoder

    def write(self, batch: pa.RecordBatch) -> None:
        self.file.write(self.encode(batch))

    def finish(self) -> None:
        """Does nothing, because lines are not buffered."""

    def discard(self) -> None:
        """Does nothing, because lines are not buffered."""


class Parquet:
    """Parquet, with the columns and types of the batches.

    All batches of a delivery have the same schema: a delivery must end at a schema change of the table.
    """

    suffix: ClassVar[str] = ".parquet"

    def writer(self, file: BinaryIO) -> RowsWriter:
        """A writer of row groups into an open file."""
        return _ParquetWriter(file)


@dataclass(eq=False)
class _ParquetWriter:
    file: BinaryIO
    _writer: pq.ParquetWriter | None = field(default=None, init=False)
    _batches: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _rows: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.file, batch.schema, compression="zstd")
        if not batch.schema.equals(self._writer.schema):
            raise SinkError(
                "the schema changes within a delivery, but a Parquet file has one schema",
                hint="End the delivery at the schema change, or deliver JSON lines",
            )
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush(self._writer)

    def finish(self) -> None:
        if self._writer is not None:
            self._flush(self._writer)
            self._writer.close()

    def discard(self) -> None:
        if self._writer is not None:
            # Otherwise its finalizer would write a footer into the closed file.
            self._writer.is_open = False
            self._writer = None

    def _flush(self, writer: pq.ParquetWriter) -> None:
        if self._batches:
            writer.write_table(pa.Table.from_batches(self._batches), row_group_size=_GROUP_ROWS)
            self._batches.clear()
            self._rows = self._bytes = 0
