"""The four change columns that follow the table's columns in a change row."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.errors import DataError
from cdfd.runtime.arrays import array_of, to_numpy

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
CHANGE_ORDINAL: Final = "_change_ordinal"

_TIMESTAMP = pa.timestamp("ms", "UTC")

CHANGE_TYPES = array_of(["insert", "update_preimage", "update_postimage", "delete"])
"""All change types (specification, "Change Data Files"). Every batch has this dictionary, so batches concatenate without recoding."""

CHANGE_COLUMNS = (
    pa.field(CHANGE_TYPE, pa.dictionary(pa.int8(), pa.string()), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, _TIMESTAMP, nullable=False),
    pa.field(CHANGE_ORDINAL, pa.int64(), nullable=False),
)

CHANGE_NAMES: Final = [field.name for field in CHANGE_COLUMNS]


def without_change_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Change rows with the table's columns alone."""
    return rows.select([at for at, name in enumerate(rows.schema.names) if name not in CHANGE_NAMES])


def change_schema(table: pa.Schema) -> pa.Schema:
    """Schema of change rows: the table's columns, then the change columns."""
    return pa.schema([*table, *CHANGE_COLUMNS])


def _types(code: int, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(array_of(np.full(count, code, np.int8)), CHANGE_TYPES)


_FEW, _MANY = 1 << 16, 1 << 20
_CODES: Final[Mapping[str, int]] = {change_type: code for code, change_type in enumerate(CHANGE_TYPES.to_pylist())}
_CONSTANTS: Final = tuple(_types(code, _FEW) for code in _CODES.values())


def constant_type(change_type: str, count: int) -> pa.DictionaryArray:
    """A column of `count` rows with the same change type."""
    code = _CODES[change_type]
    return _CONSTANTS[code].slice(0, count) if count <= _FEW else _types(code, count)


def types_of(change_types: Sequence[str], counts: Sequence[int]) -> pa.DictionaryArray:
    """A column with runs of rows, each of one change type."""
    if len(set(change_types)) == 1:
        return constant_type(change_types[0], sum(counts))
    codes = np.array([_CODES[each] for each in change_types], np.int8)
    return pa.DictionaryArray.from_arrays(array_of(np.repeat(codes, counts)), CHANGE_TYPES)


_SPELLINGS: Final = [*_CODES, "update_pre", "update_post"]
_PLACES: Final[Mapping[str, int]] = {spelling: place for place, spelling in enumerate(_SPELLINGS)}
"""All spellings of change types, including those of early writers."""

_MEANINGS: Final = np.array([0, 1, 2, 3, 1, 2], np.int8)
"""The position in `CHANGE_TYPES` of each spelling."""


def types_as_written(column: pa.Array) -> pa.DictionaryArray:
    """The `_change_type` column of a change data file. Early spellings stay, because other readers of the table see them too.

    Raises:
        DataError: a value is not a change type.
    """
    places = _places_of(column)
    early = len(places) and places.max() >= len(CHANGE_TYPES)
    types = array_of(_SPELLINGS) if early else CHANGE_TYPES
    return pa.DictionaryArray.from_arrays(array_of(places), types, safe=False)


def change_codes(column: pa.Array) -> npt.NDArray[np.int8]:
    """A column of change types as positions in `CHANGE_TYPES`.

    Raises:
        DataError: a value is not a change type.
    """
    if pa.types.is_dictionary(column.type) and column.dictionary.equals(CHANGE_TYPES) and not column.null_count:
        codes: npt.NDArray[np.int8] = to_numpy(column.indices).astype(np.int8, copy=False)
        return codes
    return np.take(_MEANINGS, _places_of(column))


def _places_of(column: pa.Array) -> npt.NDArray[np.int8]:
    """Positions in `_SPELLINGS`. The few values of a dictionary are looked up, and not those of all rows."""
    encoded = column if pa.types.is_dictionary(column.type) else column.cast(pa.string()).dictionary_encode()
    # The last one is that of null, whose index is -1.
    places = np.array([*(_PLACES.get(value, -1) for value in encoded.dictionary.to_pylist()), -1], np.int8)
    indices = encoded.indices if not encoded.indices.null_count else encoded.indices.cast(pa.int64()).fill_null(-1)
    codes: npt.NDArray[np.int8] = places.take(to_numpy(indices))  # brackets take three times as long
    if len(codes) and codes.min() < 0:
        wrong = column[int(codes.argmin())].as_py()
        raise DataError(f"_change_type is {wrong!r}, expected one of {', '.join(CHANGE_TYPES.to_pylist())}")
    return codes


def _numbers(kind: pa.DataType, count: int, fill: Callable[[Any], object]) -> pa.Array:
    """An array of `count` integers of 64 bits, which `fill` writes."""
    buffer = pa.allocate_buffer(8 * count)
    fill(np.frombuffer(buffer, np.int64, count))
    return pa.Array.from_buffers(kind, count, [None, buffer])


@cache
def _first_ordinals(count: int) -> pa.Array:
    return array_of(np.arange(count, dtype=np.int64))


def _ordinals(first: int, count: int) -> pa.Array:
    """The ordinals of `count` rows from `first` on. Batches of all versions share the first million."""
    end = first + count
    if end <= _MANY:
        return _first_ordinals(_FEW if end <= _FEW else _MANY).slice(first, count)
    if count > _FEW:
        return array_of(np.arange(first, end, dtype=np.int64))
    few = to_numpy(_first_ordinals(_FEW))[:count]
    return _numbers(pa.int64(), count, lambda numbers: np.add(few, first, out=numbers))


_NO_VERSIONS = array_of([], pa.int64())
_NO_TIMESTAMPS = array_of([], _TIMESTAMP)


class VersionColumns:
    """Appends the change columns to the batches of one version.

    Constant columns are created once, with the length of the longest batch so far, and sliced. So there is no copy per batch.

    Args:
        version: of the table.
        timestamp_ms: when it was committed, in ms since the epoch.
    """

    def __init__(self, version: int, timestamp_ms: int) -> None:
        self.version = version
        self._timestamp_ms = timestamp_ms
        self._versions = _NO_VERSIONS
        self._timestamps = _NO_TIMESTAMPS
        self._schema: tuple[pa.Schema, pa.Schema] | None = None

    def following(self, version: int, timestamp_ms: int) -> Self:
        """The same for another version. It keeps the cached schema of the batches."""
        following = type(self)(version, timestamp_ms)
        following._schema = self._schema
        return following

    def complete(self, batch: pa.RecordBatch, first_ordinal: int) -> pa.RecordBatch:
        """A batch of table columns and `_change_type`, with the other three appended. The first row has ordinal `first_ordinal`."""
        count = batch.num_rows
        if len(self._versions) < count:
            # Arrow's `repeat` takes ten times as long.
            self._versions = _numbers(pa.int64(), count, lambda numbers: numbers.fill(self.version))
            self._timestamps = _numbers(_TIMESTAMP, count, lambda numbers: numbers.fill(self._timestamp_ms))
        constants = self._versions.slice(0, count), self._timestamps.slice(0, count)
        columns = [*batch.columns, *constants, _ordinals(first_ordinal, count)]
        return pa.RecordBatch.from_arrays(columns, schema=self._complete(batch.schema))

    def complete_several(self, batch: pa.RecordBatch, runs: Sequence[tuple[int, int, int, int]]) -> pa.RecordBatch:
        """The same for rows of several versions.

        Args:
            batch: the rows, in order of version.
            runs: for each version: the version, its timestamp, the number of its rows, and the ordinal of the first of them.
        """
        versions, timestamps, counts, ordinals = np.array(runs, np.int64).T
        starts = np.cumsum(counts) - counts
        numbered = np.arange(batch.num_rows, dtype=np.int64) + np.repeat(ordinals - starts, counts)
        columns = [
            *batch.columns,
            array_of(np.repeat(versions, counts)),
            array_of(np.repeat(timestamps, counts)).view(_TIMESTAMP),
            array_of(numbered),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._complete(batch.schema))

    def _complete(self, schema: pa.Schema) -> pa.Schema:
        if self._schema is None or self._schema[0] != schema:
            self._schema = schema, pa.schema([*schema, *CHANGE_COLUMNS[1:]])
        return self._schema[1]
