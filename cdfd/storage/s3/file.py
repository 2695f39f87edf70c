"""Random access to an object: small objects are fetched whole in one GET, others in ranges that are prefetched.

A reader announces its columns (`prefetch_columns`). Their ranges are fetched in the order in which the reader needs them, several at a
time, as long as the unread ones fit into `PREFETCH_BYTES`. Anything else is fetched when it is read.

    file      [col a, group 0][col b, group 0][col c, group 0][col a, group 1] ... [footer]
    wanted     a, c
    pieces    [--- 8 MiB ----]                 [--- 8 MiB ----][-- 8 MiB --]        fetched when it was opened
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdfd.errors import StorageError
from cdfd.parquet.kernels import allocated
from cdfd.parquet.layout import ChunkLocation, chunks
from cdfd.storage.s3.client import S3Client
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.objects import GetResult
from cdfd.storage.s3.prefetch import StartedRanges

WHOLE_OBJECT_BYTES = 4 << 20
"""Bytes up to which an object is read in one GET: a round trip takes as long as some megabytes."""
UNSIZED_BYTES = 1 << 20
"""Bytes of the first GET of an object whose size is not known."""
TAIL_BYTES = 256 << 10
"""Bytes of the first GET of a larger object, from its end: most footers fit."""
MAX_GET_BYTES = 8 << 20
"""Bytes of a GET, at most. A page that lies in two of them is copied."""
ALL_AHEAD_BYTES = 32 << 20
"""Bytes up to which all of an object is fetched before it is opened, if all of it will be read."""
LEADING_BYTES = 8 << 20
"""Bytes to fetch before it is opened from the start of one that is larger: its reader needs all columns at the same time."""
PREFETCH_BYTES = 24 << 20
"""Bytes of a file that are fetched and not read yet, at most; one range more if the reader waits for it. Twice as many if it is alone."""
KEPT_BYTES = 24 << 20
"""Bytes of a file that were read and are kept, at most: the end of a range is read again for a page that goes on in the next one."""
MAX_GAP_BYTES = 64 << 10
"""Unneeded bytes between two ranges that are fetched, to save a request."""
MIN_GET_BYTES = 512 << 10
"""Bytes of a GET, at least, without announced columns: the smallest columns of a checkpoint are neighbours."""
MAX_FOOTER_BYTES = 8 << 20
"""Bytes of a footer, at most, to parse it for the locations of columns."""


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


def opened(
    client: S3Client, request: Request, got: GetResult, start: int, started: StartedRanges = ()
) -> pa.NativeFile:
    """A file whose bytes in `got`, from `start` on (from its end if negative), are fetched, and those in `started` are being fetched."""
    if len(got.data) == got.size:
        for _, future in started:
            future.cancel()
        return pa.BufferReader(got.data)
    at = max(0, got.size - len(got.data)) if start < 0 else start
    ranges = _RangeBuffer(client, request, got, at)
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

    def __init__(self, ranges: _RangeBuffer, mode: str) -> None:
        self._ranges = ranges

    def buffer_at(self, count: int, most: int, at: int) -> memoryview:
        """At least `count` bytes from a position on, and at most `most`: as many as were fetched together, which are not copied then."""
        return memoryview(self._ranges.range(at, at + count, at + most)).cast("B")

    def prefetch_columns(self, columns: Collection[str], groups: Collection[int] | None = None) -> None:
        """Announce that these columns, with their children, are read next: of these row groups, or of all."""
        self._ranges.prefetch_columns(columns, groups)


@dataclass(slots=True, eq=False)
class _Piece:
    """Bytes `[start, end)` of the object, of which `left` are not read yet; `used` is the number of the last read."""

    start: int
    end: int
    left: int
    future: Future[GetResult] | None = None
    used: int = 0


class _RangeBuffer:
    """The file object behind `pa.PythonFile`, which lets one thread at a time read at a position. `range` is for several threads."""

    closed = False

    def __init__(self, client: S3Client, request: Request, got: GetResult, start: int) -> None:
        self._client = client
        self._request = request
        self._size = got.size
        self._etag = got.etag
        self._at = 0
        done: Future[GetResult] = Future()
        done.set_result(got)
        self._known = _Piece(start, start + len(got.data), 0, done)
        self._pieces = [self._known]
        self._planned: deque[_Piece] = deque()
        self._buffered = self._reads = 0
        self._lock = threading.Lock()
        client.readers.add(self)

    # --- called by pa.PythonFile ---

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, count: int | None = None) -> pa.Buffer:
        return self.read_buffer(count)

    def read_buffer(self, count: int | None = None) -> pa.Buffer:
        left = max(0, self._size - self._at)
        data = self.range(self._at, self._at + (left if count is None or count < 0 else min(count, left)))
        self._at += data.size
        return data

    def flush(self) -> None:
        pass

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._client.readers.discard(self)
            self._planned.clear()
            for piece in self._pieces:
                if piece.future is not None:
                    piece.future.cancel()
            self._pieces = []

    # --- ranges ---

    def add_started(self, start: int, end: int, future: Future[GetResult]) -> None:
        """Add a range whose request was started before the file was opened."""
        insort(self._pieces, _Piece(start, end, end - start, future), key=_start)
        self._buffered += end - start

    def prefetch_columns(self, columns: Collection[str], groups: Collection[int] | None) -> None:
        try:
            found = [self._clipped(chunk) for chunk in self._chunks() if _is_in(chunk.path, columns)]
        except ValueError:
            return  # pyarrow reports a damaged footer with more detail
        with self._lock:
            self._planned.clear()
            self._pieces = [piece for piece in self._pieces if piece.future is not None]
            for piece in self._pieces:
                # A reader that begins again reads them again.
                if piece is not self._known:
                    piece.left = piece.end - piece.start
            for start, end in _in_order(chunk for chunk in found if groups is None or chunk.group in groups):
                for free_start, free_end in self._free(start, end):
                    piece = _Piece(free_start, free_end, free_end - free_start)
                    insort(self._pieces, piece, key=_start)
                    self._planned.append(piece)
            self._prefetch()

    def _clipped(self, chunk: ChunkLocation) -> ChunkLocation:
        return chunk._replace(start=min(chunk.start, self._size), end=min(chunk.end, self._size))

    def _chunks(self) -> list[ChunkLocation]:
        if self._size < 12:
            return []
        (length,) = struct.unpack("<I", self.range(self._size - 8, self._size - 4).to_pybytes())
        if length > min(MAX_FOOTER_BYTES, self._size - 8):
            return []
        return chunks(self.range(self._size - 8 - length, self._size - 8).to_pybytes())

    def range(self, start: int, end: int, most: int = 0) -> pa.Buffer:
        """The bytes `[start, end)`, and more of them up to `most`, if they are in one piece."""
        with self._lock:
            claimed = self._claimed(start, min(end, self._size), most)
        # Other threads go on while this one waits.
        parts = [pa.py_buffer(self._bytes(piece)).slice(at - piece.start, stop - at) for piece, at, stop in claimed]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _claimed(self, start: int, end: int, most: int) -> list[tuple[_Piece, int, int]]:
        """The pieces that have these bytes, with where they begin and end in them. Those that follow are fetched meanwhile."""
        piece = self._covering(start)
        if piece is not None and end <= piece.end:
            end = min(max(end, most), piece.end)
        claimed = []
        self._reads += 1
        while start < end:
            piece = self._piece(start, end)
            stop = min(end, piece.end)
            claimed.append((piece, start, stop))
            piece.left -= stop - start
            piece.used = self._reads
            start = stop
            self._prefetch()
        return claimed

    def _piece(self, start: int, end: int) -> _Piece:
        """The piece that contains the byte at `start`. If there is none, pieces up to `end` are created, and fetched in parallel."""
        piece = self._covering(start)
        if piece is None:
            for free_start, free_end in self._free(start, min(max(end, start + MIN_GET_BYTES), self._size)):
                for at in range(free_start, free_end, MAX_GET_BYTES):
                    new = _Piece(at, min(at + MAX_GET_BYTES, free_end), min(at + MAX_GET_BYTES, free_end) - at)
                    insort(self._pieces, new, key=_start)
                    if self._buffered < 2 * PREFETCH_BYTES:
                        self._begin(new)
            piece = self._covering(start)
            assert piece is not None
        if piece.future is None:
            self._begin(piece)
        return piece

    def _covering(self, at: int) -> _Piece | None:
        index = bisect_right(self._pieces, at, key=_start) - 1
        return self._pieces[index] if index >= 0 and at < self._pieces[index].end else None

    def _free(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of `[start, end)` that no piece contains."""
        index = max(0, bisect_right(self._pieces, start, key=_start) - 1)
        taken = [(piece.start, piece.end) for piece in self._pieces[index:] if piece.start < end]
        for taken_start, taken_end in taken:
            if start < taken_start:
                yield start, taken_start
            start = max(start, taken_end)
        if start < end:
            yield start, end

    def _begin(self, piece: _Piece) -> None:
        size = piece.end - piece.start
        self._evict(size)
        self._buffered += size
        work = self._client.get(self._request, piece.start, size, etag=self._etag)
        piece.future = self._client.loop.submit(work)

    def _bytes(self, piece: _Piece) -> bytes | pa.Buffer:
        assert piece.future is not None
        try:
            got = piece.future.result()
        except CancelledError:
            raise StorageError("the file was closed, or the process is ending", path=self._request.path) from None
        if got.etag != self._etag:
            raise StorageError("the object was replaced while it was read", path=self._request.path, retriable=True)
        if len(got.data) != piece.end - piece.start:
            raise StorageError("the store returned another range", path=self._request.path, retriable=True)
        return got.data

    def _prefetch(self) -> None:
        most = PREFETCH_BYTES if len(self._client.readers) > 1 else 2 * PREFETCH_BYTES
        while self._planned:
            piece = self._planned[0]
            if piece.future is None:
                if self._unread() + piece.end - piece.start > most:
                    return
                self._begin(piece)
            self._planned.popleft()

    def _unread(self) -> int:
        return sum(piece.left for piece in self._pieces if piece.future is not None and piece.left > 0)

    def _evict(self, size: int) -> None:
        """Drop pieces if too much is buffered: those that were read, the least recently used first, and finally others."""
        done = [piece for piece in self._pieces if piece is not self._known and piece.future is not None]
        done = [piece for piece in done if piece.future is not None and piece.future.done()]
        read = sorted((piece for piece in done if piece.left <= 0), key=lambda piece: piece.used)
        kept = sum(piece.end - piece.start for piece in read)
        for piece in read:
            if kept <= KEPT_BYTES:
                break
            kept -= self._dropped(piece)
        for piece in done:
            if self._buffered + size <= 4 * PREFETCH_BYTES:
                break
            if piece.left > 0:
                self._dropped(piece)

    def _dropped(self, piece: _Piece) -> int:
        """Drop a piece: its bytes."""
        self._pieces.remove(piece)
        size = piece.end - piece.start
        self._buffered -= size
        return size


