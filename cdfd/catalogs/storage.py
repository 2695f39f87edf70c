"""The store of a table that a catalog names: its files, and in `_delta_log` the commits that the catalog has ratified.

    storage = CatalogStorage("uc://main.sales.orders", "main.sales.orders", Vendor(catalog))
    await storage.read("_delta_log/00000000000000000008.json")     # the staged commit, if the catalog names one

Readers see a plain log: entry 8 is `_delta_log/8.json`, whatever file or content it has, and entries that are not ratified do not exist. A
request for an entry that does not exist yet is one request to the catalog.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from cdfd.catalogs.ratified import RatifiedLog
from cdfd.catalogs.resolver import ResolvedTable, TableResolver
from cdfd.catalogs.vending import Vendor
from cdfd.delta import paths
from cdfd.errors import NotFoundError, StorageError, UnsupportedError
from cdfd.storage.base import FolderListing, Stat, Storage, WholeFiles, check_path, check_range, fetch_each, read_whole
from cdfd.storage.location import open_table
from cdfd.storage.s3.loop import request_loop

T = TypeVar("T")

LOG = f"{paths.LOG}/"
STAGED = f"{LOG}_staged_commits/"
SHARED_SECONDS = 0.1
"""An answer is used for all listings that begin so soon after it: a reader that starts lists several times."""
RECHECK_SECONDS = 30.0
"""Time between two looks at the name of a table whose commits the catalog does not decide."""
KNOWN_STATS = 256
"""Entries whose stats are kept. A ratified commit never changes, so they need no request."""


class CatalogStorage:
    """The `Storage` port over a table of a catalog. It is read only, unless the user's own credentials open the store.

    Args:
        uri: the table's name with its scheme.
        name: the table's name, as the catalog knows it.
        vendor: of the catalog's credentials, which all its tables share.
    """

    def __init__(self, uri: str, name: str, vendor: Vendor) -> None:
        self.uri = uri
        self._resolver = TableResolver(uri, name, vendor)
        self._vended = vendor.catalog.vends
        self._stats: OrderedDict[int, Stat] = OrderedDict()

    @property
    def location(self) -> str:
        """Where the table is; see `NamedTable`."""
        return self._resolver.resolve_now().store.uri

    @property
    def ratified(self) -> bool:
        """Whether the catalog decides which commits exist, as far as known; see `NamedTable`."""
        return self._resolver.table is not None and self._resolver.table.log is not None

    @property
    def remote(self) -> bool:
        """Whether requests take long. Those to a catalog do."""
        return self._resolver.table is None or self._resolver.table.log is not None or self._resolver.table.store.remote

    def open_root(self, root: str) -> Storage:
        """The store of another root; see `NamedTable`."""
        return open_table(root, self._resolver.catalog.store_options(root))

    # --- the port ---

    async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object; see the port."""
        check_path(path)
        check_range(path, start, length)
        end = None if length is None else start + length
        return await self._with_entry(
            path, lambda store, at: store.read(at, start, length), lambda content, _: content[start:end]
        )

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        """The first bytes of an object and its stat; see the port."""
        check_path(path)
        check_range(path, 0, length)
        data, stat = await self._with_entry(
            path, lambda store, at: store.fetch(at, length), lambda content, stat: (content[:length], stat)
        )
        return data, self._own_stat(path, stat)

    async def fetch_many(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, Stat]]:
        """Several objects; see the port."""
        table = await self._resolver.resolve()
        return await (table.store.fetch_many(paths, length) if table.log is None else fetch_each(self, paths, length))

    async def stat(self, path: str) -> Stat:
        """Size and modification time; see the port."""
        check_path(path)
        version = _version_of(path)
        if version is not None and (cached := self._stats.get(version)) is not None and self.ratified:
            return cached
        if version is not None and not self.ratified:
            # The last entry is looked at again while none comes. Then the name is looked up again, too.
            await self._resolver.look_up(RECHECK_SECONDS)
        stat = await self._with_entry(path, lambda store, at: store.stat(at), lambda _, stat: stat)
        return self._own_stat(path, stat)

    async def list(self, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        """Objects of a folder, in the log's folder the ratified commits; see the port.

        Raises:
            StorageError: the catalog's list of commits lacks one that is not published.
        """
        try:
            table = await self._resolver.look_up(SHARED_SECONDS if prefix == LOG else RECHECK_SECONDS)
        except StorageError as error:
            resolved = self._resolver.table
            latest = None if resolved is None or resolved.log is None else resolved.log.latest
            # While the catalog is down, its last answer has the versions that were ratified before.
            # A listing that begins before the newest known version asks for known ones. Others ask which one is the newest.
            if not error.retriable or resolved is None or latest is None or not "" < start_after < _path(latest):
                raise
            table = resolved
        listing = table.store.list(prefix, start_after)
        if table.log is not None and prefix == LOG:
            listing = self._ratified_names(table.log, listing, start_after)
        async with aclosing(listing) as files:
            async for file in files:
                yield file

    async def folders(self, folder: str = "") -> Sequence[str]:
        """The names of folders; see `FolderListing`. UnsupportedError if the table's store cannot list them."""
        store = (await self._resolver.resolve()).store
        if not isinstance(store, FolderListing):
            raise UnsupportedError("this store cannot list folders", table=self.uri)
        return await store.folders(folder)

    async def put_if_absent(self, path: str, data: bytes) -> None:
        """Create an object; see the port. UnsupportedError for a table that is read by its catalog."""
        await (await self._writable()).put_if_absent(path, data)

    async def put(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace an object; see the port. UnsupportedError for a table that is read by its catalog."""
        await (await self._writable()).put(path, data)

    async def delete(self, path: str) -> None:
        """Remove an object; see the port. UnsupportedError for a table that is read by its catalog."""
        await (await self._writable()).delete(path)

    def prefetch(self, path: str, size: int | None = None, *, whole: bool = False) -> None:
        """Announce an object; see the port."""
        check_path(path)
        table, version = self._resolver.table, _version_of(path)
        if table is None:
            return
        if version is None or table.log is None:
            table.store.prefetch(path, size, whole=whole)
        elif table.log.includes(version):
            commit = table.log.commits.get(version)
            if commit is None or commit.file_name is not None:
                table.store.prefetch(path if commit is None else f"{STAGED}{commit.file_name}", whole=whole)

    def open_input_file(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Random access to an object; see the port."""
        check_path(path)
        if _version_of(path) is None:
            return self._resolver.resolve_now().store.open_input_file(path, size)

        async def find(store: Storage, at: str) -> Callable[[], pa.NativeFile]:
            await store.stat(at)
            return partial(store.open_input_file, at)

        def inline(content: bytes, _: Stat) -> Callable[[], pa.NativeFile]:
            return partial(pa.BufferReader, content)

        return request_loop().submit(self._with_entry(path, find, inline)).result()()

    def read_whole(self, paths: Sequence[str], sizes: Sequence[int]) -> Sequence[bytes]:
        """All bytes of objects; see `WholeFiles`."""
        store = self._resolver.resolve_now().store
        if isinstance(store, WholeFiles):
            return store.read_whole(paths, sizes)
        return [read_whole(store, path, size) for path, size in zip(paths, sizes, strict=True)]

    async def _writable(self) -> Storage:
        table = await self._resolver.resolve()
        if table.log is not None or self._vended:
            raise UnsupportedError(
                "cdfd does not write into a table of a catalog",
                table=self.uri,
                hint="Keep positions in a ledger of their own: set `progress.ledger` to a folder or a bucket prefix",
            )
        return table.store

    # --- entries ---

    async def _with_entry(
        self,
        path: str,
        read: Callable[[Storage, str], Awaitable[T]],
        inline: Callable[[bytes, Stat], T],
    ) -> T:
        """The result of `read` for the file that has the content of `path`, or of `inline` for a content that the catalog has."""
        table, version = await self._resolver.resolve(), _version_of(path)
        if version is None or table.log is None:
            return await read(table.store, path)
        if not table.log.includes(version):
            table = await self._resolver.look_up(0.0)
            if not _log(table).includes(version):
                raise NotFoundError("the catalog has not ratified this version", path=path)
        again = False
        while True:
            commit = _log(table).commits.get(version)
            if commit is not None and commit.content is not None:
                return inline(commit.content, Stat(path, len(commit.content), commit.modified_ms))
            try:
                if commit is not None:
                    with contextlib.suppress(NotFoundError):
                        return await read(table.store, f"{STAGED}{commit.file_name}")
                return await read(table.store, path)
            except NotFoundError:
                if again:
                    await self._check_cleaned_up(table, version)
                    raise
            # It was published, and the staged commit removed, or log clean-up removed it.
            table, again = await self._resolver.look_up(0.0), True

    async def _check_cleaned_up(self, table: ResolvedTable, version: int) -> None:
        """Raise a transient error for a version that is ratified, and neither published nor cleaned up."""
        async with aclosing(table.store.list(LOG, _path(version))) as files:
            async for file in files:
                name = paths.parse_name(file.path.removeprefix(LOG))
                # Commits are published in order, and only published ones have checkpoints.
                if name is not None and name.kind != "last_checkpoint" and name.version > version:
                    return
        raise _truncation_error(version, _log(table).latest).within(table=self.uri)

    async def _ratified_names(
        self, log: RatifiedLog, listing: AsyncGenerator[Stat, None], start_after: str
    ) -> AsyncGenerator[Stat, None]:
        """A listing of the log's folder with the ratified commits, and without versions that are not ratified."""
        waiting = [path for version in sorted(log.commits) if (path := _path(version)) > start_after]
        last: int | None = None

        def commit_at(path: str, stat: Stat | None) -> Stat:
            nonlocal last
            version = int(path.removeprefix(LOG).removesuffix(".json"))
            commit = log.commits.get(version)
            if last is not None and version > last + 1 and commit is not None:
                raise _truncation_error(last + 1, log.latest).within(table=self.uri)
            last = version
            if (cached := self._stats.get(version)) is not None:
                return cached
            if commit is not None:
                size = commit.size if commit.content is None else len(commit.content)
                stat = Stat(path, size, commit.modified_ms)
            assert stat is not None
            return self._own_stat(path, stat)

        async with aclosing(listing) as files:
            async for file in files:
                while waiting and waiting[0] < file.path:
                    yield commit_at(waiting.pop(0), None)
                name = paths.parse_name(file.path.removeprefix(LOG))
                if name is not None and name.kind != "last_checkpoint" and not log.includes(name.version):
                    continue
                if waiting and waiting[0] == file.path:
                    waiting.pop(0)
                yield commit_at(file.path, file) if name is not None and name.kind == "commit" else file
        for path in waiting:
            yield commit_at(path, None)
        newest = log.latest
        if newest is not None and newest >= 0 and last != newest and _path(newest) > start_after:
            raise _truncation_error(newest if last is None else last + 1, newest).within(table=self.uri)

    def _own_stat(self, path: str, stat: Stat) -> Stat:
        """The stat of an entry under its published name. All copies of a ratified commit are the same write of it."""
        version, table = _version_of(path), self._resolver.table
        if version is None or table is None or table.log is None:
            return stat
        identity = f"{table.log.table_id}-{version}"
        own = replace(stat, path=path, identity=identity, settled=True)
        self._stats[version] = own
        if len(self._stats) > KNOWN_STATS:
            self._stats.popitem(last=False)
        return own


def _log(table: ResolvedTable) -> RatifiedLog:
    assert table.log is not None
    return table.log


def _path(version: int) -> str:
    return f"{LOG}{paths.commit_name(version)}"


def _version_of(path: str) -> int | None:
    """The version of a log entry; None of another file."""
    if not path.startswith(LOG):
        return None
    name = paths.parse_name(path.removeprefix(LOG))
    return name.version if name is not None and name.kind == "commit" else None


def _truncation_error(version: int, newest: int | None) -> StorageError:
    return StorageError(
        f"the catalog says that the newest version is {newest}, but has no commit {version}, which is not published either",
        version=version,
        hint="Its list of commits is not complete, or a staged commit was removed before it was published",
        retriable=True,
    )
