"""A catalog in memory, and tables in a local folder whose commits it decides."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.catalogs.base import CatalogTable, Credential, RatifiedCommit
from cdfd.catalogs.storage import CatalogStorage
from cdfd.catalogs.vending import Vendor
from cdfd.delta import paths
from cdfd.errors import ConfigError, NotATableError
from cdfd.log.log import DeltaLog
from cdfd.log.table import Table
from cdfd.scan.table_files import TableFiles
from cdfd.storage.location import open_storage

NAME = "main.sales.orders"
BEGINNING = 1_767_225_600_000


@dataclass
class MemoryCatalog:
    """The `Catalog` port over a dictionary.

    Attributes:
        known: tables by name.
        loads, vended: requests that came.
        answer: changes an answer, or raises an error.
        keys: the credentials of a table.
    """

    known: dict[str, CatalogTable] = field(default_factory=dict)
    vends: bool = False
    trusted_locations: bool = True
    loads: int = 0
    vended: int = 0
    answer: Callable[[CatalogTable], CatalogTable] | None = None
    keys: Callable[[str], Sequence[Credential]] = lambda name: ()
    depth: int = 3

    def parts(self, name: str) -> tuple[str, ...]:
        """Three names, or two; see the port."""
        parts = tuple(name.split("."))
        if len(parts) not in (2, 3) or not all(part and part.isprintable() and "/" not in part for part in parts):
            raise ConfigError(f"{name!r} names no table")
        return parts

    async def load(self, name: str) -> CatalogTable:
        """The table now; see the port."""
        self.loads += 1
        if name not in self.known:
            raise NotATableError(f"there is no table {name}")
        return self.known[name] if self.answer is None else self.answer(self.known[name])

    async def credentials(self, name: str, table_id: str | None) -> Sequence[Credential]:
        """The credentials that the test chose; see the port."""
        self.vended += 1
        return self.keys(name)

    async def tables(self, schema: str) -> Sequence[str]:
        """The tables of a schema; see the port."""
        return sorted(name.removeprefix(f"{schema}.") for name in self.known if name.startswith(f"{schema}."))

    def store_options(self, location: str) -> Mapping[str, object]:
        """None; see the port."""
        return {}


class ManagedTable:
    """A table of one column `id`, whose commits a catalog in memory decides. Version `v` inserts a row with the id `v`.

    Args:
        folder: where it is.
        catalog: decides its commits.
        name: of the table.
    """

    def __init__(self, folder: Path, catalog: MemoryCatalog, name: str = NAME, feature: str = "catalogManaged") -> None:
        self.folder = folder
        self.catalog = catalog
        self.name = name
        self.log = folder / paths.LOG
        self.staged = self.log / "_staged_commits"
        self.staged.mkdir(parents=True)
        self.table_id = str(uuid.uuid4())
        self.feature = feature
        self.configuration = {"delta.enableInCommitTimestamps": "true"}
        self.catalog.known[name] = CatalogTable(self.table_id, str(folder), True, 0, ())
        self.entry(0).write_bytes(self.first())

    @property
    def now(self) -> CatalogTable:
        """The table as the catalog has it."""
        return self.catalog.known[self.name]

    @now.setter
    def now(self, table: CatalogTable) -> None:
        self.catalog.known[self.name] = table

    def storage(self) -> CatalogStorage:
        """Its store, as a reader opens it."""
        return CatalogStorage(f"memory://{self.name}", self.name, Vendor(self.catalog))

    def open(self) -> Table:
        """The table, as a reader opens it."""
        storage = self.storage()
        return Table(DeltaLog(storage), TableFiles(storage, open_storage))

    def entry(self, version: int) -> Path:
        """The published entry of a version."""
        return self.log / paths.commit_name(version)

    def first(self) -> bytes:
        """The content of version 0."""
        field_ = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
        schema = json.dumps({"type": "struct", "fields": [field_]})
        features = [self.feature, "inCommitTimestamp"]
        return _lines(
            _info(0),
            {"protocol": _protocol([self.feature], features)},
            {
                "metaData": {
                    "id": str(uuid.uuid5(uuid.NAMESPACE_URL, self.table_id)),
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": schema,
                    "partitionColumns": [],
                    "configuration": self.configuration,
                }
            },
        )

    def content(self, version: int, *ids: int) -> bytes:
        """The content of a version that inserts rows, whose data file is written now."""
        path = f"part-{version}-{uuid.uuid4()}.parquet"
        pq.write_table(pa.table({"id": pa.array(ids or (version,), pa.int64())}), self.folder / path)
        added = {
            "path": path,
            "partitionValues": {},
            "size": (self.folder / path).stat().st_size,
            "modificationTime": BEGINNING,
            "dataChange": True,
        }
        return _lines(_info(version), {"add": added})

    def stage(self, version: int, *ids: int, content: bytes | None = None) -> RatifiedCommit:
        """A staged commit, which is not ratified."""
        name = f"{version:020d}.{uuid.uuid4()}.json"
        data = self.content(version, *ids) if content is None else content
        (self.staged / name).write_bytes(data)
        return RatifiedCommit(version, name, None, len(data), time.time_ns() // 1_000_000)

    def ratify(self, commit: RatifiedCommit) -> RatifiedCommit:
        """Make a commit the next version."""
        self.now = replace(self.now, latest=commit.version, commits=(*self.now.commits, commit))
        return commit

    def commit(self, *ids: int, inline: bool = False) -> RatifiedCommit:
        """The next version, ratified and not published."""
        version = (self.now.latest or 0) + 1
        if inline:
            content = self.content(version, *ids)
            return self.ratify(RatifiedCommit(version, None, content, len(content), BEGINNING))
        return self.ratify(self.stage(version, *ids))

    def publish(self, version: int, *, forget: bool = False, clean: bool = False) -> None:
        """Publish a commit; `forget` if the catalog drops it, `clean` if its staged file is removed."""
        commit = next(each for each in self.now.commits if each.version == version)
        data = commit.content if commit.file_name is None else (self.staged / commit.file_name).read_bytes()
        assert data is not None
        self.entry(version).write_bytes(data)
        if forget:
            self.now = replace(self.now, commits=tuple(each for each in self.now.commits if each.version != version))
        if clean and commit.file_name is not None:
            (self.staged / commit.file_name).unlink()


def _info(version: int) -> dict[str, Any]:
    time_ms = BEGINNING + 1000 * version
    info = {"inCommitTimestamp": time_ms, "timestamp": time_ms, "operation": "WRITE", "txnId": str(uuid.uuid4())}
    return {"commitInfo": info}


def _protocol(readers: Sequence[str], writers: Sequence[str]) -> dict[str, Any]:
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [*readers], "writerFeatures": [*writers]}


def _lines(*actions: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)
