"""Deletion vectors: from a descriptor to the rows it removes, and back.

Source: specification, "Deletion Vectors" (descriptor) and "Deletion Vector File Storage Format". The draft gives the
file's version two bytes; every deployed writer gives it one, and so does this module:

    version 1 (1 byte) | for each vector: size (big-endian i32), data, CRC-32 of the data (big-endian)

`offset` of a descriptor points at the size. It is 1 for the first vector; a descriptor without one means 0 to Spark
and 1 to delta-kernel-rs, so that whichever of the two verifies is taken.

Reading a stored vector takes these steps; the caller does the I/O:

    wanted = range_of(descriptor)                           # None: it is inline, use `decode_inline`
    blob = store.read(resolve(root, path_of(descriptor)), *wanted)
    rows = decode_stored(descriptor, blob)
"""

import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from uuid import UUID

from cdfd.delta import paths, roaring, z85
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.roaring import RowSet
from cdfd.errors import DataError, LogError, UnsupportedError

__all__ = ["RowSet", "decode_inline", "decode_stored", "describe", "inline", "path_of", "range_of", "store"]

MOST_BYTES = 256 << 20
"""Bytes of a vector, at most: every other one of two billion rows."""
_LEAST_BYTES, _ROW_BYTES = 4096, 64
"""Bytes that any vector may take, and additional bytes for each row. A row with a bitmap of its own takes 26 bytes."""

_VERSION = 1
_VERSION_BYTES = 1
_SIZE_BYTES = 4
_CRC_BYTES = 4
_UUID_CHARACTERS = 20

# The vectors of a version are in one file, and those of the version before are read again.
_decode_uuid = lru_cache(maxsize=64)(z85.decode)


def path_of(descriptor: DeletionVectorDescriptor) -> str | None:
    """Path of the file that holds a vector, for `paths.resolve`: relative to the table's root (`u`), absolute (`p`),
    None inline (`i`).

    Raises:
        DataError: a UUID or an absolute path that cannot be decoded.
        UnsupportedError: another storage type.
    """
    text = descriptor.path_or_inline
    if descriptor.storage_type == "i":
        return None
    if descriptor.storage_type == "u":
        prefix, encoded = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
        binary = _decode_uuid(encoded)
        if len(binary) != 16:
            raise DataError(f"the deletion vector {text!r} does not end in a UUID")
        return f"{prefix}{'/' if prefix else ''}deletion_vector_{UUID(bytes=binary)}.bin"
    if descriptor.storage_type == "p":
        try:
            return paths.decode(text)
        except LogError as error:
            raise DataError(f"a deletion vector has no readable path: {error.what}") from None
    raise UnsupportedError(
        f"a deletion vector of storage type {descriptor.storage_type!r}",
        hint="The types u, i and p are specified: the writer of the table is newer or faulty",
    )


def range_of(descriptor: DeletionVectorDescriptor) -> tuple[int, int] | None:
    """The byte range of its file for `decode_stored`: (start, length); None for an inline vector.

    The file's version byte is among them where it is next to the vector. A file may end earlier.

    Raises:
        DataError: a negative offset or size, or more bytes than its rows can take.
    """
    if descriptor.storage_type == "i":
        return None
    start, size = descriptor.offset or 0, descriptor.size_in_bytes
    if start < 0 or size < 0:
        raise DataError(f"a deletion vector of {size} bytes at offset {start}")
    _check_size(descriptor)
    framed = _SIZE_BYTES + size + _CRC_BYTES
    return (0, _VERSION_BYTES + framed) if start <= _VERSION_BYTES else (start, framed)


def _check_size(descriptor: DeletionVectorDescriptor) -> None:
    """Raise an error for an impossible size, because the size in the log decides how much is read."""
    size, rows = descriptor.size_in_bytes, descriptor.cardinality
    if size > min(MOST_BYTES, _LEAST_BYTES + _ROW_BYTES * rows):
        raise DataError(f"a deletion vector of {rows} rows cannot have {size} bytes")


