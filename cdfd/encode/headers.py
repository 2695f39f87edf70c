"""Record headers with values of columns: texts as they are, bytes as they are, all others as in JSON without quotes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from cdfd.encode.encoding import key_columns
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
        self._columns = columns
        self._places: tuple[pa.Schema, list[int]] | None = None

    def __call__(self, batch: pa.RecordBatch) -> HeaderColumns:
        """A column of values for each header.

        Raises:
            MissingColumnError: the table has no such column at this version.
            UnsupportedError: a column is nested.
        """
        if not self._columns:
            return ()
        if self._places is None or self._places[0] != batch.schema:
            self._places = batch.schema, key_columns(batch.schema, list(self._columns.values()), "headers")
        headers = []
        for name, place in zip(self._columns, self._places[1], strict=True):
            array = batch.column(place)
            if pa.types.is_nested(array.type):
                raise UnsupportedError(f"a header cannot have a value of type {array.type}", hint="Correct `headers`")
            if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
                texts = array.cast(pa.large_string() if pa.types.is_string(array.type) else _TEXT).cast(_TEXT)
            else:
                texts = plain_text(array)
            headers.append(HeaderColumn(name, texts))
        return tuple(headers)
