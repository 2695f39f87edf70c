"""Reads row groups with pyarrow in batches of bounded memory, where the kernel does not read them.

The page headers of a row group are read before its columns. Strings that are all in dictionaries are read as dictionaries. That is faster,
and the length of a row's strings is known before they are copied. In remote files, where each read is a request, the headers are checked
while the pages are read (`parquet.guard`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.parquet.bounds import NESTED_BYTES, Bounds, ColumnChunk, too_large
from cdfd.parquet.dictionaries import Read, can_be_measured, decoded, dictionary_of, longest, stored_longest
from cdfd.parquet.guard import BoundsExceededError, GuardedFile, guarded
from cdfd.parquet.opening import OpenFile, options, reader_of
from cdfd.parquet.pages import Page, pages, pages_at, pages_in
from cdfd.parquet.text import check_text, text_columns

RUN_BYTES = 16 << 20
"""Bytes of row groups that are read together."""
CAREFUL_BYTES = 16 << 10
"""Bytes that are read at a time of a column if the guard should not see pages long before they are decoded."""
LEARN = 3
"""Times that a remote run is read again with what its pages showed, before all its page headers are read."""
REPEATING_ROWS = 50_000
"""Values of a column from which repeating strings are read as a dictionary and decoded afterwards, which is faster then."""
DIRECT_BYTES = 64 << 20
"""Bytes of dictionary strings in a batch, at most, to decode them directly, which is faster for few strings."""
DICTIONARY_ROWS = 1024
"""Rows to read to get the dictionary of a list column: the first lists may be empty."""


class ArrowRun:
    """Row groups that pyarrow reads together.

    Args:
        file: of them.
        chunks: the column chunks to read.
        left: these row groups and the ones that are read after them.
        options: of `pyarrow.parquet.ParquetFile.iter_batches`: row groups, columns, and whether these are decoded in parallel.
    """

    def __init__(
        self, file: OpenFile, chunks: list[ColumnChunk], left: Sequence[int], options: Mapping[str, Any]
    ) -> None:
        self._file = file
        self._left = left
        self._options = options
        self._decoded = file.texts - file.dictionaries
        self._bounds = Bounds(chunks)
        self._scanned = False
        self._rows = 1
        self._watched: list[ColumnChunk] = []

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows, in batches of at most `rows` rows. Raises what `ParquetReader.batches` does."""
        size = sum(chunk.end - chunk.start for chunk in self._bounds.chunks)
        if self._file.read is not None or size <= RUN_BYTES:
            # Of a remote file, all of it is being fetched, so its headers take no more requests.
            self._scan_pages()
        else:
            self._scan_first_pages(reader_of(self._file.source))
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

    def _num_rows(self) -> int:
        return sum(self._file.parquet.metadata.row_group(group).num_rows for group in self._options["row_groups"])

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
        with self._opened(indexed, rows, careful) as (file, guard):
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
                if indexed or self._file.dictionaries:
                    yield from decoded(rest, self._decoded)
                else:
                    yield rest

    @contextlib.contextmanager
    def _opened(
        self, indexed: frozenset[str], rows: int, careful: bool
    ) -> Iterator[tuple[pq.ParquetFile, GuardedFile | None]]:
        names = indexed | self._file.dictionaries
        plain, source = self._file.parquet, self._file.source
        if self._scanned and not careful:
            if not names:
                yield plain, None
                return
            with pq.ParquetFile(source, metadata=plain.metadata, read_dictionary=list(names), **options()) as file:
                yield file, None
            return
        guard = guarded(source)
        extra = options() | ({"buffer_size": CAREFUL_BYTES} if careful else {})
        with pq.ParquetFile(guard, metadata=plain.metadata, read_dictionary=list(names), **extra) as file:
            self._watched = [chunk.without_pages(longest=chunk.longest) for chunk in self._bounds.chunks]
            guard.watch(Bounds(self._watched), rows, indexed)
            yield file, guard

    def _learn(self) -> None:
        """Add to the bounds what the guard saw of the pages, and have the columns fetched again."""
        for chunk, watched in zip(self._bounds.chunks, self._watched, strict=True):
            chunk.learn(watched)
        prefetch = getattr(self._file.source, "prefetch_columns", None)
        if prefetch is not None:
            prefetch(self._options["columns"], set(self._left))

    def _scan_pages(self) -> None:
        """Read the headers of all pages."""
        self._scanned = True
        self._bounds = Bounds([chunk.without_pages() for chunk in self._bounds.chunks])
        for chunk in self._bounds.chunks:
            for page in self._pages(chunk):
                chunk.add(page)

    def _pages(self, chunk: ColumnChunk) -> Iterable[Page]:
        """The pages of a column chunk. Several may come as one."""
        place = chunk.start, chunk.end, chunk.values
        if self._file.data is not None:
            return pages_in(self._file.data, *place, strings=chunk.leaf.strings)
        if self._file.read is not None:
            return pages_at(self._file.source.read_at, *place, strings=chunk.leaf.strings)
        return pages(reader_of(self._file.source), *place)

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
            if chunk.leaf.path in self._file.texts and chunk.values:
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
        read = self._file.read or reader_of(self._file.source)
        for chunk in chunks:
            if chunk.longest is None:
                chunk.longest = stored_longest(chunk, read)
        return all(chunk.longest is not None for chunk in chunks)

    def _longest(self, chunk: ColumnChunk) -> int | None:
        """Bytes of the longest value of a chunk's dictionary."""
        path = chunk.leaf.path
        guard = guarded(self._file.source)
        extra = options() | {"buffer_size": CAREFUL_BYTES}
        with pq.ParquetFile(guard, metadata=self._file.parquet.metadata, read_dictionary=[path], **extra) as file:
            guard.watch(Bounds([chunk.without_pages(longest=0)]), 1, [path], measuring=True)
            rows = DICTIONARY_ROWS if chunk.leaf.nested else 1
            for batch in file.iter_batches(rows, row_groups=[chunk.group], columns=[path], use_threads=False):
                dictionary = dictionary_of(batch.column(0)) if batch.num_columns == 1 else None
                if dictionary is None:
                    return None
                if len(dictionary):
                    return longest(dictionary)
        return None


def _repeats(chunk: ColumnChunk) -> bool:
    """Whether its strings come again so often that decoding a dictionary's is faster than decoding each."""
    return chunk.dictionary is not None and chunk.values >= max(REPEATING_ROWS, 16 * chunk.dictionary.values)


def _most_bytes(chunks: Sequence[ColumnChunk], rows: int) -> int:
    """Decoded bytes of a batch of strings from dictionaries, at most."""
    return max(chunk.value_bytes for chunk in chunks) * min(rows, sum(chunk.values for chunk in chunks))
