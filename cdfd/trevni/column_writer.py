"""Cuts a column into blocks and compresses them. A block ends between rows, from 64 KiB on."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.trevni import encoding, native_encoding
from cdfd.trevni.blocks import descriptor_bytes
from cdfd.trevni.encoding import Encoded
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.native_encoding import Block
from cdfd.trevni.value_types import ValueType
from cdfd.trevni.varints import Numbers

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

    def __init__(self, column: ColumnMetadata, keep: Keep, block_bytes: int = BLOCK_BYTES) -> None:
        self.column = column
        self._keep = keep
        self._block_bytes = block_bytes
        self._rows: list[int] = []
        self._sizes: list[int] = []
        self._stored: list[int] = []
        self._first: list[bytes] = []
        self._ones = column.type is ValueType.NULL
        self._encoder = native_encoding.encoder(column, block_bytes, BLOCK_ROWS)
        # Rows that do not fill a block yet, without an encoder.
        self._lengths: Numbers | None = None
        self._values: pa.Array | None = None
        self._entries: Numbers | None = None

    def write(self, lengths: Numbers | None, values: pa.Array, entries: Numbers) -> None:
        """Append rows.

        Args:
            lengths: of array columns.
            values: without nulls.
            entries: number of lengths, or of values if there are none, before each row, and of all rows.

        Raises:
            TrevniError: a row has more bytes than a block can have.
        """
        if self._encoder is not None:
            for block in native_encoding.full_blocks(self._encoder, self.column.type, lengths, values, entries):
                self._keep_block(block)
            return
        if self._values is not None and self._entries is not None:
            entries = np.concatenate((self._entries, entries[1:] + self._entries[-1]))
            values = pa.concat_arrays([self._values, values])
            if lengths is not None and self._lengths is not None:
                lengths = np.concatenate((self._lengths, lengths))
        self._cut(lengths, values, entries, last=False)

    def finish(self) -> int:
        """Write the last block. Returns the bytes that the column will take."""
        if self._encoder is not None and self._encoder.rows:
            self._keep_block(native_encoding.taken(self._encoder))
        if self._values is not None and self._entries is not None:
            self._cut(self._lengths, self._values, self._entries, last=True)
        return len(self.descriptors()) + sum(self._stored) + self.column.checksum.size * len(self._rows)

    def descriptors(self) -> bytes:
        """The bytes before the blocks."""
        return descriptor_bytes(np.array(self._rows, np.int64), self._sizes, self._stored, self._first)

    def _cut(self, lengths: Numbers | None, values: pa.Array, entries: Numbers, *, last: bool) -> None:
        values_at = None if lengths is None else np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        boolean = self.column.type is ValueType.BOOLEAN
        encoded = None if boolean else encoding.encode(self.column.type, values)
        sizes = self._row_sizes(encoded, lengths, values_at, entries)
        start, rows = 0, len(entries) - 1
        while start < rows:
            continues = lengths is not None and self._continues(lengths, int(entries[start]))
            end = self._end_of_block(sizes, start, self._block_bytes - continues)
            if end > rows:
                if not last:
                    break
                end = rows
            self._block(encoded, lengths, values_at, values, entries, start, end)
            start = end
        self._hold(lengths, values_at, values, entries, start)

    def _hold(
        self, lengths: Numbers | None, values_at: Numbers | None, values: pa.Array, entries: Numbers, start: int
    ) -> None:
        if start == len(entries) - 1:
            self._lengths = self._values = self._entries = None
            return
        first = int(entries[start])
        self._entries = entries[start:] - first
        self._lengths = None if lengths is None else lengths[first:]
        # A slice would keep all values in memory.
        rest = values.slice(first if values_at is None else int(values_at[first]))
        self._values = pa.concat_arrays([rest, rest.slice(0, 0)]) if len(rest) < len(values) else rest

    def _row_sizes(
        self, encoded: Encoded | None, lengths: Numbers | None, values_at: Numbers | None, entries: Numbers
    ) -> Numbers:
        """Bytes before each row, about: runs of lengths take none, as in the reference."""
        if lengths is None or values_at is None:
            return (entries + 7) >> 3 if encoded is None else encoded.bounds[entries]
        sizes = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(encoding.weights(lengths, ones=self._ones), out=sizes[1:])
        sizes += encoding.bounds((lengths + 7) >> 3) if encoded is None else encoded.bounds[values_at]
        found: Numbers = sizes[entries]
        return found

    def _continues(self, lengths: Numbers, entry: int) -> bool:
        """Whether a length continues a run, and so has no bytes in the sizes. It has one where it begins a block."""
        if not 0 < entry < len(lengths) or lengths[entry] != lengths[entry - 1]:
            return False
        return bool(lengths[entry] == 0 or (self._ones and lengths[entry] == 1))

    def _end_of_block(self, sizes: Numbers, start: int, size: int) -> int:
        """The row at which the block ends that begins with row `start`. Beyond the last row if the block is not full."""
        full = int(np.searchsorted(sizes, sizes[start] + size))
        return min(max(full, start + 1), start + BLOCK_ROWS)

    def _block(
        self,
        encoded: Encoded | None,
        lengths: Numbers | None,
        values_at: Numbers | None,
        values: pa.Array,
        entries: Numbers,
        start: int,
        end: int,
    ) -> None:
        a, b = int(entries[start]), int(entries[end])
        if lengths is not None and values_at is not None:
            data = self._array_block(encoded, lengths[a:b], values_at[a : b + 1], values)
        elif encoded is None:
            data = encoding.booleans(values.slice(a, b - a))
        else:
            data = encoded.data[encoded.bounds[a] : encoded.bounds[b]]
        first = _first_value(encoded, data, a) if self.column.values else b""
        self._add(np.ascontiguousarray(data).data, end - start, first)

    def _keep_block(self, block: Block) -> None:
        first = native_encoding.first_value(self.column.type, block.data) if self.column.values else b""
        self._add(block.data, block.rows, first)

    def _add(self, data: bytes | memoryview, rows: int, first: bytes) -> None:
        if len(data) > LARGEST_BLOCK:
            what = f"a block of {rows} rows has {len(data)} bytes, more than a block can have"
            raise TrevniError(what).at(column=self.column.name)
        if self.column.values:
            self._first.append(first)
        stored = self.column.codec.compress(data)
        self._keep(stored)
        self._keep(self.column.checksum.of(data))
        self._rows.append(rows)
        self._sizes.append(len(data))
        self._stored.append(len(stored))

    def _array_block(
        self, encoded: Encoded | None, lengths: Numbers, values_at: Numbers, values: pa.Array
    ) -> np.typing.NDArray[np.uint8]:
        numbers = encoding.tokens(lengths, ones=self._ones)
        if encoded is None:
            some = values.slice(int(values_at[0]), int(values_at[-1] - values_at[0]))
            encoded, values_at = encoding.boolean_arrays(lengths, some), np.arange(len(lengths) + 1)
        return encoding.interleave(numbers, encoded, values_at)


def _first_value(encoded: Encoded | None, data: np.typing.NDArray[np.uint8], first: int) -> bytes:
    if encoded is None:
        return bytes([int(data[0]) & 1])
    return bytes(encoded.data[encoded.bounds[first] : encoded.bounds[first + 1]])
