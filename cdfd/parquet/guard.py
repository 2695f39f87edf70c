"""A file that checks page headers while it is read: for remote files, in which reading the headers first would take too many requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pyarrow as pa

from cdfd.parquet.bounds import NESTED_BYTES, USUAL_BYTES, Bounds, ColumnChunk
from cdfd.parquet.layout import Buffer
from cdfd.parquet.pages import DATA, DATA_V2, HEADER_BYTES, page
from cdfd.parquet.readable import Readable


class BoundsExceededError(Exception):
    """The next page may take more memory than planned. It is not decoded yet."""


def guarded(source: Any) -> GuardedFile:
    """A guarded view of a file, which raises an error once its pages exceed the bounds. Closing it leaves the file open."""
    return GuardedFile(_Guard(source), "r")


class GuardedFile(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """A file that is `guarded`. It checks nothing before `watch` is called."""

    def __init__(self, guard: _Guard, mode: str) -> None:
        self._guard = guard

    def watch(self, bounds: Bounds, rows: int, indexed: Collection[str], *, measuring: bool = False) -> None:
        """Check the pages of these column chunks from now on, which are read from their beginning in batches of `rows` rows.

        Args:
            bounds: the chunks; pages are added to them.
            rows: of a batch.
            indexed: columns that are read as dictionaries.
            measuring: whether nothing but a dictionary is wanted, so that strings outside of it end the reading.
        """
        self._guard.watch(bounds, rows, indexed, measuring)

    def next_batch(self) -> None:
        """A batch was read."""
        self._guard.next_batch()


class _Guard(Readable):
    """The file object behind `pa.PythonFile`, which has a lock. Each column chunk is read from its beginning."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._bounds = Bounds()
        self._rows = 1
        self._indexed: Collection[str] = ()
        self._measuring = False
        self._states: list[_State] = []
        self._starts: list[int] = []

    def watch(self, bounds: Bounds, rows: int, indexed: Collection[str], measuring: bool) -> None:
        self._bounds, self._rows, self._indexed, self._measuring = bounds, rows, indexed, measuring
        chunks = sorted((chunk for chunk in bounds.chunks if chunk.end > chunk.start), key=lambda chunk: chunk.start)
        if any(one.end > other.start for one, other in pairwise(chunks)):
            raise ValueError("columns in the same place of the file")
        self._states = [_State(chunk) for chunk in chunks]
        self._starts = [chunk.start for chunk in chunks]

    def next_batch(self) -> None:
        for chunk in self._bounds.chunks:
            if chunk.leaf.nested:
                chunk.rows_done()

    # --- called by pa.PythonFile ---

    def tell(self) -> int:
        return int(self._source.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._source.seek(offset, whence))

    def read(self, count: int | None = None) -> pa.Buffer:
        # Arrow copies what it needs from the buffer. Bytes would be one more copy.
        at = self._source.tell()
        data = self._source.read_buffer(count)
        self._look(at, memoryview(data).cast("B"))
        return data

    # --- checks ---

    def _look(self, at: int, data: memoryview) -> None:
        found = bisect_right(self._starts, at) - 1
        if found < 0 or at >= self._states[found].chunk.end:
            return
        state = self._states[found]
        try:
            if state.feed(at, data):
                self._check(state)
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from None

    def _check(self, state: _State) -> None:
        """Check the bounds after pages were added to a chunk."""
        chunk, bounds = state.chunk, self._bounds
        if chunk.open_bytes > USUAL_BYTES:
            bounds.check_open()
        if chunk.leaf.nested:
            if bounds.nested_bytes() > NESTED_BYTES or (chunk.plain and self._measuring):
                raise BoundsExceededError
        elif chunk.leaf.path in self._indexed:
            if chunk.plain:
                raise BoundsExceededError
        elif chunk.row_bytes > state.row_bytes:
            state.row_bytes = chunk.row_bytes
            if bounds.rows(self._indexed) < self._rows:
                raise BoundsExceededError


class _State:
    """How far the page headers of a chunk were read."""

    def __init__(self, chunk: ColumnChunk) -> None:
        self.chunk = chunk
        self.row_bytes = chunk.row_bytes
        self._seen = chunk.start
        self._next = chunk.start
        self._left = chunk.values
        self._begun = b""

    def feed(self, at: int, data: Buffer) -> bool:
        """Parse the page headers in the bytes that begin at `at`. Returns whether there was one."""
        if at != self._seen:
            raise ValueError("a column is not read in order")
        self._seen = at + len(data)
        found = False
        while self._left > 0 and self._next < min(self._seen, self.chunk.end):
            data, at = (self._begun + bytes(data), at - len(self._begun)) if self._begun else (data, at)
            self._begun = b""
            try:
                header = page(data, self._next - at)
            except IndexError:
                self._begun = bytes(data[self._next - at :])
                if len(self._begun) > HEADER_BYTES:
                    raise ValueError("a page's header does not end") from None
                break
            self._next += header.start + header.stored
            if self._next > self.chunk.end:
                raise ValueError("a page ends after its column")
            self.chunk.add(header)
            self._left -= header.values if header.kind in (DATA, DATA_V2) else 0
            found = True
        return found
