"""Compression of record batches, in the formats of Kafka's brokers and consumers."""

import struct
from typing import Literal, TypeAlias

import lz4.frame
import pyarrow as pa

Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]

CODES: dict[Compression, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Bits 0 to 2 of a record batch's attributes."""

# The levels of Kafka's own clients.
_LEVELS: dict[Compression, int] = {"gzip": 6, "zstd": 3}
# Snappy has no framing. Kafka's consumers expect that of the Java library: a header, then blocks that start with their length.
_SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK = 32 * 1024


def compress(compression: Compression, data: memoryview) -> bytes | memoryview:
    """The compressed bytes. Releases the GIL."""
    match compression:
        case "none":
            return data
        case "lz4":
            # Kafka cannot read frames with linked blocks: a broker returns UNKNOWN_SERVER_ERROR.
            frame: bytes = lz4.frame.compress(data, block_linked=False)
            return frame
        case "snappy":
            codec = pa.Codec("snappy")
            pieces = [_SNAPPY_HEADER]
            for start in range(0, len(data), _SNAPPY_BLOCK):
                block = codec.compress(data[start : start + _SNAPPY_BLOCK], asbytes=True)
                pieces += [struct.pack(">i", len(block)), block]
            return b"".join(pieces)
        case "gzip" | "zstd":
            # A new codec for each call, because it has state.
            packed: bytes = pa.Codec(compression, compression_level=_LEVELS[compression]).compress(data, asbytes=True)
            return packed
