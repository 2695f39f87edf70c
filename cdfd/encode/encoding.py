"""The port between envelopes and encodings, and the rows of a table as payloads."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from cdfd.encode.keys import Choice, every_column
from cdfd.encode.payload import Payload, Shape, ShapeField
from cdfd.encode.records import Headers, Wrapping
from cdfd.model.columns import CHANGE_COLUMNS

_CHANGE_NAMES = [field.name for field in CHANGE_COLUMNS]


class Encoding(Protocol):
    """Makes keys or values of payloads. Not to be shared by threads."""

    @property
    def headers(self) -> Headers:
        """Headers of the records of the last payload, such as the id of their schema."""

    @property
    def wrapping(self) -> Wrapping:
        """The bytes around each text of the last payload: a schema around JSON."""

    def values(self, payload: Payload) -> pa.Array:
        """One text per record, without its wrapping: `large_binary`, none null.

        Raises:
            DataError: a value that the encoding cannot represent.
            UnsupportedError: a type that it does not have.
            SinkError: a schema registry refuses the schema, or does not answer.
        """


class EncodedRows:
    """Rows of any schema that comes, or some columns of them.

    Args:
        encoding: of keys or values.
        name: of their schema.
        choose: which columns.
    """

    def __init__(self, encoding: Encoding, name: str, choose: Choice = every_column) -> None:
        self._encoding = encoding
        self._name = name
        self._choose = choose
        self._schema: pa.Schema | None = None
        self._shape = Shape(name, ())
        self._columns: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """One text per row, without its wrapping. Raises what the encoding and the choice of columns do."""
        shape = self.shape(batch.schema)
        values = [batch.column(number) for number in self._columns]
        return self._encoding.values(Payload(shape, values, batch.num_rows))

    @property
    def headers(self) -> Headers:
        """Of the records of the last rows."""
        return self._encoding.headers

    @property
    def wrapping(self) -> Wrapping:
        """Of the texts of the last rows."""
        return self._encoding.wrapping

    def shape(self, schema: pa.Schema) -> Shape:
        """The shape of rows with this schema; the same object for the same schema. Raises what the choice of columns does."""
        if self._schema is None or schema != self._schema:
            self._columns = list(self._choose(schema))
            table = len(schema) - len(_CHANGE_NAMES) * (schema.names[-len(_CHANGE_NAMES) :] == _CHANGE_NAMES)
            # Whatever the table says of nulls, so that any column can be added and dropped. The change columns are always there.
            columns = ((number, schema.field(number)) for number in self._columns)
            fields = (ShapeField(field.name, field.type, number < table) for number, field in columns)
            self._schema, self._shape = schema, Shape(self._name, tuple(fields))
        return self._shape
