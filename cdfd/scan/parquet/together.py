"""Small files of one schema that are read as if they were one: batches go on from one file to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from cdfd.errors import DataError
from cdfd.runtime import native
from cdfd.scan.parquet.reader import native_file, read


class FilesTogether:
    """Files that are in memory.

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

    def batches(self, columns: Sequence[str], *, rows: int) -> Iterator[pa.RecordBatch]:
        """Rows of all files in order. Arguments and errors are those of `ParquetReader.batches`."""
        return read(self._files, columns, self._dictionaries, rows)
