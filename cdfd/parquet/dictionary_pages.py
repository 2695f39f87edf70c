"""Dictionary pages that are decompressed once: they are measured, and stored again without compression, in a form of the same codec.

Only a dictionary has the length of its longest string, which bounds the memory of a batch. The codec is one for all pages of a column
chunk, and its data pages stay as they are. So a stored page is one that its decompressor copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa

from cdfd.parquet.pages import PLAIN, PLAIN_DICTIONARY, longest_value

UNPACKED_BYTES = 8 << 20
"""Bytes of all dictionaries of a joined file, at most."""

_UNCOMPRESSED, _SNAPPY, _ZSTD = 0, 1, 6
_CODECS = {_SNAPPY: "snappy", _ZSTD: "zstd"}
_ZSTD_BLOCK = 128 << 10


class Unpacked(NamedTuple):
    """Column chunks with stored dictionaries.

    Attributes:
        moved: their places, as `cdfd.native.parquet_joining.joined` takes them.
        pieces: their bytes, which follow those of the files.
    """

    moved: list[tuple[int, int, int, int, int]]
    pieces: list[Any]


def unpacked(files: Sequence[Any], dictionaries: Iterable[tuple[int, ...]]) -> Unpacked:
    """The column chunks with these dictionaries, as `cdfd.native.parquet_joining.joined` returns them. Those that cannot be measured are
    left out, and all are if they are too large together."""
    found, starts = list(dictionaries), [0, *accumulate(map(len, files))]
    moved, pieces, at = list[tuple[int, int, int, int, int]](), list[Any](), starts[-1]
    if sum(size for *_, size, _, _, _ in found) > UNPACKED_BYTES:
        return Unpacked([], [])
    for number, start, header, end, codec, size, stored, values, encoding in found:
        data = memoryview(files[number])
        raw = _decompressed(data[start + header : start + header + stored], codec, size)
        longest = None if raw is None or encoding not in (PLAIN, PLAIN_DICTIONARY) else longest_value(raw, values)
        if longest is None or raw is None:
            continue
        if codec == _UNCOMPRESSED:
            moved.append((number, start, starts[number] + start, 0, longest))
            continue
        page = [*_stored(raw, codec), data[start + header + stored : end]]
        page = [_header(size, sum(map(len, page[:-1])), values, encoding), *page]
        length = sum(map(len, page))
        moved.append((number, start, at, length - (end - start), longest))
        pieces += page
        at += length
    return Unpacked(moved, pieces)


def _decompressed(data: memoryview, codec: int, size: int) -> memoryview | None:
    if codec == _UNCOMPRESSED:
        return data if len(data) == size else None
    if codec not in _CODECS:
        return None
    try:
        found = memoryview(pa.Codec(_CODECS[codec]).decompress(data, size)).cast("B")
    except (pa.ArrowException, OSError):
        return None
    return found if len(found) == size else None


def _stored(raw: memoryview, codec: int) -> Iterator[bytes | memoryview]:
    """Data that the decompressor of a codec copies."""
    size = len(raw)
    if codec == _SNAPPY:
        # One literal, whose length less one has four bytes.
        yield _varint(size) + (b"\xfc" + (size - 1).to_bytes(4, "little") if size else b"")
        yield raw
        return
    # A frame that says its size, of raw blocks.
    yield b"\x28\xb5\x2f\xfd\xa0" + size.to_bytes(4, "little")
    for start in range(0, size or 1, _ZSTD_BLOCK):
        block = raw[start : start + _ZSTD_BLOCK]
        last = start + _ZSTD_BLOCK >= size
        yield (len(block) << 3 | last).to_bytes(3, "little")
        yield block


def _header(size: int, stored: int, values: int, encoding: int) -> bytes:
    """The header of a dictionary page, in Thrift's compact protocol."""
    sizes = b"\x15\x04\x15" + _varint(size << 1) + b"\x15" + _varint(stored << 1)
    return sizes + b"\x4c\x15" + _varint(values << 1) + b"\x15" + _varint(encoding << 1) + b"\0\0"


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
