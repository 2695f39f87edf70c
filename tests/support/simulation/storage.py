"""A store that all processes see, and the ports over it: storage that fails, and watches that tell too much or too little."""

import asyncio
from bisect import bisect_right, insort
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdfd.errors import ExistsError, NotFoundError, StorageError
from cdfd.storage.base import Stat, check_path, fetch_each
from tests.support.simulation.loop import BEGINNING_MS
from tests.support.simulation.weather import Process, Weather

LOG = "_delta_log/"


@dataclass(slots=True)
class Blob:
    """An object. It is listed from the beginning, and can be read from `readable` on."""

    data: bytes
    stat: Stat
    readable: float = 0.0


class Disk:
    """The objects of one store. Its methods act at once and never fail, because writers use them.

    Args:
        uri: of the store.
        weather: of the run.
        remote: whether it is an object store.

    Attributes:
        blobs: by path.
        entered: called with the path of each new object.
        skew_ms: how wrong the clock is that gives objects their modification times.
    """

    def __init__(self, uri: str, weather: Weather, *, remote: bool) -> None:
        self.uri = uri
        self.weather = weather
        self.remote = remote
        self.blobs: dict[str, Blob] = {}
        self.skew_ms = 0
        self.entered: Callable[[str], None] = lambda path: None
        self._names: list[str] = []
        self._writings = 0
        self._watches: list[asyncio.Event] = []
        self._loop = weather.loop

    def put(self, path: str, data: bytes) -> None:
        now = BEGINNING_MS + self.skew_ms + int(self._loop.time() * 1000)
        new = path not in self.blobs
        self._writings += 1
        self.blobs[path] = blob = Blob(data, Stat(path, len(data), now, str(self._writings)))
        if new:
            insort(self._names, path)
            if self.remote and path.startswith(LOG) and self.weather.strikes("storage: listed, not readable"):
                blob.readable = self._loop.time() + self.weather.random.uniform(0, 1)
            self.entered(path)
        if path.startswith(LOG):
            self._tell()

    def remove(self, path: str) -> None:
        if self.blobs.pop(path, None) is not None:
            self._names.remove(path)

    def names(self, prefix: str, start_after: str = "") -> list[str]:
        first = bisect_right(self._names, max(start_after, prefix[:-1]))
        return [name for name in self._names[first:] if name.startswith(prefix)]

    def watch(self, happened: asyncio.Event) -> None:
        self._watches.append(happened)

    def leave(self, happened: asyncio.Event) -> None:
        self._watches.remove(happened)

    def _tell(self) -> None:
        for happened in self._watches:
            if self.weather.strikes("watch: lost"):
                continue
            if self.weather.strikes("watch: late"):
                self._loop.call_later(self.weather.random.uniform(0, 3), happened.set)
            else:
                self._loop.call_soon(happened.set)
            if self.weather.strikes("watch: spurious"):
                self._loop.call_later(self.weather.random.uniform(0, 10), happened.set)


class FailingStorage:
    """The `Storage` port of one process over a disk."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.uri = disk.uri
        self.remote = disk.remote
        self._disk = disk
        self._process = process
        self._weather = disk.weather

    async def _call(self, path: str) -> None:
        self._process.check()
        await self._weather.pass_by("storage: slow")
        self._process.check()
        if not self._weather.calm:
            self._refuse(path)

    def _refuse(self, path: str) -> None:
        if self._weather.strikes("storage: transient"):
            raise StorageError("503 Slow Down", path=path, retriable=True)
        if self._weather.strikes("storage: denied"):
            raise StorageError("403 Access Denied", path=path)

    def _find(self, path: str) -> Blob:
        blob = self._disk.blobs.get(path)
        if blob is None or blob.readable > self._weather.loop.time():
            check_path(path)
            raise NotFoundError("there is no object with that name", path=path)
        return blob

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        await self._call(path)
        data = self._find(path).data
        return data[start:] if length is None else data[start : start + length]

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        await self._call(path)
        blob = self._find(path)
        return blob.data[:length], blob.stat

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        return await fetch_each(self, paths, length)

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        await self._call(prefix)
        names = self._disk.names(prefix, start_after)
        for number, path in enumerate(names):
            if number % 8 == 7:  # the next page
                await self._call(prefix)
            blob = self._disk.blobs.get(path)
            if blob is not None and "/" not in path[len(prefix) :]:
                yield blob.stat

    async def stat(self, path: str) -> Stat:
        await self._call(path)
        return self._find(path).stat

    async def put_if_absent(self, path: str, data: bytes) -> None:
        await self._call(path)
        if path in self._disk.blobs:
            raise ExistsError("there is an object with that name already", path=path)
        self._disk.put(path, data)
        await self._written(path)

    async def put(self, path: str, data: bytes | memoryview) -> None:
        await self._call(path)
        self._disk.put(path, bytes(data))
        await self._written(path)

    async def delete(self, path: str) -> None:
        await self._call(path)
        self._disk.remove(path)
        await self._written(path)

    async def _written(self, path: str) -> None:
        await self._weather.pass_by("storage: slow")
        self._process.check()
        if self._weather.strikes("storage: write of unknown outcome"):
            raise StorageError("the connection was reset before an answer came", path=path, retriable=True)

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        check_path(path)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        self._process.check()
        self._refuse(path)
        return pa.BufferReader(self.contents(path))

    def contents(self, path: str) -> bytes:
        """An object's bytes, for the simulation itself: at once, and without faults."""
        return self._find(path).data


class Held:
    """A store of one file."""

    uri, remote = "memory://held", False

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        return pa.BufferReader(self._data)


class UnreliableWatch:
    """The `Watch` port over a disk: hints get lost, come late, or come for nothing."""

    def __init__(self, disk: Disk, clock: object) -> None:
        self._disk = disk
        self._clock = clock
        self._happened = asyncio.Event()
        disk.watch(self._happened)

    async def wait(self, timeout: float) -> None:
        await self._clock.wait(self._happened, timeout)  # type: ignore[attr-defined]
        self._happened.clear()

    def arrived(self) -> None: ...

    def close(self) -> None:
        self._disk.leave(self._happened)
