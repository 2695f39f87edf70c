"""Records with an event of Debezium each.

As Debezium's connectors do where a primary key changes, the update becomes a delete (`d`) of the old key and an insert
(`c`) of the new one, with the headers `__debezium.newkey` and `__debezium.oldkey`.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from cdfd.encode.debezium import DebeziumEncoder, Events
from cdfd.encode.headers import RowHeaders
from cdfd.encode.images import DELETE, PRE_IMAGE, KeyedBatches, KeyedRows
from cdfd.encode.keys import Rows
from cdfd.encode.records import Layout, Origin, Records, with_tombstones
from cdfd.runtime.arrays import array_of

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
        return [records for rows in self._batches.rows(batch) for records in self._records(rows, snapshot)]

    def flush(self) -> list[Records]:
        """As `RecordEncoder.flush`."""
        found = [records for rows in self._batches.flush() for records in self._records(rows, snapshot=False)]
        # With a key nothing is left here: `_records` has flushed it.
        held = self._encoder.flush()
        return [*found, Records(None, held.values)] if len(held.values) else found

    def _records(self, rows: KeyedRows, snapshot: bool) -> list[Records]:
        lots = [self._encoder.events(rows.batch, snapshot=snapshot)]
        if rows.keys is None:
            return [Records(None, events.values) for events in lots if len(events.values)]
        if rows.codes[-1] == PRE_IMAGE:
            # Rows with keys end so only where nothing follows that would go with it.
            lots.append(self._encoder.flush())
        return [self._keyed(rows, rows.keys, events) for events in lots if len(events.values)]

    def _keyed(self, rows: KeyedRows, keys: pa.Array, events: Events) -> Records:
        # A pre-image that was held back is the last row, which -1 stands for.
        places = events.rows % len(rows.codes)
        taken = array_of(places)
        columns = rows.key_headers(_PREFIX)
        if self._headers is not None:
            columns += self._headers(rows.batch)
        headers = tuple((name, column.take(taken)) for name, column in columns)
        found = Records(keys.take(taken), events.values, header_columns=headers)
        if not self._tombstones:
            return found
        return with_tombstones(found, Layout.of(np.isin(rows.codes[places], (DELETE, PRE_IMAGE))))
