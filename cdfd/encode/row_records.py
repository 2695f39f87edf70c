"""Records with a row each: the envelopes flat and cloudevents."""

from dataclasses import replace

import pyarrow as pa

from cdfd.encode.cloudevents import CloudEventAttributes
from cdfd.encode.encoding import EncodedRows
from cdfd.encode.headers import RowHeaders
from cdfd.encode.images import KeyedRows
from cdfd.encode.records import BARE, Layout, Records, SnapshotPart, with_tombstones
from cdfd.scan.image_order import DELETE


class RowRecords:
    """A record for each change row.

    Args:
        values: makes values of rows.
        keys: makes keys of rows; None for none, and then there are no tombstones either.
        tombstones: whether a delete is followed by a record without a value.
        attributes: of cloudevents.
        headers: makes headers of rows.
    """

    def __init__(
        self,
        values: EncodedRows,
        keys: EncodedRows | None,
        *,
        tombstones: bool,
        attributes: CloudEventAttributes | None,
        headers: RowHeaders,
    ) -> None:
        self._values = values
        self._keys = keys
        self._tombstones = tombstones and keys is not None
        self._attributes = attributes
        self._headers = headers

    def encode(
        self, batch: pa.RecordBatch, *, snapshot: bool = False, part: SnapshotPart = SnapshotPart.MIDDLE
    ) -> list[Records]:
        """As `RecordEncoder.encode`."""
        rows = KeyedRows.of(batch, self._keys)
        columns = rows.key_headers("__cdfd") + self._headers(rows.batch)
        values = self._values(rows.batch)
        headers, value_wrapping, key_wrapping = self._values.encoding.headers, self._values.encoding.wrapping, BARE
        if self._keys is not None:
            headers, key_wrapping = (*self._keys.encoding.headers, *headers), self._keys.encoding.wrapping
        records = Records(rows.keys, values, headers, columns, key_wrapping=key_wrapping, value_wrapping=value_wrapping)
        layout = None
        if self._tombstones and (deleted := rows.codes == DELETE).any():
            layout = Layout.of(deleted)
            records = with_tombstones(records, layout)
        if self._attributes is None:
            return [records]
        attributes, columns = self._attributes(rows, layout, snapshot)
        return [replace(records, headers=attributes + records.headers, header_columns=columns + records.header_columns)]
