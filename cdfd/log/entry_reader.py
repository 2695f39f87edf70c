"""Reads the entries of a table's log, by their versions.

A reader at the tip needs one request for each version. Entries that probably follow are prefetched from a remote store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from cdfd.delta import commit as commits
from cdfd.delta import paths
from cdfd.delta.commit import Commit
from cdfd.delta.header import prepare_schema
from cdfd.errors import LogError, NotFoundError, StorageError
from cdfd.log.entry import EntryFingerprint, LogEntry, entry_size, parse_and_digest
from cdfd.log.entry_batches import EntryBatches
from cdfd.log.history import History
from cdfd.log.log_files import LogFiles, log_path, name_before
from cdfd.storage.base import Stat, Storage

T = TypeVar("T")
SizeOf = Callable[[bytes | Iterable[bytes]], int]

CHUNK_BYTES = 16 << 20
"""Bytes of a log entry to keep in memory at once; larger entries are streamed."""
READ_AHEAD_ENTRIES, READ_AHEAD_BYTES = 16, 16 << 20
"""Log entries to read ahead in a remote store, and their bytes, at most."""
CACHE_BYTES = 4 << 20
"""Bytes of remote log entries, read for a header, that are cached for the reader that follows."""
INLINE_BYTES = 64 << 10
"""Bytes of a log entry up to which parsing it is faster than a switch to a thread."""
YIELD_BYTES = 128 << 10
"""Bytes of such entries after which the event loop runs other tasks: to parse and plan them takes some 15 ms."""


@dataclass(frozen=True, slots=True)
class _ReadAhead:
    """The read-ahead of consecutive entries: entries that a listing showed are prefetched.

    Later entries may or may not exist. At the tip of a table one entry comes at a time, and prefetching would double the requests. So later
    entries are prefetched only after several existed when they were requested.
    """

    last: int = -1
    length: int = 0
    next: range = range(0)
    """Versions to prefetch now."""

    def after(self, commit: Commit, newest: int) -> _ReadAhead:
        """The state after one more entry; `newest` is the newest version that a listing showed."""
        version = commit.version
        follows = version == self.last + 1
        length = self.length + 1 if follows and version > newest else 1
        guessed = 0 if length < 3 else 1 << min(length - 2, 8)
        ahead = min(max(guessed, newest - version), READ_AHEAD_ENTRIES, READ_AHEAD_BYTES // max(commit.size, 1))
        # Versions up to the end of `next` are prefetched already.
        first = max(version + 1, self.next.stop if follows else 0)
        return _ReadAhead(version, length, range(first, max(first, version + 1 + ahead)))


class EntryReader(LogFiles):
    """The entries of a log, and what was prefetched or cached of them.

    Args:
        storage: the root of the table.
        line_bytes: limit of a line; see `commit.parse`.

    Attributes:
        history: the entries that were read, by which `DeltaLog` notices another log in its place.
    """

    history: History

    def __init__(self, storage: Storage, line_bytes: int | None = None) -> None:
        super().__init__(storage)
        self.line_bytes = line_bytes
        self._batches = EntryBatches(storage)
        self._read_ahead = _ReadAhead()
        self._prefetched_to = self._stale_to = 0
        """Versions below the first were prefetched; those below the second before the log was possibly replaced."""
        self._cache: dict[int, tuple[bytes, Stat]] = {}
        self._cache_bytes = 0
        self._inline_bytes = 0

    async def entry(self, version: int, *, with_stats: bool = False) -> LogEntry:
        """The log entry of a version.

        Raises:
            NotFoundError: it does not exist (yet).
            LogError: it is damaged, or being written.
        """
        path = log_path(paths.commit_name(version))
        try:
            with self._errors_naming(version, path):
                parse = self._entry_parser(version, with_stats=with_stats)
                entry = None if self.storage.remote else await self._from_batch(version, path, parse)
                if entry is None:
                    fetched = (
                        self._fetch(version, path) if self.storage.remote else self.storage.fetch(path, CHUNK_BYTES + 1)
                    )
                    data, stat = await fetched
                    commit, digest = await self._parse_data(path, data, parse)
                    now = stat
                    if not self.storage.remote or len(data) > CHUNK_BYTES:
                        # A file may still be written. Its size is checked after parsing, to detect as much as possible. Large files are
                        # opened twice.
                        now = await self.storage.stat(path)
                    if commit.size != now.size or (len(data) > CHUNK_BYTES and now.identity != stat.identity):
                        raise LogError("the entry changed while it was read", retriable=True)
                    entry = LogEntry(commit, stat, digest)
        except NotFoundError:
            self._read_ahead = _ReadAhead()
            self._batches.clear()
            raise
        self._record_read(entry)
        return entry

    async def ready_entry(self, version: int) -> LogEntry | None:
        """The entry that follows one that was read. None for a local entry that was not read in one batch with it.

        Raises:
            NotFoundError, LogError: see `entry`.
        """
        if self.storage.remote:
            return await self.entry(version)
        if not self._batches.has(version):
            return None
        path = log_path(paths.commit_name(version))
        entry = await self._from_batch(version, path, self._entry_parser(version))
        if entry is not None:
            self._record_read(entry)
        return entry

    def may_be_prefetched(self, version: int) -> bool:
        """Whether an entry may be prefetched, and so may have been read earlier than the entries before it."""
        return self.storage.remote and (version in self._cache or self._stale_to <= version < self._prefetched_to)

    def _record_read(self, entry: LogEntry) -> None:
        """Record an entry that was read, and prefetch the entries that may follow it."""
        version = entry.commit.version
        self.history.record_read(entry)
        if not self.storage.remote:
            self._batches.record_read(version, entry.commit.size)
        else:
            self._read_ahead = self._read_ahead.after(entry.commit, self._newest)
            for ahead in self._read_ahead.next:
                self._prefetched_to = max(self._prefetched_to, ahead + 1)
                if ahead not in self._cache:
                    self.storage.prefetch(log_path(paths.commit_name(ahead)))
            if version >= self._newest:
                self._cache.clear()
                self._cache_bytes = 0

    async def _fetch(self, version: int, path: str) -> tuple[bytes, Stat]:
        """The first `CHUNK_BYTES + 1` bytes of a remote entry, and its stat."""
        if version in self._cache:
            return self._cache.pop(version)
        if version < self._stale_to:
            with contextlib.suppress(NotFoundError):
                await self.storage.fetch(path, CHUNK_BYTES + 1)
        return await self.storage.fetch(path, CHUNK_BYTES + 1)

    async def _from_batch(
        self, version: int, path: str, parse: Callable[[bytes | Iterable[bytes]], tuple[Commit, str]]
    ) -> LogEntry | None:
        """An entry from a batch; None if it is not in one, or was incomplete when the batch was read."""
        buffered = await self._batches.pop(version)
        if buffered is None:
            return None
        data, stat = buffered
        with contextlib.suppress(LogError):
            commit, digest = await self._parse_data(path, data, parse)
            # Its writer may not have written an empty file yet.
            if commit.size == stat.size != 0:
                return LogEntry(commit, stat, digest)
        self._batches.clear()
        return None

    async def _parse_data(self, path: str, data: bytes, parse: Callable[[bytes | Iterable[bytes]], T]) -> T:
        """The result of `parse` for a file, of which `data` has at least the first `CHUNK_BYTES + 1` bytes.

        Small files are parsed here, larger ones in a thread, the largest in chunks.
        """
        if len(data) <= INLINE_BYTES:
            self._inline_bytes += len(data)
            if self._inline_bytes > YIELD_BYTES:
                # Entries that were read ahead are not waited for.
                await asyncio.sleep(0)
                self._inline_bytes = len(data)
            return parse(data)
        if len(data) <= CHUNK_BYTES:
            return await asyncio.to_thread(parse, data)
        return await asyncio.to_thread(self._parse_stream, path, parse)

    def _parse_stream(self, path: str, parse: Callable[[Iterable[bytes]], T]) -> T:
        try:
            with self.storage.open_input_file(path) as file:
                return parse(iter(partial(file.read, CHUNK_BYTES), b""))
        except (pa.ArrowException, OSError) as error:
            raise StorageError(f"reading failed: {error}", path=path, retriable=True) from error

    async def fingerprint(
        self, version: int, size_of: SizeOf | None = None, *, anchor: bool = True
    ) -> EntryFingerprint:
        """The fingerprint of an entry as it is now. It becomes the anchor of the history, if there is none yet.

        Args:
            version: of the entry.
            size_of: its size, from its bytes; a `parse` for `parse_and_digest`. None: `entry_size`.
            anchor: without it, the entry is neither cached nor a new anchor.

        Raises:
            NotFoundError: it does not exist, or has no bytes yet.
        """
        size_of = size_of or partial(entry_size, line_bytes=self.line_bytes)
        path = log_path(paths.commit_name(version))
        with self._errors_naming(version, path):
            data, stat = await self.storage.fetch(path, CHUNK_BYTES + 1)
            size, digest = await self._parse_data(path, data, partial(parse_and_digest, size_of))
            if not size:
                raise NotFoundError("the entry is empty", path=path)
        fingerprint = EntryFingerprint(version, stat if stat.size == size else replace(stat, size=size), digest)
        if anchor:
            self.history.anchor(fingerprint)
            if len(data) <= min(CHUNK_BYTES, CACHE_BYTES):
                self._cache[version] = data, fingerprint.stat
        return fingerprint

    async def digest(self, version: int) -> str | None:
        """The hash of a complete entry; None if the entry does not exist.

        Raises:
            LogError: it is damaged, or being written. A position with the hash of an incomplete entry would never match the table again.
        """
        with contextlib.suppress(NotFoundError):
            parse = partial(commits.parse, version, line_bytes=self.line_bytes)
            return (await self.fingerprint(version, lambda data: parse(data).size)).digest
        return None

    def _entry_parser(
        self, version: int, *, with_stats: bool = False
    ) -> Callable[[bytes | Iterable[bytes]], tuple[Commit, str]]:
        def parse(data: bytes | Iterable[bytes]) -> Commit:
            commit = commits.parse(version, data, with_stats=with_stats, line_bytes=self.line_bytes)
            prepare_schema(commit.metadata)
            return commit

        return partial(parse_and_digest, parse)

    async def digest_prefix(self, version: int, size: int) -> tuple[str, bytes]:
        """The hash of an entry's first `size` bytes, and some of the bytes that follow."""
        path = log_path(paths.commit_name(version))
        with self._errors_naming(version, path):
            begun = await self.storage.read(path, 0, size)
            return parse_and_digest(entry_size, begun)[1], await self.storage.read(path, size, INLINE_BYTES)

    async def anchor(self, version: int) -> None:
        """Before the state at a version is read, set an entry at or next to it as the anchor of the history."""
        for each in (version, version + 1, version - 1):
            if each >= 0:
                with contextlib.suppress(NotFoundError):
                    await self.fingerprint(each)
                    return

    def forget(self) -> None:
        """Drop everything that was prefetched or cached: it may belong to another log."""
        self._stale_to = self._prefetched_to
        self._read_ahead = _ReadAhead()
        self._batches.clear()
        self._cache.clear()
        self._cache_bytes = 0

    async def stats_before(self, version: int, most: int) -> AsyncGenerator[Stat, None]:
        """Stats of at most `most` consecutive entries before a version, the newest first. A remote log is listed once."""
        first = max(version - most, 0)
        listed: dict[int, Stat] = {}
        if self.storage.remote:
            async with contextlib.aclosing(self.list_names(name_before(first))) as names:
                async for name, stat in names:
                    if name.version >= version:
                        break
                    if name.kind == "commit":
                        listed[name.version] = stat
        for earlier in range(version - 1, first - 1, -1):
            try:
                yield listed[earlier] if self.storage.remote else await self.stat(earlier)
            except (NotFoundError, KeyError):
                return
