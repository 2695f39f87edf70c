"""`cdfd tail --format trevni`: change rows as one Trevni file."""

from contextlib import closing
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa

from cdfd.errors import SchemaChangedError
from cdfd.trevni.files.writing import SpillStore
from cdfd.trevni.table_writer import TableWriter


@dataclass(eq=False)
class TrevniOutput:
    """Collects rows, and writes the file when it is closed: its header says where the columns begin.

    Attributes:
        out: open for appending.
        schema: of the file, if there are no rows.
        empty: whether to truncate `out` first.
    """

    out: BinaryIO
    schema: pa.Schema | None = field(default=None, init=False)
    empty: bool = field(default=False, init=False)
    _store: SpillStore = field(default_factory=SpillStore, init=False)
    _writer: TableWriter | None = field(default=None, init=False)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            SchemaChangedError: they have other columns than those before.
            UnsupportedError: a column is of a type that Trevni does not have.
        """
        if self._writer is None:
            self._writer = TableWriter(rows.schema, self._store)
        if not rows.schema.equals(self._writer.schema):
            hint = "Write the versions before and after the change to different files, with --from and --until"
            raise SchemaChangedError("the table's schema changes in this range, and a Trevni file has one", hint=hint)
        self._writer.write(rows)

    def close(self) -> None:
        """Write the file."""
        with closing(self._store):
            if self._writer is None and self.schema is not None:
                self._writer = TableWriter(self.schema, self._store)
            if self._writer is not None:
                if self.empty:
                    self.out.truncate(0)
                for part in self._writer.finish():
                    self.out.write(part)
