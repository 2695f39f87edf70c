"""VACUUM: finds and removes the files of a table that no version in the retention has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import dropwhile

import pyarrow as pa

from cdfd.delta.protocol import check_writable
from cdfd.delta.retention import deleted_files_ms
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.write import vacuum
from cdfd.errors import ConfigError, NotFoundError, PathError, UnsupportedError, Within
from cdfd.log.log import DeltaLog
from cdfd.storage.base import FolderListing, Stat, Storage
from cdfd.storage.local import LocalStorage

AT_ONCE = 16
"""Files that are removed at the same time."""
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Removable:
    """The files that may be removed.

    Attributes:
        version: the newest version of the table.
        retention_ms: the retention that counted.
        files: with sizes, in the order of the store's folders.
    """

    version: int
    retention_ms: int
    files: tuple[Stat, ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)


async def removable(log: DeltaLog, now_ms: int, retention_ms: int | None = None, *, unsafe: bool = False) -> Removable:
    """The files that may be removed. Changes nothing.

    Args:
        log: of the table.
        now_ms: the time.
        retention_ms: how long files are kept that the table has no more; None: as the table's properties say.
        unsafe: whether the retention may be shorter than the table's. Readers of old versions and unfinished writers then fail.

    Raises:
        ConfigError: the retention is too short.
        UnsupportedError: the table has a feature that cdfd does not know.
        PathError: the log names a file that may be one of the table, and not which.
        CdfdError: the log cannot be read.
    """
    state = await log.snapshot()
    check_writable(state.protocol)
    safe = deleted_files_ms(state.metadata)
    retention = safe if retention_ms is None else retention_ms
    if retention < safe and not unsafe:
        hour_ms = 3_600_000
        raise ConfigError(
            f"a retention of {retention / hour_ms:g} hours is shorter than that of the table, {safe / hour_ms:g} hours",
            hint="Readers of old versions and writers that have not committed would lose files. --unsafe allows it",
        )
    cutoff = now_ms - retention
    listed = [stat async for stat in _old_files(log.storage, state, cutoff)]
    # After the listing, so that a file that is old and was added again meanwhile is known.
    state = await log.snapshot(with_tombstones=True)
    check_writable(state.protocol)
    named_by_state = vacuum.kept(state, cutoff, log.storage.uri)
    # Tombstones do not suffice: change data files have none, those without a time count as old, and a checkpoint may have forgotten files
    # that were removed within this retention, because the table's was shorter then.
    named = [named_by_state, *[each async for each in _named_since(log, cutoff)]]
    named_inside = pa.concat_arrays([each.inside for each in named])
    named_outside = {path: version for each in named for path, version in each.outside.items()}
    unnamed = vacuum.are_unnamed([stat.path for stat in listed], named_inside)
    files = [stat for stat, is_unnamed in zip(listed, unnamed, strict=True) if is_unnamed]
    with Within(log.storage.uri, state.version):
        if isinstance(log.storage, LocalStorage):  # a name in the log may lead to a file of another name
            outside = await log.storage.file_ids(list(named_outside))
            for (path, version), file in zip(named_outside.items(), outside, strict=True):
                if file is None:
                    raise PathError(
                        "the log names a file outside of the table that is not there: it may be a file of the table by another name",
                        version=version,
                        path=path,
                        hint=vacuum.HINT,
                    )
            inside = await log.storage.file_ids(named_inside.to_pylist()) if files else ()
            named_ids = {*outside, *inside}
            ids = await log.storage.file_ids([stat.path for stat in files])
            files = [stat for stat, file in zip(files, ids, strict=True) if file not in named_ids]
    return Removable(state.version, retention, tuple(files))


async def remove(storage: Storage, files: tuple[Stat, ...]) -> None:
    """Remove files."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(path: str) -> None:
        async with gate:
            await storage.delete(path)

    for start in range(0, len(files), _PAGE):
        await asyncio.gather(*(one(file.path) for file in files[start : start + _PAGE]))


async def _old_files(storage: Storage, state: Snapshot, cutoff_ms: int) -> AsyncIterator[Stat]:
    """The files that are older than the cutoff, of folders that are not hidden. Links are left alone: a file is listed where it is."""
    if not isinstance(storage, FolderListing):
        raise UnsupportedError("the store of the table cannot list folders", table=storage.uri)
    pending = [""]
    while pending:
        folder = pending.pop()
        below = await storage.folders(folder)
        links = await storage.links(folder) if isinstance(storage, LocalStorage) else ()
        if folder and ("_delta_log" in below or "_delta_log" in links):
            continue  # another table
        prefix = f"{folder}/" if folder else ""
        folders = [f"{prefix}{name}" for name in below if name not in links]
        pending += reversed([path for path in folders if not vacuum.hides(path, state)])
        async with aclosing(storage.list(prefix)) as files:
            async for stat in files:
                name = stat.path.rpartition("/")[2]
                if stat.modified_ms < cutoff_ms and name not in links and not vacuum.is_hidden(name):
                    yield stat


async def _named_since(log: DeltaLog, cutoff_ms: int) -> AsyncIterator[vacuum.NamedFiles]:
    """The files in the log entries since the first one that was written after the cutoff."""
    commits = [(name.version, stat) async for name, stat in log.list_names() if name.kind == "commit"]
    for version, _ in dropwhile(lambda each: each[1].modified_ms < cutoff_ms, commits):
        try:
            commit = (await log.entry(version)).commit
        except NotFoundError:
            continue  # log clean-up has removed it
        yield vacuum.files_named(commit, log.storage.uri)
