"""Rows in Avro, framed as Confluent's clients have it: a zero byte, the schema's id in four bytes, the row."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from cdfd.encode.avro.binary import Cells, join_cells, same
from cdfd.encode.avro.cells import nullable, plain
from cdfd.encode.avro.schema import is_change_column, record_schema
from cdfd.encode.keys import Choice, every_column
from cdfd.errors import CdfdError, DataError

Register = Callable[[str, str], int]
"""Subject and schema, as JSON, to the schema's id: `SchemaRegistry.register`."""

# It bounds the memory beyond input and output, and keeps most of that in the processor's cache.
_ROWS_AT_ONCE: Final = 16_384
_CELLS_AT_ONCE: Final = 1 << 18


class AvroEncoder:
    """Encodes batches of one schema, without framing. Holds no state of the batches: threads may share it.

    Args:
        schema: of the batches to come.
        name: of the record in Avro.
        namespace: of that name.
        columns: positions of the columns to encode, in this order; all if not given.

    Attributes:
        schema: of the batches.
        avro_schema: of the rows, as JSON.

    Raises:
        UnsupportedError: a column is of a type that Avro has no form for.
    """

    def __init__(self, schema: pa.Schema, name: str, namespace: str, *, columns: Sequence[int] | None = None) -> None:
        self.schema = schema
        self._names = list(schema.names)
        self._columns = list(range(len(schema))) if columns is None else list(columns)
        self._plain = {number for number in self._columns if is_change_column(schema, number)}
        self.avro_schema = record_schema(schema, self._columns, name, namespace)

    def rows(self, batch: pa.RecordBatch, prefix: bytes = b"") -> pa.Array:
        """The rows as `large_binary`, each behind `prefix`.

        Raises:
            DataError: as `avro_cells.plain`; or the batch is of another schema.
        """
        if batch.schema.names != self._names:
            raise DataError(f"a batch has the columns {batch.schema.names}; expected {self._names}")
        chunks = list(self._chunks(batch, prefix))
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)

    def _chunks(self, batch: pa.RecordBatch, prefix: bytes) -> Iterator[pa.Array]:
        size = max(1, min(_ROWS_AT_ONCE, _CELLS_AT_ONCE // max(len(self._columns), 1)))
        for start in range(0, max(batch.num_rows, 1), size):
            chunk = batch.slice(start, size)
            cells = [cell for number in self._columns for cell in self._cells(chunk, number)]
            yield join_cells([same(prefix), *cells], chunk.num_rows)

    def _cells(self, batch: pa.RecordBatch, number: int) -> list[Cells]:
        try:
            return (plain if number in self._plain else nullable)(batch.column(number))
        except CdfdError as error:
            error.what = f"column {self._names[number]}: {error.what}"
            raise


class AvroRows:
    """Rows of any schema that comes; each schema is registered before its first row is encoded, which blocks.

    Args:
        register: see there.
        topic: of the records; the subject is `<topic>-value` or `<topic>-key`, as in Confluent's default strategy.
        part: `value` or `key`.
        choose: which columns.
    """

    def __init__(self, register: Register, topic: str, part: str, choose: Choice = every_column) -> None:
        self._register = register
        self._topic, self._part = topic, part
        self._choose = choose
        self._encoder: AvroEncoder | None = None
        self._prefix = b""

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """One value per row. Raises what `AvroEncoder`, the choice of columns and the registry do."""
        encoder = self._encoder
        if encoder is None or encoder.schema != batch.schema:
            columns = self._choose(batch.schema)
            encoder = AvroEncoder(batch.schema, self._part.capitalize(), self._topic, columns=columns)
            number = self._register(f"{self._topic}-{self._part}", encoder.avro_schema)
            self._prefix = b"\0" + number.to_bytes(4, "big")
            self._encoder = encoder
        return encoder.rows(batch, self._prefix)
