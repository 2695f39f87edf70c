"""Change rows as Debezium's envelope: one event per row, but one for the two images of an update.

    {"before":{...}|null,"after":{...}|null,"source":{...},"op":"u","ts_ms":...,"transaction":null}

| rows                                    | op | before | after |
|-----------------------------------------|----|--------|-------|
| insert                                  | c, r in a snapshot | null | the row |
| update_preimage, then update_postimage  | u  | pre-image  | post-image |
| delete                                  | d  | the row    | null |
| update_postimage without a pre-image    | c  | null       | post-image |
| update_preimage without a post-image    | d  | pre-image  | null |

An image follows another where its `_change_ordinal` does. The last two come from updates whose images a writer did
not put side by side. A `u` always has both images, because consumers such as Flink's stop for good at one without.

`source` has the fields every connector of Debezium has (version, connector, name, ts_ms, snapshot, db, sequence,
table), and `commit_version` and `change_ordinal`. `sequence` orders events as in Debezium for PostgreSQL: two numbers
as strings, in JSON, in a string. All times are that of the commit, in milliseconds: there is no clock here, and the
same rows have to give the same events again.

Values look as in the flat format, which is `decimal.handling.mode=string` and ISO-8601 times; there is no `schema`
next to the payload (`schemas.enable=false`).

As Debezium's connectors do where a primary key changes, the update becomes a delete (`d`) of the old key and an insert (`c`) of the new one,
with the headers `__debezium.newkey` and `__debezium.oldkey`.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np
import pyarrow as pa

from cdfd import __version__
from cdfd.encode.headers import RowHeaders
from cdfd.encode.images import DELETE, INSERT, POST_IMAGE, PRE_IMAGE, KeyedRows
from cdfd.encode.json import JsonEncoder, text_of
from cdfd.encode.keys import Rows
from cdfd.encode.numbers import integers, raw_values
from cdfd.encode.pieces import Booleans, Column, Integers, join, literal, pool
from cdfd.encode.records import Layout, Records, with_tombstones
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPES
from cdfd.runtime.arrays import array_of

_UPDATE: Final = len(CHANGE_TYPES)
_OPERATIONS: Final = pool(b"c", b"d", b"c", b"d", b"u")
_OPERATIONS_OF_SNAPSHOT: Final = pool(b"r", b"d", b"c", b"d", b"u")
_PREFIX: Final = "__debezium"


class DebeziumEncoder:
    """Encodes the change rows of one table: a record, or a line, for each event.

    Args:
        table: `source.table`.
        name: `source.name`, the logical name of the pipeline, which prefixes its topics.
        keys: makes keys of rows; None for none, and then there are no tombstones either.
        tombstones: whether the event of a delete is followed by a record without a value.
        longs_as_strings: integers of 64 bits in quotes, in the rows.
        headers: makes headers of rows, which need keys; None for none.
    """

    def __init__(
        self,
        table: str,
        *,
        name: str = "cdfd",
        keys: Rows | None = None,
        tombstones: bool = False,
        longs_as_strings: bool = False,
        headers: RowHeaders | None = None,
    ) -> None:
        self._table, self._name = table, name
        self._keys = keys
        self._tombstones = tombstones
        self._longs_as_strings = longs_as_strings
        self._headers = headers
        self._encoder: JsonEncoder | None = None

    def encode(self, batch: pa.RecordBatch, *, snapshot: bool = False) -> list[Records]:
        """As `RecordEncoder.encode`. Inserts of a snapshot get the operation `r`."""
        rows = KeyedRows.of(batch, self._keys)
        values, places = self._events(rows, snapshot=snapshot)
        if rows.keys is None:
            return [Records(None, values)]
        taken = array_of(places)
        columns = rows.key_headers(_PREFIX)
        if self._headers is not None:
            columns += self._headers(rows.batch)
        headers = tuple((name, column.take(taken)) for name, column in columns)
        records = Records(rows.keys.take(taken), values, header_columns=headers)
        if not self._tombstones:
            return [records]
        return [with_tombstones(records, Layout.of(np.isin(rows.codes[places], (DELETE, PRE_IMAGE))))]

    def lines(self, batch: pa.RecordBatch, *, snapshot: bool = False) -> pa.Buffer:
        """The events as JSON lines, each ended by a line feed, in one buffer. Takes and raises what `encode` does."""
        return text_of(self._events(KeyedRows.of(batch, None), snapshot=snapshot, ending=b"\n")[0])

    def _events(self, rows: KeyedRows, *, snapshot: bool, ending: bytes = b"") -> tuple[pa.Array, Integers]:
        """Envelopes, UTF-8, none null; and the row that each is about, the newer one of an update."""
        batch, codes = rows.batch, rows.codes
        encoder = self._encoder
        if encoder is None or batch.schema != encoder.schema:
            columns = range(batch.num_columns - len(CHANGE_COLUMNS))
            encoder = JsonEncoder(batch.schema, columns=columns, longs_as_strings=self._longs_as_strings)
            self._encoder = encoder
        texts = encoder.rows(batch)
        milliseconds = batch.column(batch.num_columns - 2).cast(pa.timestamp("ms", "UTC"))
        versions, times, ordinals = (
            raw_values(column, np.int64)
            for column in (batch.column(batch.num_columns - 3), milliseconds, batch.column(batch.num_columns - 1))
        )
        is_pair = (codes[:-1] == PRE_IMAGE) & (codes[1:] == POST_IMAGE)
        is_pair &= (versions[:-1] == versions[1:]) & (ordinals[1:] - ordinals[:-1] == 1)
        places = np.flatnonzero(np.append(~is_pair, True)[: len(codes)])
        if not len(places):
            return pool(), places
        # Of an update, the row before is the older image.
        updates = np.insert(is_pair, 0, False)[places]
        codes = codes[places]
        before = _image(texts, places - updates, (codes == INSERT) | ((codes == POST_IMAGE) & ~updates))
        after = _image(texts, places, (codes == PRE_IMAGE) | (codes == DELETE))
        operations = Column(
            _OPERATIONS_OF_SNAPSHOT if snapshot else _OPERATIONS, (np.where(updates, _UPDATE, codes).astype(np.int64),)
        )
        version, time, ordinal = (integers(array_of(values[places])) for values in (versions, times, ordinals))
        cells = [before, after, time, version, ordinal, version, ordinal, operations, time]
        separators = [
            *(b'{"before":', b',"after":', b',"source":' + self._source(snapshot)),
            *(b',"sequence":"[\\"', b'\\",\\"', b'\\"]","commit_version":', b',"change_ordinal":'),
            *(b'},"op":"', b'","ts_ms":', b',"transaction":null}' + ending),
        ]
        return join(separators, cells, len(places)), places

    def _source(self, snapshot: bool) -> bytes:
        """The beginning of `source`, up to the time of the commit."""
        fields = {
            "version": __version__,
            "connector": "cdfd",
            "name": self._name,
            "snapshot": "true" if snapshot else "false",
            "db": "",
            "table": self._table,
        }
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))[:-1].encode() + b',"ts_ms":'


def _image(texts: pa.Array, rows: Integers, nulls: Booleans) -> Column:
    """The text of one row of the table per event, or null."""
    if nulls.all():
        return literal(b"null")
    return Column(texts, (rows,), nulls if nulls.any() else None)
