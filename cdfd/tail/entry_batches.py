"""Log entries several at a time, for a reader that is behind: where a store is near, an entry costs the way to a thread and back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cdfd.delta import paths
from cdfd.storage.base import Stat, Storage

RUN = 3
"""Entries that were there at once, one after the other, before several are asked for."""
MOST, MOST_BYTES = 64, 4 << 20
"""Entries to ask for, and their bytes, at most."""
PAUSE = 16
"""Entries after which others get their turn, where none has to be waited for."""


class Bulk:
    """What was read of entries before they were asked for, from a store that is not remote.

    Of what is there, the newest entry is not among it: it may still be written to, and whoever reads it by itself looks twice. One that
    another follows is whole, or its reader finds out that it is not.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held: dict[int, tuple[bytes, Stat]] = {}
        self._next = -1
        self._run = 0
        self._size = 0

    def passed(self, version: int, size: int) -> None:
        """The entry of a version, of so many bytes, was there."""
        self._run = self._run + 1 if version == self._next else 1
        self._next, self._size = version + 1, size

    def forget(self) -> None:
        """There are no more entries now, or they are not as they were."""
        self._held.clear()
        self._run = 0

    def holds(self, version: int) -> bool:
        """Whether an entry was read, together with the one before it."""
        return version == self._next and version in self._held

    async def take(self, version: int) -> tuple[bytes, Stat] | None:
        """What was read of an entry and what it was then; None where it is to be read by itself."""
        if version != self._next:
            self.forget()
        if not self._held and self._run >= RUN:
            await self._fetch(version)
        elif self._held and not version % PAUSE:
            await asyncio.sleep(0)
        return self._held.pop(version, None)

    async def _fetch(self, version: int) -> None:
        count = min(1 << min(self._run - RUN + 1, 16), MOST, MOST_BYTES // max(self._size, 1))
        if count < 2:
            return
        wanted = range(version, version + count)
        names = [f"{paths.LOG}/{paths.commit_name(each)}" for each in wanted]
        found = await self._storage.fetch_many(names, MOST_BYTES)
        followed = found if len(found) == count else found[:-1]
        self._held = dict(zip(wanted, followed, strict=False))


class Listed:
    """What is in files that a listing showed, for a reader that goes through them in order: ever more of them at once.

    Args:
        storage: where they are; not remote.
        files: as they were listed.
    """

    def __init__(self, storage: Storage, files: Sequence[Stat]) -> None:
        self._storage = storage
        self._files = files
        self._held: dict[int, bytes] = {}
        self._count = 1

    async def take(self, number: int) -> bytes | None:
        """The bytes of the file of that number; None where it is to be read by itself, as the first one is."""
        if number not in self._held:
            paths = self._fitting(number)
            self._count = min(2 * self._count, MOST)
            found = await self._storage.fetch_many(paths, MOST_BYTES) if len(paths) > 1 else ()
            self._held = {at: data for at, (data, _) in enumerate(found, number)}
        return self._held.pop(number, None)

    def _fitting(self, number: int) -> list[str]:
        paths, size = [], 0
        for file in self._files[number : number + self._count]:
            size += file.size
            if size > MOST_BYTES:
                break
            paths.append(file.path)
        return paths
