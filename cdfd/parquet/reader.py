"""Reads Parquet files in batches of bounded memory, whatever the file says (`parquet.bounds`).

The page headers of a row group are read before its columns. Strings that are all in dictionaries are read as dictionaries. That is faster,
and the length of a row's strings is known before they are copied. In remote files, where each read is a request, the headers are checked
while the pages are read (`parquet.guard`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdfd.parquet.bounds import BATCH_BYTES, NESTED_BYTES, USUAL_BYTES, Bounds, ColumnChunk, Leaf, leaves, too_large
from cdfd.parquet.group_statistics import ChunkStatistics, Decode, chunk_statistics, decoder
from cdfd.parquet.guard import BoundsExceededError, GuardedFile, guarded
from cdfd.parquet.layout import ChunkLocation, chunks
from cdfd.parquet.pages import pages
from cdfd.parquet.text import check_text, text_columns

STREAM_BYTES = 1 << 20
"""Compressed bytes of a column chunk to buffer while it is decoded."""
CAREFUL_BYTES = 16 << 10
"""The same if the guard should not see pages long before they are decoded."""
RUN_BYTES = 16 << 20
"""Bytes of row groups that are read together."""
FOOTER_BYTES = 32 << 20
"""Bytes of a footer, at most."""
LARGE_FOOTER = 1 << 20
"""Bytes of a footer from which cdfd checks it before pyarrow parses it, because pyarrow's objects take much more memory."""
FOOTER_ITEMS = 200_000
"""Items of a list in a footer, at most: row groups or columns."""
REPEATING_ROWS = 50_000
"""Values of a column from which repeating strings are read as a dictionary and decoded afterwards, which is faster then."""
DIRECT_BYTES = 64 << 20
"""Bytes of dictionary strings in a batch, at most, to decode them directly, which is faster for few strings."""
DICTIONARY_ROWS = 1024
"""Rows to read to get the dictionary of a list column: the first lists may be empty."""


_RATIOS = {0: 1, 1: 22, 5: 256, 7: 256}
"""Compression ratio, at most, by codec: none, Snappy, LZ4 in its two frames. Other codecs have no useful limit."""


@contextlib.contextmanager
def opened(source: Any, dictionaries: Collection[str] = ()) -> Iterator[ParquetReader]:
    """A file for reading. `dictionaries` are columns to return as dictionaries.

    Raises:
        pa.ArrowException, OSError, ValueError: the file is damaged.
        DataError: it requires too much memory.
    """
    with ParquetReader(source, dictionaries) as reader:
        yield reader


