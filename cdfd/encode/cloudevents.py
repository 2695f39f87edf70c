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

from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from cdfd.encode.cells.native_rows import Cells
from cdfd.encode.cells.numbers import raw_values
from cdfd.encode.cells.pieces import Column, Integers, join, literal, pool
from cdfd.encode.images import KeyedRows
from cdfd.encode.records import HeaderColumns, Headers, Layout, Origin
from cdfd.encode.values import Rules, cells
from cdfd.errors import DataError
from cdfd.model.columns import CHANGE_TYPES
from cdfd.runtime.arrays import array_of

_TYPES: Final = pool(*(f"cdfd.{name}".encode() for name in (*CHANGE_TYPES.to_pylist(), "tombstone")))
_TOMBSTONE: Final = len(CHANGE_TYPES)
_SUFFIXES: Final = pool(b"", b"/tombstone")
_RULES: Final = Rules()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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

    def __call__(self, rows: KeyedRows, layout: Layout, snapshot: bool) -> tuple[Headers, HeaderColumns]:
        """Headers of rows, as `row_records.Attributes` says. `DataError` where a time is beyond the year 9999."""
        versions, times, ordinals = rows.batch.columns[-3:]
        kinds = rows.codes[layout.rows]
        kinds[layout.tombstones] = _TOMBSTONE
        stamps = raw_values(times.cast(pa.timestamp("ms", "UTC")), np.int64)
        headers: Headers = self._constant
        columns: HeaderColumns = (("ce_id", self._ids(versions, ordinals, layout, snapshot)),)
        if layout.tombstones.any():
            # Without a value, a content type makes some of CloudEvents' SDKs fail.
            places = array_of(np.zeros(len(layout.rows), np.int64), mask=layout.tombstones)
            columns += (("content-type", pool(self._content_type).take(places)),)
        else:
            headers += (("content-type", self._content_type),)
        if _is_constant(stamps):
            headers += (("ce_time", _time_text(int(stamps[0]))),)
        else:
            different, which = np.unique(stamps, return_inverse=True)
            texts = pool(*map(_time_text, different.tolist()))
            columns += (("ce_time", texts.take(array_of(which[layout.rows]))),)
        # Most batches have rows of one type: a header that all records share is copied together with the others.
        if _is_constant(kinds):
            return (*headers, ("ce_type", _TYPES[int(kinds[0])].as_py())), columns
        return headers, (("ce_type", _TYPES.take(array_of(kinds))), *columns)

    def _ids(self, versions: pa.Array, ordinals: pa.Array, layout: Layout, snapshot: bool) -> pa.Array:
        separators = [self._table_id.encode() + b"/", b"/snapshot/" if snapshot else b"/", b""]
        if not layout.tombstones.any():
            return join(separators, [_numbers(versions), _numbers(ordinals)], len(layout.rows))
        places = array_of(layout.rows)
        suffix = Column(_SUFFIXES, (layout.tombstones.astype(np.int64),))
        columns = [_numbers(versions.take(places)), _numbers(ordinals.take(places)), suffix]
        return join([*separators, b""], columns, len(layout.rows))


def _is_constant(values: Integers) -> bool:
    return len(values) > 0 and bool((values == values[0]).all())


def _numbers(array: pa.Array) -> Column | Cells:
    """The cells of a column of numbers without nulls."""
    values = raw_values(array, np.int64)
    return literal(b"%d" % values[0]) if _is_constant(values) else cells(array, _RULES)


def _time_text(milliseconds: int) -> bytes:
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError as error:
        raise DataError(f"a commit at {milliseconds} ms since 1970, which is not a time of this calendar") from error
    return moment.strftime("%Y-%m-%dT%H:%M:%S.").encode() + b"%03dZ" % (milliseconds % 1000)
