"""Looks for tables: the folders of a pattern that have a Delta log, and the tables of a configuration with all patterns resolved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from weakref import WeakValueDictionary

from cdfd.config.discovery import Discovery, TableEntry
from cdfd.config.problems import quoted
from cdfd.config.settings import Settings, Table
from cdfd.config.table import owners
from cdfd.config.table_folders import TableFolders, canonical, real
from cdfd.daemon.membership.shard import Shard
from cdfd.daemon.sources import Accesses
from cdfd.deliver import configured
from cdfd.errors import (
    CdfdError,
    ConfigError,
    LogError,
    NotATableError,
    NotFoundError,
    PathError,
    StorageError,
    UnsupportedError,
)
from cdfd.runtime.clock import Clock, SystemClock
from cdfd.storage.base import FolderListing, Storage
from cdfd.storage.location import open_table

logger = logging.getLogger("cdfd.discovery")

Steps = tuple[str, ...]
_LOG = "_delta_log"
_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class Folders:
    """The result of a search.

    Attributes:
        tables: the folders that are tables, in order: the names of each one's folders below the pattern's root.
        errors: those of folders that may be tables and cannot be looked into, in order. Each names its folder as the table.
    """

    tables: Sequence[Steps] = ()
    errors: Sequence[CdfdError] = ()


class FolderSearch:
    """Looks for the tables of one pattern, as often as asked. It asks only once about each table whether it is one.

    Args:
        config: for the access to the store.
    """

    def __init__(self, config: Settings, discovery: Discovery, clock: Clock | None = None) -> None:
        self.discovery = discovery
        self._config = config
        self._clock = clock or SystemClock()
        self._known: frozenset[Steps] = frozenset()
        self._last: tuple[float, Folders] | None = None
        self._turn = asyncio.Lock()

    async def search(self, sink: Settings | None = None, age: float = 0.0) -> Folders:
        """The tables that there are now, and the errors of folders below the pattern's root.

        A table is one once its log has an entry. A folder in a table is none. Links may lead to folders below the pattern's root and
        below `allowed_roots`; others are errors. Tables that are known stay while a folder above them cannot be listed.

        Args:
            sink: settings with the ledger, which is no table; None: those of the search.
            age: a search for another sink that began up to so many seconds ago is as good as a new one.

        Raises:
            StorageError: the root cannot be listed.
            UnsupportedError: the store cannot list folders.
            ConfigError: the location is malformed.
        """
        async with self._turn:
            now = self._clock.monotonic()
            if self._last is None or now - self._last[0] >= age:
                self._last = now, await self._list()
        return await asyncio.to_thread(self._without_ledger, self._last[1], sink or self._config)

    def _without_ledger(self, folders: Folders, config: Settings) -> Folders:
        """The folders, but the one of the ledger. Blocks: it resolves symbolic links."""
        if config.progress.ledger.kind != "table":
            return folders
        ledger, uri = real(config.progress.ledger.uri), self.discovery.pattern.uri
        return replace(folders, tables=[steps for steps in folders.tables if real(uri(steps)) != ledger])

    async def _list(self) -> Folders:
        storage = self._storage(())
        if not isinstance(storage, FolderListing):
            raise UnsupportedError(
                "this store cannot list folders", path=self.discovery.pattern.root, hint="Name each table with `uri`"
            )
        errors: dict[Steps, CdfdError] = {}
        candidates = [steps for steps in await self._below(storage, (), errors) if self.discovery.accepts(steps)]
        unseen = [steps for steps in self._known if any(steps[:level] in errors for level in range(len(steps) + 1))]
        new = [steps for steps in candidates if steps not in self._known]
        slots = asyncio.Semaphore(_AT_A_TIME)
        are_tables = await asyncio.gather(*(self._is_table(steps, slots, errors) for steps in new))
        tables = {steps for steps, is_table in zip(new, are_tables, strict=True) if is_table}
        self._known = frozenset(tables | (self._known & {*candidates, *unseen}))
        return Folders(sorted(self._known), [errors[steps] for steps in sorted(errors)])

    def _storage(self, steps: Steps) -> Storage:
        """The store of a folder below the root, or of the root itself: that of a table which the search found there."""
        root = self.discovery.pattern.root
        uri = self.discovery.pattern.uri(steps) if steps else root
        return open_table(uri, self._config.options(uri), self.discovery.allowed_roots, root)

    async def _below(self, storage: FolderListing, steps: Steps, errors: dict[Steps, CdfdError]) -> list[Steps]:
        """The folders that match the pattern below a folder that does."""
        pattern, level = self.discovery.pattern, len(steps)
        try:
            names = await storage.folders("/".join(steps))
        except _BAD_FOLDER as error:
            if not level:
                raise
            self._keep(steps, error, errors)
            return []
        if level and _LOG in names:
            return []
        matching = [(*steps, name) for name in names if pattern.matches(level, name)]
        if level + 1 == len(pattern.levels):
            return matching
        searched = [each for each in matching if not self.discovery.excludes_below(each)]
        return [folder for each in searched for folder in await self._below(storage, each, errors)]

    async def _is_table(self, steps: Steps, slots: asyncio.Semaphore, errors: dict[Steps, CdfdError]) -> bool:
        async with slots:
            try:
                storage = self._storage(steps)
                # Any file: a log that cannot be read is that table's error, which its own loop reports.
                async with aclosing(storage.list(f"{_LOG}/")) as log:
                    async for _ in log:
                        return True
                if not storage.remote:
                    with suppress(NotFoundError):
                        await storage.stat(_LOG)
                        raise LogError("_delta_log is a file, and the log of a Delta table is a folder", path=_LOG)
            except _BAD_FOLDER as error:
                self._keep(steps, error, errors)
        return False

    def _keep(self, steps: Steps, error: CdfdError, errors: dict[Steps, CdfdError]) -> None:
        error.hint = f"{error.hint}. {_LEAVE_OUT}" if error.hint else _LEAVE_OUT
        errors[steps] = error.within(table=self.discovery.pattern.uri(steps))


@dataclass(eq=False)
class SharedSearches:
    """The searches of all sinks of a daemon: sinks that have a pattern in common share its search."""

    clock: Clock
    _searches: WeakValueDictionary[Hashable, FolderSearch] = field(default_factory=WeakValueDictionary, init=False)
    _accesses: Accesses = field(default_factory=Accesses, init=False)

    def of(self, config: Settings, discovery: Discovery) -> FolderSearch:
        """The search for the tables of a pattern. It lives as long as a sink has it."""
        access = self._accesses.number(config)
        key = access, discovery.discover, discovery.include, discovery.exclude, discovery.allowed_roots
        search = self._searches.get(key) or FolderSearch(config, discovery, self.clock)
        return self._searches.setdefault(key, search)


_BAD_FOLDER = (StorageError, PathError, LogError, UnsupportedError, ConfigError)
"""Errors of one folder, which do not keep the tables of other folders from being delivered. A catalog may name any location."""
_LEAVE_OUT = "The other tables are delivered. `exclude` leaves a folder out"


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a configuration.

    Attributes:
        entries: their settings, by name.
        refused: the errors of tables that were found and cannot be delivered.
        unread: the errors of folders that may be tables and cannot be looked into.
        duplicates: locations of tables that are delivered by another name, each with that location.
    """

    entries: Mapping[str, TableEntry] = field(default_factory=dict)
    refused: Sequence[ConfigError] = ()
    unread: Sequence[CdfdError] = ()
    duplicates: Mapping[str, str] = field(default_factory=dict)

    def of_shard(self, shard: Shard | None) -> Tables:
        """The tables of one shard; None: all. Everything else is that of all shards."""
        if shard is None:
            return self
        return replace(self, entries={name: entry for name, entry in self.entries.items() if shard.owns(name)})


