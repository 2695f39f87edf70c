"""Batches of log entries for catch-up: in a local store, most of the cost of an entry is the switch to a worker thread and back."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from cdfd.delta import paths
from cdfd.storage.base import Stat, Storage

MIN_RUN = 3
"""Consecutive entries that existed when they were requested, before batches are read."""
MAX_ENTRIES, MAX_BYTES = 64, 4 << 20
"""Entries of a batch, at most, and their bytes."""
YIELD_EVERY = 16
"""Entries after which the event loop runs other tasks, if no entry has to be waited for."""


class EntryBatches:
    """Entries of a store that is not remote, read in batches before the reader requests them.

    The newest existing entry is never in a batch. It may still be written, so it is read by itself, with a second check. An entry with a
    successor is complete, or its reader detects that it is not.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._buffered: dict[int, tuple[bytes, Stat]] = {}
        self._next = -1
        self._run = 0
        self._size = 0

    def record_read(self, version: int, size: int) -> None:
        """The entry of a version, of so many bytes, was read."""
        self._run = self._run + 1 if version == self._next else 1
        self._next, self._size = version + 1, size

    def clear(self) -> None:
        """Drop all buffered entries: there are no more for now, or they changed."""
        self._buffered.clear()
        self._run = 0

    def has(self, version: int) -> bool:
        """Whether an entry is buffered, and is the next one."""
        return version == self._next and version in self._buffered

    async def pop(self, version: int) -> tuple[bytes, Stat] | None:
        """The bytes of an entry and its stat when they were read; None if it has to be read by itself."""
        if version != self._next:
            self.clear()
        if not self._buffered and self._run >= MIN_RUN:
            count = min(1 << min(self._run - MIN_RUN + 1, 16), MAX_ENTRIES, MAX_BYTES // max(self._size, 1))
            if count >= 2:
                versions = range(version, version + count)
                names = [f"{paths.LOG}/{paths.commit_name(each)}" for each in versions]
                objects = await self._storage.fetch_many(names, MAX_BYTES)
                followed = objects if len(objects) == count else objects[:-1]
                self._buffered = dict(zip(versions, followed, strict=False))
        elif self._buffered and not version % YIELD_EVERY:
            await asyncio.sleep(0)
        return self._buffered.pop(version, None)


@dataclass(eq=False)
class ListedEntries:
    """The contents of listed files, for a reader that reads them in order. Batches double in size.

    Attributes:
        storage: of the files; not remote.
        files: from a listing.
    """

    storage: Storage
    files: Sequence[Stat]
    _buffered: dict[int, bytes] = field(default_factory=dict, init=False)
    _count: int = field(default=1, init=False)

    async def pop(self, number: int) -> bytes | None:
        """The bytes of file number `number`; None if it has to be read by itself, as the first one has."""
        if number not in self._buffered:
            paths, size = [], 0
            for file in self.files[number : number + self._count]:
                size += file.size
                if size > MAX_BYTES:
                    break
                paths.append(file.path)
            self._count = min(2 * self._count, MAX_ENTRIES)
            objects = await self.storage.fetch_many(paths, MAX_BYTES) if len(paths) > 1 else ()
            self._buffered = {at: data for at, (data, _) in enumerate(objects, number)}
        return self._buffered.pop(number, None)
