"""Records of Kafka's record batches (format 2), and the hashes of keys."""

from collections.abc import Sequence

from numpy import int32, int64, uint8
from numpy.typing import NDArray

Texts = tuple[NDArray[uint8], NDArray[int64], NDArray[uint8] | None, tuple[bytes, bytes]]
"""Bytes of all texts, their offsets, a mask of nulls, and what is before and after each text that is not null."""
Integers = tuple[None, NDArray[int64], NDArray[uint8] | None, tuple[bytes, bytes]]
"""Integers that are written in decimal, a mask of nulls, and what is before and after each one that is not null."""

def write(
    rows: NDArray[int64],
    keys: Texts | None,
    values: Texts | None,
    fixed: int,
    headers: bytes,
    columns: Sequence[tuple[bytes, Texts | Integers]],
    limit: int,
    data: NDArray[uint8],
) -> tuple[int, int]:
    """Write the first records one after the other, with offset deltas from 0 on: one at least, and as many as are within the limit.

    Args:
        rows: which ones.
        keys: of all records; None if there are none.
        values: of all records.
        fixed: the number of headers that each record has.
        headers: these headers, encoded.
        columns: the other headers: an encoded name, and values. A record whose value is null does not have the header.
        limit: of all records together, in bytes.
        data: gets the records. It should have 32 bytes more than the limit.

    Returns:
        The number of records and of bytes. If the first record has no room, 0 and the size that `data` must have.

    Raises:
        ValueError: an offset or a row is not in its array.
        TypeError: an array is of another type, not contiguous or not aligned.
    """

def partitions(keys: Texts, count: int, out: NDArray[int32]) -> None:
    """Write the partition of each text by Kafka's default partitioner.

    Args:
        keys: the texts, of which none is null.
        count: number of partitions, at least 1.
        out: gets a partition for each text.

    Raises:
        ValueError: an offset is not in its array, or there is not one offset more than partitions.
        TypeError: an array is of another type, not contiguous or not aligned.
    """
