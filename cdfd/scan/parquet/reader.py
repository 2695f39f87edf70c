"""Reads Parquet files in batches of bounded memory, whatever the files say.

`cdfd-native` decodes them, in safe Rust over arrow-rs. Where it is missing, `cdfd.scan.parquet.arrow_reader` does so, more slowly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.errors import CdfdError, DataError
from cdfd.runtime import native
from cdfd.scan.parquet import TEXT_HINT
from cdfd.scan.parquet.hybrid_calendar import HybridCalendar, leaves_of
from cdfd.scan.parquet.statistics import ChunkStatistics, Decode, decoder
from cdfd.storage.descriptors import name_of

if TYPE_CHECKING:
    from cdfd_native.parquet import ParquetFile

    from cdfd.scan.parquet.arrow_reader import ArrowReader

THREADS = 2
"""Threads that decode the columns of a file while other files leave cores idle."""
HINT = "Rewrite the file with smaller values or pages, or remove its rows from the table"

AnyReader: TypeAlias = "ParquetReader | ArrowReader"
Statistics: TypeAlias = "list[tuple[Mapping[str, ChunkStatistics], Mapping[str, Decode | None]]]"


@contextlib.contextmanager
def open_parquet(source: Any, dictionaries: Collection[str] = ()) -> Iterator[AnyReader]:
    """A file for reading. `dictionaries` are string columns to return as dictionaries.

    Args:
        source: a `pyarrow.NativeFile`.
        dictionaries: names of top-level columns.

    Raises:
        pa.ArrowException, OSError, ValueError: the file is damaged.
        DataError: it requires too much memory, or is encrypted.
    """
    with contextlib.ExitStack() as stack:
        try:
            if native.built:
                reader: AnyReader = ParquetReader(source, dictionaries)
            else:
                from cdfd.scan.parquet.arrow_reader import ArrowReader

                reader = stack.enter_context(contextlib.closing(ArrowReader(source)))
        except (pa.ArrowException, OSError, ValueError) as error:
            magic = b""
            with contextlib.suppress(CdfdError, pa.ArrowException, OSError, ValueError):
                magic = source.read_at(4, source.size() - 4)
            if magic == b"PARE":
                hint = "cdfd does not decrypt Parquet files: write the table without encryption"
                raise DataError("the file is encrypted", hint=hint) from error
            raise
        yield reader


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Counts of a row group.

    Attributes:
        num_rows: its rows.
        total_byte_size: bytes of its columns once decoded, as the footer says.
    """

    num_rows: int
    total_byte_size: int


@dataclass(frozen=True, slots=True)
class Footer:
    """Counts of a file; see `cdfd.scan.data_files.Footer`."""

    groups: Sequence[RowGroup]
    num_rows: int
    num_row_groups: int

    def row_group(self, number: int) -> RowGroup:
        """One of them."""
        return self.groups[number]


