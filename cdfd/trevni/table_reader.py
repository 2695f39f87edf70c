"""A file's rows as Arrow record batches, and the row of a value."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.errors import ConfigError
from cdfd.runtime.arrays import array_of, scalar_of
from cdfd.trevni import file_schema
from cdfd.trevni.assembly import assemble, logical
from cdfd.trevni.column_reader import ColumnReader
from cdfd.trevni.rows import LOAD_BYTES, Reader, Run, run_all
from cdfd.trevni.shapes import Leaf, Record, columns_of
from cdfd.trevni.shredding import physical
from cdfd.trevni.source import Source

BATCH_ROWS = 65_536
"""Rows of a batch, at most."""


class TableReader:
    """Reads rows of a file.

    Args:
        source: the file.

    Raises:
        TrevniError: the header or the schema is damaged.
    """

    def __init__(self, source: Source) -> None:
        self.reader = Reader(source)
        self.metadata = self.reader.metadata
        self.shape = file_schema.shape_of(self.metadata)

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return file_schema.arrow_schema(self.shape, self.metadata)

    def select(self, columns: Sequence[str] | None) -> Record:
        """The shape of some columns; None for all.

        Raises:
            ConfigError: a name is unknown.
        """
        return self.shape if columns is None else file_schema.select(self.shape, columns)

    def batches(
        self,
        shape: Record,
        start: int = 0,
        end: int | None = None,
        *,
        rows: int | None = BATCH_ROWS,
        load_bytes: int = LOAD_BYTES,
        run: Run = run_all,
    ) -> Iterator[pa.RecordBatch]:
        """The rows `[start, end)` in order.

        Args:
            shape: of the columns to read.
            start: first row.
            end: the row after the last; None for the last of the file.
            rows: of a batch, at most; None for as many as are decoded together.
            load_bytes: bytes of blocks to decode at once, about.
            run: decodes columns in parallel.

        Raises:
            TrevniError: the file is damaged.
        """
        schema = file_schema.arrow_schema(shape, self.metadata)
        numbers = list(columns_of(shape))
        windows = self.reader.windows(numbers, start, end, most=rows, load_bytes=load_bytes, run=run)
        for window in windows:
            count = window.end - window.start
            columns = [assemble(field.shape, window.columns, count) for field in shape.fields]
            if columns:
                yield pa.RecordBatch.from_arrays(columns, schema=_as_read(schema, columns))
            else:
                yield pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))

    def find(self, name: str, value: Any) -> int:
        """The first row whose value is not below `value`, in a column that is sorted and has first values. Reads one block.

        Args:
            name: of the column.
            value: to look for.

        Returns:
            The number of the row, or of rows if there is none.

        Raises:
            ConfigError: the column is unknown, or has no first values.
            TrevniError: the file is damaged.
        """
        leaf = next((each.shape for each in self.shape.fields if each.name == name), None)
        if not isinstance(leaf, Leaf) or not self.metadata.columns[leaf.column].values:
            hint = "Write the file with first_values"
            raise ConfigError(f"there is no column {name!r:.100} with first values", hint=hint)
        wanted: Any = array_of([value], leaf.arrow)
        table = self.reader.blocks(leaf.column)
        assert table.first_values is not None
        first: Any = table.first_values
        order = _signed if pa.types.is_decimal(leaf.arrow) else _unchanged
        block = max(0, bisect_left(first, order(physical(leaf, wanted, name)[0].as_py()), key=order) - 1)
        if not len(table):
            return 0
        row = int(table.first_rows[block])
        reader = ColumnReader(self.reader.source, table, block, row, runs=self.metadata.runs)
        end = int(table.first_rows[block + 1])
        reader.load(end)
        values = reader.take(end, end - row).values
        if pa.types.is_decimal(leaf.arrow):
            values = logical(leaf, values)
        else:
            wanted = physical(leaf, wanted, name)
        found = pc.index(pc.greater_equal(values, wanted[0]), scalar_of(True)).as_py()
        return end if found < 0 else row + int(found)


def _signed(decimal: bytes) -> int:
    """A decimal by which decimals can be compared: as bytes, -1 is above 1."""
    return int.from_bytes(decimal, "big", signed=True)


def _unchanged(value: Any) -> Any:
    return value


def _as_read(schema: pa.Schema, columns: Sequence[pa.Array]) -> pa.Schema:
    """The schema, with Arrow's large types where a block of more than 2 GiB has them."""
    for number, column in enumerate(columns):
        field: Any = schema.field(number)
        if column.type != field.type:
            schema = schema.set(number, field.with_type(column.type))
    return schema
