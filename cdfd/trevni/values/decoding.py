"""Blocks of a column -> lengths and Arrow arrays of values, by `cdfd_native` where it is installed.

[lengths and values of block 0][those of block 1] ...  ->  lengths (of array columns), and values
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.runtime import native
from cdfd.trevni.blocks import BlockTable
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.values.lengths import Decoded, Lengths
from cdfd.trevni.values.plain_decoding import PlainDecoder
from cdfd.trevni.values.value_types import ARROW, WIDTHS, ValueType

LARGEST = np.iinfo(np.int32).max - 64
"""Bytes of blocks that are decoded together, at most. One block may have more: all that a descriptor can announce."""
_SPARE = 65_536
"""Lengths that a few bytes may stand for. Runs of more are kept as runs."""
_TEXT_SLACK = 32
"""Short strings are copied as 32 bytes."""


class Decoder(Protocol):
    """Decodes consecutive blocks of a column."""

    def append(self, data: memoryview, first: int, last: int) -> None:
        """Decode the blocks `[first, last)`, which follow those before.

        Args:
            data: the stored bytes of these blocks, with their checksums.
            first: number of the first block in its table.
            last: number of the block after the last.

        Raises:
            TrevniError: a block is damaged; it names the block.
        """

    def finish(self) -> Decoded:
        """The content of all blocks."""


def decoder(table: BlockTable, first: int, last: int, *, runs: bool) -> Decoder:
    """Decodes the blocks `[first, last)`.

    Args:
        table: the column's blocks.
        first: number of the first block.
        last: number of the block after the last.
        runs: whether lengths may have runs.
    """
    # Arrays for all values are made before blocks are decompressed. Sizes that cannot be are left to the code that takes memory step by step.
    if native.built and table.can_have_sizes(first, last):
        return _NativeDecoder(table, first, last, runs=runs)
    return PlainDecoder(table, runs=runs)


class _NativeDecoder:
    def __init__(self, table: BlockTable, first: int, last: int, *, runs: bool) -> None:
        self._table = table
        self._first = first
        column, size = table.column, int(table.sizes[first:last].sum())
        counted = column.parent is None
        num_rows = int(table.rows[first:last].sum())
        self._lengths = None
        if column.array:
            room = 4 * size + _SPARE
            self._lengths = np.empty(min(num_rows, room) if counted else room, np.int64)
        # A number or string has a byte at least.
        most = min(size, num_rows) if column.plain else size
        self._text = column.type in (ValueType.STRING, ValueType.BYTES)
        self._offsets = np.empty(most + 1 if self._text else 1, np.int32)
        self._offsets[0] = 0
        self._values: Any = None
        match column.type:
            case ValueType.NULL:
                pass
            case ValueType.INT:
                self._values = np.empty(most, np.int32)
            case ValueType.LONG:
                self._values = np.empty(most, np.int64)
            case _:
                self._values = np.empty(size + (_TEXT_SLACK if self._text else 0), np.uint8)
        self._decoder = native.trevni.BlockDecoder(
            column.type,
            self._lengths,
            self._values,
            self._offsets,
            codec=column.codec,
            crc32=column.checksum is Checksum.CRC32,
            counted=counted,
            runs=runs,
        )

    def append(self, data: memoryview, first: int, last: int) -> None:
        table = self._table
        starts = table.starts[first:last] - table.starts[first]
        numbers = (starts, table.stored[first:last], table.sizes[first:last], table.rows[first:last])
        try:
            self._decoder.append(np.frombuffer(data, np.uint8), *numbers)
        except ValueError as error:
            what, block = error.args
            raise TrevniError(what).at(block=self._first + block) from None

    def finish(self) -> Decoded:
        kind = self._table.column.type
        num_lengths, num_values, num_bytes, kept = self._decoder.finish()
        lengths = None
        if self._lengths is not None:
            if kept is None:
                self._lengths.resize(num_lengths, refcheck=False)
            lengths = Lengths(self._lengths) if kept is None else Lengths(*kept)
        if self._values is None:
            return Decoded(lengths, pa.nulls(0))
        if self._text:
            self._values.resize(num_bytes, refcheck=False)
            self._offsets.resize(num_values + 1, refcheck=False)
            buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._values)]
        else:
            items = (num_values + 7) // 8 if kind is ValueType.BOOLEAN else num_values * WIDTHS.get(kind, 1)
            self._values.resize(items, refcheck=False)
            buffers = [None, pa.py_buffer(self._values)]
        return Decoded(lengths, pa.Array.from_buffers(ARROW[kind], num_values, buffers))
