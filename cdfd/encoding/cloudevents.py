"""Headers of CloudEvents 1.0 in Kafka's binary mode: the value is the row as it is in the flat format.

| header         | value                                                                                         |
|----------------|-----------------------------------------------------------------------------------------------|
| ce_specversion | `1.0`                                                                                         |
| ce_source      | `cdfd://<pipeline>/<table>`                                                                   |
| ce_time        | when the version was committed                                                                |
| content-type   | `application/json`                                                                            |
| ce_type        | `cdfd.insert`, `cdfd.update_preimage`, `cdfd.update_postimage`, `cdfd.delete`, `cdfd.tombstone` |
| ce_id          | `<table id>/<version>/<ordinal>`, of a snapshot `<table id>/<version>/snapshot/<ordinal>`;     |
|                | of a tombstone with `/tombstone` behind it                                                    |

The same row gets the same id after any restart, so consumers can drop repeats by source and id, as CloudEvents has it.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from cdfd.changes.columns import CHANGE_TYPES
from cdfd.encoding.images import KeyedRows
from cdfd.encoding.numbers import integers, raw_values
from cdfd.encoding.pieces import Column, Integers, join, pool
from cdfd.encoding.records import HeaderColumns, Headers, Layout, Origin
from cdfd.errors import DataError

_TYPES: Final = pool(*(f"cdfd.{name}".encode() for name in (*CHANGE_TYPES.to_pylist(), "tombstone")))
_TOMBSTONE: Final = len(CHANGE_TYPES)
_SUFFIXES: Final = pool(b"", b"/tombstone")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CloudEventAttributes:
    """Makes the headers of a table's events.

    Args:
        origin: of the rows.
    """

    def __init__(self, origin: Origin) -> None:
        self._table_id = origin.table_id
        self._constant = (
            ("ce_specversion", b"1.0"),
            ("ce_source", f"cdfd://{origin.pipeline}/{origin.table}".encode()),
            ("content-type", b"application/json"),
        )

    def __call__(self, rows: KeyedRows, layout: Layout, snapshot: bool) -> tuple[Headers, HeaderColumns]:
        """Headers of rows, as `row_records.Attributes` says. `DataError` where a time is beyond the year 9999."""
        versions, times, ordinals = rows.batch.columns[-3:]
        kinds = np.where(layout.tombstones, _TOMBSTONE, rows.codes[layout.rows])
        columns = [
            ("ce_type", _TYPES.take(pa.array(kinds))),
            ("ce_id", self._ids(versions, ordinals, layout, snapshot)),
        ]
        stamps, which = np.unique(raw_values(times.cast(pa.timestamp("ms", "UTC")), np.int64), return_inverse=True)
        texts = [_time_text(stamp) for stamp in stamps.tolist()]
        headers: Headers = self._constant
        if len(texts) == 1:
            headers += (("ce_time", texts[0]),)
        else:
            columns.append(("ce_time", pool(*texts).take(pa.array(which[layout.rows]))))
        return headers, tuple(columns)

    def _ids(self, versions: pa.Array, ordinals: pa.Array, layout: Layout, snapshot: bool) -> pa.Array:
        version, ordinal = (integers(column.take(pa.array(layout.rows))) for column in (versions, ordinals))
        suffix: Integers = layout.tombstones.astype(np.int64)
        between = b"/snapshot/" if snapshot else b"/"
        separators = [self._table_id.encode() + b"/", between, b"", b""]
        return join(separators, [version, ordinal, Column(_SUFFIXES, (suffix,))], len(layout.rows))


def _time_text(milliseconds: int) -> bytes:
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError as error:
        raise DataError(f"a commit at {milliseconds} ms since 1970, which is not a time of this calendar") from error
    return moment.strftime("%Y-%m-%dT%H:%M:%S.").encode() + b"%03dZ" % (milliseconds % 1000)
