"""Opening a Parquet file the way that costs least to read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

STREAM_BYTES = 1 << 20
"""Bytes of a column chunk to hold compressed while it is decoded."""
WORTH_A_LOOK = 50_000
"""Rows from which it pays to look for columns whose values repeat."""
LOOK = 4_096
"""Rows to look at."""
FEW = 256
"""Different strings in them, at most, of a column that repeats."""


@contextlib.contextmanager
def opened(
    source: Any, repeating: Sequence[str] | None = None, announce: Callable[[pq.ParquetFile], None] | None = None
) -> Iterator[pq.ParquetFile]:
    """A Parquet file for reading batch by batch.

    Columns of few different strings are read as dictionaries: decoding their indices and looking the strings up afterwards takes half the
    time of decoding a string for each row. `repeating` names them where they are known, else a look at the first rows tells.
    `announce` is called when the footer is known and before anything else is read.
    """
    options = {"buffer_size": STREAM_BYTES, "pre_buffer": False, "coerce_int96_timestamp_unit": "us"}
    if repeating is not None:
        with pq.ParquetFile(source, read_dictionary=repeating, **options) as file:
            yield file
        return
    with pq.ParquetFile(source, **options) as file:
        if announce is not None:
            announce(file)
        repeating = _repeating(file) if file.metadata.num_rows >= WORTH_A_LOOK else []
        if not repeating:
            yield file
            return
        with pq.ParquetFile(source, metadata=file.metadata, read_dictionary=repeating, **options) as again:
            yield again


def _repeating(file: pq.ParquetFile) -> list[str]:
    """Top-level columns of strings whose first values repeat.

    The footer says how well a whole column could be encoded, but pyarrow's way to what it says of a column ends the process where that is
    damaged (seen in 26.0).
    """
    names = file.schema_arrow.names
    strings = [
        field.name
        for field in file.schema_arrow
        if pa.types.is_string(field.type) and "." not in field.name and names.count(field.name) == 1
    ]
    first = next(file.iter_batches(batch_size=LOOK, columns=strings), None) if strings else None
    if first is None:
        return []
    return [name for name in strings if pc.count_distinct(first.column(name)).as_py() <= FEW]
