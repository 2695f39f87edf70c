"""Compression of blocks (specification, "Codecs"). Deflate has no zlib header, and Snappy no frame or checksum.

The size that a block's descriptor declares is checked before or while a block is decompressed, so a block cannot take more memory.
"""

import bz2
import zlib
from enum import StrEnum

import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.trevni.values.lengths import Numbers

_SNAPPY_RATIO = 22
"""Snappy's longest copy has 64 bytes, and its shortest form that can be repeated three."""
_DEFLATE_RATIO = 1032
"""Deflate's longest copy has 258 bytes, in two bits."""
_BZIP2_RATIO = 200
"""Of data that is no bomb. Bzip2 has no limit of its own."""
_SLACK = 64


class Codec(StrEnum):
    """A codec's name, as a file has it."""

    NULL = "null"
    DEFLATE = "deflate"
    SNAPPY = "snappy"
    BZIP2 = "bzip2"

    def largest(self, stored: Numbers) -> Numbers:
        """Bytes that blocks can have at most, given those of their stored form; for bzip2, which knows no limit, a guess."""
        ratio = {Codec.DEFLATE: _DEFLATE_RATIO, Codec.SNAPPY: _SNAPPY_RATIO, Codec.BZIP2: _BZIP2_RATIO}.get(self, 1)
        return ratio * stored + _SLACK

    def compress(self, data: bytes | memoryview) -> bytes | memoryview:
        """The stored form of a block."""
        match self:
            case Codec.DEFLATE:
                deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
                return deflate.compress(data) + deflate.flush()
            case Codec.SNAPPY:
                return memoryview(_SNAPPY.compress(pa.py_buffer(data))).cast("B")
            case Codec.BZIP2:
                return bz2.compress(data)
        return data

    def decompress(self, data: bytes | memoryview, size: int) -> bytes | memoryview:
        """A block of `size` bytes from its stored form.

        Raises:
            TrevniError: the data is damaged, or the block has another size.
        """
        match self:
            case Codec.DEFLATE:
                plain: bytes | memoryview = _inflate(data, size)
            case Codec.SNAPPY:
                plain = _unsnap(data, size)
            case Codec.BZIP2:
                plain = _unbzip(data, size)
            case _:
                plain = data
        if len(plain) != size:
            more = "at least " if len(plain) > size else ""
            raise TrevniError(f"the block has {more}{len(plain)} bytes, and its descriptor says {size}")
        return plain


_SNAPPY = pa.Codec("snappy")


def _inflate(data: bytes | memoryview, size: int) -> bytes:
    if size > _DEFLATE_RATIO * len(data) + _SLACK:
        raise TrevniError(f"{len(data)} bytes of a deflated block cannot have {size} bytes decompressed")
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # One byte more than expected shows a block that is too long; 0 would mean no limit.
        plain = inflate.decompress(data, size + 1)
    except zlib.error:
        raise TrevniError("the deflated block is damaged") from None
    if len(plain) <= size and not inflate.eof:
        raise TrevniError("the deflated block is truncated")
    if inflate.unused_data:
        raise TrevniError("the deflated block ends before its stored size")
    return plain


def _unsnap(data: bytes | memoryview, size: int) -> memoryview:
    # A block begins with its size, seven bits a byte.
    declared = 0
    for place in range(min(5, len(data))):
        declared |= (data[place] & 0x7F) << (7 * place)
        if data[place] < 0x80:
            break
    else:
        raise TrevniError("the Snappy block is truncated")
    if declared != size:
        raise TrevniError(f"the Snappy block says that it has {declared} bytes, and its descriptor says {size}")
    if size > _SNAPPY_RATIO * len(data) + _SLACK:
        raise TrevniError(f"{len(data)} bytes of a Snappy block cannot have {size} bytes decompressed")
    try:
        return memoryview(_SNAPPY.decompress(pa.py_buffer(data), decompressed_size=size)).cast("B")
    except (pa.ArrowException, OSError):
        raise TrevniError("the Snappy block is damaged") from None


def _unbzip(data: bytes | memoryview, size: int) -> bytes:
    """The first bytes alone: the oldest version of the reference also compresses the unused rest of its buffer."""
    expand = bz2.BZ2Decompressor()
    try:
        # 0 would mean no limit.
        plain = expand.decompress(data, max(size, 1))[:size]
    except (OSError, ValueError):
        raise TrevniError("the bzip2 block is damaged") from None
    if len(plain) < size:
        raise TrevniError("the bzip2 block is truncated")
    return plain
