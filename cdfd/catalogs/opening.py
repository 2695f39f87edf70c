"""Opens tables and schemas by the names that catalogs have for them: `uc://main.sales.orders`, `glue://sales.orders`."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import cast

from cdfd.catalogs.base import Catalog
from cdfd.catalogs.storage import CatalogStorage
from cdfd.catalogs.vending import Vendor
from cdfd.runtime.registry import CATALOGS
from cdfd.storage.base import Storage
from cdfd.storage.s3.loop import request_loop

_vendors: dict[tuple[str, tuple[tuple[str, str], ...], int], Vendor] = {}
_lock = threading.Lock()


def open_by_catalog(uri: str, options: Mapping[str, object]) -> Storage:
    """The store of a table by its name, or of a schema, which only lists its tables. It accesses nothing yet.

    Raises:
        ConfigError: the name is malformed, or an option is wrong.
    """
    scheme, _, name = uri.partition("://")
    name = name.rstrip("/")
    vendor = vendor_for(scheme.lower(), options)
    is_table = len(vendor.catalog.parts(name)) == vendor.catalog.depth
    own = f"{scheme.lower()}://{name}"
    if is_table:
        return CatalogStorage(own, name, vendor)
    return cast(Storage, CatalogSchema(own, name, vendor.catalog))


def vendor_for(kind: str, options: Mapping[str, object]) -> Vendor:
    """The process's catalog of that kind with these options, and its credentials: tables share both."""
    # The text of a mounted secret changes, and its file does not.
    lasting = {name: value for name, value in options.items() if f"{name}_file" not in options}
    key = (kind, tuple(sorted((name, repr(value)) for name, value in lasting.items())), id(request_loop()))
    with _lock:
        if key not in _vendors:
            catalog: Catalog = CATALOGS.load(kind)(options)
            _vendors[key] = Vendor(catalog)
        return _vendors[key]


class CatalogSchema:
    """The tables of a schema, for discovery; see `FolderListing`. It has no files of its own.

    Args:
        uri: the schema's name with its scheme.
        name: the schema's name.
        catalog: has the schema.
    """

    remote = True

    def __init__(self, uri: str, name: str, catalog: Catalog) -> None:
        self.uri = uri
        self._name = name
        self._catalog = catalog

    async def folders(self, folder: str = "") -> Sequence[str]:
        """The names of the tables."""
        if folder:
            return ()
        return await request_loop().run(self._catalog.tables(self._name))
