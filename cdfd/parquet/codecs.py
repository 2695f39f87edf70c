"""Decompresses pages, and bounds what they can decompress to.

Arrow's codecs return as many bytes as they are asked for, however few the data has: the others are whatever the memory held before, such as
rows of another table. Only Zstandard's checks that (seen in pyarrow 26). So the length is checked here.
"""

import pyarrow as pa

CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
"""Arrow's names of codecs, by their numbers in a footer."""

RATIOS = {0: 1, 1: 22, 2: 1032, 5: 256, 6: 1 << 15, 7: 256}
"""Decompressed bytes of a stored one, at most, by codec: none, Snappy, gzip, LZ4 with frames, Zstandard, LZ4. Brotli has no useful limit."""
_SLACK = 64
"""Bytes that the smallest data may have beyond its ratio: its first copy has no cheaper form than the next ones."""

_ZSTD = pa.Codec("zstd")


def most_bytes(codec: int, stored: int) -> int | None:
    """Bytes that `stored` bytes decompress to, at most; None if the codec sets no limit."""
    ratio = RATIOS.get(codec)
    return None if ratio is None else ratio * stored + (_SLACK if codec else 0)


def decompress(codec: int, data: memoryview, size: int) -> memoryview | None:
    """The `size` bytes of a page or a part of it; None if it is damaged, has another size, or the codec is not known.

    Args:
        codec: its number in a footer.
        data: as stored.
        size: bytes, as the page's header says. Memory is taken for them only if `data` can have so many.
    """
    most = most_bytes(codec, len(data))
    if codec not in CODECS or (most is not None and size > most):
        return None
    try:
        page = _decompress(codec, data, size)
    except (pa.ArrowException, OSError):
        return None
    return page if len(page) == size else None


def _decompress(codec: int, data: memoryview, size: int) -> memoryview:
    """The bytes of a page, and at most one more than `size`."""
    match CODECS[codec]:
        case None:
            return data
        case "snappy":
            declared = _snappy_size(data)
            return memoryview(pa.Codec("snappy").decompress(data, size)).cast("B") if declared == size else data[:0]
        case "zstd":
            return memoryview(_ZSTD.decompress(data, size)).cast("B")
        case "lz4_raw":
            return _unpack_lz4(data, size)
        case name:
            # One byte more than expected shows a page that is too long.
            with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
                return memoryview(stream.read(size + 1))


def _unpack_lz4(data: memoryview, size: int) -> memoryview:
    import lz4.block  # few files need it

    try:
        return memoryview(lz4.block.decompress(data, uncompressed_size=size))
    except lz4.block.LZ4BlockError as error:
        raise pa.ArrowInvalid(str(error)) from None


def _snappy_size(data: memoryview) -> int:
    """The size that Snappy data begins with, seven bits a byte; -1 if there is none."""
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            return size
    return -1