class ParquetReader:
    """An open file."""

    def __init__(self, source: Any, dictionaries: Collection[str]) -> None:
        self._source = source
        self.size: int = source.size()
        self._footer = _footer(source)
        # pyarrow's objects take many times the memory of the footer.
        self._layout = _layout(source, self._footer) if self._footer > LARGE_FOOTER else None
        self._plain = pq.ParquetFile(source, **_options())
        self._read = _local_read(source)
        self._leaves: tuple[Leaf, ...] | None = None
        self._texts: frozenset[str] | None = None
        self.metadata: pq.FileMetaData = self._plain.metadata
        self.schema_arrow: pa.Schema = self._plain.schema_arrow
        self._dictionaries = self.texts.intersection(dictionaries)

    def __enter__(self) -> ParquetReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._plain.close()

    def batches(
        self, columns: Sequence[str], groups: Sequence[int] | None = None, *, rows: int, use_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order: batches of at most `rows` rows and about `BATCH_BYTES`, but at least one row.

        Args:
            columns: top-level columns, or dotted names of their children.
            groups: row groups; None for all.
            rows: of a batch, at most.
            use_threads: decode columns in parallel.

        Raises:
            DataError: a row, page or dictionary that is too large, or text that is not UTF-8.
            pa.ArrowException, OSError, ValueError: the file is damaged.
        """
        for run, found in self._runs(range(self.metadata.num_row_groups) if groups is None else groups, columns):
            yield from _Run(self, run, columns, found, use_threads).batches(rows)

    def statistics(self, columns: Collection[str]) -> list[tuple[dict[str, ChunkStatistics], dict[str, Decode | None]]]:
        """For each row group, the statistics of columns that are not nested, and the functions that decode their bounds.

        None if the footer is damaged, which reading reports, or takes long to parse.
        """
        known = [
            (number, leaf.path)
            for number, leaf in self._places(tuple(columns))
            if leaf.path in columns and not (leaf.nested or leaf.ambiguous)
        ]
        schema, arrow = self._plain.schema, self.schema_arrow
        flat = {path: decoder(arrow.field(path).type, schema.column(number).physical_type) for number, path in known}
        if not flat or self._footer > LARGE_FOOTER:
            return []
        footer = self._source.read_at(self._footer, self.size - 8 - self._footer)
        with contextlib.suppress(ValueError):
            found = chunk_statistics(footer, flat.keys())
            return [(group, flat) for group in found] if len(found) == self.metadata.num_row_groups else []
        return []

    @property
    def texts(self) -> frozenset[str]:
        """Top-level string columns. They may be read as dictionaries, and decoded afterwards."""
        if self._texts is None:
            self._texts = _texts(self.schema_arrow)
        return self._texts

    def _runs(self, groups: Iterable[int], columns: Sequence[str]) -> Iterator[tuple[list[int], list[ColumnChunk]]]:
        """Row groups that are read together, with their column chunks."""
        places = self._places(columns)
        run, read, size = list[int](), list[ColumnChunk](), 0
        for group in groups:
            found = self._chunks(group, places)
            more = sum(chunk.end - chunk.start for chunk in found)
            if run and size + more > RUN_BYTES:
                yield run, read
                run, read, size = [], [], 0
            run.append(group)
            read += found
            size += more
        if run:
            yield run, read

    def _places(self, columns: Sequence[str]) -> list[tuple[int, Leaf]]:
        if self._leaves is None:
            self._leaves = leaves(self._plain.schema)
        exact, inside = set(columns), tuple(f"{name}." for name in columns)
        return [
            (number, leaf)
            for number, leaf in enumerate(self._leaves)
            if leaf.path in exact or ("." in leaf.path and leaf.path.startswith(inside))
        ]

    def _chunks(self, group: int, places: Iterable[tuple[int, Leaf]]) -> list[ColumnChunk]:
        if self._layout is None:
            self._layout = _layout(self._source, self._footer)
        columns = self.metadata.num_columns
        if len(self._layout) != columns * self.metadata.num_row_groups:
            raise ValueError("a row group with more or fewer columns than the file")
        found = []
        for number, leaf in places:
            place = self._layout[group * columns + number]
            found.append(ColumnChunk(group, leaf, place.start, place.end, place.values, _is_small(place, leaf)))
        return found


class _Run:
    """Row groups that are read together."""

    def __init__(
        self,
        reader: ParquetReader,
        groups: list[int],
        columns: Sequence[str],
        chunks: list[ColumnChunk],
        use_threads: bool,
    ) -> None:
        self._reader = reader
        self._options = {"row_groups": groups, "columns": list(columns), "use_threads": use_threads}
        self._groups = groups
        self._decoded = reader.texts - reader._dictionaries
        self._bounds = Bounds(chunks)
        self._scanned = False
        self._rows = 1

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        if self._reader._read is not None:
            self._scan_pages(self._reader._read)
        else:
            self._scan_first_pages(_read(self._reader._source))
        done = 0
        while True:
            try:
                for batch in self._attempt(rows, done):
                    done += batch.num_rows
                    yield batch
            except BoundsExceededError:
                if not self._scanned:
                    self._scan_pages(_read(self._reader._source))
                elif self._rows == 1:
                    raise too_large(f"a row of its lists or maps has more than {NESTED_BYTES} bytes") from None
                else:
                    rows = max(1, self._rows // 8)
            else:
                return

    def _attempt(self, rows: int, done: int) -> Iterator[pa.RecordBatch]:
        """The rows that follow the first `done` rows."""
        self._bounds.check_open()
        indexed, known = self._indexed(rows)
        self._measure(rows, known)
        rows = min(rows, self._bounds.rows(known))
        nested = self._bounds.nested_bytes()
        careful = self._scanned and nested > NESTED_BYTES
        if careful:
            whole = sum(self._reader.metadata.row_group(group).num_rows for group in self._groups)
            rows = min(rows, max(1, whole * NESTED_BYTES // (2 * nested)))
        self._rows = rows
        with self._file(indexed, rows, careful) as (file, guard):
            texts: list[int] | None = None
            for batch in file.iter_batches(batch_size=rows, **self._options):
                texts = text_columns(batch.schema) if texts is None else texts
                check_text(batch, texts)
                if guard is not None:
                    guard.next_batch()
                if done >= batch.num_rows:
                    done -= batch.num_rows
                    continue
                rest = batch.slice(done) if done else batch
                done = 0
                if indexed or self._reader._dictionaries:
                    yield from _decoded(rest, self._decoded)
                else:
                    yield rest

    @contextlib.contextmanager
    def _file(
        self, indexed: frozenset[str], rows: int, careful: bool
    ) -> Iterator[tuple[pq.ParquetFile, GuardedFile | None]]:
        reader = self._reader
        names = indexed | reader._dictionaries
        if self._scanned and not careful:
            if not names:
                yield reader._plain, None
                return
            with pq.ParquetFile(
                reader._source, metadata=reader.metadata, read_dictionary=list(names), **_options()
            ) as file:
                yield file, None
            return
        guard = guarded(reader._source)
        options = _options() | ({"buffer_size": CAREFUL_BYTES} if careful else {})
        with pq.ParquetFile(guard, metadata=reader.metadata, read_dictionary=list(names), **options) as file:
            fresh = [chunk.without_pages(longest=chunk.longest) for chunk in self._bounds.chunks]
            guard.watch(Bounds(fresh), rows, indexed)
            yield file, guard

    def _scan_pages(self, read: Read) -> None:
        """Read the headers of all pages."""
        self._scanned = True
        self._bounds = Bounds([chunk.without_pages() for chunk in self._bounds.chunks])
        for chunk in self._bounds.chunks:
            if not chunk.small:
                for page in pages(read, chunk.start, chunk.end, chunk.values):
                    chunk.add(page)

    def _scan_first_pages(self, read: Read) -> None:
        """Read the first headers of string columns: whether there is a dictionary, and whether it is used."""
        for chunk in self._bounds.chunks:
            if chunk.leaf.strings:
                for page in islice(pages(read, chunk.start, chunk.end, chunk.values), 2):
                    chunk.add(page)

    def _indexed(self, rows: int) -> tuple[frozenset[str], frozenset[str]]:
        """Top-level columns to read as dictionaries, and these with all others whose strings are in dictionaries.

        Reading dictionaries is slow if not all strings are in them, or if most strings are distinct. But only the dictionary has the length
        of a string that repeats.
        """
        found, others = dict[str, list[ColumnChunk]](), set[str]()
        for chunk in self._bounds.chunks:
            if chunk.leaf.path in self._reader.texts and chunk.values:
                if chunk.is_indexed:
                    found.setdefault(chunk.leaf.path, []).append(chunk)
                else:
                    others.add(chunk.leaf.path)
        names, room = set[str](), DIRECT_BYTES
        for name in found.keys() - others:
            most = max(chunk.value_bytes for chunk in found[name]) * min(rows, sum(each.values for each in found[name]))
            if not self._scanned or most > room or any(map(_repeats, found[name])):
                names.add(name)
            else:
                room -= most
        return frozenset(names), frozenset(found.keys() - others)

    def _measure(self, rows: int, indexed: Collection[str]) -> None:
        """Measure the dictionaries of the other columns, if the bounds depend on them."""
        if self._bounds.rows(indexed) >= rows and self._bounds.nested_bytes() <= NESTED_BYTES:
            return
        for chunk in self._bounds.chunks:
            if chunk.longest is None and chunk.leaf.path not in indexed and _can_be_measured(chunk):
                with contextlib.suppress(BoundsExceededError):
                    chunk.longest = self._longest(chunk)

    def _longest(self, chunk: ColumnChunk) -> int | None:
        """Bytes of the longest value of a chunk's dictionary."""
        path = chunk.leaf.path
        guard = guarded(self._reader._source)
        options = _options() | {"buffer_size": CAREFUL_BYTES}
        with pq.ParquetFile(guard, metadata=self._reader.metadata, read_dictionary=[path], **options) as file:
            guard.watch(Bounds([chunk.without_pages(longest=0)]), 1, [path])
            rows = DICTIONARY_ROWS if chunk.leaf.nested else 1
            for batch in file.iter_batches(rows, row_groups=[chunk.group], columns=[path], use_threads=False):
                dictionary = _dictionary(batch.column(0)) if batch.num_columns == 1 else None
                if dictionary is None:
                    return None
                if len(dictionary):
                    return _longest(dictionary)
        return None


Read: TypeAlias = "Callable[[int, int], bytes | memoryview]"


def _options() -> dict[str, Any]:
    return {
        "buffer_size": STREAM_BYTES,
        "pre_buffer": False,
        "coerce_int96_timestamp_unit": "us",
        "thrift_container_size_limit": FOOTER_ITEMS,
        "thrift_string_size_limit": FOOTER_BYTES,
    }


_known: tuple[tuple[pa.Schema, frozenset[str]], ...] = ()
"""String columns of the schemas that were read last: files of a table share a schema. Replaced as a whole, so it is thread-safe."""


def _texts(schema: pa.Schema) -> frozenset[str]:
    """See `ParquetReader.texts`."""
    global _known
    for known, found in _known:
        if schema.equals(known):
            return found
    counts = Counter(schema.names)
    texts = (field.name for field in schema if _is_text(field.type) and "." not in field.name)
    found = frozenset(name for name in texts if counts[name] == 1)
    _known = ((schema, found), *_known)[:8]
    return found


def _footer(source: Any) -> int:
    """Bytes of a file's footer; 0 if it has none, which pyarrow reports. DataError if it is too large."""
    size = source.size()
    length = int.from_bytes(source.read_at(4, size - 8), "little") if size >= 8 else 0
    if length + 8 > size:
        return 0
    if length > FOOTER_BYTES:
        raise too_large(f"its footer has {length} bytes", FOOTER_BYTES)
    return length


def _layout(source: Any, length: int) -> list[ChunkLocation]:
    """The locations of its columns. pyarrow's access to column metadata crashes the process if that is damaged (seen in 26.0)."""
    return chunks(source.read_at(length, source.size() - 8 - length))


def _is_small(place: ChunkLocation, leaf: Leaf) -> bool:
    """Whether a column is so small that its page headers need no check: so few bytes cannot decompress to many."""
    ratio = _RATIOS.get(place.codec)
    return (
        ratio is not None and not leaf.strings and not leaf.nested and (place.end - place.start) * ratio <= USUAL_BYTES
    )


def _local_read(source: Any) -> Read | None:
    """Reads bytes at a position; None for a remote file, where each read is a request."""
    if isinstance(source, pa.BufferReader):
        source.seek(0)
        data = memoryview(source.read_buffer()).cast("B")
        return lambda at, count: data[at : at + count]
    return _read(source) if isinstance(source, pa.OSFile) else None


def _read(source: Any) -> Read:
    return lambda at, count: source.read_at(count, at)


def _repeats(chunk: ColumnChunk) -> bool:
    """Whether its strings come again so often that decoding a dictionary's is faster than decoding each."""
    return chunk.dictionary is not None and chunk.values >= max(REPEATING_ROWS, 16 * chunk.dictionary.values)


def _can_be_measured(chunk: ColumnChunk) -> bool:
    """Whether what is read first of a chunk is from its dictionary."""
    if not chunk.starts_indexed or chunk.leaf.ambiguous:
        return False
    return not chunk.leaf.nested or (not chunk.plain and chunk.numbers_bytes <= NESTED_BYTES)


def _dictionary(array: Any) -> pa.Array | None:
    """The dictionary of an array, or of the only one in it."""
    while not pa.types.is_dictionary(array.type):
        if pa.types.is_struct(array.type) and array.type.num_fields == 1:
            array = array.field(0)
        elif pa.types.is_nested(array.type) and hasattr(array, "values"):
            array = array.values
        else:
            return None
    return array.dictionary


def _longest(strings: pa.Array) -> int:
    return pc.max(pc.binary_length(strings)).as_py() or 0


def _decoded(batch: pa.RecordBatch, names: Collection[str]) -> Iterator[pa.RecordBatch]:
    """A batch with its dictionaries decoded; several batches if it would become too large."""
    indexed = [
        place
        for place, field in enumerate(batch.schema)
        if pa.types.is_dictionary(field.type) and _is_text(field.type.value_type)
    ]
    if not indexed:
        yield batch
        return
    columns: list[Any] = batch.columns
    dictionaries: list[Any] = [columns[place] for place in indexed]
    size = sum(_longest(column.dictionary) for column in dictionaries)
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


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
