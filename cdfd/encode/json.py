"""Arrow record batches as JSON: one object per row, columns in the order of the schema, no white space.

    encoder = JsonEncoder(batch.schema)
    encoder.rows(batch)   # an array of objects, for the values of Kafka records
    encoder.lines(batch)  # one buffer of JSON lines, for a file or a pipe

How each type looks is said in `cdfd.encode.values`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from cdfd.encode.cells.native_rows import Cells
from cdfd.encode.cells.pieces import Column, join, parts
from cdfd.encode.values import Rules, cells, check_type, object_separators
from cdfd.errors import DataError, UnsupportedError

# Rows put together at a time: it bounds the memory beyond input and output.
_ROWS_AT_ONCE: Final = 65_536


class JsonEncoder:
    """Encodes batches of one schema. Holds no state of the batches: threads may share it.

    Attributes:
        schema: of the batches.
    """

    def __init__(
        self, schema: pa.Schema, *, columns: Sequence[int] | None = None, longs_as_strings: bool = False
    ) -> None:
        """Prepare the names.

        Args:
            schema: of the batches to come.
            columns: positions of the columns to encode, in this order; all if not given.
            longs_as_strings: integers of 64 bits in quotes, for readers whose numbers are doubles (JavaScript).

        Raises:
            UnsupportedError: a column is of a type that JSON has no form for.
        """
        self.schema = schema
        self._schema_names = list(schema.names)
        self._columns = list(range(len(schema))) if columns is None else list(columns)
        self._rules = Rules(longs_as_strings=longs_as_strings)
        for position in self._columns:
            field = schema.field(position)
            try:
                check_type(field.type)
            except UnsupportedError as error:
                raise UnsupportedError(f"column {field.name}: {error.what}", hint=error.hint) from error
        self._separators = object_separators([schema.field(position).name for position in self._columns])

    def rows(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        """The rows as UTF-8 JSON objects, one value each, none null.

        Raises:
            DataError: a string is not UTF-8, a time out of range, a map's key null; or the batch is of another schema.
        """
        chunks = list(self._chunks(batch, self._separators))
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)

    def lines(self, batch: pa.RecordBatch) -> pa.Buffer:
        """The rows as UTF-8 JSON lines, each ended by a line feed, in one buffer. Raises as `rows` does."""
        ended = [*self._separators[:-1], self._separators[-1] + b"\n"]
        buffers = [text_of(chunk) for chunk in self._chunks(batch, ended)]
        return buffers[0] if len(buffers) == 1 else pa.py_buffer(b"".join(buffers))

    def _chunks(self, batch: pa.RecordBatch, separators: Sequence[bytes]) -> Iterator[pa.Array]:
        if batch.schema.names != self._schema_names:
            raise DataError(f"a batch has the columns {batch.schema.names}; expected {self._schema_names}")
        for start in range(0, max(batch.num_rows, 1), _ROWS_AT_ONCE):
            chunk = batch.slice(start, _ROWS_AT_ONCE)
            cells = [self._cells(chunk, position) for position in self._columns]
            yield join(separators, cells, chunk.num_rows)

    def _cells(self, batch: pa.RecordBatch, position: int) -> Column | Cells:
        try:
            return cells(batch.column(position), self._rules)
        except DataError as error:
            raise DataError(f"column {self._schema_names[position]}: {error.what}", hint=error.hint) from error


class LineEncoder:
    """`JsonEncoder.lines` of batches whose schema changes now and then: prepared once per schema. Threads may share it."""

    def __init__(self) -> None:
        self._encoder: JsonEncoder | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.Buffer:
        """The rows as JSON lines. Raises as `JsonEncoder` and its `lines` do."""
        encoder = self._encoder
        if encoder is None or encoder.schema != batch.schema:
            self._encoder = encoder = JsonEncoder(batch.schema)
        return encoder.lines(batch)


def text_of(texts: pa.Array) -> pa.Buffer:
    """The texts one after the other: the buffer they lie in, no copy."""
    offsets, _ = parts(texts)
    data = texts.buffers()[2]
    return data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def rows(batch: pa.RecordBatch, *, longs_as_strings: bool = False) -> pa.LargeBinaryArray:
    """`JsonEncoder.rows` of a single batch."""
    return JsonEncoder(batch.schema, longs_as_strings=longs_as_strings).rows(batch)


def lines(batch: pa.RecordBatch, *, longs_as_strings: bool = False) -> pa.Buffer:
    """`JsonEncoder.lines` of a single batch."""
    return JsonEncoder(batch.schema, longs_as_strings=longs_as_strings).lines(batch)
