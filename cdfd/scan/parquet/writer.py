"""Writes Parquet data files of a Delta table, with the statistics of their `add` actions.

Source: specification, "Per-file Statistics" and "Data Files".
"""

import datetime
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_CHARACTERS = 32
"""Longest prefix of a string in statistics."""
_LAST_CHARACTER = "\U0010ffff"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999."""
_SAMPLE = 1 << 16
"""Rows that tell whether the values of a column repeat. So many different numbers fill half of a dictionary."""
_MOST_COLUMNS = 32
"""Columns with statistics, as deployed writers have it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A complete file: its bytes, statistics as JSON, and the number of rows."""

    data: pa.Buffer
    stats: str
    rows: int


class DataFileWriter:
    """Writes one file into memory.

    Args:
        schema: of the rows.
        compression: a codec that pyarrow knows, or `none`.
        hidden: columns without statistics, because they are no columns of the table.
    """

    def __init__(self, schema: pa.Schema, compression: str, hidden: Collection[str] = ()) -> None:
        self._sink = pa.BufferOutputStream()
        self._schema = schema
        self._listed = pa.schema([field for field in schema if field.name not in hidden])
        self._compression = compression
        self._writer: pq.ParquetWriter | None = None

    @property
    def size(self) -> int:
        """Bytes that are written so far. The current row group is not among them."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Append rows as a row group."""
        self._writer_for(rows).write_table(rows)

    def finish(self) -> DataFile:
        """The file."""
        self._writer_for(pa.Table.from_batches([], self._schema)).close()
        data = self._sink.getvalue()
        footer = pq.read_metadata(pa.BufferReader(data))
        return DataFile(data, json.dumps(statistics(footer, self._listed), separators=(",", ":")), footer.num_rows)

    def _writer_for(self, rows: pa.Table) -> pq.ParquetWriter:
        """The writer. The first rows of the file decide which columns have dictionaries."""
        if self._writer is None:
            repeating = _repeating(rows)
            self._writer = pq.ParquetWriter(
                self._sink, self._schema, compression=self._compression, store_schema=False, use_dictionary=repeating
            )
        return self._writer


def _repeating(rows: pa.Table) -> list[str] | bool:
    """The columns to write with a dictionary, by their paths in the file; True for all.

    Arrow makes a dictionary of each column, and gives it up when it is full. If nearly all values differ, that takes a quarter of the time of
    writing for nothing.
    """
    if rows.num_rows < _SAMPLE:
        return True
    repeating = list[str]()
    for field, column in zip(rows.schema, rows.slice(0, _SAMPLE).columns, strict=True):
        kind = field.type
        # A dictionary takes half as long as counting the values.
        if (
            pa.types.is_dictionary(kind)
            or pa.types.is_nested(kind)
            or isinstance(kind, pa.BaseExtensionType)
            or len(column.combine_chunks().dictionary_encode().dictionary) <= _SAMPLE * 3 // 4
        ):
            repeating += _leaves(field.name, kind)
    return repeating


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The paths of the columns in the file that hold a column of a type."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(f"{path}.{child.name}", child.type)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path


def statistics(footer: Any, schema: pa.Schema) -> Mapping[str, Any]:
    """`numRecords`, and `minValues`, `maxValues` and `nullCount` of the first columns.

    Only columns of whole numbers, dates, timestamps and strings have bounds. Parquet's bounds of floating-point numbers leave out NaN, which
    Delta takes for the largest number.

    Args:
        footer: of the file.
        schema: of its rows.
    """
    smallest, largest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    places = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    for field in list(schema)[:_MOST_COLUMNS]:
        place = places.get(field.name)
        if place is None or "." in field.name or pa.types.is_nested(field.type):
            continue
        chunks = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in chunks):
            continue
        nulls[field.name] = sum(each.null_count for each in chunks)
        # A group without bounds has only nulls if it has no values.
        if any(not each.has_min_max and each.num_values for each in chunks):
            continue
        bounds = [(each.min_raw, each.max_raw) for each in chunks if each.has_min_max]
        if not bounds:
            continue
        low = _bound(min(low for low, _ in bounds), field.type, upper=False)
        high = _bound(max(high for _, high in bounds), field.type, upper=True)
        if low is not None and high is not None:
            smallest[field.name], largest[field.name] = low, high
    return {"numRecords": footer.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}


def _bound(raw: Any, kind: pa.DataType, *, upper: bool) -> int | str | None:
    """A bound for the log; None if it has none. Strings are cut, and timestamps have milliseconds: an upper bound is rounded up."""
    if pa.types.is_integer(kind):
        return int(raw)
    if pa.types.is_date(kind):
        return str(datetime.date(1970, 1, 1) + datetime.timedelta(raw)) if _FIRST_DAY <= raw <= _LAST_DAY else None
    if isinstance(kind, pa.TimestampType):
        # Parquet has milliseconds or microseconds.
        number = raw if kind.unit == "ms" else -(-raw // 1000) if upper else raw // 1000
        if not _FIRST_DAY <= number // 86_400_000 <= _LAST_DAY:
            return None
        text = (_EPOCH + datetime.timedelta(milliseconds=number)).isoformat(timespec="milliseconds")
        return text.removesuffix("+00:00") + ("" if kind.tz is None else "Z")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text, end = str(raw, "utf-8"), _CHARACTERS
        # Not longer than needed, and not above the whole text, or not below.
        while upper and text[end : end + 1] == _LAST_CHARACTER:
            end += 1
        return text if len(text) <= end else text[:end] + (_LAST_CHARACTER if upper else "")
    return None
