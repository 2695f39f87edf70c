"""Reads Parquet files in batches of bounded memory, whatever the file says (`parquet.bounds`).

A kernel decodes what it knows (`parquet.decoding`), and pyarrow the rest, which is what follows here.

The page headers of a row group are read before its columns. Strings that are all in dictionaries are read as dictionaries. That is faster,
and the length of a row's strings is known before they are copied. In remote files, where each read is a request, the headers are checked
while the pages are read (`parquet.guard`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.parquet.bounds import (
    BATCH_BYTES,
    NESTED_BYTES,
    OPEN_BYTES,
    USUAL_BYTES,
    Bounds,
    ColumnChunk,
    Leaf,
    leaves,
    too_large,
)
from cdfd.parquet.decoding import Unread, decoder_of
from cdfd.parquet.dictionaries import Read, can_be_measured, decoded, dictionary_of, longest, stored_longest
from cdfd.parquet.group_statistics import ChunkStatistics, Decode, chunk_statistics, decoder
from cdfd.parquet.guard import BoundsExceededError, GuardedFile, guarded
from cdfd.parquet.layout import ChunkLocation
from cdfd.parquet.opening import (
    LARGE_FOOTER,
    data_of,
    footer_size,
    layout_of,
    local_read,
    opened_file,
    options,
    reader_of,
    text_names,
)
from cdfd.parquet.pages import Page, pages, pages_at, pages_in
from cdfd.parquet.text import check_text, checked, text_columns

THREADS = 2
"""Threads that decode the columns of a file that is read alone."""
WINDOW_BYTES = 256 << 10
"""Bytes that are read at a time, at least, of a column that the kernel decodes."""
CAREFUL_BYTES = 16 << 10
"""The same if the guard should not see pages long before they are decoded."""
RUN_BYTES = 16 << 20
"""Bytes of row groups that are read together."""
LEARN = 3
"""Times that a remote run is read again with what its pages showed, before all its page headers are read."""
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
        self._footer = footer_size(source)
        # pyarrow's objects take many times the memory of the footer.
        self._layout = layout_of(source, self._footer) if self._footer > LARGE_FOOTER else None
        self._plain = opened_file(source, self._footer)
        self._data = data_of(source)
        self._read = local_read(source, self._data)
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
        left: Sequence[int] = range(self.metadata.num_row_groups) if groups is None else groups
        for run, found in self._runs(left, columns):
            yield from _Run(self, run, columns, found, use_threads, left).batches(rows)
            left = left[len(run) :]

    def _left_to_pyarrow(self, batches: Iterable[pa.RecordBatch], done: int) -> Iterator[pa.RecordBatch]:
        """The rows of batches after the first `done` ones, which the kernel has read."""
        for batch in batches:
            if done < batch.num_rows:
                yield batch.slice(done) if done else batch
            done -= min(done, batch.num_rows)

    def _by_kernel(
        self, chunks: Sequence[ColumnChunk], rows: int, *, row_groups: list[int], columns: list[str], use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        source: Any = self._data
        if source is None:
            source = getattr(self._source, "buffer_at", self._windows)
        decoder = decoder_of(source, self._plain, columns, chunks, row_groups, self._dictionaries)
        if decoder is None:
            raise Unread
        return decoder.batches(rows, THREADS if use_threads else 1)

    def _windows(self, count: int, most: int, at: int) -> Any:
        """Bytes of the file for the kernel, which decodes several pages of them."""
        return self._source.read_at(min(most, max(count, WINDOW_BYTES)), at)

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

    def size_of(self, columns: Sequence[str]) -> int:
        """Decoded bytes of these columns, about: of the file's, as much as they have of its stored bytes. Raises what `batches` does."""
        places = self._places(columns)
        groups = range(self.metadata.num_row_groups)
        stored = sum(chunk.end - chunk.start for group in groups for chunk in self._chunks(group, places))
        decoded = sum(self.metadata.row_group(group).total_byte_size for group in groups)
        return int(decoded) * stored // max(1, sum(place.end - place.start for place in self._layout or ()))

    @property
    def texts(self) -> frozenset[str]:
        """Top-level string columns. They may be read as dictionaries, and decoded afterwards."""
        if self._texts is None:
            self._texts = text_names(self.schema_arrow)
        return self._texts

    def _pages(self, chunk: ColumnChunk) -> Iterable[Page]:
        """The pages of a column chunk. Several may come as one."""
        place = chunk.start, chunk.end, chunk.values
        if self._data is not None:
            return pages_in(self._data, *place, strings=chunk.leaf.strings)
        if self._read is not None:
            return pages_at(self._source.read_at, *place, strings=chunk.leaf.strings)
        return pages(reader_of(self._source), *place)

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
            self._layout = layout_of(self._source, self._footer)
        columns = self.metadata.num_columns
        if len(self._layout) != columns * self.metadata.num_row_groups:
            raise ValueError("a row group with more or fewer columns than the file")
        found = []
        for number, leaf in places:
            place = self._layout[group * columns + number]
            small = _is_small(place, leaf)
            found.append(ColumnChunk(group, leaf, place.start, place.end, place.values, place.codec, small))
        return found


