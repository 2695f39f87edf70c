"""Payloads and record batches in JSON: one object per row, fields in the order of the schema, no white space.

How each type looks is said in `cdfd.encode.values`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from cdfd.encode.cells.pieces import Cell, Nested, parts
from cdfd.encode.kinds import column_errors
from cdfd.encode.payload import Payload, Shape, ShapeField
from cdfd.encode.records import BARE, Headers
from cdfd.encode.values import Rules, cells, check_type, object_separators
from cdfd.encode.writer import Places, Writer

_OF_ENVELOPE: Final = Rules()
_ROWS_AT_ONCE: Final = 65_536
"""Rows of lines put together at a time: it bounds the memory beyond input and output."""


class JsonWriter(Writer[ShapeField]):
    """Writes objects.

    Args:
        rules: of values.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules

    def fields(self, field: ShapeField) -> Sequence[ShapeField]:
        """Those of its shape."""
        assert isinstance(field.type, Shape)
        return field.type.fields

    def separators(self, fields: Sequence[ShapeField]) -> Sequence[bytes]:
        """Names, brackets and commas."""
        return object_separators(tuple(field.name for field in fields))

    def array(self, array: pa.Array, field: ShapeField) -> Cell:
        """As `cdfd.encode.values.cells`. The envelope's own fields are numbers whatever the rules are."""
        return cells(array, self._rules if field.of_table else _OF_ENVELOPE)

    def text(self, field: ShapeField, separators: Sequence[str], numbers: list[Cell], count: int) -> Cell:
        """A string."""
        escaped = [json.dumps(separator, ensure_ascii=False)[1:-1].encode() for separator in separators]
        return Nested([b'"' + escaped[0], *escaped[1:-1], escaped[-1] + b'"'], numbers, count)

    def struct(self, field: ShapeField, cells: list[Cell], places: Places) -> Cell:
        """An object."""
        return Nested(self.separators(self.fields(field)), cells, *places)


class JsonEncoding:
    """Records in JSON without a schema.

    Args:
        rules: of values.
        wrapped: whether what all texts of a payload begin and end with is their wrapping: most of an envelope.

    Attributes:
        headers: of records; none.
        wrapping: of the last texts.
    """

    headers: Headers = ()
    wrapping = BARE

    def __init__(self, rules: Rules | None = None, *, wrapped: bool = False) -> None:
        self._wrapped = wrapped
        self._writer = JsonWriter(rules or Rules())
        self._shape: Shape | None = None

    def values(self, payload: Payload) -> pa.Array:
        """As `Encoding.values`."""
        self._check(payload.shape)
        if not self._wrapped:
            return self._writer.rows(payload, payload.shape.fields)
        texts, self.wrapping = self._writer.rows_between(payload, payload.shape.fields)
        return texts

    def lines(self, payload: Payload) -> pa.Buffer:
        """The same as JSON lines, each ended by a line feed, in one buffer. Threads may share it for these."""
        self._check(payload.shape)
        texts = self._writer.rows(payload, payload.shape.fields, suffix=b"\n")
        offsets, _ = parts(texts)
        return texts.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))

    def _check(self, shape: Shape) -> None:
        if self._shape is not shape:
            check_types(shape)
            self._shape = shape


class LineEncoder:
    """JSON lines of batches whose schema changes now and then: prepared once per schema. Threads may share it."""

    def __init__(self) -> None:
        self._encoding = JsonEncoding()
        self._shape: tuple[pa.Schema, Shape] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.Buffer:
        """The rows as UTF-8 JSON lines, each ended by a line feed, in one buffer.

        Raises:
            UnsupportedError: a column is of a type that JSON has no form for.
            DataError: a string is not UTF-8, a time out of range, a map's key null.
        """
        prepared = self._shape
        if prepared is None or prepared[0] != batch.schema:
            fields = tuple(ShapeField(each.name, each.type) for each in batch.schema)
            self._shape = prepared = batch.schema, Shape("", fields)
        buffers = []
        for start in range(0, max(batch.num_rows, 1), _ROWS_AT_ONCE):
            chunk = batch.slice(start, _ROWS_AT_ONCE)
            buffers.append(self._encoding.lines(Payload(prepared[1], chunk.columns, chunk.num_rows)))
        return buffers[0] if len(buffers) == 1 else pa.py_buffer(b"".join(buffers))


def check_types(shape: Shape) -> None:
    """`UnsupportedError` where JSON has no form for the type of a field."""
    for field in shape.fields:
        if isinstance(field.type, Shape):
            check_types(field.type)
            continue
        with column_errors(shape, field):
            check_type(field.type)
