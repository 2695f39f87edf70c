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
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd import __version__
from cdfd.encode.json import JsonEncoder, text_of
from cdfd.encode.numbers import integers, raw_values
from cdfd.encode.pieces import Booleans, Column, Integers, join, literal, pool
from cdfd.errors import DataError
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPES, types_from_file
from cdfd.runtime.arrays import array_of, to_numpy

_INSERT, _PRE, _POST, _DELETE = range(len(CHANGE_TYPES))
_UPDATE: Final = len(CHANGE_TYPES)
_OPERATIONS: Final = pool(b"c", b"d", b"c", b"d", b"u")
_OPERATIONS_OF_SNAPSHOT: Final = pool(b"r", b"d", b"c", b"d", b"u")
_CHANGE_NAMES: Final = [field.name for field in CHANGE_COLUMNS]


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events in the order of their rows.

    Attributes:
        values: the envelopes, UTF-8, none null.
        rows: which row of the batch each event is about, the newer one of an update; -1 for the last row of the batch
            before.
    """

    values: pa.LargeBinaryArray
    rows: npt.NDArray[np.int64]


class _Images(NamedTuple):
    """Rows as objects, and what the change columns say of them."""

    texts: pa.Array
    codes: Integers
    versions: Integers
    times: Integers
    ordinals: Integers

    def part(self, start: int, stop: int) -> _Images:
        texts, *numbers = self
        return _Images(texts.slice(start, stop - start), *(values[start:stop] for values in numbers))

    def copy(self) -> _Images:
        texts, *numbers = self
        return _Images(array_of(texts.to_pylist(), texts.type), *(values.copy() for values in numbers))

    def after(self, earlier: _Images) -> _Images:
        texts, *numbers = zip(earlier, self, strict=True)
        return _Images(pa.concat_arrays(texts), *(np.concatenate(pair) for pair in numbers))


class DebeziumEncoder:
    """Encodes the change rows of one table, batch after batch.

    A pre-image that ends a batch is held back until the next batch, or `flush`, shows what follows it. Call `flush`
    where no more rows of a version can come. Not to be shared by threads.
    """

    def __init__(self, table: str, *, name: str = "cdfd", longs_as_strings: bool = False) -> None:
        """Prepare the envelope.

        Args:
            table: `source.table`.
            name: `source.name`, the logical name of the pipeline, which prefixes its topics.
            longs_as_strings: integers of 64 bits in quotes, in the rows.
        """
        self._table, self._name = table, name
        self._longs_as_strings = longs_as_strings
        self._encoder: JsonEncoder | None = None
        self._schema: pa.Schema | None = None
        self._held: _Images | None = None

    def events(self, batch: pa.RecordBatch, *, snapshot: bool = False) -> Events:
        """The events of change rows: the table's columns, then the four change columns.

        Args:
            batch: rows that follow those of the last call.
            snapshot: the rows are a first snapshot's; its inserts get the operation `r`.

        Raises:
            DataError: as `JsonEncoder.rows`; or the batch does not end in the change columns.
            UnsupportedError: a column is of a type that JSON has no form for.
        """
        values, rows = self._encoded(self._images(batch), snapshot=snapshot, ending=b"")
        return Events(values, rows)

    def lines(self, batch: pa.RecordBatch, *, snapshot: bool = False) -> pa.Buffer:
        """The events as JSON lines, each ended by a line feed, in one buffer. Takes and raises what `events` does."""
        return text_of(self._encoded(self._images(batch), snapshot=snapshot, ending=b"\n")[0])

    def flush(self) -> Events:
        """The event of a pre-image that was held back, if there is one: nothing followed it."""
        return Events(*self._encoded(None, snapshot=False, ending=b""))

    def flush_lines(self) -> pa.Buffer:
        """The events of `flush`, as JSON lines."""
        return text_of(self._encoded(None, snapshot=False, ending=b"\n")[0])

    def _images(self, batch: pa.RecordBatch) -> _Images:
        if batch.schema.names[-len(_CHANGE_NAMES) :] != _CHANGE_NAMES:
            raise DataError(f"change rows have to end in {', '.join(_CHANGE_NAMES)}, not in {batch.schema.names[-4:]}")
        if self._encoder is None or batch.schema != self._schema:
            columns = range(batch.num_columns - len(_CHANGE_NAMES))
            self._encoder = JsonEncoder(batch.schema, columns=columns, longs_as_strings=self._longs_as_strings)
            self._schema = batch.schema
        types, versions, times, ordinals = batch.columns[-len(_CHANGE_NAMES) :]
        if not (pa.types.is_dictionary(types.type) and types.dictionary.equals(CHANGE_TYPES) and not types.null_count):
            types = types_from_file(types)
        return _Images(
            self._encoder.rows(batch),
            to_numpy(types.indices),
            raw_values(versions, np.int64),
            raw_values(times.cast(pa.timestamp("ms", "UTC")), np.int64),
            raw_values(ordinals, np.int64),
        )

    def _encoded(self, images: _Images | None, *, snapshot: bool, ending: bytes) -> tuple[pa.Array, Integers]:
        """Events of the row held back and of these; and the rows they are of. A last pre-image is held back again."""
        held, self._held = self._held, None
        known = images if held is None else held if images is None else images.after(held)
        if known is None:
            return pool(), np.empty(0, np.int64)
        count = len(known.codes)
        if images is not None and count and known.codes[-1] == _PRE:
            # A copy: the batch must not live on for one row of it.
            self._held = known.part(count - 1, count).copy()
            known = known.part(0, count - 1)
        is_update = (known.codes[:-1] == _PRE) & (known.codes[1:] == _POST)
        is_update &= (known.versions[:-1] == known.versions[1:]) & (known.ordinals[1:] - known.ordinals[:-1] == 1)
        rows = np.flatnonzero(np.append(~is_update, True)[: len(known.codes)])
        if not len(rows):
            return pool(), rows
        follows_image = np.insert(is_update, 0, False)[: len(known.codes)]
        return self._envelopes(known, rows, follows_image, snapshot, ending), rows - (held is not None)

    def _envelopes(
        self, images: _Images, rows: Integers, is_update: Booleans, snapshot: bool, ending: bytes
    ) -> pa.LargeBinaryArray:
        """One envelope for each of the rows; where `is_update`, the row before is the older image."""
        codes, updates = images.codes[rows], is_update[rows]
        before = _image(images.texts, rows - updates, (codes == _INSERT) | ((codes == _POST) & ~updates))
        after = _image(images.texts, rows, (codes == _PRE) | (codes == _DELETE))
        operations = Column(
            _OPERATIONS_OF_SNAPSHOT if snapshot else _OPERATIONS, (np.where(updates, _UPDATE, codes).astype(np.int64),)
        )
        version, time, ordinal = (integers(array_of(values[rows])) for values in images[2:])
        cells = [before, after, time, version, ordinal, version, ordinal, operations, time]
        separators = [
            *(b'{"before":', b',"after":', b',"source":' + self._source(snapshot)),
            *(b',"sequence":"[\\"', b'\\",\\"', b'\\"]","commit_version":', b',"change_ordinal":'),
            *(b'},"op":"', b'","ts_ms":', b',"transaction":null}' + ending),
        ]
        return join(separators, cells, len(rows))

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
