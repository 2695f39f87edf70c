"""Change rows for tests of what becomes of them, and records as plain values."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.encode.formats import EncoderOptions, FormatChoice, record_format
from cdfd.encode.records import Origin, RecordEncoder, Records
from cdfd.model.batch import ChangeBatch
from cdfd.model.columns import CHANGE_COLUMNS, CHANGE_TYPES
from cdfd.model.plan import ChangePlan
from cdfd.scan.updates.whole_pairs import whole_pairs

KINDS: list[str] = CHANGE_TYPES.to_pylist()
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), *CHANGE_COLUMNS])
TIME = 1_767_225_600_123
TIME_TEXTS = {version: f"2026-01-01T00:00:00.{123 + version}000Z" for version in range(100)}


class Row(NamedTuple):
    """A change of a row that has an id and a note."""

    kind: str
    version: int
    id: int | None
    note: str | None = None


def change_rows(rows: list[Row], first: int = 0) -> pa.RecordBatch:
    """Rows of `SCHEMA`, their ordinals counted from `first` on."""
    columns = [
        pa.array([row.id for row in rows], pa.int64()),
        pa.array([row.note for row in rows], pa.string()),
        pa.DictionaryArray.from_arrays(pa.array([KINDS.index(row.kind) for row in rows], pa.int8()), CHANGE_TYPES),
        pa.array([row.version for row in rows], pa.int64()),
        pa.array([TIME + row.version for row in rows], pa.timestamp("ms", "UTC")),
        pa.array(range(first, first + len(rows)), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def cut_rows(rows: pa.RecordBatch, cuts: Iterable[int]) -> Iterator[ChangeBatch]:
    """The rows of a table with an id and a note, in batches that end before these rows."""
    schema = TableSchema(from_arrow(pa.schema([("id", pa.int64()), ("note", pa.string())])))
    edges = sorted({0, rows.num_rows, *(cut for cut in cuts if cut < rows.num_rows)})
    for start, end in pairwise(edges):
        some = rows.slice(start, end - start)
        yield ChangeBatch(ChangePlan(1, 0, schema, (), "files"), schema, some, some.column(5)[-1].as_py() + 1)


def whole_batches(rows: pa.RecordBatch, cuts: Iterable[int]) -> list[pa.RecordBatch]:
    """The same as a sink gets them: no batch ends between the images of an update."""
    return [batch.rows for batch in whole_pairs(cut_rows(rows, cuts))]


class Record(NamedTuple):
    """One record."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]


def flattened(lots: list[Records]) -> list[Record]:
    """Records one by one. Fails where an array is of the wrong type or length."""
    singles = []
    for records in lots:
        assert len(plain(records.values, len(records))) == len(records.whole_values)
        keys = [None] * len(records) if records.keys is None else plain(records.keys, len(records))
        columns = [(column.name, column.whole_values) for column in records.header_columns]
        assert all(len(values) == len(records) for _, values in columns)
        assert records.keys is None or None not in keys
        for number, (key, value) in enumerate(zip(records.whole_keys, records.whole_values, strict=True)):
            own = {name: column[number] for name, column in columns if column[number] is not None}
            singles.append(Record(key, value, dict(records.headers) | own))
    return singles


def plain(array: pa.Array, length: int) -> list[Any]:
    """Values of a sound `large_binary` array."""
    array.validate(full=True)
    assert array.type == pa.large_binary()
    assert len(array) == length
    values: list[Any] = array.to_pylist()
    return values


def record_encoder(kind: str | FormatChoice, origin: Origin, **options: Any) -> RecordEncoder:
    return record_format(kind).encoder(EncoderOptions(origin, **options))
