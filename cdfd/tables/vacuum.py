"""VACUUM: finds and removes the files of a table that no version in the retention has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.delta import vacuum
from cdfd.delta.files import TEXT
from cdfd.delta.protocol import check_writable
from cdfd.delta.retention import deleted_files_ms
from cdfd.delta.snapshot import Snapshot
from cdfd.errors import ConfigError, NotFoundError, UnsupportedError
from cdfd.storage.base import FolderListing, Stat, Storage
from cdfd.storage.local import LocalStorage
from cdfd.tail.log import DeltaLog

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
        UnsupportedError: the table has a feature that cdfd does not know, or symbolic links.
        CdfdError: the log cannot be read.
    """
    state = await log.snapshot()
    check_writable(state.protocol)
    safe = deleted_files_ms(state.metadata)
    wanted = safe if retention_ms is None else retention_ms
    if wanted < safe and not unsafe:
        raise ConfigError(
            f"a retention of {_hours(wanted)} is shorter than that of the table, {_hours(safe)}",
            hint="Readers of old versions and writers that have not committed would lose files. --unsafe allows it",
        )
    cutoff = now_ms - wanted
    listed = [stat async for stat in _old_files(log.storage, state, cutoff)]
    # After the listing, so that a file that is old and was added again meanwhile is known.
    state = await log.snapshot(with_tombstones=True)
    check_writable(state.protocol)
    keep = [vacuum.kept(state, cutoff, log.storage.uri)]
    if wanted > safe:
        # Checkpoints may have forgotten files that were removed within a longer retention than the table's.
        keep += [paths async for paths in _named_since(log, cutoff)]
    return Removable(state.version, wanted, tuple(_unmentioned(listed, pa.concat_arrays(keep))))


async def remove(storage: Storage, files: tuple[Stat, ...]) -> None:
    """Remove files."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(path: str) -> None:
        async with gate:
            await storage.delete(path)

    for start in range(0, len(files), _PAGE):
        await asyncio.gather(*(one(file.path) for file in files[start : start + _PAGE]))


def _unmentioned(listed: list[Stat], keep: pa.Array) -> list[Stat]:
    known = pc.is_in(pa.array([stat.path for stat in listed], TEXT), value_set=keep)
    return [stat for stat, mentioned in zip(listed, known.to_pylist(), strict=True) if not mentioned]


async def _old_files(storage: Storage, state: Snapshot, cutoff_ms: int) -> AsyncIterator[Stat]:
    """The files that are older than the cutoff, of folders that are not hidden."""
    if not isinstance(storage, FolderListing):
        raise UnsupportedError("the store of the table cannot list folders", table=storage.uri)
    pending = [""]
    while pending:
        folder = pending.pop()
        below = await storage.folders(folder)
        if folder and "_delta_log" in below:
            continue  # another table
        prefix = f"{folder}/" if folder else ""
        pending += reversed([path for name in below if not vacuum.hides(path := f"{prefix}{name}", state)])
        _refuse_links(storage, folder)
        async with aclosing(storage.list(prefix)) as files:
            async for stat in files:
                if stat.modified_ms < cutoff_ms and not vacuum.is_hidden(stat.path.rpartition("/")[2]):
                    yield stat


def _refuse_links(storage: Storage, folder: str) -> None:
    """Refuse a folder with symbolic links: a file that has two names may be live by the other one."""
    if not isinstance(storage, LocalStorage):
        return
    try:
        with os.scandir(os.path.join(storage.root, folder)) as entries:
            found = next((entry.name for entry in entries if entry.is_symlink()), None)
    except FileNotFoundError:
        return
    if found is not None:
        raise UnsupportedError(
            "the table has a symbolic link, so a file may be in use by another name",
            table=storage.uri,
            path=os.path.join(folder, found),
            hint="Replace the link by the file or folder, or run VACUUM in the engine that made it",
        )


async def _named_since(log: DeltaLog, cutoff_ms: int) -> AsyncIterator[pa.Array]:
    """The paths in log entries that were written after the cutoff."""
    names = [(name, stat) async for name, stat in log.list_names() if name.kind == "commit"]
    for name, stat in names:
        if stat.modified_ms >= cutoff_ms:
            try:
                commit = (await log.entry(name.version)).commit
            except NotFoundError:
                continue  # log clean-up has removed it
            for actions in (commit.adds, commit.removes, commit.cdcs):
                yield vacuum.named(actions, log.storage.uri)


def _hours(milliseconds: int) -> str:
    return f"{milliseconds / 3_600_000:g} hours"
