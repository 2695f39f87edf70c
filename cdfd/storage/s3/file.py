"""Random access to an object: small objects are fetched whole in one GET, others in ranges (`ranges`)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdfd.storage.s3.client import S3Client
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.objects import GetResult
from cdfd.storage.s3.prefetch import StartedRanges
from cdfd.storage.s3.ranges import MAX_GET_BYTES, RangeBuffer

WHOLE_OBJECT_BYTES = 4 << 20
"""Bytes up to which an object is read in one GET: a round trip takes as long as some megabytes."""
UNSIZED_BYTES = 1 << 20
"""Bytes of the first GET of an object whose size is not known."""
TAIL_BYTES = 256 << 10
"""Bytes of the first GET of a larger object, from its end: most footers fit."""
ALL_AHEAD_BYTES = 32 << 20
"""Bytes up to which all of an object is fetched before it is opened, if all of it will be read."""
LEADING_BYTES = 8 << 20
"""Bytes to fetch before it is opened from the start of one that is larger: its reader needs all columns at the same time."""


def first_range(size: int | None) -> tuple[int, int | None]:
    """The first range to fetch: start (from the end if negative) and length."""
    if size is None:
        return 0, UNSIZED_BYTES
    return (0, WHOLE_OBJECT_BYTES) if size <= WHOLE_OBJECT_BYTES else (-TAIL_BYTES, None)


def leading_ranges(size: int) -> list[tuple[int, int]]:
    """Ranges to fetch together with the first one, if all of an object of that size will be read."""
    if size <= WHOLE_OBJECT_BYTES:
        return []
    end = size - TAIL_BYTES if size <= ALL_AHEAD_BYTES else LEADING_BYTES
    return [(start, min(start + MAX_GET_BYTES, end)) for start in range(0, end, MAX_GET_BYTES)]


def open_object(
    client: S3Client, request: Request, got: GetResult, start: int, started: StartedRanges = ()
) -> pa.NativeFile:
    """A file whose bytes in `got`, from `start` on (from its end if negative), are fetched, and those in `started` are being fetched."""
    if len(got.data) == got.size:
        for _, future in started:
            future.cancel()
        return pa.BufferReader(got.data)
    at = max(0, got.size - len(got.data)) if start < 0 else start
    ranges = RangeBuffer(client, request, got, at)
    for ahead, future in started:
        end = ahead.start + (ahead.length or 0)
        # The ranges were chosen by the size in the log. An object of another size may not have them.
        if end <= at:
            ranges.add_started(ahead.start, end, future)
        else:
            future.cancel()
    return RangeFile(ranges, "r")


class RangeFile(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """An object that is read in ranges."""

    def __init__(self, ranges: RangeBuffer, mode: str) -> None:
        self._ranges = ranges

    def buffer_at(self, count: int, most: int, at: int) -> memoryview:
        """At least `count` bytes from a position on, and at most `most`: as many as were fetched together, which are not copied then."""
        return memoryview(self._ranges.range(at, at + count, at + most)).cast("B")

    def prefetch_columns(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Announce which columns are read next, each as its row group, start and end in bytes."""
        self._ranges.prefetch_columns(ranges)
