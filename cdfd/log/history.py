"""Verifies that a log is still the one that was read: a table may be replaced under its reader, by another table or by a copy of itself.

One entry that was read, the anchor, represents everything that was read after it. The reader checks it again after reading more entries. If
the file is the same, or has the same bytes, the log was not replaced meanwhile. A log is replaced as a whole, or from its first entry on. So
the anchor of a replaced log is gone or different before a later entry can be read.

    read 6 (the anchor) ... read 7, 8, 9 ... is 6 unchanged? Then 7, 8 and 9 continue it, and 9 is the next anchor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Protocol

from cdfd.delta.header import Header
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import GapError, LogError, NotFoundError, StorageError, TableChangedError
from cdfd.log.entry import EMPTY_DIGEST, EntryFingerprint, LogEntry
from cdfd.log.log_files import LogFile
from cdfd.runtime import compute as pc
from cdfd.storage.base import Stat, Storage, is_same

RESET_HINT = "Positions of the old table are not valid in the new one: run `cdfd progress reset` to start over"


class _Log(Protocol):
    """The methods of a log that verification needs. `cdfd.log.log.DeltaLog` has them."""

    storage: Storage

    @property
    def by_catalog(self) -> bool: ...
    def list_names(self, start_after: str = "") -> AsyncGenerator[LogFile, None]: ...
    async def stat(self, version: int) -> Stat: ...
    async def fingerprint(self, version: int, *, anchor: bool = True) -> EntryFingerprint: ...
    async def digest_prefix(self, version: int, size: int) -> tuple[str, bytes]: ...
    async def header(self, version: int | None = None) -> Header: ...
    async def snapshot(self, *, with_tombstones: bool) -> Snapshot: ...
    def forget(self) -> None: ...


class History:
    """The entries that were read of a log, and whether they belong to one history."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._table = log.storage.uri
        self.anchors: dict[int, EntryFingerprint] = {}
        """The anchor, by its version; while a state is read, there may be several."""
        self._latest: LogEntry | None = None
        self._rewritten = False
        self.restarts = 0
        """How often the entries that were read so far became invalid."""

    def anchor(self, entry: EntryFingerprint) -> None:
        """Set an anchor for everything that is read from now on: the last entry of a state, before the rest of the state is read."""
        self.anchors.setdefault(entry.version, entry)

    def record_read(self, entry: LogEntry) -> None:
        """Record an entry that was read after the entries before it."""
        if not self.anchors:
            self.anchor(EntryFingerprint.of(entry))
        elif self._latest is None or entry.commit.version >= self._latest.commit.version:
            self._latest = entry

    async def confirm(self, table_id: str | None = None, ahead: Sequence[EntryFingerprint] = ()) -> bool:
        """Verify that everything that was read so far belongs to one log. Usually this is one request.

        Args:
            table_id: `metaData.id` of the table as of the anchors, where known, for errors.
            ahead: entries that may have been read out of order, because of read-ahead. Each must still exist.

        Returns:
            True if it does. False if the same log was written again: entries since the last call have to be read again.

        Raises:
            TableChangedError: the log is another one, or the table is gone.
            GapError: an anchor is gone, and the log cannot be verified.
            LogError: the log cannot be read.
        """
        latest = self._latest
        # The anchors are looked at meanwhile: both answers are about what was read before.
        listed = asyncio.create_task(self._are_unchanged(ahead)) if ahead else None
        try:
            if not await self._anchors_hold(table_id):
                return False
            if listed is not None and not await listed:
                self.restart(self.anchors[max(self.anchors)])
                return False
        finally:
            if listed is not None:
                listed.cancel()
                await asyncio.gather(listed, return_exceptions=True)
        if self.anchors:
            newest = self.anchors[max(self.anchors)]
            if latest is not None and latest.commit.version >= newest.version:
                newest = EntryFingerprint.of(latest)
                self._latest = None if self._latest is latest else self._latest
            self.anchors = {newest.version: newest}
        return True

    async def _anchors_hold(self, table_id: str | None) -> bool:
        """Whether all anchors are as they were read; see `confirm`."""
        for anchor in sorted(self.anchors.values(), key=lambda seen: seen.version):
            fingerprint = await self._recheck(anchor)
            if fingerprint is None:
                # An error, unless log clean-up removed the anchor and the log still contains its actions.
                versions = await self.versions()
                if not versions:
                    raise deleted_error(table_id, self._table)
                self.restart()
                if versions[-1] < anchor.version:
                    await self._check_id(table_id, None)
                    raise truncated_error(versions[-1], anchor.version, self._table)
                if versions[0] > anchor.version + 1:
                    raise gap_error(anchor.version + 1, versions[0], versions[-1], self._table)
                if anchor.version in versions:
                    self.restart(anchor)
                elif versions[0] < anchor.version or anchor.file is None or not await self._state_has_file(anchor.file):
                    await self._check_id(table_id, None)
                    raise GapError(
                        f"version {anchor.version}, which cdfd has read, is no longer in the log, "
                        "and cdfd cannot verify that the log continues it",
                        table=self._table,
                        version=anchor.version,
                        hint="If log clean-up removed it, restart cdfd: it continues with the table of that id",
                        retriable=True,  # a log that is opened again has not read it
                    )
                return False
            if fingerprint.digest != anchor.digest:
                await self._check_changed_anchor(anchor, table_id)
            if fingerprint.stat.identity != anchor.stat.identity:
                if not self._rewritten:
                    self._rewritten = True
                    self.restart(fingerprint)
                    return False
                # In some mounted stores a file has a new inode number at every stat, so only the bytes can be compared.
            else:
                self._rewritten = False
            self.anchors[anchor.version] = fingerprint
        return True

    async def _are_unchanged(self, entries: Sequence[EntryFingerprint]) -> bool:
        """Whether all these entries are unchanged in one listing."""
        unseen = {entry.version: entry.stat for entry in entries}
        async with contextlib.aclosing(self._log.list_names(f"{min(unseen):020d}")) as names:
            async for name, stat in names:
                if name.version > max(unseen):
                    break
                if name.kind == "commit" and name.version in unseen and is_same(unseen[name.version], stat):
                    del unseen[name.version]
                if not unseen:
                    break
        return not unseen

    async def compare(self, version: int, digest: str, table_id: str) -> bool:
        """Verify that the entry of a version has the digest from a saved position.

        Returns:
            False if log clean-up removed the entry, which is not compared then.

        Raises:
            TableChangedError: the entry has another digest, or the log ends before it.
            StorageError: the entry is listed, but cannot be read yet, or a catalog's answer is stale.
        """
        try:
            fingerprint = await self._log.fingerprint(version)
        except NotFoundError as error:
            versions = await self.versions()
            if version in versions:
                if digest == EMPTY_DIGEST and await self._stat_of_empty(version) is not None:
                    return True
                raise unreadable_error(error.path).within(table=self._table, version=version) from None
            newest = max(versions, default=None)
            if newest is not None and newest < version:
                await self._check_id(table_id, None)
                if self._log.by_catalog:
                    raise StorageError(
                        f"the catalog says that the newest version is {newest}, although version {version} was read",
                        table=self._table,
                        version=version,
                        hint="A replica of it may lag behind. If its database was restored from a backup, "
                        "run `cdfd progress reset` to start over",
                        retriable=True,
                    ) from None
                raise truncated_error(newest, version, self._table) from None
            return False
        if fingerprint.digest != digest:
            await self._check_id(table_id, version)
            raise replaced_error(version, self._table)
        return True

    def restart(self, anchor: EntryFingerprint | None = None) -> None:
        """Drop everything that was read so far, except for the new anchor."""
        self.anchors, self._latest = {} if anchor is None else {anchor.version: anchor}, None
        self.restarts += 1
        self._log.forget()

    async def _recheck(self, anchor: EntryFingerprint) -> EntryFingerprint | None:
        """The anchor as it is now; None if it is gone."""
        try:
            if anchor.stat.settled and anchor.stat.identity:
                stat = await self._log.stat(anchor.version)
                if stat.identity == anchor.stat.identity:
                    return anchor
            fingerprint = await self._log.fingerprint(anchor.version, anchor=False)
        except NotFoundError:
            still_empty = None if anchor.stat.size else await self._stat_of_empty(anchor.version)
            return None if still_empty is None else replace(anchor, stat=still_empty)
        return replace(anchor, stat=fingerprint.stat, digest=fingerprint.digest)

    async def _stat_of_empty(self, version: int) -> Stat | None:
        """The stat of an entry that has no bytes, which is a version without actions; None if it has some, or is gone."""
        with contextlib.suppress(NotFoundError):
            stat = await self._log.stat(version)
            return None if stat.size else stat
        return None

    async def _check_changed_anchor(self, anchor: EntryFingerprint, table_id: str | None) -> None:
        """The anchor's bytes changed: an error, unless the entry only grew before its actions were applied."""
        begun, prefix = await self._log.digest_prefix(anchor.version, anchor.stat.size)
        grown = begun == anchor.digest
        if grown and (not anchor.applied or not prefix.strip()):
            return
        await self._check_id(table_id, anchor.version)
        if grown:
            raise LogError(
                "the entry grew after it was read",
                table=self._table,
                version=anchor.version,
                hint="Its writer takes longer to complete an entry than cdfd waits. The part that it added later is not delivered",
            )
        raise replaced_error(anchor.version, self._table)

    async def _state_has_file(self, path: str) -> bool:
        """Whether a file is in the table's state, live or as a tombstone. File names are unique, so this identifies the version."""
        state = await self._log.snapshot(with_tombstones=True)
        files = (state.live().table, state.tombstones().table)
        return any(bool(pc.any(pc.equal(table.column("path"), path)).as_py()) for table in files)

    async def versions(self) -> list[int]:
        """The versions whose entries are in the log, ascending."""
        return [name.version async for name, _ in self._log.list_names() if name.kind == "commit"]

    async def _check_id(self, table_id: str | None, version: int | None) -> None:
        """Raise the better error for a log that is another one, if it also has another table id at a version (None: the newest).

        An id alone proves nothing: entries may change it. Read errors are left to the next read.
        """
        if table_id is not None:
            with contextlib.suppress(LogError):
                header = await self._log.header(version)
                check_id(table_id, header.metadata.id, header.version, self._table)


