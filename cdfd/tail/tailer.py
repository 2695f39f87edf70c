"""The next log entry, as soon as it is there.

A tailer asks for version v+1 by name. Where it is not there, it waits for a hint from the file system or for the poll interval, and asks
again: one request per poll, no listing. It lists only to find out why nothing comes: at its first miss, and once in a long while that
nothing came.

What it gives continues what it gave before: entries are read in runs, and a run is given once `History` says that the log was not replaced
meanwhile. A run is one entry at the tip of a table, and more where more are there. While nothing comes, the last entry is looked at too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from cdfd.errors import CdfdError, LogError, NotFoundError
from cdfd.storage.local import LocalStorage
from cdfd.storage.location import found_instead
from cdfd.tail import history
from cdfd.tail.clock import Clock
from cdfd.tail.history import Seen
from cdfd.tail.log import AHEAD, DeltaLog, LogEntry, NotATableError, before
from cdfd.tail.watch import Backoff, Watch

logger = logging.getLogger("cdfd.tail")

SETTLE_SECONDS = 5.0
"""How long an entry that cannot be parsed may take to become whole: some writers' files are visible while they are written."""
SETTLE_STEP = 0.02
DOUBT_SECONDS = 60.0
"""How often a reader that nothing comes to lists the log, to find versions that are missing."""

REMOTE_DOUBT_SECONDS = 900.0
"""The same for a table in a store, where a listing costs as much as a dozen looks."""
LOOK_SECONDS = 30.0
"""How often a reader that nothing comes to looks at its last entry, in a store; elsewhere it does whenever it looks for the next one."""
RUN, RUN_BYTES = 64, 4 << 20
"""Entries that are read, and their bytes, before they are known to continue those before, at most."""
AT_ONCE = 3
"""Entries that were there one after the other, before a run is more than one."""