def merge_tables(
    config: Settings, searched: Sequence[tuple[Discovery, Folders]], running: Collection[str] = ()
) -> Tables:
    """The tables that the configuration lists, and those that its patterns found. Blocks: it resolves symbolic links.

    A listed table wins over the same location in a pattern, and a folder over a link to it. Two tables with one name or one topic are an
    error of the second one: a listed table is first, then those that run already, then those of the first pattern in the file.

    Args:
        searched: the folders of each pattern, in the order of the file.
        running: locations of tables that are delivered already.
    """
    refused: list[ConfigError] = []
    candidates: list[tuple[bool, bool, TableEntry]] = []
    for discovery, folders in searched:
        root = real(discovery.pattern.root)
        for steps in folders.tables:
            try:
                candidate = discovery.table_at(steps)
            except ConfigError as error:
                refused.append(error)
                continue
            uri = candidate.table.uri
            candidates.append((uri not in running, real(uri) != f"{root}/{'/'.join(steps)}", candidate))
    candidates.sort(key=itemgetter(0, 1))  # stable: the order of the file otherwise
    taken = _Taken(config)
    tables = {table.name: TableEntry(table) for table in config.listed}
    duplicates: dict[str, str] = {}
    for table in config.listed:
        taken.add(table)
    for _, _, candidate in candidates:
        table = candidate.table
        same = taken.by_place.get(real(table.uri))
        if same is not None:
            if canonical(same.uri) != canonical(table.uri):
                duplicates[table.uri] = same.uri
            continue
        what = taken.conflict(table)
        if what is None:
            taken.add(table)
            tables[table.name] = candidate
        else:
            refused.append(ConfigError(what, table=table.uri, hint=CONFLICT_HINT))
    unread = [error for _, folders in searched for error in folders.errors]
    return Tables(tables, tuple(refused), unread, duplicates)


