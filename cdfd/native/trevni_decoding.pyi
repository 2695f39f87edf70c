from collections.abc import Iterable

from numpy import int32, int64, uint8, uint32
from numpy.typing import NDArray

HAS_CRC32: bool

def crc32(data: bytes | memoryview) -> int: ...
def decode(
    blocks: Iterable[bytes | memoryview],
    checksums: NDArray[uint32] | None,
    kind: int,
    width: int,
    lengths: NDArray[int64] | None,
    values: NDArray[uint8],
    offsets: NDArray[int32],
    counts: NDArray[int64],
    runs: bool,
) -> tuple[int, int, int, bool] | None: ...
