"""The physical columns of a file as one JSON document: lengths and values in the file's order.

Bytes are hexadecimal. Floats and doubles are the hexadecimal digits of their bits, because JSON has no other form for all of them; those
that are no finite numbers have names. Nulls have no values.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from cdfd.trevni.rows import Reader, Run, run_all
from cdfd.trevni.values.value_types import ValueType


def document(reader: Reader, run: Run = run_all) -> Iterator[bytes]:
    """The document, in parts. Reads one column after the other.

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
    """Values as the document has them."""
    found = values.to_pylist()
    match kind:
        case ValueType.BYTES:
            return [each.hex() for each in found]
        case ValueType.FLOAT | ValueType.DOUBLE:
            numbers: Any = values.to_numpy()
            digits = 8 if kind is ValueType.FLOAT else 16
            bits = numbers.view(np.uint32 if kind is ValueType.FLOAT else np.uint64).tolist()
            return [
                f"{bit:0{digits}x}" if math.isfinite(each) else _NAMES.get(each, "NaN")
                for each, bit in zip(found, bits, strict=True)
            ]
    return list(found)


_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}
