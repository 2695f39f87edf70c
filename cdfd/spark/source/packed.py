"""Rows that do not pass through Spark as rows, from `format("cdfd")` with the option `packed` to `format("cdfd-kafka")`.

The JVM makes a row of its own of each row of Arrow, and a sink's batches of these. Where nothing happens between source and sink, this is
most of the work. Packed rows have one column: the first row of a batch has change rows as an Arrow IPC stream, or a reference to a
partition, whose files the sink reads itself. The others are null. So there are as many of them as change rows, and Spark's metrics stay true.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from cdfd.errors import ConfigError, DataError

COLUMN: Final = "_packed_rows"
_ROWS: Final = "cdfd.rows"
_SCHEMA: Final = pa.schema([pa.field(COLUMN, pa.binary())])
_REFERENCE: Final = b"cdfd-partition:"
"""The beginning of a reference. An IPC stream begins with four bytes 0xFF."""
_NULL_ROWS: Final = 1 << 16
_PURE: Final = ("cdfd.delta.", "cdfd.model.", "cdfd.plan.")
_NAMED: Final = {
    "cdfd.delta.files": {"_unpickle"},
    "cdfd.deliver.path_ranges": {"PathRange"},
    "cdfd.deliver.splits": {"RangeSplit"},
    "cdfd.log.listing": {"Listing"},
    "cdfd.scan.splits": {"Split"},
    "cdfd.spark.engine.target": {"Target"},
    "cdfd.spark.source.packed": {"_make"},
    "cdfd.spark.source.reading": {"ChangePartition"},
    "cdfd.storage.base": {"Stat"},
    "pyspark.sql.types": {"StructType"},
}
"""Besides classes of `_PURE`, which do no I/O, references consist of these."""


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


def refer(portion: object, count: int) -> Iterator[pa.RecordBatch]:
    """A partition of `count` rows, at least one, as packed rows. It has no secrets: users may show these rows, or store them."""
    reference = io.BytesIO()
    _References(reference).dump(portion)
    yield pa.RecordBatch.from_arrays([pa.array([_REFERENCE + reference.getvalue()], pa.binary())], schema=_SCHEMA)
    nulls = pa.RecordBatch.from_arrays([pa.nulls(min(count, _NULL_ROWS), pa.binary())], schema=_SCHEMA)
    for first in range(1, count, _NULL_ROWS):
        yield nulls.slice(0, count - first)


def unpack(
    batches: Iterable[pa.RecordBatch], read: Callable[[Any], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The batches that are packed in batches of Spark. They refer to the memory of those.

    Args:
        batches: of Spark.
        read: reads a partition to which rows refer.

    Raises:
        DataError: the bytes are neither a batch nor a reference. Also what `read` raises.
    """
    for batch in batches:
        for packed in batch.column(0).drop_null():
            content = memoryview(packed.as_buffer())
            if content[: len(_REFERENCE)].tobytes() == _REFERENCE:
                yield from read(_restore(content[len(_REFERENCE) :].tobytes()))
                continue
            try:
                with pa.ipc.open_stream(packed.as_buffer()) as stream:
                    yield from stream
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(f"packed rows are damaged: {error}") from error


class _References(pickle.Pickler):
    """Writes values as calls of their classes."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, type):
            return NotImplemented
        if is_dataclass(value):
            return _make, (type(value), {each.name: getattr(value, each.name) for each in fields(value) if each.init})
        # The schema of references is empty.
        return (StructType, ()) if isinstance(value, StructType) else NotImplemented


def _make(kind: Callable[..., object], values: Mapping[str, object]) -> object:
    return kind(**values)


def _restore(reference: bytes) -> Any:
    try:
        # The class of a value is one that the whole process has. So no opcode may set attributes.
        if any(opcode.name == "BUILD" for opcode, _, _ in pickletools.genops(reference)):
            raise DataError("a reference of packed rows sets attributes")
        return _Values(io.BytesIO(reference)).load()
    except (pickle.UnpicklingError, EOFError, ImportError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"a reference of packed rows is damaged: {error}") from error


class _Values(pickle.Unpickler):
    """Restores values of partitions alone: rows of Spark may come from any file, and a pickle may call any function."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _NAMED.get(module, ()):
            return super().find_class(module, name)
        value = super().find_class(module, name) if module.startswith(_PURE) else None
        if isinstance(value, type) and value.__module__ == module:
            return value
        raise DataError(f"packed rows refer to {module:.100}.{name:.100}, which no partition consists of")
