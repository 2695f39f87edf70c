"""Reads Parquet files by pyarrow, where `cdfd-native` is missing. It is slower, and a hostile file may take more memory than is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.errors import DataError
from cdfd.scan.parquet import TEXT_HINT
from cdfd.scan.parquet.hybrid_calendar import HybridCalendar, leaves_of

FOOTER_ITEMS = 200_000
"""Items of a list in a footer, at most: row groups or columns."""
FOOTER_BYTES = 32 << 20
"""Bytes of a text in a footer, at most."""


class ArrowReader:
    """An open file, as `cdfd.scan.parquet.reader.ParquetReader`, but without statistics and dictionaries."""

    def __init__(self, source: Any) -> None:
        self.size: int = source.size()
        self._file = pq.ParquetFile(
            source,
            buffer_size=1 << 20,
            coerce_int96_timestamp_unit="us",
            thrift_container_size_limit=FOOTER_ITEMS,
            thrift_string_size_limit=FOOTER_BYTES,
        )
        self.metadata: pq.FileMetaData = self._file.metadata
        self.schema_arrow: pa.Schema = self._file.schema_arrow
        self._calendar = HybridCalendar.of(self._value)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def batches(
        self, columns: Sequence[str], groups: Sequence[int] | None = None, *, rows: int, use_threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """See `ParquetReader.batches`."""
        if self._calendar is None:
            return self._batches(columns, groups, rows, use_threads)
        schema = self._file.schema
        leaves = [(leaf.path, leaf.physical_type) for leaf in map(schema.column, range(len(schema)))]
        leaves = leaves_of(leaves, columns)
        # pyarrow returns columns in the order in which they are asked for.
        batches = self._batches([path for path, _ in leaves], groups, rows, use_threads)
        return self._calendar.convert(batches, [physical for _, physical in leaves])

    def _value(self, key: str) -> str | None:
        """The value of a key in the footer."""
        value = (self.metadata.metadata or {}).get(key.encode())
        return None if value is None else value.decode()

    def _batches(
        self, columns: Sequence[str], groups: Sequence[int] | None, rows: int, use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        wanted = list(range(self.metadata.num_row_groups) if groups is None else groups)
        expected = sum(self.metadata.row_group(group).num_rows for group in wanted)
        count = 0
        for batch in self._file.iter_batches(rows, row_groups=wanted, columns=list(columns), use_threads=use_threads):
            # Arrow's reader takes any bytes for text, and numbers of any digits for decimals.
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    column.validate(full=True)
                except pa.ArrowInvalid as error:
                    if "Decimal" in str(error):
                        raise DataError(
                            f"column {name!r:.200} has a number of more digits than {column.type}"
                        ) from None
                    if "UTF8" in str(error):
                        raise DataError(f"column {name!r:.200} has text that is not UTF-8", hint=TEXT_HINT) from None
                    raise
            count += batch.num_rows
            if count > expected:
                break
            yield batch
        # pyarrow ends early at a list column whose first page has no values.
        if count != expected:
            more = "at least " if count > expected else ""
            raise ValueError(f"{more}{count} rows were read of row groups that have {expected}")
