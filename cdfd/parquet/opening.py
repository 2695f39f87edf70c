"""Opens Parquet files: the footer is bounded before pyarrow parses it, and strings come as strings, however their writer had them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.parquet.bounds import too_large
from cdfd.parquet.dictionaries import Read, is_text
from cdfd.parquet.layout import ChunkLocation, chunks

STREAM_BYTES = 1 << 20
"""Compressed bytes of a column chunk to buffer while it is decoded."""
FOOTER_BYTES = 32 << 20
"""Bytes of a footer, at most."""
LARGE_FOOTER = 1 << 20
"""Bytes of a footer from which cdfd checks it before pyarrow parses it, because pyarrow's objects take much more memory."""
FOOTER_ITEMS = 200_000
"""Items of a list in a footer, at most: row groups or columns."""
_ARROW_SCHEMA = b"\x0cARROW:schema"
"""The key, after its length, under which Arrow keeps the schema of a file's writer."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file, as its readers share it.

    Attributes:
        source: the bytes.
        parquet: pyarrow's.
        schema: of its columns. pyarrow would convert it each time.
        data: the bytes, if they are in memory.
        read: reads bytes at a position; None for a remote file, where each read is a request.
        texts: top-level string columns. They may be read as dictionaries, and decoded afterwards.
        dictionaries: those of them to return as dictionaries.
    """

    source: Any
    parquet: pq.ParquetFile
    schema: pa.Schema
    data: memoryview | None
    read: Read | None
    texts: frozenset[str]
    dictionaries: frozenset[str]

    @classmethod
    def of(cls, source: Any, footer: int, dictionaries: Collection[str]) -> OpenFile:
        """Open a file whose footer has so many bytes. Raises what pyarrow does."""
        parquet, data = opened_file(source, footer), data_of(source)
        schema = parquet.schema_arrow
        texts = text_names(schema)
        return cls(source, parquet, schema, data, local_read(source, data), texts, texts.intersection(dictionaries))


def options() -> dict[str, Any]:
    """Options of `pyarrow.parquet.ParquetFile`."""
    return {
        "buffer_size": STREAM_BYTES,
        "pre_buffer": False,
        "coerce_int96_timestamp_unit": "us",
        "thrift_container_size_limit": FOOTER_ITEMS,
        "thrift_string_size_limit": FOOTER_BYTES,
    }


_known: tuple[tuple[pa.Schema, frozenset[str]], ...] = ()
"""String columns of the schemas that were read last: files of a table share a schema. Replaced as a whole, so it is thread-safe."""


_endings: tuple[tuple[bytes, bool], ...] = ()
"""Ends of the footers that were read last, from the schema of their writer on, and whether it has views. Replaced as `_known`."""


def text_names(schema: pa.Schema) -> frozenset[str]:
    """Top-level string columns. Their names fit nothing else in the file."""
    global _known
    for known, found in _known:
        if schema.equals(known):
            return found
    counts = Counter(schema.names)
    texts = (field.name for field in schema if is_text(field.type) and "." not in field.name)
    found = frozenset(name for name in texts if counts[name] == 1)
    _known = ((schema, found), *_known)[:8]
    return found


def opened_file(source: Any, footer: int) -> pq.ParquetFile:
    """A file as pyarrow opens it, but with plain strings where its writer had views, which take another copy to convert."""
    global _endings
    if not 0 < footer <= LARGE_FOOTER:
        return pq.ParquetFile(source, **options())
    found = source.read_at(footer + 8, source.size() - 8 - footer)
    before, key, ending = found.rpartition(_ARROW_SCHEMA)
    if not key or key in before:
        # Another one may be the name of a column.
        return pq.ParquetFile(source, **options())
    has_views = next((views for known, views in _endings if known == ending), None)
    if has_views is None:
        file = pq.ParquetFile(source, **options())
        has_views = any("_view" in str(field.type) for field in file.schema_arrow)
        if len(ending) <= 64 << 10:
            _endings = ((ending, has_views), *_endings)[:8]
        if not has_views:
            return file
    elif not has_views:
        return pq.ParquetFile(source, **options())
    renamed = pa.BufferReader(b"".join([b"PAR1", before, _ARROW_SCHEMA[:-1], b"_", ending]))
    with pq.ParquetFile(renamed, **options()) as known:
        return pq.ParquetFile(source, metadata=known.metadata, **options())


def footer_size(source: Any) -> int:
    """Bytes of a file's footer; 0 if it has none, which pyarrow reports. DataError if it is too large."""
    size = source.size()
    length = int.from_bytes(source.read_at(4, size - 8), "little") if size >= 8 else 0
    if length + 8 > size:
        return 0
    if length > FOOTER_BYTES:
        raise too_large(f"its footer has {length} bytes", FOOTER_BYTES)
    return length


def layout_of(source: Any, length: int) -> list[ChunkLocation]:
    """The locations of its columns. pyarrow's access to column metadata crashes the process if that is damaged (seen in 26.0)."""
    return chunks(source.read_at(length, source.size() - 8 - length))


def data_of(source: Any) -> memoryview | None:
    """A file that is in memory."""
    if not isinstance(source, pa.BufferReader):
        return None
    source.seek(0)
    return memoryview(source.read_buffer()).cast("B")


def local_read(source: Any, data: memoryview | None) -> Read | None:
    """Reads bytes at a position; None for a remote file, where each read is a request."""
    if data is not None:
        return lambda at, count: data[at : at + count]
    return reader_of(source) if isinstance(source, pa.OSFile) else None


def reader_of(source: Any) -> Read:
    """Reads bytes at a position."""
    return lambda at, count: source.read_at(count, at)
