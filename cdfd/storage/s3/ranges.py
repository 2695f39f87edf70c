"""The ranges of an object: those that were fetched, those on their way, and those that its reader has announced.

A reader announces its columns (`prefetch_columns`). Their ranges are fetched in the order in which the reader needs them, several at a
time, as long as the unread ones fit into `PREFETCH_BYTES`. Anything else is fetched when it is read.

    file      [col a, group 0][col b, group 0][col c, group 0][col a, group 1] ... [footer]
    wanted     a, c
    pieces    [--- 8 MiB ----]                 [--- 8 MiB ----][-- 8 MiB --]        fetched when it was opened
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pyarrow as pa

from cdfd.errors import StorageError
from cdfd.storage.s3.client import S3Client
from cdfd.storage.s3.errors import Request
from cdfd.storage.s3.native import GetResult

MAX_GET_BYTES = 8 << 20
"""Bytes of a GET, at most. A page that lies in two of them is copied."""
PREFETCH_BYTES = 24 << 20
"""Bytes of a file that are fetched and not read yet, at most; one range more if the reader waits for it. Twice as many if it is alone."""
KEPT_BYTES = 24 << 20
"""Bytes of a file that were read and are kept, at most: the end of a range is read again for a page that goes on in the next one."""
MAX_GAP_BYTES = 64 << 10
"""Unneeded bytes between two ranges that are fetched, to save a request."""
MIN_GET_BYTES = 512 << 10
"""Bytes of a GET, at least, without announced columns: the smallest columns of a checkpoint are neighbours."""


@dataclass(slots=True, eq=False)
class Piece:
    """Bytes `[start, end)` of the object, of which `left` are not read yet; `used` is the number of the last read."""

    start: int
    end: int
    left: int
    future: Future[GetResult] | None = None
    used: int = 0


class RangeBuffer:
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
        self._known = Piece(start, start + len(got.data), 0, done)
        self._pieces = [self._known]
        self._planned: deque[Piece] = deque()
        self._buffered = self._reads = 0
        self._lock = threading.Lock()
        client.readers.add(self)

    def tell(self) -> int:
        """See `io.IOBase`."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """See `io.IOBase`."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, count: int | None = None) -> pa.Buffer:
        """The next bytes: `count` of them, or all that are left."""
        left = max(0, self._size - self._at)
        data = self.range(self._at, self._at + (left if count is None or count < 0 else min(count, left)))
        self._at += data.size
        return data

    read_buffer = read

    def close(self) -> None:
        """Cancel the requests that run, and release the ranges."""
        self.closed = True
        with self._lock:
            self._client.readers.discard(self)
            self._planned.clear()
            for piece in self._pieces:
                if piece.future is not None:
                    piece.future.cancel()
            self._pieces = []

    def add_started(self, start: int, end: int, future: Future[GetResult]) -> None:
        """Add a range whose request was started before the file was opened."""
        insort(self._pieces, Piece(start, end, end - start, future), key=_start)
        self._buffered += end - start

    def prefetch_columns(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """See `RangeFile.prefetch_columns`."""
        chunks = [(group, min(start, self._size), min(end, self._size)) for group, start, end in ranges]
        with self._lock:
            self._planned.clear()
            self._pieces = [piece for piece in self._pieces if piece.future is not None]
            for piece in self._pieces:
                # A reader that begins again reads them again.
                if piece is not self._known:
                    piece.left = piece.end - piece.start
            for start, end in _in_order(chunks):
                for free_start, free_end in self._free(start, end):
                    piece = Piece(free_start, free_end, free_end - free_start)
                    insort(self._pieces, piece, key=_start)
                    self._planned.append(piece)
            self._prefetch()

    def range(self, start: int, end: int, most: int = 0) -> pa.Buffer:
        """The bytes `[start, end)`, and more of them up to `most`, if they are in one piece."""
        with self._lock:
            claimed = self._claim(start, min(end, self._size), most)
        # Other threads go on while this one waits.
        parts = [pa.py_buffer(self._bytes(piece)).slice(at - piece.start, stop - at) for piece, at, stop in claimed]
        if len(parts) == 1:
            return parts[0]
        buffer = pa.allocate_buffer(sum(part.size for part in parts))
        if parts:
            # The interpreter's lock is not held while bytes are copied.
            np.concatenate([np.frombuffer(part, np.uint8) for part in parts], out=np.frombuffer(buffer, np.uint8))
        return buffer

    def _claim(self, start: int, end: int, most: int) -> list[tuple[Piece, int, int]]:
        """The pieces that have these bytes, with where they begin and end in them. Those that follow are fetched meanwhile."""
        piece = self._covering(start)
        if piece is not None and end <= piece.end:
            end = min(max(end, most), piece.end)
        claimed = []
        self._reads += 1
        while start < end:
            piece = self._covering(start)
            if piece is None:
                for free_start, free_end in self._free(start, min(max(end, start + MIN_GET_BYTES), self._size)):
                    for at in range(free_start, free_end, MAX_GET_BYTES):
                        new = Piece(at, min(at + MAX_GET_BYTES, free_end), min(at + MAX_GET_BYTES, free_end) - at)
                        insort(self._pieces, new, key=_start)
                        if self._buffered < 2 * PREFETCH_BYTES:
                            self._begin(new)
                piece = self._covering(start)
                assert piece is not None
            if piece.future is None:
                self._begin(piece)
            stop = min(end, piece.end)
            claimed.append((piece, start, stop))
            piece.left -= stop - start
            piece.used = self._reads
            start = stop
            self._prefetch()
        return claimed

    def _covering(self, at: int) -> Piece | None:
        index = bisect_right(self._pieces, at, key=_start) - 1
        return self._pieces[index] if index >= 0 and at < self._pieces[index].end else None

    def _free(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of `[start, end)` that no piece contains."""
        index = max(0, bisect_right(self._pieces, start, key=_start) - 1)
        covered = [(piece.start, piece.end) for piece in self._pieces[index:] if piece.start < end]
        for taken_start, taken_end in covered:
            if start < taken_start:
                yield start, taken_start
            start = max(start, taken_end)
        if start < end:
            yield start, end

    def _begin(self, piece: Piece) -> None:
        """Fetch a piece. If too much is buffered, drop those that were read, the least recently used first, and finally others."""
        size = piece.end - piece.start
        done = [
            each for each in self._pieces if each is not self._known and each.future is not None and each.future.done()
        ]
        read = sorted((each for each in done if each.left <= 0), key=lambda each: each.used)
        read_bytes = sum(each.end - each.start for each in read)
        for each in read:
            if read_bytes <= KEPT_BYTES:
                break
            read_bytes -= self._drop(each)
        for each in done:
            if self._buffered + size <= 4 * PREFETCH_BYTES:
                break
            if each.left > 0:
                self._drop(each)
        self._buffered += size
        work = self._client.get(self._request, piece.start, size, etag=self._etag)
        piece.future = self._client.loop.submit(work)

    def _bytes(self, piece: Piece) -> bytes | pa.Buffer:
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
                if (
                    sum(piece.left for piece in self._pieces if piece.future is not None and piece.left > 0)
                    + piece.end
                    - piece.start
                    > most
                ):
                    return
                self._begin(piece)
            self._planned.popleft()

    def _drop(self, piece: Piece) -> int:
        """Drop a piece: its bytes."""
        self._pieces.remove(piece)
        size = piece.end - piece.start
        self._buffered -= size
        return size


_start = attrgetter("start")


def _in_order(chunks: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges of at most `MAX_GET_BYTES` bytes that contain the columns of row groups, in the order in which the reader needs them.

    Within a row group, the reader reads all columns in parallel. So the first ranges of two large columns come before the second ones.
    """
    groups: dict[int, list[tuple[int, int]]] = {}
    for group, begin, end in chunks:
        groups.setdefault(group, []).append((begin, end))
    for group in sorted(groups):
        pieces: list[tuple[float, int, int]] = []
        for begin, end in sorted(groups[group]):
            if (
                pieces
                and pieces[-1][0] == 0
                and 0 <= begin - pieces[-1][2] <= MAX_GAP_BYTES
                and end - pieces[-1][1] <= MAX_GET_BYTES
            ):
                pieces[-1] = (0, pieces[-1][1], end)
                continue
            for start in range(begin, end, MAX_GET_BYTES):
                part = (start - begin) / (end - begin)
                pieces.append((part, start, min(start + MAX_GET_BYTES, end)))
        for _, start, end in sorted(pieces):
            yield start, end
