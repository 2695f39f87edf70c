"""A table's log in a store: its state at a version, from its entries and checkpoints.

This is the I/O around `cdfd.delta`, which decodes the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from cdfd.delta import header as headers
from cdfd.delta import paths, snapshot
from cdfd.delta.checkpoint import HEADER
from cdfd.delta.commit import Commit
from cdfd.delta.header import Header, PartialHeader
from cdfd.delta.protocol import has_deletion_vectors
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import CheckpointError, GapError, LogError, NotFoundError
from cdfd.escaping import one_line
from cdfd.log import checkpoint_files
from cdfd.log.entry import KeptState, is_large
from cdfd.log.entry_batches import ListedEntries
from cdfd.log.entry_reader import CACHE_BYTES, CHUNK_BYTES, READ_AHEAD_ENTRIES, EntryReader
from cdfd.log.history import History, unreadable_error
from cdfd.log.log_files import log_path
from cdfd.log.segment import Segment, SegmentBuilder
from cdfd.storage.base import Stat, Storage

logger = logging.getLogger("cdfd.tail")

T = TypeVar("T")


class DeltaLog(EntryReader):
    """The log of a table.

    Args:
        storage: the root of the table.
        line_bytes: limit of a line; see `commit.parse`.
        kept: states from which a reader reads on, the newest one last; see `keep`. A reader that waits for its turn will continue at a
            position that it does not know yet, and that is a little older than the newest version. So there are two.
    """

    def __init__(self, storage: Storage, line_bytes: int | None = None, kept: deque[KeptState] | None = None) -> None:
        super().__init__(storage, line_bytes)
        self.history = History(self)
        self.kept: deque[KeptState] = deque(maxlen=2) if kept is None else kept
        self._mismatched: set[int] = set()

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
        """Protocol and metadata in force before a version, as far as the changes of the version need them.

        Raises:
            GapError: they are no longer in the log, and the version deletes rows of another schema, perhaps.
            UnsupportedError, LogError: see `header`.
        """
        try:
            return await self.header(version - 1)
        except (GapError, CheckpointError):
            # The oldest entry after log clean-up has no predecessor, but may have a checkpoint at its own version.
            header = await self.header(version)
        if await self.replaces_rows(version):
            raise GapError(
                f"version {version} replaces the schema and deletes rows, and the schema before it is no longer in the log",
                table=self.storage.uri,
                version=version,
                hint=f"Log clean-up removed it: go on at version {version + 1} by `cdfd progress set`, or run `cdfd progress reset`",
            )
        return replace(header, version=version - 1)

    async def earliest_state(self) -> int:
        """The oldest version whose state can be read. The state before the oldest checkpoint is unknown if entries before it are gone.

        Raises:
            NotATableError: there is no entry.
            UnsupportedError, LogError: see `header`.
        """
        oldest, damaged = await self.earliest_version(), set(self.damaged)
        while oldest > 0:
            builder = SegmentBuilder(None, damaged)
            async with contextlib.aclosing(self.list_names()) as names:
                async for name, stat in names:
                    builder.take(name, stat)
                    if builder.checkpoint is not None:
                        break
            if builder.checkpoint is None:
                break
            version = max(builder.checkpoint.version, oldest)
            try:
                await self.header(version)
            except CheckpointError as error:
                logger.warning("%s; a later one may be the oldest", error, extra={"table": self.storage.uri})
                damaged.update(builder.checkpoint.files)
            else:
                return version
        return oldest

    async def replaces_rows(self, version: int) -> bool:
        """Whether a version has metadata, and removes rows that may have been of another schema. False if its entry is gone."""
        try:
            commit = (await self.entry(version)).commit
        except NotFoundError:
            return False
        return commit.metadata is not None and any(remove.data_change for remove in commit.removes)

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
        if await self.history.confirm() and (not self.kept or self.kept[-1].entry.version != entry.version):
            self.kept.append(KeptState(entry, header, files))

    async def _kept_before(self, segment: Segment) -> KeptState | None:
        """A kept state that is as new as the checkpoint of a segment; None if there is none, or if the log is another one."""
        state = next((each for each in reversed(self.kept) if each.entry.version <= segment.version), None)
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
                data = await listed.pop(at)
                scan = partial(headers.scan, number, line_bytes=self.line_bytes)
                if data is None and number in self._cache:
                    data = self._cache[number][0]
                if data is not None:
                    part = await self._parse_data(stat.path, data, scan)
                elif not self.storage.remote or self._cache_bytes + stat.size > CACHE_BYTES:
                    part = await self._parse_data(
                        stat.path, await self.storage.read(stat.path, 0, CHUNK_BYTES + 1), scan
                    )
                else:
                    # Readers usually read on from the version of the header.
                    data, now = await self.storage.fetch(stat.path, CHUNK_BYTES + 1)
                    if len(data) == now.size:
                        self._cache[number] = data, now
                        self._cache_bytes += len(data)
                    part = await self._parse_data(stat.path, data, scan)
            header = header.before(part.protocol, part.metadata, stat.path)
        if not header.complete and kept is not None:  # as of the checkpoint
            header = header.before(kept.header.protocol, kept.header.metadata)
        if not header.complete and segment.checkpoint is not None:
            with self._errors_naming(segment.checkpoint.version):
                state = await asyncio.to_thread(
                    checkpoint_files.read_state, self.storage, segment.checkpoint, HEADER, line_bytes=self.line_bytes
                )
            header = header.before(state.protocol, state.metadata, segment.checkpoint.path)
        if not self.storage.remote:
            self._cache.clear()
        return header

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
            line_bytes=self.line_bytes,
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
        if not self.storage.remote:
            self._cache.clear()
        commits = self.commits_of(segment, with_stats=with_stats)
        async with contextlib.aclosing(commits):
            async for commit in commits:
                with self._errors_naming(commit.version, log_path(paths.commit_name(commit.version))):
                    if state is None:
                        state = snapshot.first(commit, all_fields=all_fields)
                    elif is_large(commit, state):
                        state = await asyncio.to_thread(snapshot.replay, state, (commit,))
                    else:
                        state = snapshot.replay(state, (commit,))
                state = self.warn_of_mismatches(state)
        assert state is not None
        self.check_managed(state.header)
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
                # If log clean-up removed the checkpoint meanwhile, it is not damaged.
                if damage is None or not await self._any_exists(left_out):
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

    async def _any_exists(self, files: Iterable[Stat]) -> bool:
        for file in files:
            with contextlib.suppress(NotFoundError):
                await self.storage.stat(file.path)
                return True
        return False

    async def commits_of(self, segment: Segment, *, with_stats: bool = False) -> AsyncGenerator[Commit, None]:
        """The commits of a segment, in order. Raises what `entry` does, as an error of a file that was listed."""
        for at in range(segment.first_version, segment.version + 1):
            with self._errors_naming(at, log_path(paths.commit_name(at))), _listing_errors():
                entry = await self.entry(at, with_stats=with_stats)
            yield entry.commit

    def warn_of_mismatches(self, state: Snapshot) -> Snapshot:
        """Warn of removes that name another deletion vector than the file has: once for each version. Returns the state without them."""
        for version, path in state.mismatched:
            if version not in self._mismatched:
                self._mismatched.add(version)
                logger.warning(
                    "version %d removes %s with another deletion vector than the file has; it counts as removed",
                    version,
                    one_line(path),
                    extra={"table": self.storage.uri, "version": version},
                )
        # A writer may leave the deletion vectors out in all of its commits.
        return replace(state, mismatched=()) if state.mismatched else state


@contextlib.contextmanager
def _listing_errors() -> Iterator[None]:
    """Translate errors of reading a file that was listed."""
    try:
        yield
    except NotFoundError as error:
        raise unreadable_error(error.path) from None
