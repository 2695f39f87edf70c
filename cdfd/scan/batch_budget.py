"""Limits what a batch gets besides the bytes of its data file.

A few bytes of a log or a file can stand for much: each row gets the partition values, each element of a list the fields that the file lacks,
and each object of a variant the names of its fields.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from cdfd.errors import DataError
from cdfd.runtime import compute as pc
from cdfd.runtime.arrays import to_numpy

BATCH_BYTES = 64 << 20
"""Bytes that a batch of several rows may get. A batch that would get more is divided."""
ROW_BYTES = 512 << 20
"""Bytes that one row may get."""


class BatchBudget:
    """The bytes that a batch may still get.

    Attributes:
        is_exceeded: whether the batch would have got more.

    Args:
        size: of the whole budget.
    """

    def __init__(self, size: int) -> None:
        self.is_exceeded = False
        self._left = self._size = size

    @classmethod
    def of(cls, rows: int) -> "BatchBudget":
        """The budget of a batch of so many rows."""
        return cls(BATCH_BYTES if rows > 1 else ROW_BYTES)

    def check(self, size: int) -> None:
        """DataError if fewer bytes are left. Called before they are allocated."""
        if size > self._left:
            self.is_exceeded = True
            raise DataError(
                f"partition values, fields that the file lacks, wider types and texts of variants take more than {self._size} bytes",
                hint="Write the row in smaller parts, or leave the column out with `columns`",
            )

    def charge(self, size: int) -> None:
        """Take so many bytes from the budget. Raises what `check` does."""
        self.check(size)
        self._left -= size


def text_bytes(value: Any, kind: pa.DataType, rows: int) -> int:
    """Bytes of the text of a partition value in all rows."""
    if value is None or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return 0
    if isinstance(value, pa.RunEndEncodedArray):
        ends = np.clip(to_numpy(value.run_ends).astype(np.int64), value.offset, value.offset + rows)
        lengths = pc.fill_null(pc.binary_length(value.values), 0)
        return int(np.dot(np.diff(ends, prepend=value.offset), to_numpy(lengths)))
    buffer = value.as_buffer()
    return 0 if buffer is None else rows * int(buffer.size)


def null_bits(kind: Any) -> int:
    """Bits that a null takes in an array. A value takes as many, besides its text or its elements."""
    if pa.types.is_struct(kind):
        return 1 + sum(null_bits(kind.field(place).type) for place in range(kind.num_fields))
    try:
        return 1 + int(kind.bit_width)
    except ValueError:  # texts, lists and maps have offsets
        return 33