def decode_stored(descriptor: DeletionVectorDescriptor, blob: bytes) -> RowSet:
    """The rows of a vector that is stored in a file, from the bytes of `range_of`.

    Raises:
        DataError: truncated; a version, size, checksum or number of rows that is not the expected one; not a valid
            set of rows.
    """
    wanted = range_of(descriptor)
    if wanted is None:
        raise DataError("an inline deletion vector has no file")
    size = descriptor.size_in_bytes
    data = _unframe(blob, size) if wanted[0] > 0 else _after_version(blob, size, versionless=not descriptor.offset)
    return roaring.decode(data, descriptor.cardinality)


def _after_version(blob: bytes, size: int, *, versionless: bool) -> bytes:
    """The data of the first vector of a file; `versionless` files may begin with it."""
    try:
        if not blob:
            raise DataError("a deletion vector file is empty")
        if blob[0] != _VERSION:
            raise DataError(f"a deletion vector file is of version {blob[0]}, not {_VERSION}")
        return _unframe(blob[_VERSION_BYTES:], size)
    except DataError:
        if versionless:
            with suppress(DataError):
                return _unframe(blob, size)
        # Of two failures the one of the specified layout says more.
        raise


def _unframe(framed: bytes, size: int) -> bytes:
    """The data between a size and a checksum, both verified."""
    wanted = _SIZE_BYTES + size + _CRC_BYTES
    if len(framed) < wanted:
        raise DataError(f"a deletion vector of {wanted} bytes ends after {len(framed)}")
    (stated,) = struct.unpack_from(">i", framed)
    if stated != size:
        raise DataError(f"a deletion vector has {stated} bytes, its descriptor says {size}")
    data = framed[_SIZE_BYTES : _SIZE_BYTES + size]
    (checksum,) = struct.unpack_from(">I", framed, _SIZE_BYTES + size)
    if checksum != (actual := zlib.crc32(data)):
        raise DataError(f"a deletion vector has the checksum {actual:08x}, its file says {checksum:08x}")
    return data


def decode_inline(descriptor: DeletionVectorDescriptor) -> RowSet:
    """The rows of a vector that is in the log itself.

    Raises:
        DataError: not Z85, a length or a number of rows that is not the expected one, not a valid set of rows.
    """
    _check_size(descriptor)
    size = descriptor.size_in_bytes
    # Five characters are four bytes, of which up to three may be padding, and so may three behind them.
    if len(descriptor.path_or_inline) // 5 * 4 > size + 6:
        raise DataError(f"an inline deletion vector of {size} bytes has {len(descriptor.path_or_inline)} characters")
    data = z85.decode(descriptor.path_or_inline)
    if not 0 <= size <= len(data) < size + 4:
        raise DataError(f"an inline deletion vector has {len(data)} bytes, its descriptor says {size}")
    return roaring.decode(data[:size], descriptor.cardinality)


def inline(rows: RowSet) -> DeletionVectorDescriptor:
    """A descriptor that holds the rows itself."""
    data = roaring.encode(rows)
    return DeletionVectorDescriptor("i", z85.encode(data), None, len(data), len(rows))


def store(vectors: Sequence[RowSet]) -> tuple[bytes, list[tuple[int, int]]]:
    """A deletion vector file: its bytes, and for each vector (offset, size in bytes) as `describe` wants them."""
    content = bytearray([_VERSION])
    places = []
    for rows in vectors:
        data = roaring.encode(rows)
        places.append((len(content), len(data)))
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return bytes(content), places


def describe(uuid: UUID, prefix: str, offset: int, size: int, cardinality: int) -> DeletionVectorDescriptor:
    """Descriptor of a vector in the file `<prefix>/deletion_vector_<uuid>.bin`; an empty prefix is the table's root."""
    return DeletionVectorDescriptor("u", prefix + z85.encode(uuid.bytes), offset, size, cardinality)
