"""Other formats of rows, to convert from and to Trevni: Parquet, JSON lines, Arrow IPC and Avro."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Protocol, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from cdfd.errors import CdfdError, ConfigError, DataError, StorageError
from cdfd.runtime.arrays import array_of
from cdfd.scan.parquet import reader as parquet_reader
from cdfd.scan.parquet.arrow_reader import ArrowReader
from cdfd.trevni.files import avro_rows
from cdfd.trevni.table_reader import BATCH_ROWS

INFER_ROWS = 16_384
"""JSON rows that are parsed together."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to read.

    Attributes:
        schema: of the batches.
        batches: in order, once.
        count: how many rows there are; None if that is not known yet.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    count: int | None = None


class Sink(Protocol):
    """Takes batches in order."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows."""


OpenRows: TypeAlias = Callable[[str], AbstractContextManager[Rows]]
OpenSink: TypeAlias = Callable[[BinaryIO, pa.Schema], AbstractContextManager[Sink]]


@contextmanager
def _parquet(path: str) -> Iterator[Rows]:
    with pa.OSFile(path) as source, parquet_reader.open_parquet(source) as file:
        stored, annotated = (pa.struct(list(each.schema_arrow)) for each in (file, ArrowReader(source)))
        schema = pa.schema(list(_with_json(stored, annotated)))
        batches = file.batches(schema.names, rows=BATCH_ROWS)
        yield Rows(schema, (pa.record_batch(_Retyped(batch, schema)) for batch in batches), file.metadata.num_rows)


def _with_json(kind: pa.DataType, annotated: pa.DataType) -> pa.DataType:
    """A type with `arrow.json` where the one of pyarrow has it: cdfd-native reads JSON as strings."""
    if types.is_string(kind) and isinstance(annotated, pa.JsonType):
        return pa.json_(kind)
    if types.is_struct(kind) and types.is_struct(annotated):
        pairs = zip(kind, annotated, strict=True)
        return pa.struct([field.with_type(_with_json(field.type, other.type)) for field, other in pairs])
    if types.is_map(kind) and types.is_map(annotated):
        key = kind.key_field.with_type(_with_json(kind.key_type, annotated.key_type))
        return pa.map_(key, kind.item_field.with_type(_with_json(kind.item_type, annotated.item_type)))
    if types.is_list(kind) and types.is_list(annotated):
        return pa.list_(kind.value_field.with_type(_with_json(kind.value_type, annotated.value_type)))
    return kind


@dataclass(frozen=True, slots=True)
class _Retyped:
    """A batch with a schema of the same memory layout. A cast refuses a null struct whose field is not nullable."""

    batch: pa.RecordBatch
    schema: pa.Schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, rows = self.batch.__arrow_c_array__()
        return self.schema.__arrow_c_schema__(), rows


@contextmanager
def _arrow(path: str) -> Iterator[Rows]:
    with pa.OSFile(path) as source:
        if source.read_at(6, 0) == b"ARROW1":
            file = pa.ipc.open_file(source)
            numbers = range(file.num_record_batches)
            yield Rows(file.schema, (_validated(file.get_batch(number)) for number in numbers))
        else:
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            yield Rows(stream.schema, map(_validated, stream))


def _validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose offsets and lengths stay inside its buffers. Arrow takes over those of a file as they are."""
    batch.validate(full=True)
    return batch


@contextmanager
def _json(path: str) -> Iterator[Rows]:
    """The schema is inferred from all rows, so the file is read twice."""
    schema = pa.schema([])
    count = 0
    for rows in _json_rows(path):
        count += len(rows)
        try:
            inferred = array_of(rows)
            whole_schema = pa.schema(list(inferred.type)) if pa.types.is_struct(inferred.type) else pa.schema([])
            schema = pa.unify_schemas([schema, whole_schema], promote_options="permissive")
        except (pa.ArrowException, OverflowError) as error:
            raise DataError(f"the rows have no common schema: {error}") from None
    fields: Any = pa.struct(list(schema))

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in _json_rows(path):
            yield pa.RecordBatch.from_struct_array(array_of(rows, fields))

    yield Rows(schema, batches(), count)


def _json_rows(path: str) -> Iterator[list[Any]]:
    rows: list[Any] = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except ValueError as error:
                raise DataError(f"line {number} is not JSON: {error}", path=path) from None
            if not isinstance(row, dict):
                raise DataError(f"line {number} is not a JSON object", path=path)
            rows.append(row)
            if len(rows) == INFER_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows


@contextmanager
def _avro(path: str) -> Iterator[Rows]:
    with open(path, "rb") as file:
        schema, batches = avro_rows.read(file, BATCH_ROWS)
        yield Rows(schema, batches)


READERS: dict[str, OpenRows] = {"parquet": _parquet, "arrow": _arrow, "jsonl": _json, "avro": _avro}
"""How rows of each format but Trevni are read, by name."""

WRITERS: dict[str, OpenSink] = {
    "parquet": partial(pq.ParquetWriter, compression="zstd"),
    "arrow": pa.ipc.new_file,
    "avro": avro_rows.Writer,
}
"""How rows of each format are written. JSON lines and Trevni are the caller's."""

_ENDINGS = {"trv": "trevni", "json": "jsonl", "ndjson": "jsonl", "ipc": "arrow", "feather": "arrow", "pq": "parquet"}
NAMES = ("trevni", "parquet", "jsonl", "arrow", "avro")


def format_of(path: str, format_name: str | None = None) -> str:
    """The format of a file: the given one, or that of the ending of its name.

    Raises:
        ConfigError: neither is known.
    """
    ending = path.rpartition(".")[2].lower()
    format = format_name or _ENDINGS.get(ending, ending)
    if format not in NAMES:
        raise ConfigError(f"the format of {path!r:.200} is not known", hint=f"Give one of {', '.join(NAMES)}")
    return format


@contextmanager
def name_damaged_file(path: str) -> Iterator[None]:
    """Errors of reading a file name it."""
    try:
        yield
    except CdfdError as error:
        raise error.within(path=path) from None
    except OSError as error:
        raise StorageError(f"cannot read: {error.strerror or error}", path=path) from error
    except (pa.ArrowException, ValueError, OverflowError, EOFError) as error:
        raise DataError(f"the file cannot be read: {error}", path=path) from error
