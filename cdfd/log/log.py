"""A table's log in a store: reading its files.

This is the I/O around `cdfd.delta`, which decodes the bytes. A tailing reader needs one request per version (`entry`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from cdfd.delta import commit as commits
from cdfd.delta import header as headers
from cdfd.delta import paths, snapshot
from cdfd.delta.checkpoint import HEADER
from cdfd.delta.commit import Commit
from cdfd.delta.header import Header, PartialHeader
from cdfd.delta.protocol import has_deletion_vectors
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import CheckpointError, GapError, LogError, NotFoundError, StorageError
from cdfd.escaping import one_line
from cdfd.log import checkpoint_files
from cdfd.log.entry import EntryFingerprint, KeptState, KeptStates, LogEntry, entry_size, parse_and_digest
from cdfd.log.entry_batches import EntryBatches, ListedEntries
from cdfd.log.history import History, unreadable_error
from cdfd.log.log_files import LogFiles, log_path, name_before
from cdfd.log.segment import Segment
from cdfd.storage.base import Stat, Storage

logger = logging.getLogger("cdfd.tail")

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


class DeltaLog(LogFiles):
    """The log of a table.

    Args:
        storage: the root of the table.
        line_bytes: limit of a line; see `commit.parse`.
        kept: states from which a reader reads on; see `keep`.
    """

    def __init__(self, storage: Storage, line_bytes: int | None = None, kept: KeptStates | None = None) -> None:
        super().__init__(storage)
        self.kept = KeptStates() if kept is None else kept
        self.line_bytes = line_bytes
        self._batches = EntryBatches(storage)
        self.history = History(self)
        self._read_ahead = _ReadAhead()
        self._prefetched_to = self._stale_to = 0
        """Versions below the first were prefetched; those below the second before the log was possibly replaced."""
        self._cache: dict[int, tuple[bytes, Stat]] = {}
        self._cache_bytes = 0
        self._mismatched: set[int] = set()

    async def entry(self, version: int, *, with_stats: bool = False) -> LogEntry:
        """The log entry of a version.

        Raises:
            NotFoundError: it does not exist (yet).
            LogError: it is damaged, or being written.
        """
        path = log_path(paths.commit_name(version))
        try:
            entry = await self._entry(version, path, with_stats)
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

    async def _entry(self, version: int, path: str, with_stats: bool) -> LogEntry:
        with self._errors_naming(version, path):
            parse = self._entry_parser(version, with_stats=with_stats)
            if self.storage.remote:
                data, stat = await self._fetch(version, path)
                commit, digest = await self._parse_data(path, data, parse)
            elif (at_once := await self._from_batch(version, path, parse)) is not None:
                return at_once
            else:
                data, stat = await self.storage.fetch(path, CHUNK_BYTES + 1)
                commit, digest = await self._parse_data(path, data, parse)
            now = stat
            if not self.storage.remote or len(data) > CHUNK_BYTES:
                # A file may still be written. Its size is checked after parsing, to detect as much as possible. Large files are opened twice.
                now = await self.storage.stat(path)
            if commit.size != now.size or (len(data) > CHUNK_BYTES and now.identity != stat.identity):
                raise LogError("the entry changed while it was read", retriable=True)
            return LogEntry(commit, stat, digest)

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
        parse = partial(commits.parse, version, with_stats=with_stats, line_bytes=self.line_bytes)
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

    async def header(self, version: int | None = None) -> Header:
        """Protocol and metadata in force after `version` (None: the newest), without reading any file rows.

        Raises:
            UnsupportedError: the table requires a feature that cdfd does not implement.
            LogError: the log is broken or does not reach back that far.
        """
        partial_header = await self.partial_header(version)
        with self._errors_naming(partial_header.version):
            header = partial_header.finish()
        self.check_managed(header)
        return header

    async def header_before(self, version: int) -> Header:
        """Protocol and metadata in force before a version. Raises what `header` does."""
        try:
            return await self.header(version - 1)
        except GapError:
            # The oldest entry after log clean-up has no predecessor, but may have a checkpoint at its own version.
            return replace(await self.header(version), version=version - 1)

    async def keep(self, most_bytes: int) -> None:
        """Keep the newest state, so that this or another log of the same table reads only what comes after it.

        Args:
            most_bytes: size of a checkpoint, up to which the files of a table with deletion vectors are kept too.

        Raises:
            CdfdError: see `snapshot`.
        """
        header, files = await self.header(), None
        if has_deletion_vectors(header.protocol):
            segment = await self.segment(header.version)
            if segment.checkpoint is None or sum(stat.size for stat in segment.checkpoint.files) <= most_bytes:
                files = await self.snapshot(header.version)
        entry = await self.fingerprint(header.version, anchor=False)
        if await self.history.confirm():
            self.kept.add(KeptState(entry, header, files))

    async def _kept_before(self, segment: Segment) -> KeptState | None:
        """A kept state that is as new as the checkpoint of a segment; None if there is none, or if the log is another one."""
        state = self.kept.before(segment.version)
        if state is None or (segment.checkpoint is not None and state.entry.version < segment.checkpoint.version):
            return None
        with contextlib.suppress(NotFoundError):
            if (await self.fingerprint(state.entry.version, anchor=False)).digest == state.entry.digest:
                return state
        self.kept.clear()
        return None

    async def partial_header(self, version: int | None = None, *, state_only: bool = False) -> PartialHeader:
        """Protocol and metadata as far as the log has them, without a check of features; `state_only` as for `segment`."""
        return await self.read_segment(version, self._partial_header, state_only=state_only)

    async def _partial_header(self, segment: Segment) -> PartialHeader:
        await self.anchor(segment.version)
        self._prefetched_to = max(self._prefetched_to, segment.version + 1)
        header, kept = PartialHeader(segment.version), await self._kept_before(segment)
        backwards = segment.commits[::-1]
        listed = ListedEntries(self.storage, () if self.storage.remote else backwards)
        for at, (number, stat) in enumerate(zip(range(segment.version, -1, -1), backwards, strict=False)):
            if kept is not None and number == kept.entry.version:
                header = header.before(kept.header.protocol, kept.header.metadata, stat.path)
            if header.complete:
                break
            if self.storage.remote:
                first = at + READ_AHEAD_ENTRIES if at else 1
                for later in backwards[first : at + READ_AHEAD_ENTRIES + 1]:
                    self.storage.prefetch(later.path)
            with self._errors_naming(number, stat.path), _listing_errors():
                part = await self._scan_header(number, stat, await listed.pop(at))
            header = header.before(part.protocol, part.metadata, stat.path)
        if not header.complete and kept is not None:  # as of the checkpoint
            header = header.before(kept.header.protocol, kept.header.metadata)
        if not header.complete and segment.checkpoint is not None:
            with self._errors_naming(segment.checkpoint.version):
                state = await asyncio.to_thread(checkpoint_files.read_state, self.storage, segment.checkpoint, HEADER)
            header = header.before(state.protocol, state.metadata, segment.checkpoint.path)
        if not self.storage.remote:
            self._cache.clear()
        return header

    async def _scan_header(self, version: int, stat: Stat, data: bytes | None) -> PartialHeader:
        """Protocol and metadata of a log entry; `data` is its bytes, where known.

        A remote entry is cached, because readers usually read on from the version of the header.
        """
        scan = partial(headers.scan, version, line_bytes=self.line_bytes)
        if data is None and version in self._cache:
            data = self._cache[version][0]
        if data is not None:
            return await self._parse_data(stat.path, data, scan)
        if not self.storage.remote or self._cache_bytes + stat.size > CACHE_BYTES:
            return await self._parse_data(stat.path, await self.storage.read(stat.path, 0, CHUNK_BYTES + 1), scan)
        data, now = await self.storage.fetch(stat.path, CHUNK_BYTES + 1)
        if len(data) == now.size:
            self._cache[version] = data, now
            self._cache_bytes += len(data)
        return await self._parse_data(stat.path, data, scan)

    async def snapshot(
        self,
        version: int | None = None,
        *,
        with_stats: bool = False,
        with_tombstones: bool = False,
        with_counts: bool = False,
        all_fields: bool = False,
    ) -> Snapshot:
        """The state of the table at `version` (None: the newest).

        `with_counts` reads the row counts of the files in checkpoints, too, from their statistics. `all_fields` reads all fields of files,
        for a writer; it needs `with_stats`.

        Raises:
            UnsupportedError: the table requires a feature that cdfd does not implement.
            LogError: the log is broken or does not reach back that far.
        """
        read_checkpoint = partial(
            checkpoint_files.read_snapshot,
            self.storage,
            with_stats=with_stats,
            with_tombstones=with_tombstones,
            with_counts=with_counts,
            all_fields=all_fields,
        )

        reduced = not (with_stats or with_tombstones or with_counts or all_fields)

        async def read(segment: Segment) -> tuple[Segment, Snapshot | None]:
            await self.anchor(segment.version)
            kept = await self._kept_before(segment) if reduced else None
            if kept is not None and kept.snapshot is not None:
                later = segment.commits[kept.entry.version + 1 - segment.first_version :]
                return replace(segment, commits=later), kept.snapshot
            if segment.checkpoint is None:
                return segment, None
            with self._errors_naming(segment.checkpoint.version):
                return segment, await read_checkpoint(segment.checkpoint)

        segment, state = await self.read_segment(version, read)
        commits = self.commits_of(segment, with_stats=with_stats)
        async with contextlib.aclosing(commits):
            async for commit in commits:
                with self._errors_naming(commit.version, log_path(paths.commit_name(commit.version))):
                    if state is None:
                        state = snapshot.first(commit, all_fields=all_fields)
                    else:
                        state = snapshot.replay(state, (commit,))
        assert state is not None
        self.check_managed(state.header)
        self.warn_of_mismatches(state)
        return state

    async def read_segment(
        self, version: int | None, read: Callable[[Segment], Awaitable[T]], *, state_only: bool = True
    ) -> T:
        """The result of `read` for the files that give the state at `version`.

        A damaged checkpoint is left out, with a warning, if older files give the state too. Raises what `segment` and `read` do.
        """
        damage: CheckpointError | None = None
        left_out = set[Stat]()
        while True:
            try:
                segment = await self.segment(version, state_only=state_only)
            except LogError:
                self.damaged -= left_out
                if damage is None:
                    raise
                raise damage from None
            try:
                state = await read(segment)
            except CheckpointError as error:
                assert segment.checkpoint is not None
                damage = damage or error
                left_out.update(segment.checkpoint.files)
                self.damaged |= left_out
                continue
            if damage is not None:
                logger.warning("%s; older files give the state", damage, extra={"table": self.storage.uri})
            return state

    async def commits_of(self, segment: Segment, *, with_stats: bool = False) -> AsyncGenerator[Commit, None]:
        """The commits of a segment, in order. Raises what `entry` does, as an error of a file that was listed."""
        for at in range(segment.first_version, segment.version + 1):
            with self._errors_naming(at, log_path(paths.commit_name(at))), _listing_errors():
                entry = await self.entry(at, with_stats=with_stats)
            yield entry.commit

    def warn_of_mismatches(self, state: Snapshot) -> None:
        """Warn of removes that name another deletion vector than the file has: once for each version."""
        for version, path in state.mismatched:
            if version not in self._mismatched:
                self._mismatched.add(version)
                logger.warning(
                    "version %d removes %s with another deletion vector than the file has; it counts as removed",
                    version,
                    one_line(path),
                    extra={"table": self.storage.uri, "version": version},
                )


@contextlib.contextmanager
def _listing_errors() -> Iterator[None]:
    """Translate errors of reading a file that was listed."""
    try:
        yield
    except NotFoundError as error:
        raise unreadable_error(error.path) from None
