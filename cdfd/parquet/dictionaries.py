"""Strings in dictionaries: their longest value, and their decoding.

Only the dictionary has the length of a string that repeats. A page of a few bytes may refer to its longest value in every row.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdfd.parquet.bounds import BATCH_BYTES, NESTED_BYTES, ColumnChunk
from cdfd.parquet.codecs import decompress
from cdfd.parquet.kernels import native
from cdfd.parquet.pages import PLAIN, PLAIN_DICTIONARY, longest_value, page

Read: TypeAlias = "Callable[[int, int], bytes | memoryview]"

PADDED_BYTES = 64 << 10
"""Bytes of a dictionary, up to which a copy with room after it costs less than it saves."""


def can_be_measured(chunk: ColumnChunk) -> bool:
    """Whether what is read first of a chunk is from its dictionary."""
    if not chunk.starts_indexed or chunk.leaf.ambiguous:
        return False
    return not chunk.leaf.nested or chunk.numbers_bytes <= NESTED_BYTES


def stored_longest(chunk: ColumnChunk, read: Read) -> int | None:
    """Bytes of the longest value of a chunk's dictionary, from its page; None where that is not known."""
    found = chunk.dictionary
    if found is None or found.encoding not in (PLAIN, PLAIN_DICTIONARY):
        return None
    # A dictionary that is not at the beginning is Arrow's to find, or to refuse.
    stored = read(chunk.start, found.start + found.stored)
    if len(stored) < found.start + found.stored or page(stored, 0) != found:
        return None
    data = decompress(chunk.codec, memoryview(stored)[found.start :], found.size)
    return None if data is None else longest_value(data, found.values)


def dictionary_of(array: Any) -> pa.Array | None:
    """The dictionary of an array, or of the only one in it."""
    while not pa.types.is_dictionary(array.type):
        if pa.types.is_struct(array.type) and array.type.num_fields == 1:
            array = array.field(0)
        elif pa.types.is_nested(array.type) and hasattr(array, "values"):
            array = array.values
        else:
            return None
    return array.dictionary


def longest(strings: pa.Array) -> int:
    """Bytes of the longest string."""
    return pc.max(pc.binary_length(strings)).as_py() or 0


def decoded(batch: pa.RecordBatch, names: Collection[str]) -> Iterator[pa.RecordBatch]:
    """A batch with its dictionaries decoded; several batches if it would become too large."""
    indexed = [
        place
        for place, field in enumerate(batch.schema)
        if pa.types.is_dictionary(field.type) and is_text(field.type.value_type)
    ]
    if not indexed:
        yield batch
        return
    columns: list[Any] = batch.columns
    dictionaries: list[Any] = [columns[place] for place in indexed]
    # All bytes of a small dictionary are a bound, and known at once.
    size = sum(_all_bytes(column.dictionary) for column in dictionaries)
    if size * batch.num_rows > BATCH_BYTES:
        size = sum(longest(column.dictionary) for column in dictionaries)
    starts = [0] if size * batch.num_rows <= BATCH_BYTES else _starts(dictionaries)
    places = [place for place in indexed if batch.schema.field(place).name in names]
    schema = _schema(batch.schema, places)
    for start, end in pairwise([*starts, batch.num_rows]):
        found = [column.slice(start, end - start) for column in columns] if len(starts) > 1 else columns[:]
        for place in places:
            found[place] = _strings(found[place])
        yield pa.RecordBatch.from_arrays(found, schema=schema)


def _all_bytes(strings: Any) -> int:
    """Bytes of the buffer of strings, of which an array may be a slice."""
    data = strings.buffers()[2]
    return 0 if data is None else int(data.size)


def _schema(schema: pa.Schema, places: Iterable[int]) -> pa.Schema:
    for place in places:
        field: Any = schema.field(place)
        schema = schema.set(place, field.with_type(field.type.value_type))
    return schema


def _strings(column: pa.DictionaryArray) -> pa.Array:
    """The strings of a column. If all are distinct, the dictionary has them in order, and nothing is copied."""
    indices: Any = column.indices
    count = len(indices)
    if count and not indices.null_count:
        first, last = indices[0].as_py(), indices[-1].as_py()
        if last - first == count - 1 and np.array_equal(indices.to_numpy(), np.arange(first, last + 1, dtype=np.int32)):
            return column.dictionary.slice(first, count)
    found = _taken(column.dictionary, indices)
    return column.dictionary_decode() if found is None else found


def taken(values: Any, indices: Any) -> pa.Array:
    """The values of indices (int32), which are faster to take of strings here than by Arrow."""
    found = _taken(values, indices) if is_text(values.type) else None
    return values.take(indices) if found is None else found


def _taken(dictionary: Any, indices: Any) -> pa.Array | None:
    """The strings of a dictionary's indices. None where Arrow has to take them, or to refuse them."""
    count, nulls = len(indices), indices.null_count
    if native is None or indices.type != pa.int32() or dictionary.null_count or (nulls and indices.offset):
        return None
    validity, numbers = indices.buffers()
    numbers = np.frombuffer(numbers, np.int32, count, 4 * indices.offset)
    _, places, strings = dictionary.buffers()
    places = np.frombuffer(places, np.int32, len(dictionary) + 1, 4 * dictionary.offset)
    if strings is None:
        return None
    ends = pa.allocate_buffer(4 * (count + 1))
    valid = np.frombuffer(validity, np.uint8) if nulls else None
    size = native.taken_ends(numbers, valid, places, np.frombuffer(ends, np.int32))
    if size <= 0:
        return None
    if len(strings) <= PADDED_BYTES:
        # The last strings are copied as fast as the others then.
        strings = bytes(strings) + bytes(32)
    found = pa.allocate_buffer(size)
    texts = np.frombuffer(strings, np.uint8)
    if not native.take(numbers, places, texts, np.frombuffer(ends, np.int32), np.frombuffer(found, np.uint8)):
        return None
    return pa.Array.from_buffers(dictionary.type, count, [validity if nulls else None, ends, found], nulls)


def _starts(columns: Iterable[pa.DictionaryArray]) -> list[int]:
    """First rows of batches with at most `BATCH_BYTES` once they are decoded, or with one row."""
    sizes: Any = sum(
        pc.fill_null(pc.take(pc.binary_length(column.dictionary), column.indices), 0).to_numpy().astype(np.int64)
        for column in columns
    )
    ends = np.cumsum(sizes)
    starts = [0]
    while True:
        before = ends[starts[-1] - 1] if starts[-1] else 0
        following = max(starts[-1] + 1, int(np.searchsorted(ends, before + BATCH_BYTES, "right")))
        if following >= len(ends):
            return starts
        starts.append(following)


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of a file is one of strings, which may be read as a dictionary."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
