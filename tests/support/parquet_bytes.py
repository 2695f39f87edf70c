"""Parquet files by hand: Thrift's compact protocol, as little of it as a file of one column needs."""

import struct


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def number(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def fields(*values: tuple[int, int, bytes]) -> bytes:
    """A struct: (id, type, value) in ascending order of id."""
    out, last = b"", 0
    for field, kind, value in values:
        out += bytes([(field - last) << 4 | kind]) + value
        last = field
    return out + b"\0"


def items(kind: int, values: list[bytes]) -> bytes:
    return bytes([len(values) << 4 | kind]) + b"".join(values)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(len(data)) + data


I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
PLAIN, RLE, DELTA_STRINGS, RLE_DICTIONARY = 0, 3, 7, 8
BOOLEAN, INT32, INT96, BYTE_ARRAY, FIXED = 0, 1, 3, 6, 7
ZSTD = 6


def data_page(body: bytes, size: int, values: int, encoding: int) -> bytes:
    inner = fields(*((place, I32, number(value)) for place, value in enumerate((values, encoding, RLE, RLE), 1)))
    sizes = ((place, I32, number(value)) for place, value in enumerate((0, size, len(body)), 1))
    return fields(*sizes, (5, STRUCT, inner)) + body


def data_page_v2(levels: bytes, body: bytes, size: int, values: int, encoding: int) -> bytes:
    """A page whose definition levels are not compressed, and are part of its `size`."""
    numbers = (values, 0, values, encoding, len(levels), 0)
    inner = fields(*((place, I32, number(value)) for place, value in enumerate(numbers, 1)))
    sizes = ((place, I32, number(value)) for place, value in enumerate((3, size, len(levels) + len(body)), 1))
    return fields(*sizes, (8, STRUCT, inner)) + levels + body


def dictionary_page(body: bytes, size: int, values: int) -> bytes:
    inner = fields((1, I32, number(values)), (2, I32, number(PLAIN)))
    return fields((1, I32, number(2)), (2, I32, number(size)), (3, I32, number(len(body))), (7, STRUCT, inner)) + body


def element(name: str, repetition: int | None = None, kind: int | None = None, **more: int) -> bytes:
    """Of a schema. `more`: `length`, `children`, `converted`."""
    numbers = {1: kind, 2: more.get("length"), 3: repetition}
    parts = [(place, I32, number(value)) for place, value in numbers.items() if value is not None]
    parts.append((4, BINARY, text(name)))
    parts += [(5, I32, number(more["children"]))] if "children" in more else []
    parts += [(6, I32, number(more["converted"]))] if "converted" in more else []
    return fields(*parts)


def file(
    schema: list[bytes], path: list[str], kind: int, chunk: bytes, values: int, rows: int, codec: int = 0
) -> bytes:
    """A file of one column."""
    return file_of(schema, [(path, kind, chunk, values)], rows, codec)


def file_of(schema: list[bytes], columns: list[tuple[list[str], int, bytes, int]], rows: int, codec: int = 0) -> bytes:
    """A file of several columns, of each its path, its physical type, its pages and how many values they have."""
    chunks, start = [], 4
    for path, kind, chunk, values in columns:
        meta = fields(
            (1, I32, number(kind)),
            (2, LIST, items(I32, [number(RLE)])),
            (3, LIST, items(BINARY, [text(name) for name in path])),
            (4, I32, number(codec)),
            (5, I64, number(values)),
            (6, I64, number(len(chunk))),
            (7, I64, number(len(chunk))),
            (9, I64, number(start)),
        )
        chunks.append(fields((2, I64, number(start)), (3, STRUCT, meta)))
        start += len(chunk)
    group = fields((1, LIST, items(STRUCT, chunks)), (2, I64, number(start - 4)), (3, I64, number(rows)))
    footer = fields(
        (1, I32, number(2)),
        (2, LIST, items(STRUCT, schema)),
        (3, I64, number(rows)),
        (4, LIST, items(STRUCT, [group])),
    )
    pages = b"".join(chunk for _, _, chunk, _ in columns)
    return b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1"


def flat(kind: int, chunk: bytes, rows: int, codec: int = 0, **more: int) -> bytes:
    """One optional column `c`."""
    schema = [element("schema", children=1), element("c", 1, kind, **more)]
    return file(schema, ["c"], kind, chunk, rows, rows, codec)


def run(count: int, value: int) -> bytes:
    """So many times a level or index of at most 8 bits."""
    return varint(count << 1) + bytes([value])


def levels(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data
