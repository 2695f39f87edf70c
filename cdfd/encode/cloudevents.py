"""Headers of CloudEvents 1.0 in Kafka's binary mode: the value is the row as it is in the flat format.

| header         | value                                                                                         |
|----------------|-----------------------------------------------------------------------------------------------|
| ce_specversion | `1.0`                                                                                         |
| ce_source      | `cdfd://<pipeline>/<table>`                                                                   |
| ce_time        | when the version was committed                                                                |
| content-type   | `application/json`, or that of another encoding; a tombstone, which has no content, has none   |
| ce_type        | `cdfd.insert`, `cdfd.update_preimage`, `cdfd.update_postimage`, `cdfd.delete`, `cdfd.tombstone` |
| ce_id          | `<table id>/<version>/<ordinal>`, of a snapshot `<table id>/<version>/snapshot/<ordinal>`;     |
|                | of a tombstone with `/tombstone` behind it                                                    |

The same row gets the same id after any restart, so consumers can drop repeats by source and id, as CloudEvents has it.
"""

from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from cdfd.encode.cells.numbers import raw_values
from cdfd.encode.cells.pieces import Column, is_constant, join, pool
from cdfd.encode.images import KeyedRows
from cdfd.encode.records import HeaderColumn, HeaderColumns, Headers, Layout, Origin
from cdfd.encode.values import Rules, cells
from cdfd.errors import DataError
from cdfd.model.columns import CHANGE_TYPES
from cdfd.runtime.arrays import array_of

ATTRIBUTES: Final = frozenset(("ce_specversion", "ce_source", "ce_time", "content-type", "ce_type", "ce_id"))
"""The headers of each event."""

_TYPES: Final = pool(*(f"cdfd.{name}".encode() for name in (*CHANGE_TYPES.to_pylist(), "tombstone")))
_TOMBSTONE: Final = len(CHANGE_TYPES)
_SUFFIXES: Final = pool(b"", b"/tombstone")
_RULES: Final = Rules()
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - its text ends in Z
_MILLISECONDS: Final = pa.timestamp("ms", "UTC")


class CloudEventAttributes:
    """Makes the headers of a table's events.

    Args:
        origin: of the rows.
        content_type: of values.
    """

    def __init__(self, origin: Origin, content_type: bytes) -> None:
        self._table_id = origin.table_id
        self._constant = (
            ("ce_specversion", b"1.0"),
            ("ce_source", f"cdfd://{origin.pipeline}/{origin.table}".encode()),
        )
        self._content_type = content_type

    def __call__(self, rows: KeyedRows, layout: Layout | None, snapshot: bool) -> tuple[Headers, HeaderColumns]:
        """Headers of rows, as they are laid out (None: a record each). `DataError` where a time is beyond the year 9999."""
        headers: Headers = self._constant
        columns: HeaderColumns = (self._ids(rows.batch, layout, snapshot),)
        kinds = rows.codes
        if layout is not None:
            kinds = kinds[layout.rows]
            kinds[layout.tombstones] = _TOMBSTONE
            # Without a value, a content type makes some of CloudEvents' SDKs fail.
            places = array_of(np.zeros(len(layout.rows), np.int64), mask=layout.tombstones)
            columns += (HeaderColumn("content-type", pool(self._content_type).take(places)),)
        else:
            headers += (("content-type", self._content_type),)
        times = rows.batch.column(rows.batch.num_columns - 2)
        stamps = raw_values(times if times.type == _MILLISECONDS else times.cast(_MILLISECONDS), np.int64)
        if is_constant(stamps):
            headers += (("ce_time", _time_text(int(stamps[0]))),)
        else:
            different, which = np.unique(stamps, return_inverse=True)
            texts = pool(*map(_time_text, different.tolist()))
            columns += (HeaderColumn("ce_time", texts.take(array_of(which if layout is None else which[layout.rows]))),)
        # Most batches have rows of one type: a header that all records share is copied together with the others.
        if is_constant(kinds):
            return (*headers, ("ce_type", _TYPES[int(kinds[0])].as_py())), columns
        return headers, (HeaderColumn("ce_type", _TYPES.take(array_of(kinds))), *columns)

    def _ids(self, batch: pa.RecordBatch, layout: Layout | None, snapshot: bool) -> HeaderColumn:
        versions, ordinals = batch.column(batch.num_columns - 3), batch.column(batch.num_columns - 1)
        table, between = self._table_id.encode() + b"/", b"/snapshot/" if snapshot else b"/"
        numbers = raw_values(versions, np.int64)
        if layout is None and is_constant(numbers):
            # They become text where records are written.
            return HeaderColumn("ce_id", ordinals, (table + b"%d" % numbers[0] + between, b""))
        layout = layout or Layout.of(np.zeros(len(numbers), np.bool_))
        places = array_of(layout.rows)
        columns = [cells(column.take(places), _RULES) for column in (versions, ordinals)]
        suffix = Column(_SUFFIXES, (layout.tombstones.astype(np.int64),))
        return HeaderColumn("ce_id", join([table, between, b"", b""], [*columns, suffix], len(places)))


def _time_text(milliseconds: int) -> bytes:
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError as error:
        raise DataError(f"a commit at {milliseconds} ms since 1970, which is not a time of this calendar") from error
    return b"%sZ" % moment.isoformat(timespec="milliseconds").encode()
