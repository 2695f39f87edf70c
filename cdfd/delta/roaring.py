"""Sets of row numbers, and the bytes of a deletion vector that hold one.

Source: specification, "Deletion Vector Format". All numbers are little-endian:

    portable:  magic 1681511377 | u64 buckets | for each: u32 key (upper half of its rows), 32-bit roaring bitmap
    native:    magic 1681511376 | i32 bitmaps | for each: i32 size, 32-bit roaring bitmap; its index is the key

The second one is what the reference implementation wrote before the first was specified. It exists with big-endian
numbers around the bitmaps too: the inline example of "Deletion Vector Descriptor Schema" is one. Data that is inconsistent
inside a bitmap (unsorted, overlapping, wrong counts) is rejected by pyroaring, from 1.0.1 on; what is around it is
checked here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64, FrozenBitMap, FrozenBitMap64

from cdfd.errors import DataError

PORTABLE = 1681511377
NATIVE = 1681511376

_KEY = 4
_EMPTY_BITMAP = 8
_LEAST_BITMAP = _KEY + _EMPTY_BITMAP
_ROWS = 1 << 63


@dataclass(frozen=True, slots=True)
class RowSet:
    """An immutable set of row numbers of one data file, compressed. Rows count from 0 in the file's order."""

    bitmap: FrozenBitMap64

    @classmethod
    def of(cls, rows: Iterable[int]) -> RowSet:
        """The set of these rows; a `range` costs no more than its bounds."""
        return cls(FrozenBitMap64(rows))

    @classmethod
    def of_array(cls, rows: npt.NDArray[np.int64]) -> RowSet:
        """The set of these rows, none of them negative."""
        return cls(FrozenBitMap64(array("Q", np.ascontiguousarray(rows).tobytes())))

    def to_array(self) -> npt.NDArray[np.int64]:
        """The rows, ascending."""
        return np.frombuffer(self.bitmap.to_array(), dtype=np.uint64).astype(np.int64)

    def __len__(self) -> int:
        return len(self.bitmap)

    def difference(self, other: RowSet) -> RowSet:
        """Rows of this set that are not in the other."""
        return RowSet(self.bitmap - other.bitmap)

    def union(self, other: RowSet) -> RowSet:
        """Rows of either set."""
        return RowSet(self.bitmap | other.bitmap)

    def intersection(self, other: RowSet) -> RowSet:
        """Rows of both sets."""
        return RowSet(self.bitmap & other.bitmap)

    def min(self) -> int | None:
        """The smallest row, None of an empty set."""
        return self.bitmap.min() if self.bitmap else None

    def max(self) -> int | None:
        """The greatest row, None of an empty set."""
        return self.bitmap.max() if self.bitmap else None

    def count(self, start: int, length: int) -> int:
        """How many of the rows `[start, start + length)` are in the set."""
        return self.bitmap.range_cardinality(start, start + length)

    def mask(self, start: int, length: int) -> npt.NDArray[np.bool_]:
        """For each of the rows `[start, start + length)` whether it is in the set."""
        mask = np.zeros(length, dtype=np.bool_)
        mask[self.intersection(RowSet.of(range(start, start + length))).to_array() - start] = True
        return mask


def encode(rows: RowSet) -> bytes:
    """The set in the portable format, magic number included."""
    return struct.pack("<I", PORTABLE) + BitMap64(rows.bitmap, optimize=True).serialize()


def decode(data: bytes, cardinality: int) -> RowSet:
    """The set that a deletion vector's bytes hold, from the magic number on.

    Raises:
        DataError: truncated, of an unknown format, inconsistent, a row beyond 2^63 - 1, or other than `cardinality`
            rows.
    """
    if len(data) < 4:
        raise DataError(f"a deletion vector of {len(data)} bytes has no magic number")
    (magic,) = struct.unpack_from("<I", data)
    if magic == PORTABLE:
        portable = data[4:]
    elif magic == NATIVE:
        portable = _from_native(data[4:], "<I")
    elif data[:4] == struct.pack(">I", NATIVE):
        portable = _from_native(data[4:], ">I")
    else:
        raise DataError(
            f"a deletion vector begins with the magic number {magic}, which is neither {PORTABLE} nor {NATIVE}"
        )
    if len(portable) < 8:
        raise DataError("a deletion vector ends before its number of buckets")
    (buckets,) = struct.unpack_from("<Q", portable)
    _bound(buckets, len(portable) - 8)
    try:
        bitmap = FrozenBitMap64.deserialize(portable)
    except ValueError as error:
        raise DataError(f"a deletion vector is not a valid 64-bit roaring bitmap: {error}") from None
    if bitmap and bitmap.max() >= _ROWS:
        raise DataError("a deletion vector has a key whose most significant bit is set")
    if len(bitmap) != cardinality:
        raise DataError(f"a deletion vector removes {len(bitmap)} rows, its descriptor says {cardinality}")
    return RowSet(bitmap)


def _from_native(data: bytes, number: str) -> bytes:
    """The portable form of a native one; both after the magic number. `number` is how the latter writes its numbers."""
    if len(data) < 4:
        raise DataError("a deletion vector ends before its number of bitmaps")
    (bitmaps,) = struct.unpack_from(number, data)
    _bound(bitmaps, len(data) - 4)
    portable = [struct.pack("<Q", bitmaps)]
    at = 4
    for key in range(bitmaps):
        if len(data) - at < _KEY:
            raise DataError(f"a deletion vector ends before its bitmap {key} of {bitmaps}")
        (size,) = struct.unpack_from(number, data, at)
        at += _KEY
        if not _EMPTY_BITMAP <= size <= len(data) - at:
            raise DataError(f"a deletion vector has a bitmap of {size} bytes where {len(data) - at} are left")
        try:
            bitmap = FrozenBitMap.deserialize(data[at : at + size])
        except ValueError as error:
            raise DataError(f"a deletion vector is not a valid roaring bitmap: {error}") from None
        portable += (struct.pack("<I", key), bitmap.serialize())
        at += size
    return b"".join(portable)


def _bound(bitmaps: int, left: int) -> None:
    if bitmaps > left // _LEAST_BITMAP:
        raise DataError(f"a deletion vector claims {bitmaps} bitmaps in {left} bytes")
