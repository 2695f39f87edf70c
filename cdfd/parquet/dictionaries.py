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
from cdfd.parquet.pages import PLAIN, PLAIN_DICTIONARY, longest_value, page

Read: TypeAlias = "Callable[[int, int], bytes | memoryview]"

_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
"""Arrow's names of codecs, by their numbers in a footer."""


def can_be_measured(chunk: ColumnChunk) -> bool:
    """Whether what is read first of a chunk is from its dictionary."""
    if not chunk.starts_indexed or chunk.leaf.ambiguous:
        return False
    return not chunk.leaf.nested or chunk.numbers_bytes <= NESTED_BYTES


def stored_longest(chunk: ColumnChunk, read: Read) -> int | None:
    """Bytes of the longest value of a chunk's dictionary, from its page; None where that is not known."""
    found = chunk.dictionary
    if found is None or found.encoding not in (PLAIN, PLAIN_DICTIONARY) or chunk.codec not in _CODECS:
        return None
    # A dictionary that is not at the beginning is Arrow's to find, or to refuse.
    stored = read(chunk.start, found.start + found.stored)
    if len(stored) < found.start + found.stored or page(stored, 0) != found:
        return None
    codec, data = _CODECS[chunk.codec], memoryview(stored)[found.start :]
    if codec is not None:
        try:
            data = memoryview(pa.Codec(codec).decompress(data, found.size)).cast("B")
        except (pa.ArrowException, OSError):
            return None
    return longest_value(data, found.values) if len(data) == found.size else None


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
    size = sum(longest(column.dictionary) for column in dictionaries)
    starts = [0] if size * batch.num_rows <= BATCH_BYTES else _starts(dictionaries)
    places = [place for place in indexed if batch.schema.field(place).name in names]
    schema = _schema(batch.schema, places)
    for start, end in pairwise([*starts, batch.num_rows]):
        found = [column.slice(start, end - start) for column in columns] if len(starts) > 1 else columns[:]
        for place in places:
            found[place] = _strings(found[place])
        yield pa.RecordBatch.from_arrays(found, schema=schema)


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
    return column.dictionary_decode()


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
