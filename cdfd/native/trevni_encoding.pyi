from numpy import int32, int64, uint8
from numpy.typing import NDArray

class BlockEncoder:
    rows: int

    def __init__(self, kind: int, width: int, block_bytes: int, block_rows: int, ones: bool) -> None: ...
    def write(
        self,
        lengths: NDArray[int64] | None,
        values: NDArray[uint8],
        offsets: NDArray[int32],
        first: int,
        entries: NDArray[int64],
        row: int,
        value: int,
    ) -> tuple[int, int, bool]: ...
    def take(self) -> bytes: ...
