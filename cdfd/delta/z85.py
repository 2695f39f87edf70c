"""Z85, the Base85 of ZeroMQ (RFC 32): four bytes, big-endian, as five digits.

Source: specification, "Deletion Vector Descriptor Schema".
"""

import numpy as np

from cdfd.errors import DataError

_DIGITS = np.frombuffer(
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
    dtype=np.uint8,
)
_NOT_A_DIGIT = 255
_VALUES = np.full(256, _NOT_A_DIGIT, dtype=np.uint8)
_VALUES[_DIGITS] = np.arange(85, dtype=np.uint8)
_WEIGHTS = np.array([85**4, 85**3, 85**2, 85, 1], dtype=np.uint64)
_HASH = 84


def encode(data: bytes) -> str:
    """Text of five characters for every four bytes; zero bytes fill up what is missing to a multiple of four."""
    padded = data + bytes(-len(data) % 4)
    words = np.frombuffer(padded, dtype=">u4").astype(np.uint64)
    return str(_DIGITS[words[:, None] // _WEIGHTS % np.uint64(85)].tobytes(), "ascii")


def decode(text: str) -> bytes:
    """The bytes of a Z85 text, filled up to a multiple of four as the writer did it.

    The last five characters may begin with one to three `#`, which no full group can: each stands for a byte that is
    missing at the end (`##093` is the two bytes 03 00). That is how the `z85` crate of Rust pads, hence some writers.

    Raises:
        DataError: a length that is not a multiple of five, a character that is no digit, a group that exceeds four
            bytes.
    """
    if len(text) % 5 or not text.isascii():
        raise DataError(f"Z85 text of {len(text)} characters is not made of groups of five ASCII characters")
    digits = _VALUES[np.frombuffer(text.encode("ascii"), dtype=np.uint8)].reshape(-1, 5)
    if np.any(digits == _NOT_A_DIGIT):
        raise DataError("Z85 text has a character that is not a digit of Z85")
    missing = 0
    while len(digits) and missing < 3 and digits[-1, missing] == _HASH:  # a fourth would be a digit
        missing += 1
    if missing:
        digits = digits.copy()
        digits[-1, :missing] = 0
    words = digits.astype(np.uint64) @ _WEIGHTS
    full = words[:-1] if missing else words
    if np.any(full >> np.uint64(32)) or (missing and int(words[-1]) >> 8 * (4 - missing)):
        raise DataError("Z85 text has a group that is larger than the bytes it stands for")
    data = full.astype(">u4").tobytes()
    return data + int(words[-1]).to_bytes(4 - missing, "big") if missing else data