def _joined(parts: Sequence[pa.Buffer]) -> pa.Buffer:
    """One buffer. The interpreter's lock is not held while bytes are copied."""
    found = allocated(sum(part.size for part in parts))
    if parts:
        np.concatenate([np.frombuffer(part, np.uint8) for part in parts], out=np.frombuffer(found, np.uint8))
    return found


def _start(piece: _Piece) -> int:
    return piece.start


def _is_in(path: str, columns: Collection[str]) -> bool:
    if path in columns:
        return True
    return any(path.startswith(f"{column}.") for column in columns) if "." in path else False


def _in_order(wanted: Iterable[ChunkLocation]) -> Iterator[tuple[int, int]]:
    """Ranges of at most `MAX_GET_BYTES` bytes that contain the chunks, in the order in which the reader needs them.

    Within a row group, the reader reads all columns in parallel. So the first ranges of two large columns come before the second ones.
    """
    groups: dict[int, list[ChunkLocation]] = {}
    for chunk in wanted:
        groups.setdefault(chunk.group, []).append(chunk)
    for group in sorted(groups):
        pieces: list[tuple[float, int, int]] = []
        for chunk in sorted(groups[group], key=lambda chunk: chunk.start):
            if (
                pieces
                and pieces[-1][0] == 0
                and 0 <= chunk.start - pieces[-1][2] <= MAX_GAP_BYTES
                and chunk.end - pieces[-1][1] <= MAX_GET_BYTES
            ):
                pieces[-1] = (0, pieces[-1][1], chunk.end)
                continue
            for start in range(chunk.start, chunk.end, MAX_GET_BYTES):
                part = (start - chunk.start) / (chunk.end - chunk.start)
                pieces.append((part, start, min(start + MAX_GET_BYTES, chunk.end)))
        for _, start, end in sorted(pieces):
            yield start, end
