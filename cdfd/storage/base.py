"""The storage port: what cdfd asks of a file system or an object store. Six methods; nothing of Delta.

Paths are relative to the store's root, with `/` between segments and no leading slash; what they may contain is whatever the store can
name (spaces, `%`, `=`), never URI-encoded. A path that would leave the root (`..`) is refused with `PathError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class Stat:
    """One object: its path, size in bytes and time of last modification in milliseconds since the Unix epoch."""

    path: str
    size: int
    modified_ms: int


class Storage(Protocol):
    """A flat name space of immutable-once-written objects.

    Every method raises `NotFoundError` where a named object does not exist, and `StorageError` (with `retriable` set where it is) for
    anything else the store says. Methods may be called concurrently.
    """

    @property
    def uri(self) -> str:
        """The root, as a user would write it; used in messages."""

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes `[start, start + length)` of an object, to its end where `length` is None.

        Fewer bytes come back only where the object ends. Reads after a completed `put` see its bytes, whole.
        """

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Stat]:
        """Objects directly in the folder part of `prefix` whose path begins with `prefix` and is greater than `start_after`.

        In ascending order of path (UTF-8 bytes), fetched page by page: memory is bounded by a page. Not recursive. A folder that does
        not exist is empty. Objects created meanwhile may or may not appear.
        """

    async def put_if_absent(self, path: str, data: bytes) -> None:
        """Create an object, atomically: readers see nothing or all of it. `ExistsError` where there is one already, which stays as it is."""

    async def put(self, path: str, data: bytes) -> None:
        """Create or replace an object, atomically: readers see the old bytes or the new, never a mixture."""

    async def stat(self, path: str) -> Stat:
        """Size and modification time."""

    def open_columns(self, path: str, size: int | None = None) -> BinaryIO:
        """Random access for a columnar reader, usable from any one thread at a time; the caller closes it.

        `size`, where the log tells it, saves a request. Blocking: call it and read from it in a worker thread.
        """
