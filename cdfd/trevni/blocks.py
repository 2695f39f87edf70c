"""The blocks of a column: their descriptors, and the bytes of each (specification, "File Format").

blocks: fixed32 | rows, size, stored size: fixed32 each, and perhaps the first value, for each block | block, checksum | ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cdfd.errors import TrevniError
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.source import Cursor, Source
from cdfd.trevni.values.lengths import Numbers, sums
from cdfd.trevni.values.value_types import ValueType

DESCRIPTOR_BYTES = 12
"""Bytes of a block's descriptor, without a first value."""

Value = bool | int | float | str | bytes | None


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """The blocks of a column.

    Attributes:
        column: that has them.
        rows: of each block.
        first_rows: number of each block's first row, and the number of rows at the end.
        sizes: bytes of each block before its codec is applied.
        stored: bytes of each block in the file, without its checksum.
        starts: position of each block in the file.
        first_values: of each block; None if the column has none.
    """

    column: ColumnMetadata
    rows: Numbers
    first_rows: Numbers
    sizes: Numbers
    stored: Numbers
    starts: Numbers
    first_values: Sequence[Value] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks before their codec is applied."""
        return int(self.sizes.sum())

    @property
    def num_values(self) -> int:
        """Lengths and values that the blocks can have at most. Runs of lengths count as one, and nulls not at all."""
        size = int(np.minimum(self.sizes, self.column.codec.largest(self.stored)).sum())
        return size * (8 if self.column.type is ValueType.BOOLEAN else 1)

    def block_of(self, row: int) -> int:
        """The block that has a row; the number of blocks for a row after the last."""
        if row >= self.first_rows[-1]:
            return len(self)
        return int(np.searchsorted(self.first_rows, row, "right")) - 1

    def can_have_sizes(self, first: int, last: int) -> bool:
        """Whether the blocks `[first, last)` can have the declared sizes. Then as much memory may be taken for all of them at once."""
        most = self.column.codec.largest(self.stored[first:last])
        return bool((self.sizes[first:last] <= most).all())

    def read_block(self, data: memoryview, number: int) -> bytes | memoryview:
        """A block, decompressed and checked.

        Args:
            data: the block's stored bytes, and those of its checksum.
            number: of the block.

        Raises:
            TrevniError: the block is damaged.
        """
        end, column = int(self.stored[number]), self.column
        try:
            block = column.codec.decompress(data[:end], int(self.sizes[number]))
            column.checksum.check(block, data[end:], column.codec)
        except TrevniError as error:
            raise error.at(column=column.name, block=number, offset=int(self.starts[number])) from None
        return block


def read(source: Source, column: ColumnMetadata, start: int, rows: int) -> BlockTable:
    """The blocks of the column that begins at `start`, in a file of that number of rows.

    Raises:
        TrevniError: a descriptor is damaged, blocks end after the file, or have more or fewer rows than it.
    """
    cursor = Cursor(source, start, first=4)
    count = cursor.integer(4)
    if not 0 <= count <= cursor.remaining // DESCRIPTOR_BYTES:
        raise TrevniError(f"the column announces {count} blocks, which the file has no room for").at(offset=start)
    values: list[Value] | None = None
    if column.values:
        cursor = Cursor(source, start + 4)
        values = []
        descriptors = np.empty((count, 3), np.int64)
        for number in range(count):
            descriptors[number] = np.frombuffer(cursor.take(DESCRIPTOR_BYTES), "<i4")
            values.append(_first_value(cursor, column.type))
    else:
        descriptors = np.frombuffer(cursor.take(count * DESCRIPTOR_BYTES), "<i4").reshape(count, 3).astype(np.int64)
    if (negative := np.flatnonzero((descriptors < 0).any(axis=1))).size:
        raise TrevniError("a descriptor has a negative number").at(block=int(negative[0]), offset=start)
    lengths = descriptors[:, 2] + column.checksum.size
    starts = cursor.position + sums(lengths)
    if (late := np.flatnonzero(starts[1:] > source.size)).size:
        block = int(late[0])
        what = f"the block ends at byte {starts[block + 1]}, and the file at byte {source.size}"
        raise TrevniError(what).at(block=block, offset=int(starts[block]))
    first_rows = sums(descriptors[:, 0])
    if first_rows[-1] != rows:
        raise TrevniError(f"the blocks have {first_rows[-1]} rows, and the file has {rows}").at(offset=start)
    counts, sizes, stored = np.ascontiguousarray(descriptors.T)
    return BlockTable(column, counts, first_rows, sizes, stored, starts[:-1], values)


def _first_value(cursor: Cursor, kind: ValueType) -> Value:
    match kind:
        case ValueType.NULL:
            return None
        case ValueType.BOOLEAN:
            return bool(cursor.take(1)[0] & 1)
        case ValueType.INT:
            return cursor.long(5)
        case ValueType.LONG:
            return cursor.long()
        case ValueType.FIXED32:
            return cursor.integer(4)
        case ValueType.FIXED64:
            return cursor.integer(8)
        case ValueType.STRING:
            return cursor.text()
        case ValueType.BYTES:
            return cursor.byte_string()
    width: Any = "<f4" if kind is ValueType.FLOAT else "<f8"
    return float(np.frombuffer(cursor.take(4 if kind is ValueType.FLOAT else 8), width)[0])
