"""Variable-length integers of Kafka's records (zigzag, as in Protocol Buffers).

0 -> 00    -1 -> 01    1 -> 02    63 -> 7e    64 -> 80 01    8192 -> 80 80 01
"""

_BYTES = [bytes([value]) for value in range(1 << 7)]


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
