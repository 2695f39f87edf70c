"""Parquet files, read without trusting them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

class DamagedError(ValueError):
    """A file is not what its footer or its pages say, or files cannot be read together."""

class NotTextError(ValueError):
    """A text column has bytes that are not UTF-8."""

class TooLargeError(ValueError):
    """A page, a row or the footer needs more memory than is allowed."""

class ParquetFile:
    """An open file.

    Args:
        source: the name of a local file, its bytes as a `pyarrow.UInt8Array`, or an object with `read_range(at, count, most)`, which
            returns so.
        size: bytes of the file.

    Raises:
        DamagedError, TooLargeError: the footer.
        OSError: the file cannot be read.
    """

    row_groups: list[tuple[int, int]]
    """For each row group, its rows and the bytes of its columns once decoded, as the footer says."""
    leaves: list[tuple[str, str, bool]]
    """For each leaf column, its names with dots, its physical type, and whether a row can have several values."""
    created_by: str
    """The program that wrote the file, as the footer names it."""

    def __new__(cls, source: Any, size: int) -> ParquetFile: ...
    def schema(self, dictionaries: Sequence[str]) -> pa.Schema:
        """The columns, with those of `dictionaries` as dictionaries."""

    def value(self, key: str) -> str | None:
        """The value of a key in the footer; None: it has none."""

    def ranges(self, columns: Sequence[str]) -> list[tuple[int, int, int]]:
        """Where columns are, in the order of row groups: row group, start, end."""

    def statistics(self, columns: Sequence[str]) -> list[dict[str, tuple[bytes | None, bytes | None, int | None, int]]]:
        """For each row group and column that is no list: lowest and highest value, nulls, values. None: unknown."""

class Failed:
    """Why a reader of batches has failed."""

    def raise_failure(self) -> None:
        """Raise why, of which pyarrow has the text only: `DamagedError` and others, or what a source raised."""

def read(
    files: Sequence[ParquetFile],
    groups: Sequence[Sequence[int]],
    columns: Sequence[str],
    *,
    rows: int,
    dictionaries: Sequence[str] = (),
    threads: int = 1,
    selection: npt.NDArray[np.uint64] | None = None,
) -> tuple[pa.RecordBatchReader, Failed]:
    """Rows of files that have one schema, one after the other, in batches of bounded memory, and why reading has failed.

    Args:
        files: to read.
        groups: for each file, the numbers of the row groups to read.
        columns: top-level names, or dotted names within them.
        rows: of a batch, at most.
        dictionaries: top-level string columns to return as dictionaries.
        threads: that decode columns, at most.
        selection: how many rows are skipped, returned, skipped, and so on; None for all rows.

    Raises:
        DamagedError: a file is damaged, or the files cannot be read together. Reading raises it, too.
        TooLargeError: a page, a row or the dictionaries together. Reading raises it, too.
    """
