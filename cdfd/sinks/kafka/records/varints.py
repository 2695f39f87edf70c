"""Variable-length integers of Kafka's records (zigzag, as in Protocol Buffers), for whole columns at once.

0 -> 00    -1 -> 01    1 -> 02    63 -> 7e    64 -> 80 01    8192 -> 80 80 01
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdfd.encoding.pieces import Integers, pool_from_parts

# Limits of 1, 2, 3 and 4 bytes.
_LIMITS = (1 << 7, 1 << 14, 1 << 21, 1 << 28)

_BYTES = [bytes([value]) for value in range(1 << 7)]


def sizes(values: Integers) -> Integers:
    """The encoded size of each value in bytes. The values have at most 32 bits."""
    return 1 + np.searchsorted(_LIMITS, _zigzag(values), side="right")


def varint(value: int) -> bytes:
    """One encoded value."""
    unsigned = value << 1 ^ value >> 63
    if unsigned < 0x80:
        return _BYTES[unsigned]
    encoded = bytearray()
    while unsigned >= 0x80:
        encoded.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    encoded.append(unsigned)
    return bytes(encoded)


def texts(values: Integers, before: bytes = b"") -> pa.Array:
    """The encoded values as a pool of texts, each with the prefix `before`."""
    unsigned = _zigzag(values).astype(np.uint32)
    lengths = sizes(values)
    width, start = int(lengths.max(initial=1)), len(before)
    cells = np.empty((len(values), start + width), np.uint8)
    cells[:, :start] = np.frombuffer(before, np.uint8)
    for place in range(width):
        more = np.where(lengths > place + 1, np.uint8(0x80), np.uint8(0))
        cells[:, start + place] = ((unsigned >> np.uint32(7 * place)) & np.uint32(0x7F)).astype(np.uint8) | more
    if int(lengths.min(initial=width)) < width:
        used: npt.NDArray[np.bool_] = np.arange(start + width) < (start + lengths)[:, np.newaxis]
        return pool_from_parts(np.concatenate(([0], np.cumsum(start + lengths))), cells[used])
    return pool_from_parts(np.arange(len(values) + 1) * (start + width), cells.reshape(-1))


def _zigzag(values: Integers) -> Integers:
    return values << 1 ^ values >> 63
