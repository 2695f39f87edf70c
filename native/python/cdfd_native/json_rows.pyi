"""Rows out of columns: JSON objects, arrays and lines, and records of Avro and Protobuf."""

from collections.abc import Sequence
from typing import Any

from numpy import float64, int64, uint8
from numpy.typing import NDArray

Cells = tuple[
    int,
    NDArray[Any],
    NDArray[int64] | None,
    NDArray[uint8] | None,
    tuple[bytes, bytes, bytes],
    int,
    Sequence[int | NDArray[int64]],
    tuple[Sequence[bytes], Sequence["Cells"]] | None,
]
"""The cells of a column.

Their kind; values; the offsets of texts; a mask of nulls; what precedes and what follows a cell that is not null, and a cell that is null;
a number that belongs to the kind; the positions of the pieces of a text, of which there are at most four, or of rows; the gaps and columns of
rows.

| kind | cells                           | values                           | number                   |
|------|---------------------------------|----------------------------------|--------------------------|
| 0    | pieces of text                  | UTF-8, as `uint8`                |                          |
| 1    | integers                        | `int64`                          |                          |
| 2    | integers that are not negative  | `uint64`                         |                          |
| 3    | numbers of at most three decimals | `float64`, see `are_thousandths` |                          |
| 4    | decimals                        | unscaled, `int64`                | digits after the point   |
| 5    | booleans                        | bits, as `uint8`                 | place of the first bit   |
| 6    | strings                         | UTF-8, as `uint8`                |                          |
| 7    | dates                           | days since 1970, `int64`         |                          |
| 8    | timestamps                      | microseconds since 1970, `int64` | 1 for a `Z`, 0 otherwise |
| 9    | rows                            |                                  | the form of their length |
| 10   | varints                         | `int64`                          | their form: 1 is Avro's zigzag, 2 is Protobuf's |
| 11   | bytes of one length             | `uint8`                          | that length              |
| 12   | bytes behind their length       | `uint8`                          | the form of the length; 0 for no length |
| 13   | unscaled decimals behind their length | `int64`                    | the form of the length   |
"""

def write(
    gaps: Sequence[bytes], columns: Sequence[Cells], row: int, data: NDArray[uint8], offsets: NDArray[int64]
) -> int:
    """Write rows from `row` on: gap 0, the cell of column 0, gap 1 and so on, ending with a gap.

    Args:
        gaps: one more than columns.
        columns: their cells.
        row: the first.
        data: gets the text, from `offsets[row]` on.
        offsets: gets where each row ends, at the place after its own. It has a place more than there are rows.

    Returns:
        The row after the last for which there was room.

    Raises:
        ValueError: an offset, an index or a row is not in its array; a time is not in the years 0 to 9999.
        TypeError: an array is of another type, not contiguous or not aligned.
    """

def are_thousandths(values: NDArray[float64], nulls: NDArray[uint8] | None) -> bool:
    """Whether all numbers that are not null have at most three decimals as their shortest text, and not more than 15 digits."""