def check_id(expected: str, current: str, version: int, table: str) -> None:
    """Raise an error for a table id that differs from the known one.

    Raises:
        TableChangedError: it names both ids.
    """
    if expected != current:
        raise TableChangedError(
            f"the table was deleted and created again, or replaced: its id was {expected} and is {current} now",
            table=table,
            version=version,
            hint=RESET_HINT,
        )


def replaced_error(version: int, table: str) -> TableChangedError:
    """The error for a table with the same id in which an entry that was read is different."""
    return TableChangedError(
        f"the table was replaced by a copy or an older backup with the same id: version {version} is not the one that was read",
        table=table,
        version=version,
        hint="Positions of the one are not valid in the other: restore the table, or run `cdfd progress reset` to start over",
    )


def truncated_error(newest: int, version: int, table: str) -> TableChangedError:
    """The error for a log that ends before a version that was read."""
    error = TableChangedError(
        f"the log ends at version {newest} now, although version {version} was there",
        table=table,
        version=version,
        hint="The table was replaced by an older copy, or is being removed: restore it, or run `cdfd progress reset` to start over",
    )
    error.truncated = True
    return error


def gap_error(version: int, following: int, newest: int, table: str) -> GapError:
    """The error for missing versions: from `version` on, up to the one before `following`."""
    gap = f"version {version} is" if following <= version + 1 else f"versions {version} to {following - 1} are"
    return GapError(
        f"{gap} missing, although the log continues to version {newest}",
        table=table,
        version=version,
        hint="Log clean-up was faster than this reader, or entries were lost: run `cdfd progress reset` to start again from a snapshot",
    )


def unreadable_error(path: str | None) -> StorageError:
    """The error for a listed file that cannot be found: it is not visible yet, or was removed since. The next listing decides."""
    hint = "Some stores list objects before they can be read. Log clean-up may also have removed it"
    return StorageError("the file is listed, but does not exist", path=path, hint=hint, retriable=True)


def deleted_error(table_id: str | None, table: str) -> TableChangedError:
    """The error for a table without a log, which had one before."""
    return TableChangedError(
        f"the table {table_id} was deleted or moved" if table_id is not None else "the table was deleted or moved",
        table=table,
        hint="Restore it, or move it back. If it is gone for good, stop reading it; a daemon's configuration must not list it then",
    )
