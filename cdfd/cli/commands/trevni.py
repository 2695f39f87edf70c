"""`cdfd trevni`: what Trevni files contain.

The physical columns of a file as one JSON document: lengths and values in the file's order.

Bytes are hexadecimal. Floats and doubles are the hexadecimal digits of their bits, because JSON has no other form for all of them; those
that are no finite numbers have names. Nulls have no values.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from cdfd.cli.commands.columns import align_columns
from cdfd.cli.commands.counts import quantity
from cdfd.encode.json import LineEncoder
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.escaping import one_line
from cdfd.trevni import avro_schema
from cdfd.trevni.files.formats import name_damaged_file
from cdfd.trevni.files.opening import in_threads, open_source
from cdfd.trevni.files.reading import TrevniFile
from cdfd.trevni.rows import Reader, Run, run_all
from cdfd.trevni.values.value_types import ValueType


def physical_document(reader: Reader, run: Run = run_all) -> Iterator[bytes]:
    """The physical_document, in parts. Reads one column after the other.

    Raises:
        TrevniError: the file is damaged.
    """
    yield b'{"rows":%d,"columns":[' % reader.metadata.num_rows
    for number, column in enumerate(reader.metadata.columns):
        head = {"name": column.name, "type": str(column.type), "array": column.array, "parent": column.parent}
        yield (b",\n" if number else b"\n") + orjson.dumps(head)[:-1]
        if column.array:
            yield b',"lengths":['
            yield from _join(
                orjson.dumps(window.columns[number].lengths, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
                for window in reader.windows([number], run=run)
            )
            yield b"]"
        yield b',"values":['
        if column.type is not ValueType.NULL:
            yield from _join(
                orjson.dumps(values_of(column.type, window.columns[number].values))[1:-1]
                for window in reader.windows([number], run=run)
            )
        yield b"]}"
    yield b"\n]}\n"


def _join(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The parts that are not empty, with commas between them."""
    separator = b""
    for part in parts:
        if part:
            yield separator + part
            separator = b","


def values_of(kind: ValueType, values: pa.Array) -> list[Any]:
    """Values as the physical_document has them."""
    items = values.to_pylist()
    match kind:
        case ValueType.BYTES:
            return [each.hex() for each in items]
        case ValueType.FLOAT | ValueType.DOUBLE:
            numbers: Any = values.to_numpy()
            digits = 8 if kind is ValueType.FLOAT else 16
            bits = numbers.view(np.uint32 if kind is ValueType.FLOAT else np.uint64).tolist()
            return [
                f"{bit:0{digits}x}" if math.isfinite(each) else _NAMES.get(each, "NaN")
                for each, bit in zip(items, bits, strict=True)
            ]
    return list(items)


_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}


BATCH_ROWS = 16_384
"""Rows to encode at once. Encoding takes several times the memory of a batch."""


def schema(file: str, *, avro: bool) -> str:
    """The columns of a file's rows, or its Avro schema.

    Raises:
        CdfdError: the file cannot be read, is damaged, or has no Avro schema.
    """
    with TrevniFile(file) as opened_file:
        if not avro:
            fields = opened_file.schema
            lines = (f"{each.name}: {each.type}{'' if each.nullable else ' not null'}" for each in fields)
            # Types are not cut, however long they are.
            return "".join(f"{one_line(line, len(ascii(line)))}\n" for line in lines)
        text = opened_file.metadata.metadata.get(avro_schema.KEY)
    if text is None:
        raise UnsupportedError("the file has no Avro schema", path=file, hint="Ask without --avro")
    return json.dumps(orjson.loads(text), indent=1, ensure_ascii=False) + "\n"


def rows(file: str, columns: Sequence[str] | None, range_text: str | None) -> Iterator[str]:
    """Rows as JSON lines.

    Raises:
        CdfdError: the file cannot be read or is damaged, a column is unknown, or `range_text` is no range.
    """
    with TrevniFile(file) as opened_file:
        lines = line_encoder(opened_file.schema)
        chosen = None
        if range_text is not None:
            match = re.fullmatch(r"(\d{0,18}):(\d{0,18})", range_text)
            if match is None:
                raise ConfigError(f"the rows are {range_text!r:.100}", hint="Give FROM:TO, such as 100:200")
            chosen = slice(*(int(each) if each else None for each in match.groups()))
        for batch in opened_file.iter_batches(BATCH_ROWS, columns, chosen):
            with name_damaged_file(file):
                text = lines(batch)
            yield text


def line_encoder(schema: pa.Schema) -> Any:
    """Encodes batches as text. Unions, which change rows do not have, take an object for each row."""
    if any("union" in str(field.type) for field in schema):
        return lambda batch: "".join(f"{json.dumps(row, default=str)}\n" for row in batch.to_pylist())
    encoder = LineEncoder()
    return lambda batch: bytes(encoder(batch)).decode()


def columns(file: str) -> Iterator[str]:
    """The physical columns as one JSON document, in parts.

    Raises:
        CdfdError: the file cannot be read, or is damaged.
    """
    with open_source(file) as source, in_threads() as run:
        for part in physical_document(Reader(source), run):
            yield part.decode()


def stats(file: str, *, as_json: bool) -> str:
    """Blocks and sizes of the physical columns.

    Raises:
        CdfdError: the file cannot be read, or is damaged.
    """
    with TrevniFile(file) as opened_file:
        metadata = opened_file.metadata
        columns = [_column(opened_file, number) for number in range(metadata.num_columns)]
    whole = {
        "rows": metadata.num_rows,
        "columns": metadata.num_columns,
        "codec": str(metadata.codec),
        "checksum": str(metadata.checksum),
        "bytes": sum(each["bytes"] for each in columns),
        "stored_bytes": sum(each["stored_bytes"] for each in columns),
    }
    if as_json:
        return orjson.dumps({**whole, "physical_columns": columns}, option=orjson.OPT_INDENT_2).decode() + "\n"
    title = (
        f"{quantity(metadata.num_rows, 'row')}, {quantity(metadata.num_columns, 'physical column')}, codec {whole['codec']}, "
        f"checksum {whole['checksum']}, {whole['stored_bytes']:,} bytes stored of {whole['bytes']:,}\n"
    )
    header = ("column", "type", "codec", "checksum", "blocks", "bytes", "stored", "ratio")
    table: list[tuple[str, ...]] = [header]
    for each in columns:
        ratio = f"{each['bytes'] / each['stored_bytes']:.2f}" if each["stored_bytes"] else "-"
        kind = f"{each['type']}{' array' if each['array'] else ''}"
        sizes = (str(each["blocks"]), str(each["bytes"]), str(each["stored_bytes"]))
        table.append((each["name"], kind, each["codec"], each["checksum"], *sizes, ratio))
    return title + align_columns(table, numbers=header.index("blocks"))


def _column(file: TrevniFile, number: int) -> dict[str, Any]:
    column, blocks = file.metadata.columns[number], file.blocks(number)
    size, stored = int(np.sum(blocks.sizes)), int(np.sum(blocks.stored))
    return {
        "name": column.name,
        "type": str(column.type),
        "array": column.array,
        "parent": column.parent,
        "first_values": column.values,
        "codec": str(column.codec),
        "checksum": str(column.checksum),
        "blocks": len(blocks),
        "largest_block": int(blocks.sizes.max()) if len(blocks) else 0,
        "bytes": size,
        "stored_bytes": stored,
    }
