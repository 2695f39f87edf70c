"""Lengths and values of a column -> the bytes of blocks, by the kernels of `cdfd.native`: the fast form of `encoding`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from cdfd import native
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.native_decoding import BITS, FIXED, INTEGERS, KINDS, NULLS, TEXT
from cdfd.trevni.value_types import ValueType
from cdfd.trevni.varints import Numbers

if TYPE_CHECKING:
    from cdfd.native import trevni_encoding

_NOTHING = np.zeros(0, np.uint8)
_NO_OFFSETS = np.zeros(1, np.int32)


class Block(NamedTuple):
    """The bytes of a block before its codec is applied, and its rows."""

    data: bytes
    rows: int


def encoder(column: ColumnMetadata, block_bytes: int, block_rows: int) -> trevni_encoding.BlockEncoder | None:
    """Encodes the blocks of a column. None if there are no kernels, or none for this type."""
    kind, width = KINDS[column.type]
    if not native.built or (kind in (NULLS, BITS) and not column.array):
        return None
    return native.trevni_encoding.BlockEncoder(kind, width, block_bytes, block_rows, column.type is ValueType.NULL)


def full_blocks(
    encoder: trevni_encoding.BlockEncoder, kind: ValueType, lengths: Numbers | None, values: pa.Array, entries: Numbers
) -> Iterator[Block]:
    """Append rows, as `ColumnWriter.write` does, and give away the blocks that are full."""
    row, value = 0, 0
    buffers = _buffers(kind, values)
    while row < len(entries) - 1:
        row, value, full = encoder.write(lengths, *buffers, entries, row, value)
        if full:
            yield taken(encoder)


def taken(encoder: trevni_encoding.BlockEncoder) -> Block:
    """The rows so far as a block, which may be less than full."""
    rows = encoder.rows
    return Block(encoder.take(), rows)


def _buffers(kind: ValueType, values: pa.Array) -> tuple[Any, Any, int]:
    """The bytes of values, the offsets of strings, and the number of the first value in its buffer."""
    form, width = KINDS[kind]
    if form == NULLS or not len(values):
        return _NOTHING, _NO_OFFSETS, 0
    if form == TEXT:
        _, offsets, data = values.buffers()
        text = _NOTHING if data is None else np.frombuffer(data, np.uint8)
        return text, np.frombuffer(offsets, np.int32, values.offset + len(values) + 1), values.offset
    data = np.frombuffer(values.buffers()[1], np.uint8)
    if form in (INTEGERS, FIXED):
        start = values.offset * width
        return data[start : start + len(values) * width], _NO_OFFSETS, 0
    return data, _NO_OFFSETS, values.offset


def first_value(kind: ValueType, data: bytes) -> bytes:
    """The bytes of the first value of a block without lengths."""
    form, width = KINDS[kind]
    if form == FIXED:
        return data[:width]
    end, number = 0, 0
    while data[end] >= 0x80:
        number |= (data[end] & 0x7F) << (7 * end)
        end += 1
    number |= data[end] << (7 * end)
    # The length of a string is not negative, so its zigzag form is twice as large.
    return data[: end + 1 + ((number >> 1) if form == TEXT else 0)]
