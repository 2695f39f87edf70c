"""Checks that text from a Parquet file is UTF-8, and that decimals have no more digits than their type.

Arrow's reader accepts any bytes, but consumers may not.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.errors import DataError

HINT = "The writer put other bytes into a text column: rewrite the file, or make the column binary"


_cache: tuple[tuple[pa.Schema, Sequence[int]], ...] = ()
"""Columns of the schemas that were read last: files of a table share a schema. Replaced as a whole, so it is thread-safe."""


def check_text(batch: pa.RecordBatch) -> None:
    """Check columns with text or decimals, at any depth.

    ASCII columns are checked with a single pass over their bytes, dictionary columns by their dictionary.

    Raises:
        DataError: text that is not UTF-8, a decimal of too many digits.
    """
    global _cache
    places = next((places for cached, places in _cache if batch.schema.equals(cached)), None)
    if places is None:
        places = [place for place, field in enumerate(batch.schema) if _has_text(field.type)]
        _cache = ((batch.schema, places), *_cache)[:8]
    for place in places:
        column = batch.column(place)
        for array in (column,) if pa.types.is_string(column.type) else _texts(column):
            if not _is_valid(array):
                name = batch.schema.field(place).name
                if pa.types.is_decimal(array.type):
                    raise DataError(f"column {name!r:.200} has a number of more digits than {array.type}")
                raise DataError(f"column {name!r:.200} has text that is not UTF-8", hint=HINT)


def _is_valid(array: Any) -> bool:
    if not len(array):
        return True
    try:
        if not pa.types.is_string(array.type):
            array.validate(full=True)
            return True
        _, offsets, data = array.buffers()
        places = np.frombuffer(offsets, np.int32)
        start, end = int(places[array.offset]), int(places[array.offset + len(array)])
        if start < end and np.frombuffer(data, np.int8)[start:end].min() < 0:
            array.view(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _texts(array: Any) -> Iterator[Any]:
    """The arrays of text and of decimals within an array."""
    kind = array.type
    if is_text(kind) or pa.types.is_decimal(kind):
        yield array
    elif pa.types.is_dictionary(kind):
        yield from _texts(array.dictionary)
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _texts(array.storage)
    elif not _has_text(kind):
        return
    elif pa.types.is_struct(kind):
        for place in range(kind.num_fields):
            yield from _texts(array.field(place))
    elif pa.types.is_map(kind):
        for part in (array.keys, array.items):
            yield from _texts(_within(array, part))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _texts(_within(array, array.values))
    else:
        yield from _texts(array.flatten())


def _within(array: Any, values: Any) -> Any:
    """The values in the lists of an array, which may be a slice of a larger one."""
    offsets = array.offsets
    start = offsets[0].as_py()
    return values.slice(start, offsets[-1].as_py() - start)


def _has_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_text(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_text(kind.storage_type)
    return (
        is_text(kind)
        or pa.types.is_decimal(kind)
        or any(_has_text(kind.field(place).type) for place in range(kind.num_fields))
    )


def is_text(kind: pa.DataType) -> bool:
    """Whether values are strings, of any of Arrow's layouts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
