"""Records with an event of Debezium each.

As Debezium's connectors do where a primary key changes, the update becomes a delete (`d`) of the old key and an insert
(`c`) of the new one, with the headers `__debezium.newkey` and `__debezium.oldkey`.
"""

from typing import Final

import pyarrow as pa

from cdfd.encoding.debezium import DebeziumEncoder
from cdfd.encoding.headers import RowHeaders
from cdfd.encoding.images import DELETE, KeyedBatches, KeyedRows
from cdfd.encoding.keys import Rows
from cdfd.encoding.records import Layout, Origin, Records, with_tombstones

_PREFIX: Final = "__debezium"


class EnvelopeRecords:
    """A record for each event.

    Args:
        origin: of the rows.
        keys: makes keys of rows; None for none, and then there are no tombstones either.
        tombstones: whether the event of a delete is followed by a record without a value.
        longs_as_strings: integers of 64 bits in quotes, in the rows.
        headers: makes headers of rows, which need keys; None for none.
    """

    def __init__(
        self,
        origin: Origin,
        keys: Rows | None = None,
        *,
        tombstones: bool = False,
        longs_as_strings: bool = False,
        headers: RowHeaders | None = None,
    ) -> None:
        self._encoder = DebeziumEncoder(origin.table, name=origin.pipeline, longs_as_strings=longs_as_strings)
        self._batches = KeyedBatches(keys)
        self._tombstones = tombstones
        self._headers = headers

    def encode(self, batch: pa.RecordBatch, *, snapshot: bool = False) -> list[Records]:
        """As `RecordEncoder.encode`."""
        found = (self._records(rows, snapshot) for rows in self._batches.rows(batch))
        return [records for records in found if len(records)]

    def flush(self) -> list[Records]:
        """As `RecordEncoder.flush`."""
        found = [self._records(rows, snapshot=False) for rows in self._batches.flush()]
        # Only rows without keys are held back here.
        held = self._encoder.flush()
        return [*found, Records(None, held.values)] if len(held.values) else found

    def _records(self, rows: KeyedRows, snapshot: bool) -> Records:
        events = self._encoder.events(rows.batch, snapshot=snapshot)
        if rows.keys is None:
            return Records(None, events.values)
        taken = pa.array(events.rows)
        columns = rows.key_headers(_PREFIX)
        if self._headers is not None:
            columns += self._headers(rows.batch)
        headers = tuple((name, column.take(taken)) for name, column in columns)
        found = Records(rows.keys.take(taken), events.values, header_columns=headers)
        if not self._tombstones:
            return found
        return with_tombstones(found, Layout.of(rows.codes[events.rows] == DELETE))
