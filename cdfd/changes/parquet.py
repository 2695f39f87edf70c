"""Opening a Parquet file the way that costs least to read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

STREAM_BYTES = 1 << 20
"""Bytes of a column chunk to hold compressed while it is decoded."""
WORTH_A_LOOK = 50_000
"""Rows from which it pays to look for columns whose values repeat."""
REPEATS = 2
"""Bytes per value up to which a column of strings is one of few different ones: their indices, and next to no strings."""


@contextlib.contextmanager
def opened(source: Any) -> Iterator[pq.ParquetFile]:
    """A Parquet file for reading batch by batch.

    Columns of few different strings are read as dictionaries: decoding their indices and looking the strings up afterwards takes half the
    time of decoding a string for each row.
    """
    options = {"buffer_size": STREAM_BYTES, "pre_buffer": False, "coerce_int96_timestamp_unit": "us"}
    with pq.ParquetFile(source, **options) as file:
        repeating = _repeating(file.metadata) if file.metadata.num_rows >= WORTH_A_LOOK else []
        if not repeating:
            yield file
            return
        with pq.ParquetFile(source, metadata=file.metadata, read_dictionary=repeating, **options) as again:
            yield again


def _repeating(metadata: pq.FileMetaData) -> list[str]:
    columns = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    return [
        column.path
        for place, column in enumerate(columns)
        if column.physical_type == "BYTE_ARRAY"
        and column.max_repetition_level == 0
        and column.path == column.name
        and column.logical_type.type == "STRING"
        and _bytes(metadata, place) < REPEATS * metadata.num_rows
    ]


def _bytes(metadata: pq.FileMetaData, place: int) -> int:
    return sum(
        metadata.row_group(group).column(place).total_uncompressed_size for group in range(metadata.num_row_groups)
    )
