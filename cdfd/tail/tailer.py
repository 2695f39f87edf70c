"""The next log entry, as soon as it is there.

A tailer asks for version v+1 by name. Where it is not there, it waits for a hint from the file system or for the poll interval, and asks
again: one request per poll, no listing. It lists only to find out why nothing comes: at its first miss, and once in a long while that
nothing came.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from cdfd.errors import GapError, LogError, NotFoundError, TableChangedError
from cdfd.storage.local import LocalStorage
from cdfd.storage.location import found_instead
from cdfd.tail.clock import Clock
from cdfd.tail.log import DeltaLog, LogEntry, NotATableError, before
from cdfd.tail.watch import Backoff, Watch

logger = logging.getLogger("cdfd.tail")

SETTLE_SECONDS = 5.0
"""How long an entry that cannot be parsed may take to become whole: some writers' files are visible while they are written."""
SETTLE_STEP = 0.02
DOUBT_SECONDS = 60.0
"""How often a reader that nothing comes to makes sure that there is nothing, and one that is busy that the table is still the one it read."""

REMOTE_DOUBT_SECONDS = 900.0
"""The same for a table in a store, where a listing costs as much as a dozen looks."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """An entry's file as it was when it was read."""

    version: int
    size: int
    modified_ms: int


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
    _last: _Seen | None = None
    _explained: float = -math.inf
    _verified: float = -math.inf

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
            entry = await self._next(version)
            if entry.commit.metadata is not None:
                if self.replacements:
                    self.table_id = entry.commit.metadata.id
                self.check_id(entry.commit.metadata.id, version)
            yield entry
            version += 1

    async def _next(self, version: int) -> LogEntry:
        missed = False
        while True:
            entry = await self._try(version)
            if entry is not None:
                if missed or self._long_since(self._verified):
                    await self._verify(version)
                self.backoff = self.backoff.reset()
                self._last = _Seen(version, entry.commit.size, entry.modified_ms)
                self.idle.clear()
                return entry
            missed = True
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

    async def _verify(self, version: int) -> None:
        """Refuse `version`, which is there, where it is not the next one of the table that was read.

        A table that was deleted and created anew may have caught up with us while we waited.
        """
        self._verified = self.clock.monotonic()
        if self._last is not None and not await self._is_unchanged(self._last):
            await self.check_table(version)

    async def _is_unchanged(self, seen: _Seen) -> bool:
        try:
            stat = await self.log.stat(seen.version)
        except NotFoundError:
            return False
        return (stat.size, stat.modified_ms) == (seen.size, seen.modified_ms)

    async def _explain_absence(self, version: int) -> None:
        """The next version is not there: refuse where that is not simply because it is yet to come."""
        self._explained = self.clock.monotonic()
        later = [name.version async for name, _ in self.log.list_names(before(version)) if name.kind == "commit"]
        if later and later[0] > version:
            await self._refuse_gap(version, later[0], later[-1])
        elif later:
            # It came after the look; or the store lists what cannot be read yet, which is waited for.
            logger.debug("version %d is listed since it was looked for", version, extra={"table": self.log.storage.uri})
        elif self._last is None or not await self._is_unchanged(self._last):
            newest = await self.check_table()
            if self._last is not None and newest < self._last.version:
                raise LogError(
                    f"the log ends at version {newest} now, although version {self._last.version} was there",
                    table=self.log.storage.uri,
                    version=version,
                    hint="It was replaced by an older copy; `cdfd progress reset` to start over",
                )

    async def _refuse_gap(self, version: int, next_version: int, newest: int) -> None:
        try:
            # It may have come since it was looked for, and a listing may miss what comes while it is made.
            await self.log.stat(version)
        except NotFoundError:
            missing = (
                f"version {version} is"
                if next_version <= version + 1
                else f"versions {version} to {next_version - 1} are"
            )
            raise GapError(
                f"{missing} missing, although the log goes on to version {newest}",
                table=self.log.storage.uri,
                version=version,
                hint="Log clean-up was faster than this reader, or entries were lost; `cdfd progress reset` to start again from a snapshot",
            ) from None

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
            raise TableChangedError(
                f"the table {self.table_id} was deleted",
                table=self.log.storage.uri,
                version=version,
                hint="Nothing more will come from it; remove it from the configuration, or restore it",
            ) from None
        self.check_id(header.metadata.id, header.version)
        return header.version

    def check_id(self, found: str, version: int) -> None:
        """Refuse a table id that is not the one known so far; the first one is taken.

        Raises:
            TableChangedError: naming both.
        """
        if self.table_id is None:
            self.table_id = found
        elif found != self.table_id:
            raise TableChangedError(
                f"the table was deleted and created anew, or replaced: its id was {self.table_id} and is {found} now",
                table=self.log.storage.uri,
                version=version,
                hint="Positions of the old table mean nothing in the new one; `cdfd progress reset` to start over",
            )
