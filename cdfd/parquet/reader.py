"""Reads Parquet files in batches of bounded memory, whatever the file says (`parquet.bounds`).

A kernel decodes what it knows (`parquet.decoding`), and pyarrow the rest (`parquet.arrow_run`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.parquet.arrow_run import RUN_BYTES, ArrowRun
from cdfd.parquet.bounds import ColumnChunk, Leaf, leaves
from cdfd.parquet.decoding import Unread, decoder_of
from cdfd.parquet.group_statistics import ChunkStatistics, Decode, chunk_statistics, decoder
from cdfd.parquet.opening import LARGE_FOOTER, OpenFile, footer_size, layout_of

THREADS = 2
"""Threads that decode the columns of a file that is read alone."""
WINDOW_BYTES = 256 << 10
"""Bytes that are read at a time, at least, of a column that the kernel decodes."""


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
        self.size: int = source.size()
        self._footer = footer_size(source)
        # pyarrow's objects take many times the memory of the footer.
        self._layout = layout_of(source, self._footer) if self._footer > LARGE_FOOTER else None
        self._file = OpenFile.of(source, self._footer, dictionaries)
        self._leaves: tuple[Leaf, ...] | None = None
        self.metadata: pq.FileMetaData = self._file.parquet.metadata
        self.schema_arrow: pa.Schema = self._file.schema

    def __enter__(self) -> ParquetReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.parquet.close()

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
            pa.ArrowException, OSError, ValueError: the file is damaged, or other rows were read than its footer says.
        """
        left: Sequence[int] = range(self.metadata.num_row_groups) if groups is None else groups
        for run, chunks in self._runs(left, columns):
            expected = sum(self.metadata.row_group(group).num_rows for group in run)
            options = {"row_groups": run, "columns": list(columns), "use_threads": use_threads}
            yield from _counted(self._batches_of(chunks, left, rows, **options), expected)
            left = left[len(run) :]

    def _batches_of(
        self, chunks: list[ColumnChunk], left: Sequence[int], rows: int, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """The rows as the kernel decodes them, and those that it leaves as pyarrow does; see `ArrowRun`."""
        done = 0
        try:
            for batch in self._by_kernel(chunks, rows, **options):
                done += batch.num_rows
                yield batch
        except Unread:
            pass  # its traceback has the kernel's memory, so it ends before pyarrow begins
        else:
            return
        for batch in ArrowRun(self._file, chunks, left, options).batches(rows):
            if done < batch.num_rows:
                yield batch.slice(done) if done else batch
            done -= min(done, batch.num_rows)

    def _by_kernel(
        self, chunks: Sequence[ColumnChunk], rows: int, *, row_groups: list[int], columns: list[str], use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        source: Any = self._file.data
        if source is None:
            source = getattr(self._file.source, "buffer_at", self._windows)
        decoder = decoder_of(source, self._file, columns, chunks, row_groups)
        if decoder is None:
            raise Unread
        return decoder.batches(rows, THREADS if use_threads else 1)

    def _windows(self, count: int, most: int, at: int) -> Any:
        """Bytes of the file for the kernel, which decodes several pages of them."""
        return self._file.source.read_at(min(most, max(count, WINDOW_BYTES)), at)

    def statistics(self, columns: Collection[str]) -> list[tuple[dict[str, ChunkStatistics], dict[str, Decode | None]]]:
        """For each row group, the statistics of columns that are not nested, and the functions that decode their bounds.

        None if the footer is damaged, which reading reports, or takes long to parse.
        """
        known = [
            (number, leaf.path)
            for number, leaf in self._places(tuple(columns))
            if leaf.path in columns and not (leaf.nested or leaf.ambiguous)
        ]
        schema, arrow, writer = self._file.parquet.schema, self.schema_arrow, self.metadata.created_by or ""
        flat = {
            path: decoder(arrow.field(path).type, schema.column(number).physical_type, writer) for number, path in known
        }
        if not flat or self._footer > LARGE_FOOTER:
            return []
        footer = self._file.source.read_at(self._footer, self.size - 8 - self._footer)
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
        return self._file.texts

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
            self._leaves = leaves(self._file.parquet.schema)
        exact, inside = set(columns), tuple(f"{name}." for name in columns)
        return [
            (number, leaf)
            for number, leaf in enumerate(self._leaves)
            if leaf.path in exact or ("." in leaf.path and leaf.path.startswith(inside))
        ]

    def _chunks(self, group: int, places: Iterable[tuple[int, Leaf]]) -> list[ColumnChunk]:
        if self._layout is None:
            self._layout = layout_of(self._file.source, self._footer)
        columns = self.metadata.num_columns
        if len(self._layout) != columns * self.metadata.num_row_groups:
            raise ValueError("a row group with more or fewer columns than the file")
        found = []
        for number, leaf in places:
            place = self._layout[group * columns + number]
            found.append(ColumnChunk(group, leaf, place.start, place.end, place.values, place.codec))
        return found


def _counted(batches: Iterable[pa.RecordBatch], expected: int) -> Iterator[pa.RecordBatch]:
    """The batches. ValueError if they have other rows together: pyarrow ends early at a list column whose first page has no values."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > expected:
            break
        yield batch
    if rows != expected:
        more = "at least " if rows > expected else ""
        raise ValueError(f"{more}{rows} rows were read of row groups that have {expected}")
