"""The next log entry, as soon as it is there.

A tailer asks for version v+1 by name. Where it is not there, it waits for a hint from the file system or for the poll interval, and asks
again: one request per poll, no listing. It lists only to find out why nothing comes: at its first miss, and when the entry it read last is no
longer what it was.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from cdfd.errors import GapError, LogError, NotFoundError, TableChangedError
from cdfd.storage.base import Stat
from cdfd.tail.clock import Clock
from cdfd.tail.log import DeltaLog, LogEntry, NotATableError, before
from cdfd.tail.watch import Backoff, Watch

logger = logging.getLogger("cdfd.tail")

SETTLE_SECONDS = 5.0
"""How long an entry that cannot be parsed may take to become whole: some writers' files are visible while they are written."""
SETTLE_STEP = 0.02
IDENTITY_SECONDS = 60.0
"""How often an idle reader makes sure that the table is still the one it read, where no hint tells it."""


@dataclass(slots=True)
class Tailer:
    """Reads a table's log entries in order and waits for those to come.

    Attributes:
        log: of the table.
        watch: what wakes it early.
        clock: time.
        backoff: the poll interval's bounds.
        table_id: `metaData.id`, where known: a log that begins anew with another is refused.
    """

    log: DeltaLog
    watch: Watch
    clock: Clock
    backoff: Backoff
    table_id: str | None = None
    _last: Stat | None = None
    _checked: float = 0.0

    async def wait_for_table(self) -> int:
        """The oldest version whose log entry is there, once there is one; says so where that takes a while."""
        told = False
        while True:
            try:
                return await self.log.earliest_version()
            except NotATableError:
                if not told:
                    logger.info("waiting for the table to appear", extra={"table": self.log.storage.uri})
                told = True
            await self.watch.wait(self.backoff.delay)
            self.backoff = self.backoff.longer()

    async def entries(self, start: int, until: int | None = None) -> AsyncIterator[LogEntry]:
        """Log entries from version `start` on, forever or up to `until`.

        Raises:
            GapError: the next version is missing although later ones are there.
            TableChangedError: the table was deleted, or deleted and created anew.
            LogError: an entry is damaged.
        """
        version = start
        while until is None or version <= until:
            entry = await self._next(version)
            self._check_identity(entry)
            yield entry
            version += 1

    async def _next(self, version: int) -> LogEntry:
        missed = 0
        while True:
            entry = await self._try(version)
            if entry is not None:
                if missed and not await self._still_there(version):
                    continue
                self.backoff = self.backoff.reset()
                self._last = Stat(self.log.storage.uri, entry.commit.size, entry.modified_ms)
                return entry
            missed += 1
            if missed == 1 and self._last is None:
                await self._explain_absence(version)
            elif self.clock.monotonic() - self._checked >= IDENTITY_SECONDS:
                await self._still_there(version)
            await self.watch.wait(self.backoff.delay)
            self.backoff = self.backoff.longer()

    async def _try(self, version: int) -> LogEntry | None:
        """The entry, or None where it is not there yet. One that is being written is given time to become whole."""
        deadline = self.clock.monotonic() + SETTLE_SECONDS
        while True:
            try:
                return await self.log.entry(version)
            except NotFoundError:
                return None
            except LogError:
                if self.clock.monotonic() >= deadline or not await self._fresh(version):
                    raise
            await self.clock.sleep(SETTLE_STEP)

    async def _fresh(self, version: int) -> bool:
        stat = await self.log.stat(version)
        return self.clock.now_ms() - stat.modified_ms < SETTLE_SECONDS * 1000

    async def _still_there(self, version: int) -> bool:
        """Whether the entry before `version` is still the one that was read; if not, why.

        A table that was deleted and created anew may have caught up with us meanwhile: its versions are not the next ones of ours.
        """
        self._checked = self.clock.monotonic()
        if self._last is None or version == 0:
            return True
        try:
            stat = await self.log.stat(version - 1)
        except NotFoundError:
            await self._explain_absence(version)
            return True
        if stat.modified_ms == self._last.modified_ms:
            return True
        await self._compare_ids(version - 1)
        self._last = Stat(self.log.storage.uri, stat.size, stat.modified_ms)
        return True

    async def _explain_absence(self, version: int) -> None:
        """The next version is not there: refuse where that is not simply because it is yet to come."""
        self._checked = self.clock.monotonic()
        try:
            newest = await self._newest_after(version)
            if newest is None:
                newest = await self.log.latest_version()
        except NotATableError:
            if self.table_id is None:
                raise
            raise TableChangedError(
                f"the table {self.table_id} was deleted",
                table=self.log.storage.uri,
                version=version,
                hint="Nothing more will come from it; remove it from the configuration, or restore it",
            ) from None
        if newest > version:
            raise GapError(
                f"version {version} is missing, although the log goes on to version {newest}",
                table=self.log.storage.uri,
                version=version,
                hint="Log clean-up was faster than this reader, or entries were lost; start again from a snapshot",
            )
        await self._compare_ids(newest)

    async def _newest_after(self, version: int) -> int | None:
        newest = None
        async for name, _ in self.log.list_names(before(version)):
            if name.kind == "commit":
                newest = name.version
        return newest

    async def _compare_ids(self, version: int) -> None:
        if self.table_id is None:
            return
        self.check_id((await self.log.header(version)).metadata.id, version)

    def _check_identity(self, entry: LogEntry) -> None:
        if entry.commit.metadata is not None:
            self.check_id(entry.commit.metadata.id, entry.commit.version)

    def check_id(self, found: str, version: int) -> None:
        """Refuse a table id that is not the one known so far; the first one is taken.

        Raises:
            TableChangedError: naming both.
        """
        if self.table_id is None:
            self.table_id = found
        elif found != self.table_id:
            raise TableChangedError(
                f"the table was deleted and created anew: its id was {self.table_id} and is {found} now",
                table=self.log.storage.uri,
                version=version,
                hint="Positions of the old table mean nothing in the new one; reset the progress to start over",
            )