class _Run:
    """Row groups that are read together; `left` are these and the ones that are read after them."""

    def __init__(
        self,
        reader: ParquetReader,
        groups: list[int],
        columns: Sequence[str],
        chunks: list[ColumnChunk],
        use_threads: bool,
        left: Sequence[int],
    ) -> None:
        self._reader = reader
        self._left = left
        self._options: dict[str, Any] = {"row_groups": groups, "columns": list(columns), "use_threads": use_threads}
        self._groups = groups
        self._decoded = reader.texts - reader._dictionaries
        self._bounds = Bounds(chunks)
        self._scanned = False
        self._rows = 1
        self._watched: list[ColumnChunk] = []

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """The rows as the kernel decodes them, and those that it leaves as pyarrow does."""
        done = 0
        try:
            for batch in self._reader._by_kernel(self._bounds.chunks, rows, **self._options):
                done += batch.num_rows
                yield batch
        except Unread:
            pass  # its traceback has the kernel's memory, so it ends before pyarrow begins
        else:
            return
        yield from self._reader._left_to_pyarrow(self._read_batches(rows), done)

    def _read_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows, as pyarrow reads them."""
        if not self._reader._dictionaries and self._is_small():
            yield from self._small_batches(rows)
            return
        size = sum(chunk.end - chunk.start for chunk in self._bounds.chunks)
        if self._reader._read is not None or size <= RUN_BYTES:
            # Of a remote file, all of it is being fetched, so its headers take no more requests.
            self._scan_pages()
        else:
            self._scan_first_pages(reader_of(self._reader._source))
        done, learned = 0, 0
        while True:
            try:
                for batch in self._attempt(rows, done):
                    done += batch.num_rows
                    yield batch
            except BoundsExceededError:
                if (
                    not self._scanned
                    and learned < LEARN
                    and not any(chunk.leaf.nested for chunk in self._bounds.chunks)
                ):
                    learned += 1
                    self._learn()
                elif not self._scanned:
                    self._scan_pages()
                elif self._rows == 1:
                    raise too_large(f"a row of its lists or maps has more than {NESTED_BYTES} bytes") from None
                else:
                    rows = max(1, self._rows // 8)
            else:
                return

    def _is_small(self) -> bool:
        """Whether so few bytes and rows are read that they cannot decode to more than a batch may have. Then no page header is read."""
        decoded = strings = 0
        for chunk in self._bounds.chunks:
            if not chunk.small:
                if chunk.leaf.nested or chunk.codec not in _RATIOS:
                    return False
                # Each row may have all bytes that there are.
                strings += (chunk.end - chunk.start) * _RATIOS[chunk.codec]
            decoded += USUAL_BYTES
        return decoded <= OPEN_BYTES and strings * (self._num_rows() if strings else 0) <= BATCH_BYTES

    def _num_rows(self) -> int:
        return sum(self._reader.metadata.row_group(group).num_rows for group in self._groups)

    def _small_batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        rows = min(rows, self._bounds.rows())
        yield from checked(self._reader._plain.iter_batches(batch_size=rows, **self._options))

    def _attempt(self, rows: int, done: int) -> Iterator[pa.RecordBatch]:
        """The rows that follow the first `done` rows."""
        self._bounds.check_open()
        indexed, known = self._indexed(rows)
        self._measure(rows, known)
        limit = self._bounds.rows(known)
        # Pages that were not seen yet may have longer strings.
        rows = min(rows, limit if self._scanned else max(1, limit * 3 // 4))
        nested = self._bounds.nested_bytes()
        careful = self._scanned and nested > NESTED_BYTES
        if careful:
            rows = min(rows, max(1, self._num_rows() * NESTED_BYTES // (2 * nested)))
        self._rows = rows
        with self._file(indexed, rows, careful) as (file, guard):
            texts: Sequence[int] | None = None
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
                    yield from decoded(rest, self._decoded)
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
                reader._source, metadata=reader.metadata, read_dictionary=list(names), **options()
            ) as file:
                yield file, None
            return
        guard = guarded(reader._source)
        extra = options() | ({"buffer_size": CAREFUL_BYTES} if careful else {})
        with pq.ParquetFile(guard, metadata=reader.metadata, read_dictionary=list(names), **extra) as file:
            self._watched = [chunk.without_pages(longest=chunk.longest) for chunk in self._bounds.chunks]
            guard.watch(Bounds(self._watched), rows, indexed)
            yield file, guard

    def _learn(self) -> None:
        """Add to the bounds what the guard saw of the pages, and have the columns fetched again."""
        for chunk, watched in zip(self._bounds.chunks, self._watched, strict=True):
            chunk.learn(watched)
        prefetch = getattr(self._reader._source, "prefetch_columns", None)
        if prefetch is not None:
            prefetch(self._options["columns"], set(self._left))

    def _scan_pages(self) -> None:
        """Read the headers of all pages."""
        self._scanned = True
        self._bounds = Bounds([chunk.without_pages() for chunk in self._bounds.chunks])
        for chunk in self._bounds.chunks:
            if not chunk.small:
                for page in self._reader._pages(chunk):
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
            most = _most_bytes(found[name], rows)
            if self._scanned and most > room and self._measure_stored(found[name]):
                most = _most_bytes(found[name], rows)
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
            if not chunk.leaf.strings or chunk.longest is not None or chunk.leaf.path in indexed:
                continue
            if not self._measure_stored([chunk]) and can_be_measured(chunk):
                with contextlib.suppress(BoundsExceededError):
                    chunk.longest = self._longest(chunk)

    def _measure_stored(self, chunks: Iterable[ColumnChunk]) -> bool:
        """Measure dictionaries as they are in the file, which is much faster than decoding them. False where that is not possible."""
        read = self._reader._read or reader_of(self._reader._source)
        for chunk in chunks:
            if chunk.longest is None:
                chunk.longest = stored_longest(chunk, read)
        return all(chunk.longest is not None for chunk in chunks)

    def _longest(self, chunk: ColumnChunk) -> int | None:
        """Bytes of the longest value of a chunk's dictionary."""
        path = chunk.leaf.path
        guard = guarded(self._reader._source)
        extra = options() | {"buffer_size": CAREFUL_BYTES}
        with pq.ParquetFile(guard, metadata=self._reader.metadata, read_dictionary=[path], **extra) as file:
            guard.watch(Bounds([chunk.without_pages(longest=0)]), 1, [path], measuring=True)
            rows = DICTIONARY_ROWS if chunk.leaf.nested else 1
            for batch in file.iter_batches(rows, row_groups=[chunk.group], columns=[path], use_threads=False):
                dictionary = dictionary_of(batch.column(0)) if batch.num_columns == 1 else None
                if dictionary is None:
                    return None
                if len(dictionary):
                    return longest(dictionary)
        return None


def _is_small(place: ChunkLocation, leaf: Leaf) -> bool:
    """Whether a column is so small that its page headers need no check: so few bytes cannot decompress to many."""
    ratio = _RATIOS.get(place.codec)
    return (
        ratio is not None and not leaf.strings and not leaf.nested and (place.end - place.start) * ratio <= USUAL_BYTES
    )


def _repeats(chunk: ColumnChunk) -> bool:
    """Whether its strings come again so often that decoding a dictionary's is faster than decoding each."""
    return chunk.dictionary is not None and chunk.values >= max(REPEATING_ROWS, 16 * chunk.dictionary.values)


def _most_bytes(chunks: Sequence[ColumnChunk], rows: int) -> int:
    """Decoded bytes of a batch of strings from dictionaries, at most."""
    return max(chunk.value_bytes for chunk in chunks) * min(rows, sum(chunk.values for chunk in chunks))
