"""Files of a target that are stored as soon as they are complete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

import pyarrow as pa

from cdfd.sinks.delta.data_files import DataFiles, NewFile
from cdfd.sinks.delta.target import Target, translated

T = TypeVar("T")


async def fetched(items: Iterator[T], place: str) -> AsyncIterator[T]:
    """The items of a blocking iterator of rows to write, each fetched in a thread. Errors become those of the sink."""
    while True:
        with translated("write the rows", place):
            found = await asyncio.to_thread(next, items, None)
        if found is None:
            return
        yield found


class StoredFiles:
    """Writes rows into data files of a target, of one schema after the other.

    Attributes:
        done: the files that are stored.
    """

    def __init__(self, target: Target) -> None:
        self.done: list[NewFile] = []
        self._target = target
        self._open: DataFiles | None = None

    async def start(self, files: DataFiles) -> None:
        """Store what is open, and write the next rows into these files."""
        await self.end()
        self._open = files

    async def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, and store the files that are full. `start` comes first."""
        assert self._open is not None
        await self._put(self._open.write(batch))

    async def end(self) -> None:
        """Store the files that are open."""
        if self._open is not None:
            files, self._open = self._open, None
            await self._put(files.finish())

    def forget(self) -> None:
        """Forget the rows that are not stored."""
        self._open = None

    async def _put(self, files: Iterator[tuple[NewFile, pa.Buffer]]) -> None:
        async for file, data in fetched(files, self._target.uri):
            await self._target.put(file.path, data)
            self.done.append(file)
