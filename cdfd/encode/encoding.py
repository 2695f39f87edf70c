"""The port between envelopes and encodings, and the rows of a table as payloads."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from cdfd.delta.types.datatypes import ByName
from cdfd.encode.payload import Payload, Shape, ShapeField
from cdfd.encode.records import Headers, Wrapping
from cdfd.errors import MissingColumnError
from cdfd.model.columns import CHANGE_NAMES

Rows = Callable[[pa.RecordBatch], pa.Array]
"""Encodes rows, or some columns of them, of any schema that comes: `large_binary`, none null."""


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
        key: names of the key's columns; None for all columns.
    """

    def __init__(self, encoding: Encoding, name: str, key: Sequence[str] | None = None) -> None:
        self.encoding = encoding
        self._name = name
        self._key = key
        self._schema: pa.Schema | None = None
        self._shape = Shape(name, ())
        self._columns: list[int] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """One text per row, without its wrapping. Raises what the encoding and `key_columns` do."""
        schema = batch.schema
        if self._schema is None or schema != self._schema:
            self._columns = list(range(len(schema))) if self._key is None else key_columns(schema, self._key)
            table = len(schema) - len(CHANGE_NAMES) * (schema.names[-len(CHANGE_NAMES) :] == CHANGE_NAMES)
            # Whatever the table says of nulls, so that any column can be added and dropped. The change columns are always there.
            columns = ((number, schema.field(number)) for number in self._columns)
            fields = (ShapeField(field.name, field.type, number < table) for number, field in columns)
            self._schema, self._shape = schema, Shape(self._name, tuple(fields))
        values = [batch.column(number) for number in self._columns]
        return self.encoding.values(Payload(self._shape, values, batch.num_rows))


def key_columns(schema: pa.Schema, names: Sequence[str], setting: str = "key") -> list[int]:
    """The positions of the key's columns, in the order of the key. Case does not count, as elsewhere in Delta.

    Args:
        schema: of change rows.
        names: the configured key.
        setting: the name of the setting, for messages.

    Raises:
        MissingColumnError: the table has no such column at this version.
    """
    table = schema.names[: -len(CHANGE_NAMES)]
    find = ByName({name: position for position, name in enumerate(table)})
    positions = []
    for name in names:
        places = find(name)
        if not places:
            near = difflib.get_close_matches(name, table, n=1)
            advice = f"Did you mean {near[0]!r:.200}?" if near else f"It has {', '.join(table[:50])}"
            remedy = f"change `{setting}`, and give the table a new topic"
            raise MissingColumnError(
                f"the table has no column {name!r:.200}, which is in its `{setting}`",
                hint=f"{advice}. If a writer renamed or dropped it, {remedy}",
            )
        positions.append(places[0])
    return positions
