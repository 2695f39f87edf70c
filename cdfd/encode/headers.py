"""Record headers with values of columns: texts as they are, bytes as they are, all others as in JSON without quotes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.encode.keys import KeyColumns
from cdfd.encode.pieces import join
from cdfd.encode.records import HeaderColumns
from cdfd.encode.values import Rules, column
from cdfd.errors import UnsupportedError
from cdfd.runtime.arrays import scalar_of

_TEXT = pa.large_binary()
_QUOTE = b'"'


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
        return tuple((name, _texts(batch.column(place))) for name, place in zip(self._names, places, strict=True))


def _texts(array: pa.Array) -> pa.Array:
    if pa.types.is_nested(array.type):
        raise UnsupportedError(f"a header cannot have a value of type {array.type}", hint="Correct `headers`")
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        return array.cast(pa.large_string() if pa.types.is_string(array.type) else _TEXT).cast(_TEXT)
    cells = column(array, Rules())
    cells = replace(cells, opening=cells.opening.removeprefix(_QUOTE), closing=cells.closing.removesuffix(_QUOTE))
    found = join([b"", b""], [cells], len(array))
    return pc.if_else(array.is_valid(), found, scalar_of(None, _TEXT)) if array.null_count else found
