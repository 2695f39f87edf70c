"""`cdfd tail --format trevni`: change rows as one Trevni file."""

from contextlib import ExitStack
from typing import BinaryIO

import pyarrow as pa

from cdfd.errors import SchemaChangedError
from cdfd.trevni.files.writing import SpillStore
from cdfd.trevni.table_writer import TableWriter


class TrevniOutput:
    """Collects rows, and writes the file when it is closed: its header says where the columns begin.

    Args:
        out: open and empty.

    Attributes:
        schema: of the file, if there are no rows.
    """

    def __init__(self, out: BinaryIO) -> None:
        self.schema: pa.Schema | None = None
        self._out = out
        self._stack = ExitStack()
        self._writer: TableWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            SchemaChangedError: they have other columns than those before.
            UnsupportedError: a column is of a type that Trevni does not have.
        """
        if self._writer is None:
            store = SpillStore()
            self._stack.callback(store.close)
            self._writer = TableWriter(rows.schema, store=store)
        if not rows.schema.equals(self._writer.schema):
            hint = "Write the versions before and after the change to different files, with --from and --until"
            raise SchemaChangedError("the table's schema changes in this range, and a Trevni file has one", hint=hint)
        self._writer.write(rows)

    def close(self) -> None:
        """Write the file."""
        with self._stack:
            if self._writer is None and self.schema is not None:
                self._writer = TableWriter(self.schema)
            if self._writer is not None:
                for part in self._writer.finish():
                    self._out.write(part)
