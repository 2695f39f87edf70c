"""One column's lengths and values, in order: loads some blocks at once, and gives away what the next rows have of them."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.trevni.blocks import BlockTable
from cdfd.trevni.source import Source
from cdfd.trevni.values import decoding
from cdfd.trevni.values.lengths import Decoded, Lengths, Numbers
from cdfd.trevni.values.value_types import ValueType

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
        self._row = row
        # The bits of a block do not say how many there are where a parent has the lengths.
        self._apart = self.column.type is ValueType.BOOLEAN and self.column.parent is not None and not self.column.array

    @property
    def row(self) -> int:
        """The next row."""
        return self._row

    @property
    def piece_end(self) -> int:
        """The row at which what is decoded together ends."""
        return self._pieces[0].end if self._pieces else self._row

    @property
    def loaded(self) -> int:
        """The row up to which blocks are loaded."""
        return int(self.table.first_rows[self._block])

    def load(self, row: int) -> None:
        """Read and decode blocks up to a row. May run in a thread, one for each column at a time.

        Raises:
            TrevniError: a block is damaged, or the file ends before.
        """
        last = min(int(np.searchsorted(self.table.first_rows, row)), len(self.table))
        while self._block < last:
            ends = np.cumsum(self.table.sizes[self._block : last])
            together = 1 if self._apart else max(1, int(np.searchsorted(ends, decoding.LARGEST, "right")))
            self._append(self._block, self._block + together)
            self._block += together

    def _append(self, first: int, last: int) -> None:
        try:
            decoded = self._decoded(first, last)
        except TrevniError as error:
            block = first if error.block is None else error.block
            raise error.at(column=self.column.name, block=block, offset=int(self.table.starts[block])) from None
        size = int(self.table.sizes[first:last].sum())
        piece = _Piece(decoded, (first, last), int(self.table.first_rows[last]), 0, 0, size)
        self._pieces.append(piece)
        begin = int(self.table.first_rows[first])
        if begin < self._row and len(self._pieces) == 1 and self.column.parent is None:
            self._skip(piece, self._row - begin)

    def _decoded(self, first: int, last: int) -> Decoded:
        decoder = decoding.decoder(self.table, first, last, runs=self._runs)
        begins = self.table.starts[first:last]
        ends = begins + self.table.stored[first:last] + self.column.checksum.size
        start = first
        while start < last:
            # As many blocks as are read in one step, which has one block at least.
            begin = int(begins[start - first])
            stop = max(start + 1, first + int(np.searchsorted(ends, begin + self._source.step, "right")))
            decoder.append(self._source.bytes_at(begin, int(ends[stop - first - 1]) - begin), start, stop)
            start = stop
        return decoder.finish()

    def _skip(self, piece: _Piece, entries: int) -> None:
        if piece.decoded.lengths is not None:
            piece.value = piece.decoded.lengths.total(0, entries)
        piece.entry = entries

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
        lengths = piece.decoded.lengths
        if lengths is not None:
            left = len(lengths) - piece.entry
        elif self.column.type is ValueType.NULL:
            return
        else:
            left = len(piece.decoded.values) - piece.entry
        if entries > left:
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
        first, piece.entry = piece.entry, piece.entry + entries
        if piece.decoded.lengths is not None:
            found = self._take_arrays(piece, piece.decoded.lengths, first)
        elif self.column.type is ValueType.NULL:
            found = Slice(None, pa.nulls(entries))
        else:
            found = Slice(None, piece.decoded.values.slice(first, entries))
        self._row = row
        if row == piece.end:
            self._finish(piece)
        return found

    def _take_arrays(self, piece: _Piece, lengths: Lengths, first: int) -> Slice:
        entries = piece.entry - first
        if lengths.ends is not None and entries > UNBACKED + piece.size:
            raise self._wrong(piece, f"a row has {entries} values in the parent, for which the file has no bytes")
        each = lengths.expand(first, piece.entry)
        count = int(each.sum())
        at, piece.value = piece.value, piece.value + count
        if self.column.type is ValueType.NULL:
            return Slice(each, pa.nulls(count))
        return Slice(each, piece.decoded.values.slice(at, count))

    def _finish(self, piece: _Piece) -> None:
        """Check that nothing is left of the decoded blocks, and forget them."""
        lengths, values = piece.decoded.lengths, len(piece.decoded.values)
        if lengths is not None:
            left = len(lengths) - piece.entry
        elif self.column.type is ValueType.NULL:
            left = 0
        else:
            left = values - piece.entry
            left = 0 if self._apart and left < 8 else left
        if left:
            raise self._wrong(piece, f"{left} values are left after the blocks' rows")
        self._pieces.popleft()

    def _wrong(self, piece: _Piece, what: str) -> TrevniError:
        block = piece.blocks[0]
        return TrevniError(what).at(column=self.column.name, block=block, offset=int(self.table.starts[block]))
