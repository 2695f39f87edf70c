"""Credentials that a catalog vends: kept until shortly before they end, and shared by all tables below their prefix.

vendor = Vendor(catalog)
await vendor.credential("main.sales.orders", table_id, "s3://lake/orders")     # asks only if no live one has a prefix of it
await VendedKeys(vendor, ...).keys()                                           # what a client of a store asks before each request
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from cdfd.catalogs.base import Catalog, Credential, canonical, holds
from cdfd.errors import StorageError
from cdfd.storage.credentials import Keys

MARGIN_SECONDS = 300.0
"""Time before its end from which a credential is renewed, at most."""
MARGIN_SHARE = 0.2
"""The same as a share of its life."""
MIN_LIFE_SECONDS = 5.0
"""A credential that ends sooner is not used any more."""
_KEYS = {
    "s3": ("s3.access-key-id", "s3.secret-access-key"),
    **dict.fromkeys(("gs", "gcs"), ("gcs.oauth-token",)),
    **dict.fromkeys(("abfs", "abfss", "az"), ("azure.sas-token",)),
}
"""Keys that a credential needs, by the scheme of its location. Without them, a store would use those of this machine."""


class Vendor:
    """The credentials of one catalog. It belongs to the event loop of requests.

    Args:
        catalog: vends them.
        now: the time in seconds since the Unix epoch.

    Attributes:
        catalog: as above.
    """

    def __init__(self, catalog: Catalog, now: Callable[[], float] = time.time) -> None:
        self.catalog = catalog
        self._now = now
        self._live: dict[str, tuple[Credential, float]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._first: dict[str, asyncio.Lock] = {}
        self._served: set[str] = set()
        self._narrow: set[str] = set()
        """Stores whose credentials are for one table each: requests for these do not wait for each other."""

    async def credential(self, name: str, table_id: str | None, location: str) -> Credential:
        """A credential for a table that does not end soon.

        Raises:
            StorageError: the catalog has none for the table's location, or cannot answer and the last one has ended.
        """
        live = self._covering(location)
        if live is not None:
            return live
        store = _store(location)
        try:
            async with nullcontext() if store in self._narrow else self._first.setdefault(store, asyncio.Lock()):
                if self._covering(location) is None:
                    await asyncio.shield(self._asking.get(name) or self._start(name, table_id, location))
        except StorageError as error:
            # It is renewed early, so that a catalog may be down for a while.
            live = self._covering(location, MIN_LIFE_SECONDS) if error.retriable else None
            if live is None:
                raise
            return live
        live = self._covering(location, MIN_LIFE_SECONDS)
        if live is None:
            raise StorageError(
                "the catalog's credentials are for other locations, or have ended already",
                hint="Check the clock of this machine, and the storage credential of the table's location in the catalog",
                retriable=True,
            )
        return live

    def request_early(self, name: str) -> None:
        """Ask for a table's credential while its location is looked up, if the catalog vends one for each table. Errors are left to
        `credential`.
        """
        if self._narrow and name not in self._served:
            self._start(name, None, None).add_done_callback(lambda task: task.cancelled() or task.exception())

    def expire(self, location: str, access_key: str) -> None:
        """Drop the credential of a location: its store refused it. Another one, which came meanwhile, stays."""
        for prefix, (credential, _) in list(self._live.items()):
            if holds(prefix, location) and credential.config.get("s3.access-key-id") == access_key:
                del self._live[prefix]

    def _start(self, name: str, table_id: str | None, location: str | None) -> asyncio.Task[None]:
        self._served.add(name)
        task = self._asking[name] = asyncio.get_running_loop().create_task(self._vend(name, table_id, location))
        task.add_done_callback(lambda _: self._asking.pop(name, None))
        return task

    async def _vend(self, name: str, table_id: str | None, location: str | None) -> None:
        for credential in await self.catalog.credentials(name, table_id):
            life = MARGIN_SECONDS if credential.ends_ms is None else credential.ends_ms / 1000 - self._now()
            self._live[canonical(credential.prefix)] = credential, min(MARGIN_SECONDS, MARGIN_SHARE * life)
            if location is not None and canonical(credential.prefix) == canonical(location):
                self._narrow.add(_store(location))
        ended = [prefix for prefix, (credential, _) in self._live.items() if not self._lasts(credential, 0)]
        for prefix in ended:
            del self._live[prefix]

    def _covering(self, location: str, most: float = MARGIN_SECONDS) -> Credential | None:
        """The credential with the longest prefix of a location, of those that last for their margin, or for `most` seconds."""
        prefixes = [
            prefix
            for prefix, (credential, margin) in self._live.items()
            if holds(prefix, location) and self._lasts(credential, min(margin, most))
        ]
        return self._live[max(prefixes, key=len)][0] if prefixes else None

    def _lasts(self, credential: Credential, seconds: float) -> bool:
        return credential.ends_ms is None or credential.ends_ms / 1000 - self._now() > seconds


def _store(location: str) -> str:
    """The bucket or container of a location."""
    scheme, _, path = canonical(location).partition("://")
    return f"{scheme}://{path.partition('/')[0]}"


@dataclass(frozen=True)
class VendedKeys:
    """The credential of one table, for the client of its store; see `cdfd.storage.credentials.KeySource`.

    The vendor has all that changes, so that those of a table that is opened again are equal, and share a client.

    Attributes:
        vendor: has the credentials.
        name: of the table.
        table_id: of the table.
        location: of the table.
    """

    vendor: Vendor
    name: str
    table_id: str
    location: str

    async def config(self) -> Mapping[str, str]:
        """The credential as the catalog's API has it, renewed if it ends soon.

        Raises:
            StorageError: the catalog has none, or that of another kind of store.
        """
        config = (await self.vendor.credential(self.name, self.table_id, self.location)).config
        needed = _KEYS.get(canonical(self.location).partition("://")[0])
        if needed is None or not all(config.get(key) for key in needed):
            raise StorageError(
                f"the catalog vends no keys for {self.location}",
                hint="To use cdfd's own for locations that the catalog chooses, set `credentials: own`",
            )
        return config

    async def keys(self) -> Keys:
        """The credential as keys of S3. Raises what `config` does."""
        config = await self.config()
        return Keys(config["s3.access-key-id"], config["s3.secret-access-key"], config.get("s3.session-token"))

    def expire(self, keys: Keys) -> None:
        """The store refused the keys: the next request asks for new ones."""
        self.vendor.expire(self.location, keys.access_key)
