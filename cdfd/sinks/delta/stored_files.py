"""Files of a target that are stored as soon as they are complete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from cdfd.sinks.delta.data_files import DataFiles, NewFile
from cdfd.sinks.delta.target import Target, translate_errors

T = TypeVar("T")


async def fetch_in_thread(items: Iterator[T], place: str) -> AsyncIterator[T]:
    """The items of a blocking iterator of rows to write, each fetched in a thread. Errors become those of the sink."""
    while True:
        with translate_errors("write the rows", place):
            item = await asyncio.to_thread(next, items, None)
        if item is None:
            return
        yield item


_HANDOVER_BYTES = 4 << 20
"""Rows that are handed to a thread at once. Each time takes longer than the work on a few rows."""


@dataclass(eq=False)
class StoredFiles:
    """Writes rows into data files of a target, of one schema after the other. A file is stored while the next one is encoded.

    Attributes:
        done: the files that are stored.
    """

    target: Target
    done: list[NewFile] = field(default_factory=list, init=False)
    _open: DataFiles | None = field(default=None, init=False)
    _rows: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _bytes: int = field(default=0, init=False)
    _storing: tuple[NewFile, asyncio.Task[None]] | None = field(default=None, init=False)

    async def start(self, files: DataFiles) -> None:
        """Store what is open, and write the next rows into these files."""
        await self.end()
        self._open = files

    async def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, and store files that are full. `start` comes first. An error of a row may be raised later, by `end` at the latest."""
        assert self._open is not None
        self._rows.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _HANDOVER_BYTES:
            await self._put(self._open)

    async def end(self) -> None:
        """Store the files that are open."""
        if self._open is not None:
            files, self._open = self._open, None
            await self._put(files, last=True)
            await self._await_store()

    async def forget(self) -> None:
        """Forget the rows that are not stored."""
        self._open, self._rows = None, []
        if self._storing is not None:
            _, storing = self._storing
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)

    async def _put(self, files: DataFiles, *, last: bool = False) -> None:
        rows, self._rows, self._bytes = self._rows, [], 0
        complete = chain.from_iterable(map(files.write, rows))
        async for file, data in fetch_in_thread(chain(complete, files.finish() if last else ()), self.target.uri):
            await self._await_store()
            self._storing = file, asyncio.create_task(self.target.put(file.path, data))

    async def _await_store(self) -> None:
        """Wait until the file before is stored: one at a time, because it is in memory."""
        if self._storing is not None:
            (file, storing), self._storing = self._storing, None
            await storing
            self.done.append(file)
