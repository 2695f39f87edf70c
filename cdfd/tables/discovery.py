"""Looks for tables: the folders of a pattern that have a Delta log, and the tables of a configuration with all patterns resolved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdfd.config.discovery import Discovery, Found
from cdfd.config.problems import quoted
from cdfd.config.settings import Settings, Table, is_taken
from cdfd.config.table_folders import canonical, inside_table
from cdfd.errors import CdfdError, ConfigError, UnsupportedError
from cdfd.storage.base import FolderListing
from cdfd.storage.location import open_storage
from cdfd.tables.configured import open_table
from cdfd.tables.shard import Shard
from cdfd.tail.log_files import NotATableError

logger = logging.getLogger("cdfd.discovery")

Steps = tuple[str, ...]
_LOG = "_delta_log"
_AT_A_TIME = 16


class FolderSearch:
    """Looks for the tables of one pattern, as often as asked. It asks only once about each table whether it is one.

    Args:
        config: for the access to the store.
        discovery: the pattern.
    """

    def __init__(self, config: Settings, discovery: Discovery) -> None:
        self.discovery = discovery
        self._config = config
        self._known: frozenset[Steps] = frozenset()

    async def tables(self) -> list[Steps]:
        """The folders that are tables, in order: the names of each one's folders below the pattern's root.

        A table is found once its log has an entry. A folder in a table is none.

        Raises:
            StorageError: a folder cannot be listed.
            UnsupportedError: the store cannot list folders.
            ConfigError: the location is malformed.
        """
        root = self.discovery.pattern.root
        storage = open_storage(root, self._config.storage.options(root))
        if not isinstance(storage, FolderListing):
            raise UnsupportedError("this store cannot list folders", path=root, hint="Name each table with `uri`")
        candidates = [steps for steps in await self._below(storage, ()) if self.discovery.accepts(steps)]
        new = [steps for steps in candidates if steps not in self._known]
        slots = asyncio.Semaphore(_AT_A_TIME)
        are_tables = await asyncio.gather(*(self._is_table(steps, slots) for steps in new))
        tables = {steps for steps, is_table in zip(new, are_tables, strict=True) if is_table}
        self._known = frozenset(tables | (self._known & set(candidates)))
        return sorted(self._known)

    async def _below(self, storage: FolderListing, steps: Steps) -> list[Steps]:
        """The folders that match the pattern below a folder that does."""
        pattern, level = self.discovery.pattern, len(steps)
        names = await storage.folders("/".join(steps))
        if level and _LOG in names:
            return []
        matching = [(*steps, name) for name in names if pattern.matches(level, name)]
        if level + 1 == len(pattern.levels):
            return matching
        return [found for each in matching for found in await self._below(storage, each)]

    async def _is_table(self, steps: Steps, slots: asyncio.Semaphore) -> bool:
        uri = self.discovery.pattern.uri(steps)
        ledger = self._config.progress.ledger
        if ledger.kind == "table" and canonical(ledger.uri) == canonical(uri):
            return False
        storage = open_storage(uri, self._config.storage.options(uri))
        async with slots:
            # Any file: a log that cannot be read is that table's error, which its own loop reports.
            async for _ in storage.list(f"{_LOG}/"):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a configuration.

    Attributes:
        found: their settings, by name.
        refused: the errors of tables that were found and cannot be delivered.
    """

    found: Mapping[str, Found] = field(default_factory=dict)
    refused: Sequence[ConfigError] = ()

    def of_shard(self, shard: Shard | None) -> Tables:
        """The tables of one shard; None: all. Errors are those of all shards."""
        if shard is None:
            return self
        return Tables({name: found for name, found in self.found.items() if shard.owns(name)}, self.refused)


