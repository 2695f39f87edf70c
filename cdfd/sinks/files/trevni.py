"""Trevni files of a delivery's rows."""

from contextlib import closing
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar

import pyarrow as pa

from cdfd.encode.kinds import HINT
from cdfd.errors import SinkError, UnsupportedError
from cdfd.sinks.files.formats import RowsWriter
from cdfd.trevni.files.writing import SpillStore
from cdfd.trevni.table_writer import TableWriter


class Trevni:
    """Trevni, with the columns and types of the batches. A delivery's file is one row group.

    All batches of a delivery have the same schema: a delivery must end at a schema change of the table.
    """

    suffix: ClassVar[str] = ".trv"

    def writer(self, file: BinaryIO) -> RowsWriter:
        """A writer into an open file, which gets its bytes when it is completed."""
        return TrevniRowsWriter(file)


@dataclass(eq=False)
class TrevniRowsWriter:
    """Writes one file. Blocks are kept in memory, and then in a temporary file, until it is completed.

    Attributes:
        file: open and empty.
    """

    file: BinaryIO
    _writer: TableWriter | None = field(default=None, init=False)
    _store: SpillStore = field(default_factory=SpillStore, init=False)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            SinkError: the rows have another schema than those before, or a type that Trevni does not have.
        """
        if self._writer is None:
            try:
                self._writer = TableWriter(batch.schema, self._store)
            except UnsupportedError as error:
                raise SinkError(error.what, hint=HINT) from error
        if not batch.schema.equals(self._writer.schema):
            raise SinkError(
                "the schema changes within a delivery, but a Trevni file has one schema",
                hint="End the delivery at the schema change, or deliver JSON lines",
            )
        self._writer.write(batch)

    def finish(self) -> None:
        """Write the file."""
        with closing(self._store):
            if self._writer is not None:
                for part in self._writer.finish():
                    self.file.write(part)

    def discard(self) -> None:
        """Forget the rows."""
        self._store.close()
