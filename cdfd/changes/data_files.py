"""Opens a table's data files, whatever their format."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

from cdfd.ports.registry import DATA_FILES


class RowGroup(Protocol):
    """Rows that a file can give without the rows before them."""

    num_rows: int
    total_byte_size: int


class Footer(Protocol):
    """What a file says of itself. `pyarrow.parquet.FileMetaData` is one."""

    num_rows: int
    num_row_groups: int

    def row_group(self, number: int) -> RowGroup:
        """A row group, from 0. Their rows are those of the file, in order."""


class DataFile(Protocol):
    """An open data file.

    Attributes:
        metadata: counts of rows.
        schema_arrow: the columns. Metadata of fields may have ids of columns, as pyarrow reads them from Parquet.
    """

    metadata: Footer
    schema_arrow: pa.Schema

    def batches(
        self, columns: Sequence[str], groups: Sequence[int] | None = None, *, rows: int, use_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order, in batches whose memory is bounded whatever the file says.

        Args:
            columns: top-level columns, or dotted names of what is in them.
            groups: row groups; None for all.
            rows: of a batch, at most.
            use_threads: decode columns in parallel.

        Raises:
            DataError, pa.ArrowException, OSError, ValueError: the file is damaged, or asks for too much memory.
        """


def opened(path: str, source: Any, dictionaries: Collection[str] = ()) -> AbstractContextManager[DataFile]:
    """A data file for reading: of the format that the end of its name says, and of Parquet if that says none.

    Args:
        path: of the file.
        source: a `pyarrow.NativeFile`, or what behaves so.
        dictionaries: columns that are wanted as dictionaries.

    Raises:
        DataError, pa.ArrowException, OSError, ValueError: the file is damaged, or asks for too much memory.
    """
    ending = path.rpartition(".")[2].lower()
    found: AbstractContextManager[DataFile] = DATA_FILES.load(ending if ending in DATA_FILES else "parquet")(
        source, dictionaries
    )
    return found