def merged(
    config: Settings, found: Iterable[tuple[Discovery, Sequence[Steps]]], running: Collection[str] = ()
) -> Tables:
    """The tables that the configuration lists, and those that its patterns found.

    A listed table wins over the same location in a pattern. Two tables with one name or one topic are an error of the second one: a listed
    table is first, then those that run already, then those of the first pattern in the file.

    Args:
        config: the settings.
        found: the tables of each pattern, in the order of the file.
        running: locations of tables that are delivered already.
    """
    refused: list[ConfigError] = []
    candidates: list[Found] = []
    for discovery, all_steps in found:
        for steps in all_steps:
            try:
                candidates.append(discovery.found(steps))
            except ConfigError as error:
                refused.append(error)
    candidates.sort(key=lambda candidate: candidate.table.uri not in running)  # stable: the order of the file otherwise
    taken = _Taken(config)
    tables = {table.name: Found(table) for table in config.listed}
    for table in config.listed:
        taken.add(table)
    for candidate in candidates:
        table = candidate.table
        if taken.has_place(table):
            continue
        what = taken.conflict(table)
        if what is None:
            taken.add(table)
            tables[table.name] = candidate
        else:
            refused.append(ConfigError(what, table=table.uri, hint=_HINT))
    return Tables(tables, tuple(refused))


class _Taken:
    """The places, names and topics of tables."""

    def __init__(self, config: Settings) -> None:
        self._config = config
        self._places: set[str] = set()
        self._by_name: dict[str, Table] = {}
        self._by_topic: dict[str, Table] = {}

    def add(self, table: Table) -> None:
        self._places.add(canonical(table.uri))
        self._by_name[table.name] = self._by_topic[table.topic] = table

    def has_place(self, table: Table) -> bool:
        return canonical(table.uri) in self._places

    def conflict(self, table: Table) -> str | None:
        """Why a table cannot be delivered beside those that are there; None if it can."""
        for what, value, tables in (("name", table.name, self._by_name), ("topic", table.topic, self._by_topic)):
            if (other := tables.get(value)) is not None:
                return f"two tables have the {what} {quoted(value)}: {table.uri} and {other.uri}; the second one is delivered"
        for other in self._by_name.values():
            if is_taken(table.name, other.name) or is_taken(other.name, table.name):
                return f"the names {quoted(table.name)} and {quoted(other.name)} of {other.uri} exclude each other"
        for key, place in self._config.sink.places(table.topic).items():
            if inside_table(place, [table.uri]) is not None:
                return f"sink.{key} is in the folder of this table: {quoted(place)}"
        return None


_HINT = "Give one of them another name and topic with `overrides` or a template, or leave it out with `exclude`"


async def search(config: Settings) -> Tables:
    """The tables of a configuration: those that it lists, and those that its patterns find now.

    Raises:
        StorageError, UnsupportedError, ConfigError: a pattern's folder cannot be listed.
    """
    found = [(discovery, await FolderSearch(config, discovery).tables()) for discovery in config.discoveries]
    return merged(config, found)


async def resolved(
    config: Settings, *, only: str | None = None, shard: Shard | None = None
) -> tuple[Settings, Sequence[CdfdError]]:
    """The configuration with the tables that its patterns find now, and the errors of tables that cannot be delivered.

    Args:
        config: the settings.
        only: the name of a table of interest; the keys of others stay unknown, because each one needs its table to be read.
        shard: only the tables of this shard; None: all.

    Raises:
        StorageError, UnsupportedError, ConfigError: a pattern's folder cannot be listed.
    """
    tables = (await search(config)).of_shard(shard)
    errors: list[CdfdError] = list(tables.refused)
    slots = asyncio.Semaphore(_AT_A_TIME)

    async def keyed(found: Found) -> Table | None:
        if only is not None and found.table.name != only:
            return found.table
        async with slots:
            try:
                return await with_key(config, found)
            except NotATableError:
                return found.table  # removed since: the error of opening it says so
            except CdfdError as error:
                errors.append(error.within(table=found.table.uri))
        return None

    keys = await asyncio.gather(*map(keyed, tables.found.values()))
    return config.with_tables(table for table in keys if table is not None), errors


async def with_key(config: Settings, found: Found) -> Table:
    """A table with the key that its properties name.

    Raises:
        CdfdError: the table cannot be read, or the property does not fit it.
    """
    if found.key_property is None:
        return found.table
    header = await open_table(config, found.table).log.header()
    return found.with_key(header.metadata.configuration)
