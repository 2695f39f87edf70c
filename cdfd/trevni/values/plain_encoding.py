"""Lengths and values of a column -> the bytes of blocks, value by value: where `cdfd_native` is not installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cdfd.trevni.source import long_bytes, sized_bytes
from cdfd.trevni.values.lengths import Numbers
from cdfd.trevni.values.value_types import WIDTHS, ValueType


class Block(NamedTuple):
    """The bytes of a block before its codec is applied, and its rows."""

    data: bytes
    rows: int


class PlainEncoder:
    """Encodes the rows of a column, block by block. Keeps a block that is not full until there are more rows.

    Args:
        kind: of the values.
        block_bytes: size from which a block ends. Lengths that continue a run take none.
        block_rows: rows of a block, at most.
    """

    def __init__(self, kind: ValueType, block_bytes: int, block_rows: int) -> None:
        self._kind = kind
        self._block_bytes = block_bytes
        self._block_rows = block_rows
        # Only null columns have runs of ones: a value ends a run.
        self._repeatable = (0, 1) if kind is ValueType.NULL else (0,)
        self._data = bytearray()
        self._weight = 0
        self._bits = 0
        self._run, self._repeated = 0, 0
        self._rows = 0

    def write(self, lengths: Numbers | None, values: pa.Array, entries: Numbers) -> Iterator[Block]:
        """Append rows, as `ColumnWriter.write` does, and give away the blocks that are full."""
        items = _items(self._kind, values)
        numbers = None if lengths is None else lengths.tolist()
        value = 0
        for start, end in pairwise(entries.tolist()):
            if numbers is None:
                self._put(items[start:end])
                self._weight = len(self._data)
            else:
                for length in numbers[start:end]:
                    self._put_array(length, items[value : value + length])
                    value += length
            self._rows += 1
            if self._weight >= self._block_bytes or self._rows >= self._block_rows:
                yield self.take()

    def take(self) -> Block:
        """The rows so far as a block, which may be less than full."""
        self._end_run()
        block = Block(bytes(self._data), self._rows)
        self._data.clear()
        self._weight = self._bits = self._rows = 0
        return block

    def _put_array(self, length: int, items: Sequence[Any]) -> None:
        if self._run and self._repeated == length:
            self._run += 1
            return
        self._end_run()
        if length in self._repeatable:
            self._run, self._repeated = 1, length
            self._weight += 1
            return
        before = len(self._data)
        self._data += long_bytes(length)
        self._bits = 0
        self._put(items)
        self._weight += len(self._data) - before

    def _end_run(self) -> None:
        """Write the lengths that are alike."""
        if self._run:
            self._data += long_bytes(self._repeated if self._run == 1 else 3 - self._repeated - 2 * self._run)
        self._run = 0

    def _put(self, items: Sequence[Any]) -> None:
        if self._kind is not ValueType.BOOLEAN:
            self._data += b"".join(items)
            return
        for bit in items:
            if self._bits % 8 == 0:
                self._data.append(0)
            self._data[-1] |= bit << (self._bits % 8)
            self._bits += 1


def _items(kind: ValueType, values: pa.Array) -> Sequence[Any]:
    """The bytes of each value; of booleans the bits, whose bytes depend on where a block begins."""
    match kind:
        case ValueType.NULL:
            return ()
        case ValueType.BOOLEAN:
            return [int(value) for value in values.to_pylist()]
        case ValueType.INT | ValueType.LONG:
            return [long_bytes(value) for value in values.to_pylist()]
        case ValueType.STRING | ValueType.BYTES:
            return [sized_bytes(value) for value in values.cast(pa.binary()).to_pylist()]
    data, width = np.ascontiguousarray(values.to_numpy()).tobytes(), WIDTHS[kind]
    return [data[start : start + width] for start in range(0, len(data), width)]
