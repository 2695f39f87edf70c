"""The storage port: what cdfd asks of a file system or an object store. Ten methods; nothing of Delta.

Paths are relative to the store's root, with `/` between segments and no leading slash; what they may contain is
whatever the store can name (spaces, `%`, `=`), never URI-encoded. A path that would leave the root (`..`), that is
absolute, or that no store can name is refused with `PathError` by every method that takes one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa

from cdfd.errors import PathError, StorageError


@dataclass(frozen=True, slots=True)
class Stat:
    """One object, as it was at one moment.

    Attributes:
        path: of the object.
        size: in bytes.
        modified_ms: time of last modification, in ms since the Unix epoch.
        identity: which writing of the object it is. An object that is written again, or removed and created, has another one, also where
            its bytes are the same. Empty where nothing is known.
        settled: whether a later writing is sure to have another identity. Not so where the store counts time in steps and the object was
            written in the step under way: then only the bytes tell.
    """

    path: str
    size: int
    modified_ms: int
    identity: str = field(default="", compare=False)
    settled: bool = field(default=True, compare=False)


class Storage(Protocol):
    """A flat name space of immutable-once-written objects.

    Every method but `delete` raises `NotFoundError` where a named object does not exist, and `StorageError` (with `retriable` set
    where it is) for anything else the store says. Folders are no objects: naming one is naming nothing. Methods may be
    called concurrently. A call that is cancelled may still take effect: a write's outcome is then unknown.
    """

    @property
    def uri(self) -> str:
        """The root, as a user would write it; used in messages."""

    @property
    def remote(self) -> bool:
        """Whether a request takes so long that it pays to ask for what may come next before it is needed."""

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes `[start, start + length)` of an object, to its end where `length` is None.

        Fewer bytes come back only where the object ends; none where it ends before `start`. What is allocated is
        bounded by the object's size, whatever `length` says. Reads after a completed `put` see its bytes, whole.
        """

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        """The first `length` bytes of an object, or all where there are fewer, and what it was when they were read: one request."""

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        """What `fetch` gives for the first of `paths`, each object whole and no more than `length` bytes in all.

        All of them were there, as they are given, when the last of them was read. It ends before the first that is not there, cannot be
        read, does not fit any more, or changed meanwhile: what it is with that one, `fetch` tells. Raises nothing but `PathError`.
        """

    def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        """Objects directly in the folder part of `prefix` whose path begins with `prefix` and is above `start_after`.

        In ascending order of path (UTF-8 bytes), stats fetched page by page. Not recursive. A folder that does not
        exist is empty. Objects created or removed meanwhile may or may not appear. Whoever stops before the end closes it (`aclosing`).
        """

    async def put_if_absent(self, path: str, data: bytes) -> None:
        """Create an object, atomically and durably: readers see nothing or all of it.

        `ExistsError` where there is one already, which stays as it is; of several callers exactly one succeeds.
        """

    async def put(self, path: str, data: bytes) -> None:
        """Create or replace an object, atomically and durably: readers see the old bytes or the new, no mixture."""

    async def stat(self, path: str) -> Stat:
        """Size and modification time."""

    async def delete(self, path: str) -> None:
        """Remove an object. What is not there, or is a folder, is left as it is without a word.

        Readers see all of it or nothing. When it returns, this process no longer sees the object; a power failure may bring it back.
        """

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        """An object that will be read from its beginning, or opened, soon, and that may not be there: a remote store may begin to read it.

        With `whole`, all of what is opened will be read. Nothing but time depends on it. Returns at once, and raises nothing but `PathError`.
        """

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Random access for a columnar reader, usable from any one thread at a time; the caller closes it.

        `size`, where the log tells it, saves a request. Blocking: call it and read from it in a worker thread.
        """


@runtime_checkable
class ColumnPrefetch(Protocol):
    """A file of `open_input_file` that fetches its parts before they are read, where it is told which."""

    def prefetch_columns(self, columns: Collection[str], groups: Collection[int] | None = None) -> None:
        """These columns, with all that is below them, are read next: of these row groups, or of all."""


async def fetch_each(storage: Storage, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
    """`fetch_many`, by `fetch`."""
    found = []
    for path in paths:
        try:
            data, stat = await storage.fetch(path, length + 1)
        except StorageError:
            break
        if stat.size > length or len(data) != stat.size:
            break
        length -= stat.size
        found.append((data, stat))
    for number, (_, stat) in enumerate(found):
        try:
            same = is_same(stat, await storage.stat(stat.path))
        except StorageError:
            same = False
        if not same:
            return found[:number]
    return found


def is_same(before: Stat, now: Stat) -> bool:
    """Whether two looks at an object saw one writing, as far as the store can tell."""
    return (before, before.identity) == (now, now.identity)


def check_path(path: str) -> None:
    """`PathError` where `path` leads out of a store's root or cannot be the name of an object in it."""
    if not path or path.endswith("/"):
        raise PathError("the path names no object", path=path)
    check_prefix(path)


def check_prefix(prefix: str) -> None:
    """`PathError` where `prefix` leads out of a store's root or cannot be the beginning of a name in it."""
    if prefix.startswith("/"):
        raise PathError("the path is absolute; expected a path inside the storage root", path=prefix)
    if ".." in prefix and ".." in prefix.split("/"):
        raise PathError("the path leads out of the storage root", path=prefix)
    if "\0" in prefix:
        raise PathError("the path contains a NUL character", path=prefix.replace("\0", "\\0"))
    if not prefix.isascii():
        try:
            prefix.encode()
        except UnicodeEncodeError as error:
            readable = prefix.encode(errors="backslashreplace").decode()
            raise PathError("the path contains half of a surrogate pair", path=readable) from error


def check_range(path: str, start: int, length: int | None) -> None:
    """`StorageError` for a range that no object can have; ranges come from the log, so they are input."""
    if start < 0 or (length is not None and length < 0):
        raise StorageError(f"there is no range of {length} bytes at {start}", path=path)
