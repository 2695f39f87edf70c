"""A store in memory, for tests."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa

from cdfd.errors import ExistsError, NotFoundError
from cdfd.storage.base import Stat, check_path, check_prefix, check_range, fetch_each


def _system_now_ms() -> int:
    return time.time_ns() // 1_000_000


_numbers = count()


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    modified_ms: int
    identity: str = field(default_factory=lambda: str(next(_numbers)))


class MemoryStorage:
    """The `Storage` port over a dictionary; atomic because it belongs to one event loop.

    Args:
        uri: what it is called in messages.
        now_ms: the time that objects get as their modification time.
    """

    remote = False

    def __init__(self, uri: str = "memory://", *, now_ms: Callable[[], int] = _system_now_ms) -> None:
        self._uri = uri
        self._now_ms = now_ms
        self._objects: dict[str, _Object] = {}

    @property
    def uri(self) -> str:
        """The name it was given."""
        return self._uri

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object; see the port."""
        check_range(path, start, length)
        data = self._find(path).data
        return data[start:] if length is None else data[start : start + length]

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        """Bytes of an object and its stat; see the port."""
        return await self.read(path, 0, length), self._stat(path)

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        """Bytes of objects and their stats; see the port."""
        return await fetch_each(self, paths, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        """Objects of a folder as they are now; see the port."""
        check_prefix(prefix)
        folder = len(prefix[: prefix.rfind("/") + 1])
        for path in sorted(self._objects):
            if path.startswith(prefix) and path > start_after and "/" not in path[folder:] and path in self._objects:
                yield self._stat(path)

    async def folders(self, folder: str = "") -> Sequence[str]:
        """First segments of names in a folder; see `FolderListing`."""
        check_prefix(folder)
        prefix = f"{folder}/" if folder else ""
        below = (path[len(prefix) :] for path in self._objects if path.startswith(prefix))
        return sorted({path.partition("/")[0] for path in below if "/" in path})

    async def put_if_absent(self, path: str, data: bytes) -> None:
        """Create an object; see the port."""
        check_path(path)
        if path in self._objects:
            raise ExistsError("there is an object with that name already", path=path)
        await self.put(path, data)

    async def put(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace an object; see the port."""
        check_path(path)
        self._objects[path] = _Object(bytes(data), self._now_ms())

    async def delete(self, path: str) -> None:
        """Remove an object; see the port."""
        check_path(path)
        self._objects.pop(path, None)

    async def stat(self, path: str) -> Stat:
        """Size and modification time of an object; see the port."""
        return self._stat(path)

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        """Nothing to do: reading takes no time; see the port."""
        check_path(path)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Random access to an object's bytes, without a copy."""
        return pa.BufferReader(self._find(path).data)

    def _stat(self, path: str) -> Stat:
        stored = self._find(path)
        return Stat(path, len(stored.data), stored.modified_ms, stored.identity)

    def _find(self, path: str) -> _Object:
        check_path(path)
        stored = self._objects.get(path)
        if stored is None:
            raise NotFoundError("there is no object with that name", path=path)
        return stored
