"""Record headers with values of columns: texts as they are, bytes as they are, all others as in JSON without quotes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from cdfd.encode.keys import KeyColumns
from cdfd.encode.records import HeaderColumn, HeaderColumns
from cdfd.encode.values import plain_text
from cdfd.errors import UnsupportedError

_TEXT = pa.large_binary()


class RowHeaders:
    """Makes the headers of rows. A null has no header.

    Args:
        columns: the name of each header, and of its column.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._names = tuple(columns)
        self._find = KeyColumns(tuple(columns.values()), "headers")
        self._known: tuple[pa.Schema, tuple[int, ...]] | None = None

    def __call__(self, batch: pa.RecordBatch) -> HeaderColumns:
        """A column of values for each header.

        Raises:
            MissingColumnError: the table has no such column at this version.
            UnsupportedError: a column is nested.
        """
        if not self._names:
            return ()
        if self._known is None or self._known[0] != batch.schema:
            self._known = batch.schema, tuple(self._find(batch.schema))
        places = self._known[1]
        cells = zip(self._names, places, strict=True)
        return tuple(HeaderColumn(name, _texts(batch.column(place))) for name, place in cells)


def _texts(array: pa.Array) -> pa.Array:
    if pa.types.is_nested(array.type):
        raise UnsupportedError(f"a header cannot have a value of type {array.type}", hint="Correct `headers`")
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return array.cast(pa.large_string() if pa.types.is_string(array.type) else _TEXT).cast(_TEXT)
    return plain_text(array)
