"""Blocks of Trevni columns."""

from typing import Any

import numpy as np
import numpy.typing as npt

class BlockDecoder:
    """Decodes the blocks of a column into arrays.

    Args:
        kind: a type's name, as a file has it.
        lengths: gets the lengths of an array column; None for others.
        values: gets int32 for int, int64 for long, and uint8 for others: the bytes of numbers of fixed size, text, or bits. None for null.
        offsets: gets where each string ends; its first is set by the caller.
        codec: its name, as a file has it.
        crc32: whether blocks have a checksum behind them.
        counted: whether a block's rows say how many lengths, or values if there are none, it has.
        runs: whether lengths may have runs.
    """

    def __new__(
        cls,
        kind: str,
        lengths: npt.NDArray[np.int64] | None,
        values: npt.NDArray[Any] | None,
        offsets: npt.NDArray[np.int32],
        *,
        codec: str,
        crc32: bool,
        counted: bool,
        runs: bool,
    ) -> BlockDecoder: ...
    def append(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        stored: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Decode more blocks, without the interpreter's lock.

        Args:
            data: bytes of the file.
            starts: of each block in `data`.
            stored: bytes of each block in `data`.
            sizes: bytes of each block when it is decompressed.
            rows: of each block.

        Raises:
            ValueError: a block is damaged. Its arguments are the reason, and the block's number, counted from the first of all.
        """

    def finish(self) -> tuple[int, int, int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None]:
        """How many lengths, values, and bytes of text there are; and lengths for which there was no room, as `Lengths` keeps runs."""

class BlockEncoder:
    """Encodes the rows of a column, block by block. Keeps a block that is not full until there are more rows.

    Args:
        kind: a type's name, as a file has it.
        block_bytes: size from which a block ends. Lengths that continue a run take none.
        block_rows: rows of a block, at most.
    """

    @property
    def rows(self) -> int:
        """Of the block so far."""

    def __new__(cls, kind: str, block_bytes: int, block_rows: int) -> BlockEncoder: ...
    def write(
        self,
        lengths: npt.NDArray[np.int64] | None,
        values: npt.NDArray[Any] | None,
        offsets: npt.NDArray[np.int32],
        first: int,
        entries: npt.NDArray[np.int64],
        row: int,
        value: int,
    ) -> tuple[int, int, bool]:
        """Append rows from `row` on, until the block is full or they end, without the interpreter's lock.

        Args:
            lengths: of an array column; None for others.
            values: as for `BlockDecoder`.
            offsets: of strings.
            first: number of the first bit.
            entries: number of lengths, or of values if there are none, before each row, and of all rows.
            row: the first to append.
            value: the first of an array column.

        Returns:
            The row and the value after the last that was appended, and whether the block is full.

        Raises:
            ValueError: there are fewer values than `lengths` or `entries` say.
        """

    def take(self) -> bytes:
        """The block so far, and begin the next one."""
