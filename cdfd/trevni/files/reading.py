"""Reads Trevni files as Arrow tables: named and shaped like `pyarrow.parquet`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa

from cdfd.errors import CdfdError, ConfigError, TrevniError
from cdfd.trevni.blocks import BlockTable
from cdfd.trevni.files.opening import StorageOptions, Where, in_threads, open_source
from cdfd.trevni.metadata import FileMetadata
from cdfd.trevni.rows import ROW_BYTES, ROWS_PER_BYTE, UNBACKED_ROWS, run_all
from cdfd.trevni.shapes import width_of, widths_of
from cdfd.trevni.table_reader import BATCH_ROWS, TableReader, arrow_schema

TABLE_BYTES = 512 << 20
"""Bytes of blocks to decode at once for a whole table, about."""

Rows: TypeAlias = "range | slice | tuple[int, int]"


def read_table(
    source: Where,
    columns: Sequence[str] | None = None,
    rows: Rows | None = None,
    *,
    use_threads: bool = True,
    storage_options: StorageOptions | None = None,
) -> pa.Table:
    """The rows of a file.

    Args:
        source: a path, a URI, or a file that is open for reading.
        columns: which columns, or dotted names of fields of structs, in the file's order; None for all. Others are not read.
        rows: which rows, as `range(100, 200)`; None for all. Only blocks that have them are read.
        use_threads: decode columns in parallel.
        storage_options: options of the store, for the URI's scheme.

    Raises:
        TrevniError: the file is damaged; the error names column, block and byte where it can.
        StorageError: the file cannot be read.
        ConfigError: a column is unknown, or `rows` is not a range.
    """
    with TrevniFile(source, use_threads=use_threads, storage_options=storage_options) as file:
        return file.read(columns, rows)


def read_schema(source: Where, *, storage_options: StorageOptions | None = None) -> pa.Schema:
    """The Arrow schema of a file's rows, from its header alone. Its metadata has the properties that the file's writer added.

    Raises:
        CdfdError: as `read_table`.
    """
    with TrevniFile(source, storage_options=storage_options) as file:
        return file.schema


def read_metadata(source: Where, *, storage_options: StorageOptions | None = None) -> FileMetadata:
    """The header of a file: its rows, physical columns and properties.

    Raises:
        CdfdError: as `read_table`.
    """
    with TrevniFile(source, storage_options=storage_options) as file:
        return file.metadata


class TrevniFile:
    """An open file.

    Args:
        source: as for `read_table`.
        use_threads: decode columns in parallel.
        storage_options: options of the store, for the URI's scheme.

    Attributes:
        metadata: the header.
        schema: the Arrow schema of the rows.

    Raises:
        CdfdError: as `read_table`.
    """

    def __init__(
        self, source: Where, *, use_threads: bool = True, storage_options: StorageOptions | None = None
    ) -> None:
        self._path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
        self._closed = False
        with ExitStack() as stack:
            opened_source = stack.enter_context(open_source(source, storage_options))
            self._run = stack.enter_context(in_threads()) if use_threads else run_all
            with self._naming():
                self._reader = TableReader(opened_source)
            self.metadata: FileMetadata = self._reader.metadata
            self.schema: pa.Schema = self._reader.schema
            self._stack = stack.pop_all()

    @property
    def num_rows(self) -> int:
        """Rows in the file."""
        return self.metadata.num_rows

    def iter_batches(
        self, batch_size: int = BATCH_ROWS, columns: Sequence[str] | None = None, rows: Rows | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order, in bounded memory.

        Args:
            batch_size: rows of a batch, at most.
            columns: as for `read_table`.
            rows: as for `read_table`.

        Raises:
            CdfdError: as `read_table`.
        """
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size!r:.100}", hint="Give a number from 1 on")
        start, end = _bounds(rows, self.num_rows)
        with self._naming():
            shape = self._reader.select(columns)
            for batch in self._reader.batches(shape, start, end, rows=batch_size, run=self._run):
                yield batch
                self._check_open()

    def read(self, columns: Sequence[str] | None = None, rows: Rows | None = None) -> pa.Table:
        """Rows as one table; see `read_table`."""
        start, end = _bounds(rows, self.num_rows)
        with self._naming():
            shape = self._reader.select(columns)
            # Empty arrays and nulls may take no bytes.
            size = self._reader.source.size
            weight = (end - start) * max(1, width_of(shape) // ROW_BYTES)
            most = UNBACKED_ROWS + ROWS_PER_BYTE * size
            # Blocks of equal values are small, and have all values once they are decompressed.
            blocks = self._reader.blocks
            if weight > most and weight > sum(blocks(column).num_values for column, _ in widths_of(shape)):
                what = f"the file has {size} bytes for {self.num_rows} rows"
                raise TrevniError(what, hint="Read it in batches if you trust it")
            batches = list(self._reader.batches(shape, start, end, rows=None, load_bytes=TABLE_BYTES, run=self._run))
            if batches:
                return pa.Table.from_batches(batches)
            return arrow_schema(shape, self.metadata).empty_table()

    def find(self, column: str, value: Any) -> int:
        """The first row whose value is not below `value`, in a sorted column with first values. Reads one block.

        Raises:
            ConfigError: there is no such column with first values, or it cannot be compared with the value.
            TrevniError: the file is damaged.
        """
        with self._naming():
            return self._reader.find(column, value)

    def blocks(self, column: int) -> BlockTable:
        """The blocks of a physical column, by its number.

        Raises:
            TrevniError: the column is damaged.
            ConfigError: there is no column of that number.
        """
        with self._naming():
            if column not in range(self.metadata.num_columns):
                hint = f"The file has {self.metadata.num_columns} physical columns, from 0 on"
                raise ConfigError(f"there is no physical column {column!r:.100}", hint=hint)
            return self._reader.blocks(column)

    def close(self) -> None:
        """Close the file, unless it was open already. Then nothing more is read."""
        self._closed = True
        self._stack.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("the file is closed", hint="Read all rows before you close it")

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Errors name the file."""
        try:
            self._check_open()
            yield
        except CdfdError as error:
            raise error.within(path=self._path) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bounds(rows: Rows | None, count: int) -> tuple[int, int]:
    """First row, and the one after the last."""
    if rows is None:
        return 0, count
    try:
        span = slice(*rows) if isinstance(rows, tuple) else slice(rows.start, rows.stop, rows.step)
        start, end, step = span.indices(count)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"rows is {rows!r:.100}", hint="Give a range, such as range(100, 200)") from None
    if step != 1:
        raise ConfigError(f"the step of rows is {step}", hint="Read all rows, and take some of them")
    return start, max(start, end)
