"""Change rows as Debezium's envelope: one event per row, but one for the two images of an update.

    {"before":{...}|null,"after":{...}|null,"source":{...},"transaction":null,"op":"u","ts_ms":...,"ts_us":...,"ts_ns":...}

| rows                                    | op | before | after |
|-----------------------------------------|----|--------|-------|
| insert                                  | c, r in a snapshot | null | the row |
| update_preimage, then update_postimage  | u  | pre-image  | post-image |
| delete                                  | d  | the row    | null |
| update_postimage without a pre-image    | c  | null       | post-image |
| update_preimage without a post-image    | d  | pre-image  | null |

An image follows another where its `_change_ordinal` does. The last two come from updates whose images a writer did
not put side by side. A `u` always has both images, because consumers such as Flink's stop for good at one without.

`source` has the fields every connector of Debezium has, in Debezium's order, those of its relational connectors (schema, table, txId), and
`commit_version` and `change_ordinal`. `sequence` orders events as in Debezium for PostgreSQL: two numbers as strings, in JSON, in a string.

| field                  | value                                                                                              |
|------------------------|----------------------------------------------------------------------------------------------------|
| source.ts_ms, _us, _ns | when the version was committed                                                                     |
| ts_ms, ts_us, ts_ns    | when the rows were encoded, by the clock that the encoder is given; without one, of the commit     |
| source.snapshot        | `first` and `last` of a snapshot's rows, `true` between, `incremental` of one on demand, or `false` |
| source.txId            | the version                                                                                        |
| transaction            | null; with the topic of transactions its id there, and the place of the event in it                |

As Debezium's connectors do where a primary key changes, the update becomes a delete (`d`) of the old key and an insert (`c`) of the new one,
with the headers `__debezium.newkey` and `__debezium.oldkey`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from cdfd import __version__
from cdfd.encode.cells.numbers import raw_values
from cdfd.encode.cells.pieces import Booleans, Integers, is_constant
from cdfd.encode.encoding import EncodedRows, Encoding
from cdfd.encode.headers import RowHeaders
from cdfd.encode.images import KeyedRows
from cdfd.encode.json import JsonEncoding
from cdfd.encode.payload import Constant, Group, Images, Joined, Payload, Shape, ShapeField, Value
from cdfd.encode.records import Layout, Origin, Records, SnapshotPart, with_tombstones
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPES
from cdfd.runtime.arrays import array_of
from cdfd.scan.image_order import DELETE, INSERT, POST_IMAGE, PRE_IMAGE

_UPDATE: Final = len(CHANGE_TYPES)
_OPERATIONS: Final = array_of(["c", "d", "c", "d", "u"])
_OPERATIONS_OF_SNAPSHOT: Final = array_of(["r", "d", "c", "d", "u"])
_PREFIX: Final = "__debezium"

_SNAPSHOT: Final = array_of(["false", "true", "first", "last", "incremental"])
_FALSE, _TRUE, _FIRST, _LAST, _INCREMENTAL = range(5)
_SYMBOLS: Final = (
    "true",
    "first",
    "first_in_data_collection",
    "last_in_data_collection",
    "last",
    "false",
    "incremental",
)
_OPERATION_TYPE: Final = pa.dictionary(pa.int8(), pa.string())
_INT64: Final = pa.int64()


def _own(name: str, type: pa.DataType, *, nullable: bool = True, symbols: tuple[str, ...] = ()) -> ShapeField:
    """A field of the envelope itself."""
    return ShapeField(name, type, nullable, symbols, of_table=False)


_SOURCE: Final = Shape(
    "io.debezium.connector.cdfd.Source",
    (
        *(_own(name, pa.string(), nullable=False) for name in ("version", "connector", "name")),
        _own("ts_ms", _INT64, nullable=False),
        _own("snapshot", pa.string(), symbols=_SYMBOLS),
        _own("db", pa.string(), nullable=False),
        _own("sequence", pa.string()),
        *(_own(name, _INT64) for name in ("ts_us", "ts_ns")),
        *(_own(name, pa.string(), nullable=False) for name in ("schema", "table")),
        *(_own(name, _INT64) for name in ("txId", "commit_version", "change_ordinal")),
    ),
)
_TRANSACTION: Final = Shape(
    "event.block",
    (
        _own("id", pa.string(), nullable=False),
        *(_own(name, _INT64, nullable=False) for name in ("total_order", "data_collection_order")),
    ),
)


class DebeziumEncoder:
    """Encodes the change rows of one table: a record, or a line, for each event.

    Args:
        origin: of the rows. `source.name` is the logical name of the pipeline, which prefixes its topics.
        encoding: makes values of payloads.
        keys: makes keys of rows; None for none, and then there are no tombstones either.
        tombstones: whether the event of a delete is followed by a record without a value.
        headers: makes headers of rows, which need keys; None for none.
        clock: nanoseconds since 1970; None: the time of the commit stands for that of processing.
        transactions: whether events have a `transaction` block.
    """

    def __init__(
        self,
        origin: Origin,
        encoding: Encoding | None = None,
        *,
        keys: EncodedRows | None = None,
        tombstones: bool = False,
        headers: RowHeaders | None = None,
        clock: Callable[[], int] | None = None,
        transactions: bool = False,
    ) -> None:
        self._origin = origin
        self._encoding = JsonEncoding() if encoding is None else encoding
        self._keys = keys
        self._tombstones = tombstones
        self._headers = headers
        self._clock = clock
        self._transactions = transactions
        self._schema: pa.Schema | None = None
        self._shape = _SOURCE

    def encode(
        self, batch: pa.RecordBatch, *, snapshot: bool = False, part: SnapshotPart = SnapshotPart.MIDDLE
    ) -> list[Records]:
        """As `RecordEncoder.encode`. Inserts of a snapshot get the operation `r`."""
        rows = KeyedRows.of(batch, self._keys)
        payload, places = self._payload(rows, snapshot=snapshot, part=part)
        values = self._encoding.values(payload)
        fixed, wrapping = self._encoding.headers, self._encoding.wrapping
        if rows.keys is None or self._keys is None:
            return [Records(None, values, fixed, value_wrapping=wrapping)]
        fixed = (*self._keys.encoding.headers, *fixed)
        columns = rows.key_headers(_PREFIX)
        if self._headers is not None:
            columns += self._headers(rows.batch)
        keys = rows.keys
        if len(places) < len(keys):
            taken = array_of(places)
            keys, columns = keys.take(taken), tuple(column.take(taken) for column in columns)
        records = Records(
            keys, values, fixed, columns, key_wrapping=self._keys.encoding.wrapping, value_wrapping=wrapping
        )
        if not self._tombstones:
            return [records]
        return [with_tombstones(records, Layout.of(np.isin(rows.codes[places], (DELETE, PRE_IMAGE))))]

    def lines(self, batch: pa.RecordBatch, *, snapshot: bool = False) -> pa.Buffer:
        """The events as JSON lines, each ended by a line feed, in one buffer. Takes and raises what `encode` does."""
        payload, _ = self._payload(KeyedRows.of(batch, None), snapshot=snapshot, part=SnapshotPart.MIDDLE)
        assert isinstance(self._encoding, JsonEncoding), "lines are JSON"
        return self._encoding.lines(payload)

    def shape(self, schema: pa.Schema) -> Shape:
        """The shape of events of rows with this schema; the same object for the same schema."""
        if self._schema is None or schema != self._schema:
            topic = self._origin.topic
            columns = [schema.field(number) for number in range(len(schema) - len(CHANGE_COLUMNS))]
            row = Shape(f"{topic}.Value", tuple(ShapeField(each.name, each.type) for each in columns))
            fields = (
                ShapeField("before", row),
                ShapeField("after", row),
                ShapeField("source", _SOURCE, nullable=False),
                ShapeField("transaction", _TRANSACTION),
                _own("op", _OPERATION_TYPE, nullable=False),
                *(_own(name, _INT64) for name in ("ts_ms", "ts_us", "ts_ns")),
            )
            self._schema, self._shape = schema, Shape(f"{topic}.Envelope", fields)
        return self._shape

    def _payload(self, rows: KeyedRows, *, snapshot: bool, part: SnapshotPart) -> tuple[Payload, Integers]:
        """Events, and the row that each is about, the newer one of an update."""
        batch, codes = rows.batch, rows.codes
        milliseconds = batch.column(batch.num_columns - 2).cast(pa.timestamp("ms", "UTC"))
        versions, times, ordinals = (
            raw_values(column, np.int64)
            for column in (batch.column(batch.num_columns - 3), milliseconds, batch.column(batch.num_columns - 1))
        )
        is_event, updates = np.ones(len(codes), np.bool_), np.zeros(len(codes), np.bool_)
        # Of an update, the row before is the older image.
        pairs = rows.pairs()
        is_event[pairs], updates[pairs + 1] = False, True
        places = np.flatnonzero(is_event)
        if len(pairs):
            codes, updates = codes[places], updates[places]
            versions, times, ordinals = versions[places], times[places], ordinals[places]
        columns = batch.select(range(batch.num_columns - len(CHANGE_COLUMNS)))
        before = _images(columns, places - updates, (codes == INSERT) | ((codes == POST_IMAGE) & ~updates))
        after = _images(columns, places, (codes == PRE_IMAGE) | (codes == DELETE))
        which = np.where(updates, _UPDATE, codes).astype(np.int8)
        operations = pa.DictionaryArray.from_arrays(
            array_of(which), _OPERATIONS_OF_SNAPSHOT if snapshot else _OPERATIONS
        )
        # In thousandths, millionths and billionths of a second.
        committed = [_numbers(times, scale) for scale in (1, 1_000, 1_000_000)]
        source = self._source(
            _snapshot(ordinals, part) if snapshot else Constant("false"), versions, committed, ordinals
        )
        processed = committed
        if self._clock is not None:
            now = self._clock()
            processed = [Constant(now // scale) for scale in (1_000_000, 1_000, 1)]
        # Those of a snapshot on demand stand between the events of transactions.
        announced = self._transactions and part is not SnapshotPart.INCREMENTAL
        transaction: Value = Constant(None)
        if announced:
            # The place of events in their version. It follows from the row, so that it is the same after a restart and on executors.
            place = _numbers(ordinals + 1)
            transaction = Group([Joined(("", ""), (versions,)), place, place])
        values = [before, after, source, transaction, operations, *processed]
        return Payload(self.shape(batch.schema), values, len(places)), places

    def _source(self, snapshot: Value, versions: Integers, moments: Sequence[Value], ordinals: Integers) -> Group:
        version = _numbers(versions)
        values = [
            *(Constant(text) for text in (__version__, "cdfd", self._origin.pipeline)),
            moments[0],
            snapshot,
            Constant(""),
            Joined(('["', '","', '"]'), (versions, ordinals)),
            *moments[1:],
            Constant(""),
            Constant(self._origin.table),
            version,
            version,
            _numbers(ordinals),
        ]
        return Group(values)


def _images(columns: pa.RecordBatch, rows: Integers, nulls: Booleans) -> Value:
    """The row of the table that each event has, or null."""
    if len(nulls) and nulls.all():
        return Constant(None)
    return Images(columns, rows, nulls if nulls.any() else None)


def _snapshot(ordinals: Integers, part: SnapshotPart) -> Value:
    if part is SnapshotPart.INCREMENTAL:
        return Constant("incremental")
    codes = np.where(ordinals == 0, np.int8(_FIRST), np.int8(_TRUE))
    if part is SnapshotPart.END and len(codes):
        codes[-1] = _LAST
    return pa.DictionaryArray.from_arrays(array_of(codes), _SNAPSHOT)


def _numbers(values: Integers, scale: int = 1) -> Value:
    return Constant(int((values[:1] * scale)[0])) if is_constant(values) else array_of(values * scale)