@dataclass(eq=False)
class _Taken:
    """The places, names and topics of tables."""

    config: Settings
    by_place: dict[str, Table] = field(default_factory=dict, init=False)
    _by_name: dict[str, Table] = field(default_factory=dict, init=False)
    _by_topic: dict[str, Table] = field(default_factory=dict, init=False)
    _by_owner: dict[str, Table] = field(default_factory=dict, init=False)

    def add(self, table: Table) -> None:
        self.by_place.setdefault(real(table.uri), table)
        self._by_name[table.name] = self._by_topic[table.topic] = table
        for name in owners(table.name):
            self._by_owner[name] = table

    def conflict(self, table: Table) -> str | None:
        """Why a table cannot be delivered beside those that are there; None if it can."""
        for what, value, tables in (("name", table.name, self._by_name), ("topic", table.topic, self._by_topic)):
            if (other := tables.get(value)) is not None:
                return f"two tables have the {what} {quoted(value)}: {table.uri} and {other.uri}; the second one is delivered"
        others = [self._by_name[name] for name in owners(table.name) if name in self._by_name]
        if (other := next(iter(others), self._by_owner.get(table.name))) is not None:
            return f"the names {quoted(table.name)} and {quoted(other.name)} of {other.uri} exclude each other"
        for key, place in self.config.sink.places(table.topic).items():
            if TableFolders([table.uri]).around(place) is not None:
                return f"sink.{key} is in the folder of this table: {quoted(place)}"
        return self.config.own_topics.refusal(table.topic, self._by_topic)


CONFLICT_HINT = "Give one of them another name and topic with `overrides` or a template, or leave it out with `exclude`"


async def discover_tables(
    config: Settings, *, only: str | None = None, shard: Shard | None = None
) -> tuple[Settings, Sequence[CdfdError]]:
    """The configuration with the tables that its patterns find now, and the errors of tables that cannot be delivered.

    Args:
        only: the name of a table of interest; the keys of others stay unknown, because each one needs its table to be read.
        shard: only the tables of this shard; None: all.

    Raises:
        StorageError, UnsupportedError, ConfigError: a pattern's folder cannot be listed.
    """
    folders = [(discovery, await FolderSearch(config, discovery).search()) for discovery in config.discoveries]
    tables = (await asyncio.to_thread(merge_tables, config, folders)).of_shard(shard)
    errors: list[CdfdError] = [*tables.refused, *tables.unread]
    slots = asyncio.Semaphore(_AT_A_TIME)

    async def read_key(entry: TableEntry) -> Table | None:
        if only is not None and entry.table.name != only:
            return entry.table
        async with slots:
            try:
                return await with_key(config, entry)
            except NotATableError:
                return entry.table  # removed since: the error of opening it says so
            except CdfdError as error:
                errors.append(error.within(table=entry.table.uri))
        return None

    keys = await asyncio.gather(*map(read_key, tables.entries.values()))
    return config.with_tables(table for table in keys if table is not None), errors


async def with_key(config: Settings, entry: TableEntry) -> Table:
    """A table with the key that its properties name.

    Raises:
        CdfdError: the table cannot be read, or the property does not fit it.
    """
    if entry.key_property is None:
        return entry.table
    header = await configured.open_table(config, entry.table).log.header()
    return entry.with_key(header.metadata.configuration)
