"""Blocks of a column -> lengths and Arrow arrays of values, value by value: where `cdfd_native` is not installed."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.trevni.blocks import BlockTable
from cdfd.trevni.values.lengths import Decoded, Lengths
from cdfd.trevni.values.value_types import ARROW, WIDTHS, ValueType

_LONGEST_INT = 5
_LONGEST_LONG = 10


class _Block:
    """The bytes of a block, read one after the other."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = bytes(data)
        self.at = 0

    def __len__(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if size > len(self):
            raise TrevniError("the block ends within a value")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, longest: int) -> int:
        """A number of variable length: 80 01 -> 128 -> 64. An int has five bytes and 32 bits, a long ten and 64."""
        data, at = self.data, self.at
        if at == len(data):
            raise TrevniError("the block ends within a value")
        number = shift = 0
        for byte in data[at : at + longest]:
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                bits = 32 if longest == _LONGEST_INT else 64
                if number >> bits:
                    raise TrevniError(f"a number has more than {bits} bits")
                self.at = at
                return (number >> 1) ^ -(number & 1)
            shift += 7
        if shift < 7 * longest:
            raise TrevniError("the block ends within a number")
        raise TrevniError(f"a number has more than {longest} bytes")


class PlainDecoder:
    """Decodes consecutive blocks of a column."""

    def __init__(self, table: BlockTable, *, runs: bool) -> None:
        self._table = table
        self._runs = runs
        self._kind = table.column.type
        self._numbers = array("q")
        # Numbers, text, the bytes of numbers of fixed size, or a byte for each bit.
        self._integers = array("i" if self._kind is ValueType.INT else "q")
        self._bytes = bytearray()
        self._offsets = array("i", [0])

    def append(self, data: memoryview, first: int, last: int) -> None:
        """Decode the blocks `[first, last)`, which follow those before.

        Args:
            data: the stored bytes of these blocks, with their checksums.
            first: number of the first block in its table.
            last: number of the block after the last.

        Raises:
            TrevniError: a block is damaged; it names the block.
        """
        table, column = self._table, self._table.column
        begin = int(table.starts[first])
        for number in range(first, last):
            start = int(table.starts[number]) - begin
            end = start + int(table.stored[number]) + column.checksum.size
            block = _Block(table.read_block(data[start:end], number))
            rows = int(table.rows[number]) if column.parent is None else None
            offset = len(self._offsets) - 1
            try:
                if column.array:
                    self._read_arrays(block, rows)
                else:
                    self._read_values(block, rows)
                if self._kind is ValueType.STRING:
                    for begins, ends in pairwise(self._offsets[offset:]):
                        self._bytes[begins:ends].decode()
            except UnicodeDecodeError:
                raise TrevniError("a string is not UTF-8").at(block=number) from None
            except TrevniError as error:
                raise error.at(block=number) from None

    def _read_arrays(self, block: _Block, rows: int | None) -> None:
        """Lengths, and the values behind each. A negative number is a run of lengths 0 or 1: -1 is two zeros, -2 two ones."""
        lengths = 0
        while len(block):
            number = block.number(_LONGEST_INT)
            if number < 0 and not self._runs:
                raise TrevniError("an array has a negative length")
            covered = 1 if number >= 0 else ((1 - number) >> 1) + 1
            count = number if number >= 0 else covered * ((number + 1) & 1)
            self._numbers.append(number)
            lengths += covered
            if self._kind is ValueType.BOOLEAN:
                self._read_bits(block, count, run=number < 0)
            elif self._kind is not ValueType.NULL:
                for _ in range(count):
                    self._read_value(block)
        if rows is not None and lengths != rows:
            raise TrevniError(f"the block has {lengths} lengths for {rows} rows")

    def _read_values(self, block: _Block, rows: int | None) -> None:
        if self._kind is ValueType.NULL:
            if len(block):
                raise TrevniError("a block of nulls has data")
            return
        if self._kind is ValueType.BOOLEAN:
            if rows is not None and len(block) != (rows + 7) >> 3:
                raise TrevniError(f"the block has {len(block)} bytes for {rows} bits")
            self._read_bits(block, 8 * len(block) if rows is None else rows, run=False)
            return
        count = 0
        while len(block) and count != rows:
            self._read_value(block)
            count += 1
        if len(block):
            raise TrevniError(f"the block has more than {rows} values for {rows} rows")
        if rows is not None and count < rows:
            raise TrevniError(f"the block has {count} values for {rows} rows")

    def _read_value(self, block: _Block) -> None:
        match self._kind:
            case ValueType.INT:
                self._integers.append(block.number(_LONGEST_INT))
            case ValueType.LONG:
                self._integers.append(block.number(_LONGEST_LONG))
            case ValueType.STRING | ValueType.BYTES:
                size = block.number(_LONGEST_INT)
                if size < 0:
                    raise TrevniError("the length of a string is negative")
                self._bytes += block.take(size)
                self._offsets.append(len(self._bytes))
            case kind:
                self._bytes += block.take(WIDTHS[kind])

    def _read_bits(self, block: _Block, count: int, *, run: bool) -> None:
        """Bits behind a length, the lowest first. Each of a run has a byte of its own."""
        if run:
            self._bytes += bytes(byte & 1 for byte in block.take(count))
            return
        bits = np.unpackbits(np.frombuffer(block.take((count + 7) >> 3), np.uint8), count=count, bitorder="little")
        self._bytes += bits.tobytes()

    def finish(self) -> Decoded:
        """The content of all blocks."""
        lengths = Lengths.of(np.frombuffer(self._numbers, np.int64)) if self._table.column.array else None
        kind, data = self._kind, pa.py_buffer(self._bytes)
        match kind:
            case ValueType.NULL:
                return Decoded(lengths, pa.nulls(0))
            case ValueType.BOOLEAN:
                return Decoded(lengths, pa.array(np.frombuffer(self._bytes, np.bool_)))
            case ValueType.INT | ValueType.LONG:
                count, buffers = len(self._integers), [None, pa.py_buffer(self._integers)]
            case ValueType.STRING | ValueType.BYTES:
                count, buffers = len(self._offsets) - 1, [None, pa.py_buffer(self._offsets), data]
            case _:
                count, buffers = len(self._bytes) // WIDTHS[kind], [None, data]
        return Decoded(lengths, pa.Array.from_buffers(ARROW[kind], count, buffers))