class ParquetReader:
    """An open file.

    Attributes:
        size: bytes of the file.
        metadata: counts of rows.
        schema_arrow: the columns, with Parquet's field ids in the fields' metadata.
    """

    def __init__(self, source: Any, dictionaries: Collection[str] = ()) -> None:
        self.size: int = source.size()
        self._dictionaries = list(dictionaries)
        self._file = native_file(source)
        groups = [RowGroup(*counts) for counts in self._file.row_groups]
        self.metadata = Footer(groups, sum(group.num_rows for group in groups), len(groups))
        self.schema_arrow: pa.Schema = self._file.schema(self._dictionaries)
        self._calendar = HybridCalendar.of(self._file.value)

    def batches(
        self, columns: Sequence[str], groups: Sequence[int] | None = None, *, rows: int, use_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order: batches of at most `rows` rows and about 32 MiB, but at least one row.

        Args:
            columns: top-level columns, or dotted names of their children.
            groups: row groups; None for all.
            rows: of a batch, at most.
            use_threads: decode columns in parallel.

        Raises:
            DataError: a row, page or dictionary that is too large.
            UnsupportedError: a time in the hybrid calendar, of an unknown time zone.
            ValueError: the file is damaged, or has other rows than its footer says.
            OSError, StorageError: it cannot be read.
        """
        wanted = range(self.metadata.num_row_groups) if groups is None else groups
        batches = read([(self._file, wanted)], columns, self._dictionaries, rows, THREADS if use_threads else 1)
        return in_gregorian_calendar(batches, self._calendar, columns, self._file)

    def selected_batches(
        self,
        columns: Sequence[str],
        groups: Sequence[int],
        runs: npt.NDArray[np.uint64],
        *,
        rows: int,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Like `batches`, but only some rows: `runs` has how many rows are skipped, returned, skipped, and so on."""
        batches = read([(self._file, groups)], columns, self._dictionaries, rows, THREADS if use_threads else 1, runs)
        return in_gregorian_calendar(batches, self._calendar, columns, self._file)

    def ranges(self, columns: Sequence[str], groups: Collection[int] | None = None) -> list[tuple[int, int, int]]:
        """Where columns are in the file: row group, start and end in bytes. `groups` are row groups, None all."""
        return [each for each in self._file.ranges(list(columns)) if groups is None or each[0] in groups]

    def statistics(self, columns: Collection[str]) -> Statistics:
        """For each row group, the statistics of columns that are not nested, and the functions that decode their bounds.

        None of a file whose statistics are damaged.
        """
        # The path of a column with a dot may also be that of a struct's child.
        names = [name for name in self.schema_arrow.names if name in columns and "." not in name]
        kinds = {path: kind for path, kind, repeated in self._file.leaves if path in names and not repeated}
        try:
            groups = self._file.statistics(list(kinds))
        except ValueError:
            return []
        types, calendar = {name: self.schema_arrow.field(name).type for name in kinds}, self._calendar
        decoders = {
            name: None
            if calendar is not None and calendar.converts(types[name], kind)
            else decoder(types[name], kind, self._file.created_by)
            for name, kind in kinds.items()
        }
        return [({name: ChunkStatistics(*each) for name, each in group.items()}, decoders) for group in groups]

    def size_of(self, columns: Sequence[str]) -> int:
        """Decoded bytes of these columns, about: of the file's, as much as they have of its stored bytes."""
        stored = sum(end - start for _, start, end in self._file.ranges(list(columns)))
        decoded = sum(group.total_byte_size for group in self.metadata.groups)
        return decoded * stored // max(1, self._stored)

    @cached_property
    def _stored(self) -> int:
        # Once per file: it is asked for each run of row groups that a filter leaves.
        return sum(end - start for _, start, end in self._file.ranges(self.schema_arrow.names))


class _Ranges:
    """Bytes of a source for the native reader."""

    def __init__(self, source: Any) -> None:
        buffer_at = getattr(source, "buffer_at", None)
        # `read_at` would take new memory from the C library, which the kernel has to clear.
        self._read = buffer_at or (lambda count, most, at: source.get_stream(at, most).read_buffer(most))

    def read_range(self, at: int, count: int, most: int) -> pa.UInt8Array:
        """From `count` to `most` bytes from position `at` on."""
        return octets(pa.py_buffer(self._read(count, most, at)))


def octets(data: pa.Buffer) -> pa.UInt8Array:
    """The bytes of a buffer as an array, without a copy."""
    return pa.Array.from_buffers(pa.uint8(), data.size, [None, data])


def native_file(source: Any) -> ParquetFile:
    """A file for the native reader. One that is in memory is not copied, and a local one is read without Python."""
    from cdfd_native import parquet

    size = source.size()
    try:
        if isinstance(source, pa.OSFile):
            return parquet.ParquetFile(name_of(source.fileno()), size)
        if not isinstance(source, pa.BufferReader):
            return parquet.ParquetFile(_Ranges(source), size)
        source.seek(0)
        return parquet.ParquetFile(octets(source.read_buffer()), size)
    except parquet.TooLargeError as error:
        raise DataError(str(error), hint=HINT) from None


def read(
    files: Sequence[tuple[ParquetFile, Sequence[int]]],
    columns: Sequence[str],
    dictionaries: Sequence[str],
    rows: int,
    threads: int = 1,
    runs: npt.NDArray[np.uint64] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows of files of one schema, each with the row groups to read. Arguments and errors are those of `ParquetReader.batches`."""
    from cdfd_native import parquet

    try:
        batches, failed = parquet.read(
            [file for file, _ in files],
            [list(groups) for _, groups in files],
            list(columns),
            rows=rows,
            dictionaries=list(dictionaries),
            threads=threads,
            selection=runs,
        )
        while True:
            try:
                batch = batches.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowException, OSError):
                failed.raise_failure()
                raise
            yield batch
    except parquet.NotTextError as error:
        raise DataError(str(error), hint=TEXT_HINT) from None
    except parquet.TooLargeError as error:
        raise DataError(str(error), hint=HINT) from None


def in_gregorian_calendar(
    batches: Iterator[pa.RecordBatch], calendar: HybridCalendar | None, columns: Sequence[str], file: ParquetFile
) -> Iterator[pa.RecordBatch]:
    """The rows of columns of a file. Its calendar is None if there is nothing to convert."""
    if calendar is None:
        return batches
    leaves = leaves_of(((path, physical) for path, physical, _ in file.leaves), columns)
    return calendar.convert(batches, [physical for _, physical in leaves])


class FilesTogether:
    """Small files of one schema that are in memory, and read as if they were one: batches go on from one file to the next.

    Attributes:
        rows: of each file.
        size: bytes of all columns once decoded, as the footers say.
        schema_arrow: the columns of the first file. Reading ends with an error if another one has others.

    Args:
        files: the bytes of each.
        dictionaries: string columns to return as dictionaries.

    Raises:
        DataError: they cannot be read together.
        ValueError: a file is damaged.
    """

    def __init__(self, files: Sequence[bytes], dictionaries: Collection[str] = ()) -> None:
        if not native.built:
            raise DataError("files are read together only with cdfd-native")
        parquet_files = [native_file(pa.BufferReader(data)) for data in files]
        counts = [file.row_groups for file in parquet_files]
        self._files = [(file, range(len(groups))) for file, groups in zip(parquet_files, counts, strict=True)]
        self._dictionaries = list(dictionaries)
        self.rows: Sequence[int] = [sum(rows for rows, _ in groups) for groups in counts]
        self.size: int = sum(size for groups in counts for _, size in groups)
        self.schema_arrow: pa.Schema = parquet_files[0].schema(self._dictionaries)
        self._calendar, *others = (HybridCalendar.of(file.value) for file in parquet_files)
        if any(calendar != self._calendar for calendar in others):
            raise DataError("files in several calendars are not read together")

    def batches(self, columns: Sequence[str], *, rows: int) -> Iterator[pa.RecordBatch]:
        """Rows of all files in order. Arguments and errors are those of `ParquetReader.batches`."""
        batches = read(self._files, columns, self._dictionaries, rows)
        return in_gregorian_calendar(batches, self._calendar, columns, self._files[0][0])
