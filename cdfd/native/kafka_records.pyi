from numpy import int64, uint8, uint32
from numpy.typing import NDArray

Texts = tuple[NDArray[uint8], NDArray[int64], NDArray[uint8] | None]

def write(
    rows: NDArray[int64],
    keys: Texts | None,
    values: Texts | None,
    fixed: int,
    headers: NDArray[uint8],
    columns: list[tuple[NDArray[uint8], Texts]],
    data: NDArray[uint8],
) -> int: ...
def hashes(data: NDArray[uint8], offsets: NDArray[int64], out: NDArray[uint32]) -> None: ...
