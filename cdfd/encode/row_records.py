"""Records with a row each: the formats flat, avro and cloudevents."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdfd.encode.headers import RowHeaders
from cdfd.encode.images import DELETE, KeyedBatches, KeyedRows
from cdfd.encode.keys import Rows
from cdfd.encode.records import HeaderColumns, Headers, Layout, Records, with_tombstones

Attributes = Callable[[KeyedRows, Layout, bool], tuple[Headers, HeaderColumns]]
"""Headers that a format gives its records: of rows, as they are laid out, and whether they are a snapshot's."""


class RowRecords:
    """A record for each change row.

    Args:
        values: makes values of rows.
        keys: makes keys of rows; None for none, and then there are no tombstones either.
        tombstones: whether a delete is followed by a record without a value.
        attributes: headers of the format.
        prefix: of the names of headers for a changed key.
        headers: makes headers of rows; None for none.
    """

    def __init__(
        self,
        values: Rows,
        keys: Rows | None = None,
        *,
        tombstones: bool = False,
        attributes: Attributes | None = None,
        prefix: str = "__cdfd",
        headers: RowHeaders | None = None,
    ) -> None:
        self._values = values
        self._batches = KeyedBatches(keys)
        self._tombstones = tombstones
        self._attributes = attributes
        self._prefix = prefix
        self._headers = headers

    def encode(self, batch: pa.RecordBatch, *, snapshot: bool = False) -> list[Records]:
        """As `RecordEncoder.encode`."""
        return [self._records(rows, snapshot) for rows in self._batches.rows(batch)]

    def flush(self) -> list[Records]:
        """As `RecordEncoder.flush`."""
        return [self._records(rows, snapshot=False) for rows in self._batches.flush()]

    def _records(self, rows: KeyedRows, snapshot: bool) -> Records:
        headers = rows.key_headers(self._prefix)
        if self._headers is not None:
            headers += self._headers(rows.batch)
        found = Records(rows.keys, self._values(rows.batch), header_columns=headers)
        wanted = self._tombstones and rows.keys is not None
        deleted = rows.codes == DELETE if wanted else np.zeros(len(rows.codes), np.bool_)
        if self._attributes is None and not deleted.any():
            return found
        layout = Layout.of(deleted)
        found = with_tombstones(found, layout)
        if self._attributes is None:
            return found
        fixed, columns = self._attributes(rows, layout, snapshot)
        return replace(found, headers=fixed, header_columns=columns + found.header_columns)
