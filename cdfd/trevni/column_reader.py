"""One column's lengths and values, in order: loads some blocks at once, and gives away what the next rows have of them.

Blocks of a column -> lengths and Arrow arrays of values, by `cdfd_native` where it is installed.

[lengths and values of block 0][those of block 1] ...  ->  lengths (of array columns), and values
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.runtime import native
from cdfd.trevni.blocks import BlockTable
from cdfd.trevni.checksums import Checksum
from cdfd.trevni.codecs import Codec
from cdfd.trevni.source import Source
from cdfd.trevni.values.lengths import Decoded, Lengths, Numbers
from cdfd.trevni.values.plain_decoding import PlainDecoder
from cdfd.trevni.values.value_types import ARROW, WIDTHS, ValueType

UNBACKED = 4 << 20
"""Lengths and values of some rows, at most, that no bytes of the file stand for: runs of lengths, and nulls."""


class Slice(NamedTuple):
    """Lengths, if it is an array column, and values of some rows in a column."""

    lengths: Numbers | None
    values: pa.Array


@dataclass(slots=True, eq=False)
class _Piece:
    """Decoded blocks.

    Attributes:
        blocks: numbers of the first block, and of the first after the last.
        end: number of the first row after the last.
        entry: first length that is left, or value if there are no lengths.
        value: first value that is left.
        size: bytes of the blocks.
    """

    decoded: Decoded
    blocks: tuple[int, int]
    end: int
    entry: int
    value: int
    size: int


class ColumnReader:
    """Reads one column forwards.

    Args:
        source: the file.
        table: the column's blocks.
        block: the first to read.
        row: the first row to read; the block's first row for columns with a parent.
        runs: whether lengths may have runs.
    """

    def __init__(self, source: Source, table: BlockTable, block: int, row: int, *, runs: bool) -> None:
        self._source = source
        self.table = table
        self.column = table.column
        self._runs = runs
        self._block = block
        self._pieces: deque[_Piece] = deque()
        self.row = row
        """The next row."""
        # The bits of a block do not say how many there are where a parent has the lengths.
        self._apart = self.column.type is ValueType.BOOLEAN and self.column.parent is not None and not self.column.array

    @property
    def piece_end(self) -> int:
        """The row at which what is decoded together ends."""
        return self._pieces[0].end if self._pieces else self.row

    @property
    def loaded(self) -> int:
        """The row up to which blocks are loaded."""
        return int(self.table.first_rows[self._block])

    def size_until(self, row: int) -> int:
        """Bytes of the blocks that are decoded, and of those to decode up to a row."""
        last = min(int(np.searchsorted(self.table.first_rows, row)), len(self.table))
        return sum(piece.size for piece in self._pieces) + int(self.table.sizes[self._block : last].sum())

    def size_at(self, row: int) -> int:
        """Bytes of the block that has a row."""
        block = self.table.block_of(row)
        return int(self.table.sizes[block]) if block < len(self.table) else 0

    def load(self, row: int) -> None:
        """Read and decode blocks up to a row. May run in a thread, one for each column at a time.

        Raises:
            TrevniError: a block is damaged, or the file ends before.
        """
        last = min(int(np.searchsorted(self.table.first_rows, row)), len(self.table))
        while self._block < last:
            ends = np.cumsum(self.table.sizes[self._block : last])
            together = max(1, int(np.searchsorted(ends, LARGEST, "right")))
            if self._apart or not self.table.can_have_sizes(self._block, self._block + together):
                together = 1
            self._append(self._block, self._block + together)
            self._block += together

    def _append(self, first: int, last: int) -> None:
        try:
            decoder = block_decoder(self.table, first, last, runs=self._runs)
            begins = self.table.starts[first:last]
            ends = begins + self.table.stored[first:last] + self.column.checksum.size
            start = first
            while start < last:
                # As many blocks as are read in one step, which has one block at least.
                begin = int(begins[start - first])
                stop = max(start + 1, first + int(np.searchsorted(ends, begin + self._source.step, "right")))
                decoder.append(self._source.bytes_at(begin, int(ends[stop - first - 1]) - begin), start, stop)
                start = stop
            decoded = decoder.finish()
        except TrevniError as error:
            block = first if error.block is None else error.block
            raise error.at(column=self.column.name, block=block, offset=int(self.table.starts[block])) from None
        size = int(self.table.sizes[first:last].sum())
        piece = _Piece(decoded, (first, last), int(self.table.first_rows[last]), 0, 0, size)
        self._pieces.append(piece)
        begin = int(self.table.first_rows[first])
        if begin < self.row and len(self._pieces) == 1 and self.column.parent is None:
            piece.entry = self.row - begin
            if decoded.lengths is not None:
                piece.value = decoded.lengths.total(0, piece.entry)

    def total(self, entries: int) -> int:
        """The sum of the next lengths."""
        piece = self._pieces[0]
        assert piece.decoded.lengths is not None
        return piece.decoded.lengths.total(piece.entry, piece.entry + entries)

    def available(self, entries: int) -> None:
        """Check that the decoded blocks have that many more lengths or values.

        Raises:
            TrevniError: they do not.
        """
        piece = self._pieces[0]
        left = self._left(piece)
        if left is not None and entries > left:
            raise self._wrong(piece, f"the rows have {entries} values in the parent, and {left} are left")

    def take(self, row: int, entries: int) -> Slice:
        """The next lengths and values.

        Args:
            row: up to which they are, which is not beyond `piece_end`.
            entries: how many lengths, or values if there are none, those rows have.

        Raises:
            TrevniError: the blocks have more or fewer.
        """
        self.available(entries)
        piece = self._pieces[0]
        lengths, first = piece.decoded.lengths, piece.entry
        piece.entry += entries
        if lengths is None:
            each, value, count = None, first, entries
        else:
            if lengths.ends is not None and entries > UNBACKED + piece.size:
                raise self._wrong(piece, f"a row has {entries} values in the parent, for which the file has no bytes")
            each = lengths.expand(first, piece.entry)
            value, count = piece.value, int(each.sum())
            piece.value += count
        is_null = self.column.type is ValueType.NULL
        column_slice = Slice(each, pa.nulls(count) if is_null else piece.decoded.values.slice(value, count))
        self.row = row
        if row == piece.end:
            left = self._left(piece)
            # If the blocks do not say how many bits are values, up to seven others fill the last byte.
            if left and not (self._apart and left < 8):
                raise self._wrong(piece, f"{left} values are left after the blocks' rows")
            self._pieces.popleft()
        return column_slice

    def _left(self, piece: _Piece) -> int | None:
        """Lengths that are left, or values if there are no lengths; None for nulls, which no bytes count."""
        if piece.decoded.lengths is not None:
            return len(piece.decoded.lengths) - piece.entry
        return None if self.column.type is ValueType.NULL else len(piece.decoded.values) - piece.entry

    def _wrong(self, piece: _Piece, what: str) -> TrevniError:
        block = piece.blocks[0]
        return TrevniError(what).at(column=self.column.name, block=block, offset=int(self.table.starts[block]))


LARGEST = np.iinfo(np.int32).max - 64
"""Bytes of blocks that are decoded together, at most. One block may have more: all that a descriptor can announce."""
_SPARE = 65_536
"""Lengths that a few bytes may stand for. Runs of more are kept as runs."""
_TEXT_SLACK = 32
"""Short strings are copied as 32 bytes."""


Decoder: TypeAlias = "_NativeDecoder | _DoubtfulDecoder | PlainDecoder"


def block_decoder(table: BlockTable, first: int, last: int, *, runs: bool) -> Decoder:
    """Decodes the blocks `[first, last)`. A block that cannot have its declared size, as far as its codec says, comes alone.

    Args:
        table: the column's blocks.
        first: number of the first block.
        last: number of the block after the last.
        runs: whether lengths may have runs.
    """
    if not native.built:
        return PlainDecoder(table, runs=runs)
    if table.can_have_sizes(first, last):
        return _NativeDecoder(table, first, last, runs=runs)
    return _DoubtfulDecoder(table, runs=runs)


class _DoubtfulDecoder:
    """See `PlainDecoder`. The native decoder makes arrays for all values at first, so this one decompresses a block before, step by step."""

    def __init__(self, table: BlockTable, *, runs: bool) -> None:
        self._table = table
        self._runs = runs

    def append(self, data: memoryview, first: int, last: int) -> None:
        assert last == first + 1
        block = self._table.read_block(data, first)
        column = replace(self._table.column, codec=Codec.NULL, checksum=Checksum.NULL)
        table = replace(self._table, column=column, stored=self._table.sizes)
        self._decoder = _NativeDecoder(table, first, last, runs=self._runs)
        self._decoder.append(memoryview(block), first, last)

    def finish(self) -> Decoded:
        return self._decoder.finish()


class _NativeDecoder:
    """See `PlainDecoder`."""

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
