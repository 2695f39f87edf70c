"""Opens a table's data files, whatever their format."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.runtime.registry import DATA_FILES
from cdfd.storage.base import ColumnPrefetch

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


@runtime_checkable
class ColumnSizes(Protocol):
    """A data file that knows how large some of its columns are. Otherwise the size of all its columns counts."""

    def size_of(self, columns: Sequence[str]) -> int:
        """Decoded bytes of the columns `batches` would read, about."""


@runtime_checkable
class SkipsRows(Protocol):
    """A data file that decodes some of its rows in less time than all of them. Of other files all are decoded, and then filtered."""

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


@cache
def has_ability(kind: type, ability: type) -> bool:
    """Whether files or stores of a class have an ability, such as `ColumnSizes`. Cached, because checking a protocol takes long."""
    return issubclass(kind, ability)


def open_data_file(path: str, source: Any, dictionaries: Collection[str] = ()) -> AbstractContextManager[DataFile]:
    """A data file for reading: of the format that the end of its name says. If that says none, a file that begins as Trevni files do
    is one, and any other is Parquet.

    Args:
        path: of the file.
        source: a `pyarrow.NativeFile`, or what behaves so.
        dictionaries: columns that are wanted as dictionaries.

    Raises:
        DataError, pa.ArrowException, OSError, ValueError: the file is damaged, or asks for too much memory.
    """
    ending = ending_of(path)
    if ending is None:
        ending = "trv" if source.read_at(len(_TREVNI), 0) == _TREVNI else "parquet"
    reader: Callable[[Any, Collection[str]], AbstractContextManager[DataFile]] = DATA_FILES.load(ending)
    return reader(source, dictionaries)


def prefetch_columns(
    source: Any, file: DataFile, columns: Sequence[str], groups: Collection[int] | None = None
) -> None:
    """Let a remote file prefetch the columns to read, of some row groups or of all. Files of some formats do not say where columns are."""
    if has_ability(source.__class__, ColumnPrefetch) and (ranges := getattr(file, "ranges", None)) is not None:
        source.prefetch_columns(ranges(columns, groups))


_TREVNI = b"Trv"


def ending_of(path: str) -> str | None:
    """The end of a file's name if it says the format, and None otherwise."""
    ending = path.rpartition(".")[2].lower()
    return ending if ending in DATA_FILES else None


def is_parquet(path: str) -> bool:
    """Whether a file is Parquet, as far as its name says. Its footer is at its end, so a remote store reads that first."""
    return ending_of(path) in (None, "parquet")
