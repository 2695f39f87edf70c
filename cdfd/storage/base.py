"""The storage port: the operations that cdfd needs of a file system or an object store. It knows nothing of Delta.

Paths are relative to the store's root, with `/` between segments and no leading slash. They may contain any character that the store supports
(spaces, `%`, `=`), and are never URI-encoded. Every method raises `PathError` for a path that leaves the root (`..`), is absolute, or cannot
be a name in any store.
"""

from collections.abc import AsyncGenerator, Sequence
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
        identity: identifies one write of the object. An object that is written again, or removed and created, gets another identity, even
            with the same bytes. Empty if unknown.
        settled: whether a later write certainly gets another identity. It does not if the store's clock is coarse and the object was
            written in the current step. Then only the bytes show a change.
    """

    path: str
    size: int
    modified_ms: int
    identity: str = field(default="", compare=False)
    settled: bool = field(default=True, compare=False)


class Storage(Protocol):
    """A flat name space of immutable-once-written objects.

    Every method but `delete` raises `NotFoundError` if a named object does not exist, and `StorageError` (with `retriable` set for transient
    errors) for other errors of the store. Folders are not objects: a folder's name does not exist. Methods may be called concurrently. A
    cancelled call may still take effect, so the outcome of a write is then unknown.
    """

    @property
    def uri(self) -> str:
        """The root, as a user writes it; used in messages."""

    @property
    def remote(self) -> bool:
        """Whether requests take so long that prefetching pays off."""

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes `[start, start + length)` of an object, to its end where `length` is None.

        Fewer bytes are returned only at the object's end, and none if it ends before `start`. The object's size bounds the memory, whatever
        the `length`. Reads after a completed `put` see all of its bytes.
        """

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        """The first `length` bytes of an object, or all if there are fewer, and its stat when they were read, in one request."""

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        """The results of `fetch` for the first of `paths`: whole objects, at most `length` bytes in total.

        All of them existed unchanged when the last of them was read. The result ends before the first object that does not exist, cannot be
        read, does not fit, or changed meanwhile. Call `fetch` for that one to get the error. Raises only `PathError`.
        """

    def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        """Objects directly in the folder part of `prefix` whose path begins with `prefix` and is above `start_after`.

        In ascending order of path (UTF-8 bytes); stats are fetched page by page. Not recursive. A folder that does not exist is empty.
        Objects that are created or removed meanwhile may or may not appear. Close the generator if you stop before its end (`aclosing`).
        """

    async def put_if_absent(self, path: str, data: bytes) -> None:
        """Create an object, atomically and durably: readers see nothing or all of it.

        `ExistsError` if it exists; the existing object is unchanged. Of several callers, exactly one succeeds.
        """

    async def put(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace an object, atomically and durably: readers see the old bytes or the new ones, and never a mixture."""

    async def stat(self, path: str) -> Stat:
        """Size and modification time."""

    async def delete(self, path: str) -> None:
        """Remove an object. Missing objects and folders are ignored.

        Readers see all of it or nothing. Once it returns, this process no longer sees the object. A power failure may restore it.
        """

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        """Announce an object that will soon be read from its beginning, or opened. A remote store may start to fetch it. It may not exist.

        An object whose size is known never changes; announce it once for each time that it will be opened. With `whole`, all of an opened
        object will be read. This is only an optimisation. It returns at once, and raises only `PathError`.
        """

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Random access to an object, for one thread at a time; the caller closes it.

        `size`, if the log has it, saves a request. Blocking: call it and read from it in a worker thread.
        """


@runtime_checkable
class FolderListing(Protocol):
    """A store that lists folders, for the discovery of tables."""

    async def folders(self, folder: str = "") -> Sequence[str]:
        """The names of the folders in a folder, sorted; none if it does not exist. A folder's name is relative to the root, without a slash
        at its end.

        Raises:
            StorageError: the folder cannot be listed.
        """


@runtime_checkable
class NamedTable(Protocol):
    """The store of a table that a catalog names. Its `uri` is that name."""

    @property
    def location(self) -> str:
        """URI of the table's root. Blocks until the catalog has answered once."""

    @property
    def ratified(self) -> bool:
        """Whether the catalog decides which commits exist. False before the first request."""

    def open_root(self, root: str) -> Storage:
        """The store of another root, with the options of the catalog's stores. Raises what `open_storage` does."""


@runtime_checkable
class ColumnPrefetch(Protocol):
    """A file from `open_input_file` that prefetches the columns that its reader announces."""

    def prefetch_columns(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Announce which columns are read next, each as its row group, start and end in bytes."""


@runtime_checkable
class WholeFiles(Protocol):
    """A store that reads many small files faster together than one by one."""

    def read_whole(self, paths: Sequence[str], sizes: Sequence[int]) -> Sequence[bytes]:
        """All bytes of each object. Blocking: call it in a worker thread.

        Raises:
            StorageError: an object cannot be read, or is larger than its size in `sizes`.
        """


def root_of(storage: Storage) -> str:
    """URI of a table's root: where it is, also if a catalog names it."""
    # Checking the protocol takes long, and this is asked for each file.
    location: str = storage.location if hasattr(storage.__class__, "open_root") else storage.uri  # type: ignore[attr-defined]
    return location


def read_whole(storage: Storage, path: str, size: int) -> bytes:
    """All bytes of an object. Blocking.

    Raises:
        StorageError: it cannot be read, or has more than `size` bytes.
    """
    with storage.open_input_file(path, size) as file:
        data: bytes = file.read(size + 1)
    if len(data) > size:
        raise StorageError(f"the object has more than {size} bytes, which it should have", path=path)
    return data


async def fetch_each(storage: Storage, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
    """`fetch_many` with one `fetch` per object."""
    objects = []
    for path in paths:
        try:
            data, stat = await storage.fetch(path, length + 1)
        except StorageError:
            break
        if stat.size > length or len(data) != stat.size:
            break
        length -= stat.size
        objects.append((data, stat))
    for number, (_, stat) in enumerate(objects):
        try:
            same = is_same(stat, await storage.stat(stat.path))
        except StorageError:
            same = False
        if not same:
            return objects[:number]
    return objects


def is_same(before: Stat, now: Stat) -> bool:
    """Whether two stats are of the same write of an object, as far as the store can tell."""
    if before.identity and now.identity:
        return (before.path, before.size, before.identity) == (now.path, now.size, now.identity)
    return (before, before.identity) == (now, now.identity)


def check_path(path: str) -> None:
    """`PathError` if `path` leads out of a store's root or cannot be the name of an object in it."""
    if not path or path.endswith("/"):
        raise PathError("the path names no object", path=path)
    check_prefix(path)


def check_prefix(prefix: str) -> None:
    """`PathError` if `prefix` leads out of a store's root or cannot be the beginning of a name in it."""
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
    """`StorageError` for a range that no object can have. Ranges come from the log, so they are untrusted."""
    if start < 0 or (length is not None and length < 0):
        raise StorageError(f"there is no range of {length} bytes at {start}", path=path)
