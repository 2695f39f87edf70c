"""Cuts a column into blocks and compresses them. A block ends between rows, from 64 KiB on."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.trevni.blocks import descriptor_bytes
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.values import encoding
from cdfd.trevni.values.lengths import Numbers
from cdfd.trevni.values.plain_encoding import Block

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
        self._rows: list[int] = []
        self._sizes: list[int] = []
        self._stored: list[int] = []
        self._first: list[bytes] = []
        self._encoder = encoding.encoder(column.type, block_bytes, BLOCK_ROWS)

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
        return descriptor_bytes(np.array(self._rows, np.int64), self._sizes, self._stored, self._first)

    def _keep_block(self, block: Block) -> None:
        data, rows = block
        if len(data) > LARGEST_BLOCK:
            what = f"a block of {rows} rows has {len(data)} bytes, more than a block can have"
            raise TrevniError(what).at(column=self.column.name)
        if self.column.values:
            self._first.append(encoding.first_value(self.column.type, data))
        stored = self.column.codec.compress(data)
        self._keep(stored)
        self._keep(self.column.checksum.of(data))
        self._rows.append(rows)
        self._sizes.append(len(data))
        self._stored.append(len(stored))
