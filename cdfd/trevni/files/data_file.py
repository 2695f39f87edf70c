"""Trevni files as data files of a table: the port of `cdfd.scan.data_files`.

A Trevni file has no row groups. Any row can be read by itself, so equal parts of the rows stand for them: a reader skips those without a
wanted row, and large files are cut between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from cdfd.runtime.ordered_pool import runs_beside_others
from cdfd.trevni.files.opening import in_threads, source_of
from cdfd.trevni.rows import MOST_LOADED, run_all
from cdfd.trevni.table_reader import TableReader

GROUP_ROWS = 1 << 17
"""Rows that stand for a row group, if the file has few enough."""
MOST_GROUPS = 1 << 16
"""Groups of a file, at most: a header of 17 bytes can say 2^63 rows."""


@dataclass(frozen=True, slots=True)
class Group:
    """Some consecutive rows.

    Attributes:
        num_rows: how many.
        total_byte_size: their share of the file's bytes.
    """

    num_rows: int
    total_byte_size: int


@dataclass(frozen=True, slots=True)
class Footer:
    """Counts of rows.

    Attributes:
        num_rows: in the file.
        size: of the file, in bytes.
    """

    num_rows: int
    size: int

    @property
    def group_rows(self) -> int:
        """Rows of each part but the last."""
        return max(GROUP_ROWS, -(-self.num_rows // MOST_GROUPS))

    @property
    def num_row_groups(self) -> int:
        """Parts of the rows."""
        return -(-self.num_rows // self.group_rows)

    def row_group(self, number: int) -> Group:
        """One part of the rows."""
        rows = min(self.group_rows, self.num_rows - number * self.group_rows)
        return Group(rows, self.size * rows // self.num_rows)


@contextmanager
def open_trevni(source: Any, dictionaries: Collection[str] = ()) -> Iterator[TrevniDataFile]:
    """A file for reading. `dictionaries` are columns to return as dictionaries.

    Raises:
        TrevniError: the file is damaged.
    """
    yield TrevniDataFile(source, dictionaries)


class TrevniDataFile:
    """An open data file; see `cdfd.scan.data_files.DataFile`."""

    def __init__(self, source: Any, dictionaries: Collection[str]) -> None:
        file = source_of(source)
        self._reader = TableReader(file)
        self._dictionaries = frozenset(dictionaries)
        self.metadata = Footer(self._reader.metadata.num_rows, file.size)
        # The user's metadata is no part of a table's schema.
        self.schema_arrow: pa.Schema = self._reader.schema.remove_metadata()

    def batches(
        self, columns: Sequence[str], groups: Sequence[int] | None = None, *, rows: int, use_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order; see the port. An unknown column is left out, as Parquet's reader does."""
        names = set(self.schema_arrow.names)
        shape = self._reader.select([name for name in columns if name in names or name.partition(".")[0] in names])
        numbers = range(self.metadata.num_row_groups) if groups is None else groups
        group_rows = self.metadata.group_rows
        # Files side by side take a fifth less time than columns side by side, and each file has threads of its own.
        with in_threads() if use_threads and not runs_beside_others() else nullcontext(run_all) as run:
            # Consecutive groups are read together.
            for _, run_of_groups in groupby(enumerate(numbers), lambda group: group[1] - group[0]):
                span = [number for _, number in run_of_groups]
                last = min((span[-1] + 1) * group_rows, self.metadata.num_rows)
                # Decoded, a byte of a block may take nine. Other files in memory are as large as their reader allows.
                batches = self._reader.batches(
                    shape, span[0] * group_rows, last, rows=rows, most_bytes=MOST_LOADED, run=run
                )
                for batch in batches:
                    yield self._encode(batch)

    def _encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for number, name in enumerate(batch.schema.names):
            if name in self._dictionaries and pa.types.is_string(batch.schema.field(number).type):
                column: Any = batch.column(number)
                batch = batch.set_column(number, name, column.dictionary_encode())
        return batch
