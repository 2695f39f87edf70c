"""Limits what a batch gets besides the bytes of its data file.

A few bytes of a log or a file can stand for much: each row gets the partition values, each element of a list the fields that the file lacks,
and each object of a variant the names of its fields.
"""

from cdfd.errors import DataError

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