@dataclass(slots=True)
class Tailer:
    """Reads a table's log entries in order and waits for those to come.

    Attributes:
        log: of the table.
        watch: what wakes it early.
        clock: time.
        backoff: the poll interval's bounds.
        table_id: `metaData.id`, where known: a log that begins anew with another is refused.
        replacements: whether an entry may give the table another id: `CREATE OR REPLACE TABLE` does, and the log goes on. For who keeps no
            positions of the table that it was.
        idle: set while there is nothing to read.
    """

    log: DeltaLog
    watch: Watch
    clock: Clock
    backoff: Backoff
    table_id: str | None = None
    replacements: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _there: int = 0
    _explained: float = -math.inf
    _looked: float = -math.inf

    async def wait_for_table(self) -> bool:
        """Return once the log has an entry; whether that had to be waited for, which it says once."""
        waited = False
        while True:
            try:
                await self.log.earliest_version()
            except NotATableError:
                if not waited:
                    await self._say_that_it_waits()
                waited = True
            else:
                self.backoff = self.backoff.reset()
                return waited
            await self._wait()

    async def _say_that_it_waits(self) -> None:
        storage, extra = self.log.storage, {"table": self.log.storage.uri}
        found = await asyncio.to_thread(found_instead, storage.root) if isinstance(storage, LocalStorage) else None
        if found is None:
            logger.info("waiting for the table to appear", extra=extra)
        else:
            logger.warning("%s; waiting for the table to appear", found, extra=extra)

    async def entries(self, start: int, until: int | None = None) -> AsyncGenerator[LogEntry, None]:
        """Log entries from version `start` on, forever or up to `until`.

        Raises:
            GapError: the next version is missing although later ones are there.
            TableChangedError: the table was deleted, or deleted and created anew.
            LogError: an entry is damaged.
        """
        version = start
        while until is None or version <= until:
            for entry in await self._run(version, until):
                if entry.commit.metadata is not None:
                    if self.replacements:
                        self.table_id = entry.commit.metadata.id
                    self.check_id(entry.commit.metadata.id, entry.commit.version)
                yield entry
                version = entry.commit.version + 1

    async def resume(self, table_id: str, version: int, digest: str | None) -> None:
        """Go on from a position of the table `table_id`, to which the entry of `version` has led; `digest` is its hash, None where not known.

        Raises:
            TableChangedError: that entry is another one now.
        """
        self.table_id = table_id
        if digest is not None:
            await self.log.history.compare(version, digest, table_id)

    async def confirm(self, ahead: Sequence[Seen] = ()) -> bool:
        """As `History.confirm`, for the table that is known so far."""
        self._looked = self.clock.monotonic()
        return await self.log.history.confirm(self.table_id, ahead)

    async def _run(self, version: int, until: int | None) -> list[LogEntry]:
        """The entry of a version, waited for, and as many after it as are there: they continue what was read before."""
        while True:
            ahead = self.log.ahead(version)
            entries = [await self._next(version)]
            limit = max(AHEAD if ahead else 1, min(RUN, self._there - AT_ONCE))
            size = entries[0].commit.size
            while len(entries) < limit and size < RUN_BYTES and (until is None or version + len(entries) <= until):
                try:
                    entry = await self.log.following(version + len(entries))
                except CdfdError:
                    break  # it is asked for again, by itself
                if entry is None or not entry.commit.size:
                    break
                entries.append(entry)
                size += entry.commit.size
            several = ahead or (self.log.storage.remote and len(entries) > 1)
            if await self.confirm(list(map(Seen.of, entries)) if several else ()):
                self._there += len(entries)
                return entries
            self._there = 0

    async def _next(self, version: int) -> LogEntry:
        while True:
            entry = await self._try(version)
            if entry is not None:
                self.backoff = self.backoff.reset()
                self.idle.clear()
                return entry
            self._there = 0
            if not self.log.storage.remote or self.clock.monotonic() - self._looked >= LOOK_SECONDS:
                await self.confirm()
            if self._long_since(self._explained):
                await self._explain_absence(version)
            self.idle.set()
            await self._wait()

    async def _wait(self) -> None:
        await self.watch.wait(self.backoff.delay)
        self.backoff = self.backoff.longer()

    def _long_since(self, moment: float) -> bool:
        limit = REMOTE_DOUBT_SECONDS if self.log.storage.remote else DOUBT_SECONDS
        return self.clock.monotonic() - moment >= limit

    async def _try(self, version: int) -> LogEntry | None:
        """The entry, or None where it is not there yet. One that is being written is given time to become whole."""
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
                # An empty file is a version without actions, or one whose writer has only just created it. How old the file is
                # does not tell: its time is of another clock.
                if entry.commit.size or settled:
                    return entry
            # What was read before it was known to be settled is read again.
            settled = self.clock.monotonic() >= deadline or await self.log.is_followed(version)
            if not settled:
                await self.clock.sleep(SETTLE_STEP)

    async def _is_fresh(self, version: int) -> bool:
        try:
            stat = await self.log.stat(version)
        except NotFoundError:
            return True  # its writer took it back; the next look tells
        return self.clock.now_ms() - stat.modified_ms < SETTLE_SECONDS * 1000

    async def _explain_absence(self, version: int) -> None:
        """The next version is not there: refuse where that is not simply because it is yet to come."""
        self._explained = self.clock.monotonic()
        names = [name async for name, _ in self.log.list_names(before(version))]
        later = [name.version for name in names if name.kind == "commit"]
        newest = max((name.version for name in names if name.kind == "commit" or name.is_checkpoint), default=-1)
        if later and later[0] == version:
            # It came after the look; or the store lists what cannot be read yet, which is waited for.
            logger.debug("version %d is listed since it was looked for", version, extra={"table": self.log.storage.uri})
        elif newest >= version:
            await self._refuse_gap(version, later[0] if later else newest + 1, newest)
        elif not self.log.history.anchored:
            await self.check_table()

    async def _refuse_gap(self, version: int, next_version: int, newest: int) -> None:
        try:
            # It may have come since it was looked for, and a listing may miss what comes while it is made.
            await self.log.stat(version)
        except NotFoundError:
            raise history.missing(version, next_version, newest, self.log.storage.uri) from None

    async def check_table(self, version: int | None = None) -> int:
        """Refuse where the table as of `version` (None: the newest) is not the one known so far.

        Returns:
            The version that was looked at.

        Raises:
            TableChangedError: it was deleted, or deleted and created anew.
            LogError: as `DeltaLog.header` says.
        """
        try:
            header = await self.log.header(version)
        except NotATableError:
            if self.table_id is None:
                raise
            raise history.deleted(self.table_id, self.log.storage.uri) from None
        self.check_id(header.metadata.id, header.version)
        return header.version

    def check_id(self, found: str, version: int) -> None:
        """Refuse a table id that is not the one known so far; the first one is taken.

        Raises:
            TableChangedError: naming both.
        """
        if self.table_id is None:
            self.table_id = found
        history.check_id(self.table_id, found, version, self.log.storage.uri)
