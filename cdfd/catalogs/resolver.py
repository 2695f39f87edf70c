"""Resolves the name of a table in a catalog: its location, its store and its log, with as few requests as possible."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from cdfd.catalogs.base import CatalogTable
from cdfd.catalogs.ratified import RatifiedLog
from cdfd.catalogs.vending import VendedKeys, Vendor
from cdfd.errors import CdfdError, NotATableError, StorageError, TableChangedError
from cdfd.runtime.registry import CATALOGS
from cdfd.storage.base import Storage
from cdfd.storage.credentials import SOURCE
from cdfd.storage.location import is_local, open_table
from cdfd.storage.s3.loop import request_loop


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """A table that was resolved: the catalog's answer, its store, and its log, if the catalog decides that."""

    table: CatalogTable
    store: Storage
    log: RatifiedLog | None


class TableResolver:
    """Looks up one name, and verifies that it still stands for the same table.

    Args:
        uri: the table's name with its scheme, for errors.
        name: the table's name, as the catalog knows it.
        vendor: of the catalog's credentials, which all its tables share.

    Attributes:
        catalog: the catalog.
        table: the table; None before the first answer.
    """

    def __init__(self, uri: str, name: str, vendor: Vendor) -> None:
        self.catalog = vendor.catalog
        self.table: ResolvedTable | None = None
        self._uri = uri
        self._name = name
        self._vendor = vendor
        self._sent_at = self._loaded_at = -math.inf
        self._lock = asyncio.Lock()

    async def resolve(self) -> ResolvedTable:
        """The table, whose name was looked up at any time."""
        return self.table or await self.look_up(math.inf)

    def resolve_now(self) -> ResolvedTable:
        """The same in a thread without an event loop, such as one of an executor, which reads no log."""
        return self.table or request_loop().submit(self._load(-math.inf)).result()

    async def look_up(self, age: float) -> ResolvedTable:
        """The catalog's answer, which came at most `age` seconds ago. With 0, the request is sent now."""
        return await request_loop().run(self._load(time.monotonic() - age if age else math.inf))

    async def _load(self, since: float) -> ResolvedTable:
        """An answer that came after `since`, or to a request that was sent after this call. Callers share it. It runs in the request loop."""
        called = time.monotonic()
        async with self._lock:
            # While it waited, another caller may have asked.
            if self.table is not None and (self._sent_at >= called or self._loaded_at >= since):
                return self.table
            sent = time.monotonic()
            try:
                self.table = await self._ask()
            except CdfdError as error:
                raise error.within(table=self._uri) from None
            self._sent_at, self._loaded_at = sent, time.monotonic()
            return self.table

    async def _ask(self) -> ResolvedTable:
        before = self.table
        if before is None and self.catalog.vends:
            self._vendor.request_early(self._name)
        try:
            table = await self.catalog.load(self._name)
        except NotATableError as error:
            if before is None:
                raise
            raise TableChangedError(
                f"the catalog no longer has the table of the id {before.table.table_id} under this name: {error.what}",
                hint="It was dropped or renamed: write its new name into the configuration, or remove it there",
            ) from None
        if (
            before is not None
            and before.log is not None
            and before.table.table_id == table.table_id
            and not table.managed
        ):
            raise StorageError(
                "the catalog no longer decides the commits of the table",
                hint="If the feature catalogManaged was dropped, the table is read by its log once it is opened again",
                retriable=True,
            )
        if before is None or before.table.location != table.location:
            store = await self._open_store(table)
        else:
            store = before.store
        if before is not None and (before.log is not None or before.table.table_id != table.table_id):
            log: RatifiedLog | None = (before.log or RatifiedLog(before.table.table_id, None, {})).after(table)
        else:
            log = RatifiedLog.of(table) if table.managed else None
        return ResolvedTable(table, store, log)

    async def _open_store(self, table: CatalogTable) -> Storage:
        location = table.location
        if is_local(location):
            if not self.catalog.trusted_locations:
                raise StorageError(
                    "the catalog says that the table is on this machine",
                    hint="If you trust the catalog with all files that cdfd may read, set `local_locations: true`",
                )
            return open_table(location)
        if location.partition("://")[0].lower() in CATALOGS:
            raise StorageError(
                f"the catalog says that the table is in another catalog, at {location}",
                hint="cdfd would ask that one with credentials of its own. Name the table as the other catalog does",
            )
        options = dict(self.catalog.store_options(location))
        if not self.catalog.vends:
            return open_table(location, options)
        keys = VendedKeys(self._vendor, self._name, table.table_id, location)
        store = open_table(location, options | {SOURCE: keys})
        # Refused here, with the name of the missing grant, and not with the first file.
        await keys.config()
        return store
