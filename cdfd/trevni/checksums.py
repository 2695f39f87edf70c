"""Checksums of blocks (specification, "Checksum algorithms").

The specification writes `crc-32`, the reference `crc32`; cdfd reads both names and writes the reference's. The reference stores the bytes
in big-endian order, and the specification's other numbers are little-endian; both orders are read.
"""

from __future__ import annotations

import zlib
from enum import StrEnum

from cdfd.errors import TrevniError
from cdfd.trevni.codecs import Codec


class Checksum(StrEnum):
    """A checksum's name, as cdfd writes it."""

    NULL = "null"
    CRC32 = "crc32"

    @classmethod
    def _missing_(cls, name: object) -> Checksum | None:
        return cls.CRC32 if name == "crc-32" else None

    @property
    def size(self) -> int:
        """Bytes after each block."""
        return 4 if self is Checksum.CRC32 else 0

    def of(self, data: bytes | memoryview) -> bytes:
        """The checksum of a block before its codec is applied."""
        return zlib.crc32(data).to_bytes(4, "big") if self is Checksum.CRC32 else b""

    def check(self, data: bytes | memoryview, stored: bytes | memoryview, codec: Codec) -> None:
        """Compare a block with the checksum after it.

        Raises:
            TrevniError: they differ.
        """
        if self is Checksum.NULL:
            return
        actual = zlib.crc32(data)
        if actual in (int.from_bytes(stored, "big"), int.from_bytes(stored, "little")):
            return
        # With the codec `null`, the reference computes the checksum after it has consumed the bytes: that of nothing.
        if codec is Codec.NULL and not any(stored):
            return
        raise TrevniError(f"the checksum is {bytes(stored).hex()}, and that of the block is {actual:08x}")
