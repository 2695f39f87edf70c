from collections.abc import Sequence

from numpy import float64, int64, uint8
from numpy.typing import NDArray

Cells = tuple[
    int,
    NDArray[uint8],
    NDArray[int64] | None,
    NDArray[uint8] | None,
    bytes,
    bytes,
    int,
    Sequence[int | NDArray[int64]],
]

def write(gaps: list[bytes], columns: list[Cells], row: int, data: NDArray[uint8], offsets: NDArray[int64]) -> int: ...
def are_thousandths(values: NDArray[float64], nulls: NDArray[uint8] | None) -> bool: ...
