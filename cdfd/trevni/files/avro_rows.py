"""Avro container files, by fastavro: a row at a time, so for conversion only."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import ModuleType
from typing import Any, BinaryIO, Self

import orjson
import pyarrow as pa

from cdfd.errors import CdfdError, DataError, UnsupportedError
from cdfd.runtime.arrays import array_of
from cdfd.trevni import avro_schema
from cdfd.trevni.arrow_schema import avro_schema as to_avro
from cdfd.trevni.shapes import Array, Branch, Leaf, Map, Record, Shape, Union, arrow_field
from cdfd.trevni.table_writer import MOST_COLUMNS

WRITE_ROWS = 4096
"""Rows that are Python objects at the same time."""


def _fastavro() -> ModuleType:
    try:
        import fastavro
    except ImportError:
        hint = "Run: pip install 'cdfd[avro]'"
        raise UnsupportedError("Avro files need fastavro, which is not installed", hint=hint) from None
    return fastavro


def read(file: BinaryIO, batch_rows: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of a file, and its rows.

    Raises:
        DataError: the file is no Avro file, or its schema is no record's.
        UnsupportedError: fastavro is not installed.
    """
    fastavro = _fastavro()
    with _refusing_damage():
        reader = fastavro.reader(file)
    _, shape = avro_schema.parse(json.dumps(_plain(reader.writer_schema)), MOST_COLUMNS)
    if not isinstance(shape, Record):
        raise DataError("the rows of the Avro file are not records")
    _takes_bytes(shape)
    schema = pa.schema([arrow_field(field.name, field.shape) for field in shape.fields])

    def batches() -> Iterator[pa.RecordBatch]:
        while True:
            with _refusing_damage():
                rows = [_to_arrow(shape, row) for row in islice(reader, batch_rows)]
            if not rows:
                return
            columns = [array_of([row[field.name] for row in rows], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return schema, batches()


@contextmanager
def _refusing_damage() -> Iterator[None]:
    try:
        yield
    except (CdfdError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - fastavro checks nothing, and passes on the errors of all that it calls
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"the file is damaged, or not an Avro file: {reason:.200}") from None


def _plain(schema: Any) -> Any:
    """A schema without what fastavro adds to it."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if not key.startswith("__")}
    return [_plain(each) for each in schema] if isinstance(schema, list) else schema


def _takes_bytes(shape: Shape) -> bool:
    """Whether each value takes a byte of the file at least.

    Raises:
        UnsupportedError: the items of an array do not: a few bytes would be any number of them, which fastavro has in memory.
    """
    match shape:
        case Leaf(arrow=kind):
            return not pa.types.is_null(kind) and not (pa.types.is_fixed_size_binary(kind) and not kind.byte_width)
        case Record(fields):
            return True in [_takes_bytes(field.shape) for field in fields]  # each field is checked
        case Array(items=items):
            if not _takes_bytes(items):
                hint = "Leave the column out"
                raise UnsupportedError("arrays of nulls are read from Trevni files alone", hint=hint)
        case Map(value=item):
            _takes_bytes(item)
        case Union(branches):
            for branch in branches:
                if branch is not None:
                    _takes_bytes(branch.shape)
    return True


def _to_arrow(shape: Shape, value: Any) -> Any:
    """A value as pyarrow takes it: entries of maps are pairs, and fields have their names in Arrow."""
    match shape:
        case Record(fields):
            return {
                field.name: _to_arrow(field.shape, each) for field, each in zip(fields, value.values(), strict=True)
            }
        case Array(entries=(key, item)):
            return [(_to_arrow(key, each["key"]), _to_arrow(item, each["value"])) for each in value]
        case Array(items=items):
            return [_to_arrow(items, each) for each in value]
        case Map(value=item):
            return [(key, _to_arrow(item, each)) for key, each in value.items()]
        case Union(optional=Branch(shape=inside)):
            return None if value is None else _to_arrow(inside, value)
        case Union():
            raise UnsupportedError("unions of several types are read from Trevni files alone")
    return value


def _to_avro(shape: Shape, value: Any, names: Any) -> Any:
    """A value as fastavro takes it; `names` is the shape's part of the Avro schema."""
    match shape:
        case Record(fields):
            each = zip(fields, names["fields"], strict=True)
            return {field["name"]: _to_avro(own.shape, value[own.name], field["type"]) for own, field in each}
        case Array(items=Record() as entry, entries=(_, _)):
            return [_to_avro(entry, {"key": key, "value": each}, names["items"]) for key, each in value]
        case Array(items=items):
            return [_to_avro(items, each, names["items"]) for each in value]
        case Map(value=item):
            entries = {key: _to_avro(item, each, names["values"]) for key, each in value}
            if len(entries) < len(value):
                raise DataError("a map has a key twice, which fastavro cannot write", hint="Convert to another format")
            return entries
        case Union(optional=Branch(shape=present)):
            return None if value is None else _to_avro(present, value, names[1])
        case Union():
            raise UnsupportedError("unions of several types are written to Trevni files alone")
    return value


class Writer:
    """Writes a file batch by batch.

    Args:
        file: open for writing.
        schema: of the rows.

    Raises:
        UnsupportedError: fastavro is not installed, or a column is of a type that Avro has no form for.
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        text = to_avro(schema)
        self._names = orjson.loads(text)
        _, self._shape = avro_schema.parse(text, MOST_COLUMNS)
        fastavro = _fastavro()
        schema_in_avro = fastavro.parse_schema(self._names)
        self._writer = fastavro.write.Writer(file, schema_in_avro, codec="deflate")

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            DataError: a map has a key twice, or a time is out of Python's range.
        """
        for start in range(0, batch.num_rows, WRITE_ROWS):
            try:
                rows = batch.slice(start, WRITE_ROWS).to_pylist()
            except (ValueError, OverflowError) as error:
                hint = "Times have to be in the years 1 to 9999. Other formats have no such limit"
                raise DataError(f"a value cannot be written to Avro: {error}", hint=hint) from None
            for row in rows:
                self._writer.write(_to_avro(self._shape, row, self._names))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._writer.flush()
