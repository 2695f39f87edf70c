"""Opens a table's data files, whatever their format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from cdfd.ports.registry import DATA_FILES

Footer: TypeAlias = Any
"""Counts of rows, as `pyarrow.parquet.FileMetaData` has them: `num_rows`, `num_row_groups`, and for each `row_group(number)` `num_rows`,
and `total_byte_size`. A format without row groups has one."""


class DataFile(Protocol):
    """An open data file.

    Attributes:
        metadata: the footer.
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
    reader: Callable[[Any, Collection[str]], AbstractContextManager[DataFile]]
    reader = DATA_FILES.load(ending if ending in DATA_FILES else "parquet")
    return reader(source, dictionaries)
