"""A store that runs a test's action before or after any step: fail, die, or let another writer act."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pyarrow as pa

from cdfd.storage.base import Stat, Storage

Hook = Callable[[str, str], Awaitable[None]]


class Died(Exception):
    """The process is gone: no code of cdfd catches this."""


async def nothing(method: str, path: str) -> None:
    """Let the step happen."""


class FaultyStorage:
    """The `Storage` port over another one, with hooks.

    Attributes:
        before, after: awaited around each step with the method and the path; what they raise is what the step raises.
        steps: (method, path) of each step begun.
    """

    def __init__(self, inner: Storage, before: Hook = nothing, after: Hook = nothing) -> None:
        self.inner = inner
        self.before = before
        self.after = after
        self.steps: list[tuple[str, str]] = []

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def remote(self) -> bool:
        return self.inner.remote

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        await self._begin("read", path)
        content = await self.inner.fetch(path, length)
        await self.after("read", path)
        return content

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        for path in paths:
            await self._begin("read", path)
        contents = await self.inner.fetch_many(paths, length)
        for path in paths:
            await self.after("read", path)
        return contents

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        await self._begin("read", path)
        data = await self.inner.read(path, start, length)
        await self.after("read", path)
        return data

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        await self._begin("list", prefix)
        async for stat in self.inner.list(prefix, start_after):
            yield stat
        await self.after("list", prefix)

    async def put_if_absent(self, path: str, data: bytes) -> None:
        await self._begin("put_if_absent", path)
        await self.inner.put_if_absent(path, data)
        await self.after("put_if_absent", path)

    async def put(self, path: str, data: bytes | memoryview) -> None:
        await self._begin("put", path)
        await self.inner.put(path, data)
        await self.after("put", path)

    async def stat(self, path: str) -> Stat:
        await self._begin("stat", path)
        file_stat = await self.inner.stat(path)
        await self.after("stat", path)
        return file_stat

    async def delete(self, path: str) -> None:
        await self._begin("delete", path)
        await self.inner.delete(path)
        await self.after("delete", path)

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        self.inner.prefetch(path, size, whole=whole)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        return self.inner.open_input_file(path, size)

    async def _begin(self, method: str, path: str) -> None:
        self.steps.append((method, path))
        await self.before(method, path)


Act = Callable[[], Awaitable[None]]
Counts = Callable[[str, str], bool]
"""Whether a step has a number, by its method and path."""


def since(part: str) -> Counts:
    """Steps from the first one on whose path has this part."""
    begun = False

    def counts(method: str, path: str) -> bool:
        nonlocal begun
        begun = begun or part in path
        return begun

    return counts


class AtStep:
    """A hook for one step: it raises an error or lets another writer act. Later steps run as usual.

    Args:
        number: of the step, from 0.
        act: the error, or what is awaited.
        counts: which steps have numbers.

    Attributes:
        acted_at: the method and path of the step; None if there was no such step yet.
    """

    def __init__(self, number: int, act: Exception | Act, counts: Counts = lambda method, path: True) -> None:
        self.acted_at: tuple[str, str] | None = None
        self._left = number
        self._act = act
        self._counts = counts

    @property
    def reached(self) -> bool:
        """Whether there was such a step."""
        return self.acted_at is not None

    async def __call__(self, method: str, path: str) -> None:
        if self.reached or not self._counts(method, path):
            return
        self._left -= 1
        if self._left >= 0:
            return
        self.acted_at = method, path
        if isinstance(self._act, Exception):
            raise self._act
        await self._act()
