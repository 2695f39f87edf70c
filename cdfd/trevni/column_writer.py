"""Cuts a column into blocks and compresses them. A block ends between rows, from 64 KiB on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.runtime import native
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.values.lengths import Numbers
from cdfd.trevni.values.plain_encoding import Block, PlainEncoder
from cdfd.trevni.values.value_types import WIDTHS, ValueType

BLOCK_BYTES = 64 << 10
"""Bytes from which a block ends."""
BLOCK_ROWS = 1 << 20
"""Rows of a block, at most: a column of nulls has no bytes."""
LARGEST_BLOCK = (1 << 31) - 1

Keep: TypeAlias = Callable[["bytes | memoryview"], None]
"""Keeps the bytes of a block until the file is complete."""


class ColumnWriter:
    """Writes the blocks of one column.

    Args:
        column: to write.
        keep: gets the blocks in order, with their checksums.
        block_bytes: size from which a block ends.
    """

    def __init__(self, column: ColumnMetadata, keep: Keep, block_bytes: int) -> None:
        self.column = column
        self._keep = keep
        self._rows: list[int] = []
        self._sizes: list[int] = []
        self._stored: list[int] = []
        self._first: list[bytes] = []
        encoder: type[_NativeEncoder | PlainEncoder] = _NativeEncoder if native.built else PlainEncoder
        self._encoder = encoder(column.type, block_bytes, BLOCK_ROWS)

    def write(self, lengths: Numbers | None, values: pa.Array, entries: Numbers) -> None:
        """Append rows.

        Args:
            lengths: of array columns.
            values: without nulls.
            entries: number of lengths, or of values if there are none, before each row, and of all rows.

        Raises:
            TrevniError: a row has more bytes than a block can have.
        """
        for block in self._encoder.write(lengths, values, entries):
            self._keep_block(block)

    def finish(self) -> int:
        """Write the last block. Returns the bytes that the column will take."""
        block = self._encoder.take()
        if block.rows:
            self._keep_block(block)
        return len(self.descriptors()) + sum(self._stored) + self.column.checksum.size * len(self._rows)

    def descriptors(self) -> bytes:
        """The bytes before the blocks."""
        table = np.array([self._rows, self._sizes, self._stored], "<i4").T
        count = len(self._rows).to_bytes(4, "little")
        if not self.column.values:
            return count + table.tobytes()
        return count + b"".join(row.tobytes() + value for row, value in zip(table, self._first, strict=True))

    def _keep_block(self, block: Block) -> None:
        data, rows = block
        if len(data) > LARGEST_BLOCK:
            what = f"a block of {rows} rows has {len(data)} bytes, more than a block can have"
            raise TrevniError(what).at(column=self.column.name)
        if self.column.values:
            self._first.append(first_value(self.column.type, data))
        stored = self.column.codec.compress(data)
        self._keep(stored)
        self._keep(self.column.checksum.of(data))
        self._rows.append(rows)
        self._sizes.append(len(data))
        self._stored.append(len(stored))


_NOTHING = np.zeros(0, np.uint8)
_NO_OFFSETS = np.zeros(1, np.int32)


class _NativeEncoder:
    """See `PlainEncoder`."""

    def __init__(self, kind: ValueType, block_bytes: int, block_rows: int) -> None:
        self._kind = kind
        self._encoder = native.trevni.BlockEncoder(kind, block_bytes, block_rows)

    def write(self, lengths: Numbers | None, values: pa.Array, entries: Numbers) -> Iterator[Block]:
        row, value = 0, 0
        buffers = _buffers(self._kind, values)
        while row < len(entries) - 1:
            row, value, full = self._encoder.write(lengths, *buffers, entries, row, value)
            if full:
                yield self.take()

    def take(self) -> Block:
        rows = self._encoder.rows
        return Block(self._encoder.take(), rows)


def _buffers(kind: ValueType, values: pa.Array) -> tuple[Any, Any, int]:
    """The values in memory, the offsets of strings, and the number of the first bit."""
    start, count = values.offset, len(values)
    if kind is ValueType.NULL:
        return None, _NO_OFFSETS, 0
    if kind in (ValueType.INT, ValueType.LONG):
        width: Any = np.int32 if kind is ValueType.INT else np.int64
        numbers = np.frombuffer(values.buffers()[1], width, start + count)[start:] if count else np.zeros(0, width)
        return numbers, _NO_OFFSETS, 0
    if not count:
        return _NOTHING, _NO_OFFSETS, 0
    if kind in (ValueType.STRING, ValueType.BYTES):
        _, offsets, data = values.buffers()
        text = _NOTHING if data is None else np.frombuffer(data, np.uint8)
        return text, np.frombuffer(offsets, np.int32, start + count + 1)[start:], 0
    data = np.frombuffer(values.buffers()[1], np.uint8)
    if kind is ValueType.BOOLEAN:
        return data, _NO_OFFSETS, start
    return data[start * WIDTHS[kind] : (start + count) * WIDTHS[kind]], _NO_OFFSETS, 0


def first_value(kind: ValueType, data: bytes) -> bytes:
    """The bytes of the first value of a block without lengths."""
    if kind is ValueType.NULL:
        return b""
    if kind is ValueType.BOOLEAN:
        return bytes([data[0] & 1])
    if (width := WIDTHS.get(kind)) is not None:
        return data[:width]
    end, number = 0, 0
    while data[end] >= 0x80:
        number |= (data[end] & 0x7F) << (7 * end)
        end += 1
    number |= data[end] << (7 * end)
    # The length of a string is not negative, so its zigzag form is twice as large.
    text = kind in (ValueType.STRING, ValueType.BYTES)
    return data[: end + 1 + (number >> 1 if text else 0)]
