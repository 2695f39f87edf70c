"""Rows by `cdfd.runtime.native`, which writes numbers, times, strings and whole rows within rows where they stand.

`native_cells` gives what it prints itself as text, and `binary` as bytes. Other columns are pieces of text
(`cdfd.encode.cells.pieces`), which it copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.runtime import native

if TYPE_CHECKING:
    from cdfd_native.json_rows import Cells as Parts

TEXTS, INTEGERS, UNSIGNED, THOUSANDTHS, DECIMALS, BOOLEANS, STRINGS, DATES, TIMESTAMPS = range(9)
ROWS, VARINTS, FIXED, BYTES, UNSCALED = range(9, 14)
"""Kinds of cells, as `cdfd_native.json_rows` numbers them."""

_NUMBER_BYTES = 24
"""Bytes of a number or a time, about: the first guess."""
_SPARE = 4096

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The cells of one column as values that are printed row by row.

    Attributes:
        kind: of the values.
        values: of the rows; the bytes of all strings.
        nulls: which rows are null, or None if none is.
        offsets: of strings.
        number: digits after the point, number of the first bit, whether a time has a zone, how many bytes each value has, or the form of
            integers and lengths (`cdfd.encode.cells.pieces.Form`).
        opening: what precedes every cell that is not null.
        closing: what follows every cell that is not null.
        null: the cell that is null.
    """

    constant: ClassVar[None] = None

    kind: int
    values: npt.NDArray[Any]
    nulls: npt.NDArray[np.bool_] | None = None
    offsets: Integers | None = None
    number: int = 0
    opening: bytes = b""
    closing: bytes = b""
    null: bytes = b"null"

    def quote(self) -> Cells:
        """The same in quotes."""
        return replace(self, opening=b'"', closing=b'"')

    def size(self, rows: int) -> int:
        """Bytes of all cells, about."""
        marks = rows * (len(self.opening) + len(self.closing))
        if self.offsets is not None:
            return int(self.offsets[-1] - self.offsets[0]) + marks
        return rows * _NUMBER_BYTES + marks


def write_rows(gaps: list[bytes], columns: list[Parts], rows: int, size: int) -> tuple[Integers, pa.Buffer]:
    """Rows: gap 0, the cell of column 0, gap 1 and so on. Their offsets and bytes.

    Args:
        gaps: one more than columns.
        columns: their cells.
        rows: how many.
        size: bytes of all cells, about.
    """
    # Memory that was in use before, if possible: the system clears each new page, which takes as long as writing rows into it. jemalloc
    # returns buffers of 8 MiB at once, and keeps more of the smaller ones than malloc does.
    room = size + rows * sum(map(len, gaps)) + _SPARE
    data = pa.allocate_buffer(room, pa.system_memory_pool(), resizable=True)
    offsets = np.zeros(rows + 1, np.int64)
    row = native.json_rows.write(gaps, columns, 0, np.frombuffer(data, np.uint8), offsets)
    while row < rows:
        data.resize(data.size + data.size // 2 + _SPARE)
        row = native.json_rows.write(gaps, columns, row, np.frombuffer(data, np.uint8), offsets)
    data.resize(int(offsets[-1]), shrink_to_fit=False)
    return offsets, data
