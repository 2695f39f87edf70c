"""Rows that pass through Spark as bytes, from `format("cdfd")` with the option `packed` to `format("cdfd-kafka")`.

The JVM makes a row of its own of each row of Arrow, and a sink's batches of these. Where nothing happens between source and sink, this is
most of the work. A packed batch has one column: its first row has a batch of change rows as an Arrow IPC stream, and the others are null. So
it has as many rows as that batch, and Spark's metrics stay true.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from cdfd.errors import ConfigError, DataError

COLUMN: Final = "_packed_rows"
_ROWS: Final = "cdfd.rows"
_SCHEMA: Final = pa.schema([pa.field(COLUMN, pa.binary())])


def packed_schema(rows: StructType) -> StructType:
    """The schema of packed rows. Its field's metadata has the schema of the rows."""
    return StructType([StructField(COLUMN, BinaryType(), True, {_ROWS: rows.json()})])


def rows_schema(user_schema: StructType) -> StructType | None:
    """The schema of the rows that are packed; None: they are not.

    Raises:
        ConfigError: packed rows were changed.
    """
    if COLUMN not in user_schema.names:
        return None
    text = user_schema[COLUMN].metadata.get(_ROWS)
    if len(user_schema) > 1 or text is None:
        raise ConfigError("packed rows were changed", hint="Omit the option `packed` of the source")
    return StructType.fromJson(json.loads(text))


def pack(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Columns of a batch of change rows as packed rows, of the same number."""
    batch, sink = batch.select(names), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    whole, count = sink.getvalue(), batch.num_rows
    offsets = np.full(count + 1, whole.size, np.int32)
    offsets[0] = 0
    valid = np.packbits(np.arange(count) == 0, bitorder="little")
    column = pa.Array.from_buffers(pa.binary(), count, [pa.py_buffer(valid), pa.py_buffer(offsets), whole])
    return pa.RecordBatch.from_arrays([column], schema=_SCHEMA)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches that are packed in batches of Spark. They refer to the memory of those.

    Raises:
        DataError: the bytes are not a batch.
    """
    for batch in batches:
        for packed in batch.column(0).drop_null():
            try:
                with pa.ipc.open_stream(packed.as_buffer()) as stream:
                    yield from stream
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(f"packed rows are damaged: {error}") from error
