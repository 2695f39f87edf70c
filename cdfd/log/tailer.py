"""Tailing a log: the next log entry, as soon as it exists.

A tailer requests version v+1 by name. If it does not exist, the tailer waits for a file-system event or for the poll interval, and requests
it again. That is one request per poll, without a listing. The tailer lists the log only to detect gaps: at the first miss, and rarely after
that.

Entries must continue the entries before them. The tailer reads them in runs, and yields a run once `History` confirms that the log was not
replaced. A run is one entry at the tip of a table, and more in catch-up. While no entry comes, the tailer verifies the last one.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from cdfd.errors import CdfdError, LogError, NotATableError, NotFoundError, TableChangedError
from cdfd.log import history
from cdfd.log.entry import EntryFingerprint, LogEntry
from cdfd.log.entry_reader import READ_AHEAD_ENTRIES
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import name_before
from cdfd.log.pace import CHECK_SECONDS, LISTING_SECONDS, Pace
from cdfd.log.watch import Backoff, SharedWatch, Watch
from cdfd.model.position import Position
from cdfd.runtime.clock import Clock
from cdfd.storage.local import LocalStorage
from cdfd.storage.location import describe_non_table

logger = logging.getLogger("cdfd.tail")

SETTLE_SECONDS = 5.0
"""Seconds until an entry that cannot be parsed is an error: the files of some writers are visible while they are written."""
SETTLE_STEP = 0.02
"""Seconds between two attempts to read such an entry."""
GAP_CHECK_SECONDS = 60.0
"""Seconds between two listings that look for missing versions, while no entry comes. `LISTING_SECONDS` in a remote store."""
REMOVAL_STEP = 1.0
"""Seconds between two listings of a log that lacks its newest entries. Once they are the same, the log is stable."""
REMOVAL_LISTINGS = 60
"""Listings until an error is raised although the log still changes."""
MAX_RUN_ENTRIES, MAX_RUN_BYTES = 64, 4 << 20
"""Entries of a run, at most, and their bytes."""
SINGLE_ENTRIES = 3
"""Consecutive entries that are read one by one, before runs become longer."""


@dataclass(slots=True)
class Tailer:
    """Reads a table's log entries in order, and waits for the next one.

    Attributes:
        log: of the table.
        watch: wakes the tailer before the poll interval has passed.
        clock: time.
        backoff: the poll interval and its maximum.
        pace: polls by the table's rhythm, instead of by `backoff`.
        table_id: `metaData.id` of the position that was resumed, where known. Positions keep it, also if a later entry changes the id.
        replacements: whether an entry may change the table's id, as `CREATE OR REPLACE TABLE` and some writers at a new schema do.
        head_start: seconds from an entry that was waited for until the next one is looked for. Its delivery begins meanwhile.
        idle: set while there is nothing to read.
    """

    log: DeltaLog
    watch: Watch
    clock: Clock
    backoff: Backoff
    table_id: str | None = None
    replacements: bool = True
    head_start: float = 0
    pace: Pace | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _id: str | None = None
    _continues: bool = False
    _ready_in_row: int = 0
    _has_waited: bool = False
    _gap_checked_at: float = -math.inf
    _checked_at: float = -math.inf

    def __post_init__(self) -> None:
        self._id = self.table_id

    async def wait_for_table(self) -> bool:
        """Return once the log has an entry. Returns whether it had to wait, which it logs once."""
        waited = False
        while True:
            try:
                await self.log.earliest_version()
            except NotATableError:
                if not waited:
                    waited, storage, problem = True, self.log.storage, None
                    if isinstance(storage, LocalStorage):
                        problem = await asyncio.to_thread(describe_non_table, storage.root)
                    if problem is None:
                        logger.info("waiting for the table to appear", extra={"table": storage.uri})
                    else:
                        logger.warning("%s; waiting for the table to appear", problem, extra={"table": storage.uri})
            else:
                self.backoff = self.backoff.reset()
                if waited:
                    self.watch.arrived()
                return waited
            await self._wait()

    async def entries(self, start: int, until: int | None = None) -> AsyncGenerator[LogEntry, None]:
        """Log entries from version `start` on, forever or up to `until`.

        Raises:
            GapError: the next version is missing although later ones are there.
            TableChangedError: the table was deleted, or deleted and created again.
            LogError: an entry is damaged.
        """
        version = start
        while until is None or version <= until:
            for entry in await self._read_run(version, until):
                if entry.commit.metadata is not None:
                    self.check_id(entry.commit.metadata.id, entry.commit.version)
                yield entry
                version = entry.commit.version + 1
            if self._has_waited and self.head_start:
                await self.clock.sleep(self.head_start)
            self._has_waited = False

    async def resume(self, position: Position) -> bool:
        """Resume a position, which depends on the log up to its `basis`.

        Returns:
            Whether the log certainly continues the position.

        Raises:
            TableChangedError: the log entry of that version has other bytes now.
        """
        self.table_id = self._id = position.table_id
        # Without an entry that can be compared, the id as of that version is the only evidence.
        if position.digest is None:
            self._continues = False
            return False
        try:
            self._continues = await self.log.history.compare(position.basis, position.digest, position.table_id)
        except TableChangedError as error:
            raise await self._after_removal(error) from None
        return self._continues

    async def confirm(self, ahead: Sequence[EntryFingerprint] = ()) -> bool:
        """See `History.confirm`, with the table id as of the entries so far."""
        self._checked_at = self.clock.monotonic()
        try:
            return await self.log.history.confirm(self._id, ahead)
        except TableChangedError as error:
            raise await self._after_removal(error) from None

    async def _after_removal(self, error: TableChangedError) -> TableChangedError:
        """The error of a changed table. A log without its newest entries has to be stable: one that is removed file by file is deleted."""
        if not error.truncated:
            return error
        versions = await self.log.history.versions()
        for _ in range(REMOVAL_LISTINGS):
            if not versions:
                return history.deleted_error(self._id, self.log.storage.uri)
            await self.clock.sleep(REMOVAL_STEP)
            before, versions = versions, await self.log.history.versions()
            if versions == before:
                break
        return error

    async def _read_run(self, version: int, until: int | None) -> list[LogEntry]:
        """The entry of a version, once it exists, and those after it that exist already. They continue what was read before."""
        is_repeated = False
        while True:
            ahead = self.log.may_be_prefetched(version)
            entries = [await self._next(version)]
            limit = max(READ_AHEAD_ENTRIES if ahead else 1, min(MAX_RUN_ENTRIES, self._ready_in_row - SINGLE_ENTRIES))
            size = entries[0].commit.size
            while len(entries) < limit and size < MAX_RUN_BYTES and (until is None or version + len(entries) <= until):
                try:
                    entry = await self.log.ready_entry(version + len(entries))
                except CdfdError:
                    break  # the next run reads it again, and raises the error if it is still there
                if entry is None or not entry.commit.size:
                    break
                entries.append(entry)
                size += entry.commit.size
            several = ahead or (self.log.storage.remote and len(entries) > 1)
            if await self.confirm(list(map(EntryFingerprint.of, entries)) if several else ()):
                self._ready_in_row += len(entries)
                self.learn([entry.stat.modified_ms for entry in entries])
                return entries
            self._ready_in_row = 0
            if is_repeated:
                # A store may list an entry that was read before, and not return it yet.
                await self._wait()
            is_repeated = True

    async def _next(self, version: int) -> LogEntry:
        while True:
            entry = await self._read_entry(version)
            if entry is not None:
                self.backoff = self.backoff.reset()
                self.idle.clear()
                if self._has_waited:
                    self.watch.arrived()
                if isinstance(self.watch, SharedWatch):
                    self.watch.read(version)
                return entry
            after_entry, self._ready_in_row = self._ready_in_row > 0, 0
            due = self.clock.monotonic() - self._checked_at >= CHECK_SECONDS
            # Of a local log, every poll verifies the last entry, but for the one right after an entry, which was verified itself.
            if due or not (after_entry or self.log.storage.remote):
                await self.confirm()
            interval = LISTING_SECONDS if self.log.storage.remote else GAP_CHECK_SECONDS
            if self.clock.monotonic() - self._gap_checked_at >= interval:
                self._gap_checked_at = self.clock.monotonic()
                names = [name async for name, _ in self.log.list_names(name_before(version))]
                later = [name.version for name in names if name.kind == "commit"]
                newest = max(
                    (name.version for name in names if name.kind == "commit" or name.is_checkpoint), default=-1
                )
                if later and later[0] == version:
                    # It was created after the request, or the store lists objects before they can be read: the tailer waits.
                    logger.debug("version %d is listed now", version, extra={"table": self.log.storage.uri})
                elif newest >= version:
                    try:
                        # It may have been created after the request, and a listing may miss objects that are created meanwhile.
                        await self.log.stat(version)
                    except NotFoundError:
                        following = later[0] if later else newest + 1
                        raise history.gap_error(version, following, newest, self.log.storage.uri) from None
                elif not self.log.history.anchors:
                    await self.check_table()
            self.idle.set()
            self._has_waited = True
            await self._wait()

    async def _wait(self) -> None:
        delay = self.backoff.delay
        if self.pace is not None:
            now = self.clock.monotonic()
            delay = self.pace.delay(now)
            # Neither check was made yet while the table does not exist.
            checks = CHECK_SECONDS <= now + delay - self._checked_at < math.inf
            lists = LISTING_SECONDS <= now + delay - self._gap_checked_at < math.inf
            # The requests of the next poll are paid for now.
            self.pace.spend(now, 1 + checks + lists)
        await self.watch.wait(delay)
        self.backoff = self.backoff.longer()

    def learn(self, times: Sequence[int]) -> None:
        """Learn the table's rhythm from entries, by the times of their files in ms since the Unix epoch, in order."""
        if self.pace is None:
            return
        now, now_ms = self.clock.monotonic(), self.clock.now_ms()
        for time in times:
            # Stores of objects cut off fractions of a second.
            error = 0.5 if time % 1000 == 0 else 0.0
            self.pace.arrived(now, (now_ms - time) / 1000 - error, error)

    async def _read_entry(self, version: int) -> LogEntry | None:
        """The entry, or None if it does not exist yet. An entry that is being written gets time to become complete."""
        deadline = self.clock.monotonic() + SETTLE_SECONDS
        settled = False
        while True:
            try:
                entry = await self.log.entry(version)
            except NotFoundError:
                return None
            except LogError:
                if settled or not await self._is_fresh(version):
                    raise
            else:
                # An empty file is a version without actions, or its writer has just created it. The age of the file does not help,
                # because its time comes from another clock.
                if entry.commit.size or settled:
                    return entry
            # The entry is read once more after it is known to be settled.
            settled = self.clock.monotonic() >= deadline or await self.log.has_successor(version)
            if not settled:
                await self.clock.sleep(SETTLE_STEP)

    async def _is_fresh(self, version: int) -> bool:
        try:
            stat = await self.log.stat(version)
        except NotFoundError:
            return True  # its writer removed it again, so it is read again
        return self.clock.now_ms() - stat.modified_ms < SETTLE_SECONDS * 1000

    async def check_table(self) -> int:
        """Raise an error if the table as of its newest version is another one; see `check_id`.

        Returns:
            The version that was checked.

        Raises:
            TableChangedError: the table was deleted, or deleted and created again.
            LogError: see `DeltaLog.header`.
        """
        while True:
            try:
                header = await self.log.header()
            except NotATableError:
                if self._id is None:
                    raise
                raise history.deleted_error(self._id, self.log.storage.uri) from None
            # An entry may change the id only in the log that was read.
            if await self.confirm():
                self.check_id(header.metadata.id, header.version)
                return header.version

    def check_id(self, current: str, version: int) -> None:
        """Note the table's id as of a version. Once the log is known to continue the position, entries decide, and the id may change.

        Raises:
            TableChangedError: the id is not that of the position; it names both.
        """
        if self.table_id is not None and not (self._continues and self.replacements):
            history.check_id(self._id or self.table_id, current, version, self.log.storage.uri)
        self._id, self._continues = current, True
