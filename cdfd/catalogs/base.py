"""The port of catalogs: what a name stands for, which commits a catalog has ratified, and its credentials.

Source: Delta's protocol, "Catalog-managed tables". A catalog implements `Catalog`, and is registered in `cdfd.runtime.registry.CATALOGS`.
Everything that a catalog answers is foreign: implementations bound its size, and the functions here check its values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cdfd.errors import StorageError

MAX_VERSION = 2**63 - 1

_STAGED = re.compile(r"(\d{20})\.[A-Za-z0-9_-]{1,100}\.json")


@dataclass(frozen=True, slots=True)
class RatifiedCommit:
    """A commit that a catalog has ratified, and still has. It may be published already.

    Attributes:
        version: of the table.
        file_name: of the staged commit, directly in `_delta_log/_staged_commits`; None for an inline commit.
        content: of an inline commit: the bytes that its published file will have. None for a staged one.
        size: in bytes.
        modified_ms: when the staged commit was written, in ms since the Unix epoch.
    """

    version: int
    file_name: str | None = None
    content: bytes | None = field(default=None, repr=False)
    size: int = 0
    modified_ms: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError if the file is not one of staged commits of that version, or the commit is both or neither."""
        if not 0 <= self.version <= MAX_VERSION:
            raise ValueError(f"a commit has the version {self.version}")
        if (self.file_name is None) == (self.content is None):
            raise ValueError(f"the commit of version {self.version} has neither one file nor one content")
        named = None if self.file_name is None else _STAGED.fullmatch(self.file_name)
        if self.file_name is not None and (named is None or int(named[1]) != self.version):
            raise ValueError(f"the staged commit of version {self.version} is named {self.file_name!r:.200}")


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as its catalog describes it at one moment.

    Attributes:
        table_id: identifies the table in the catalog, whatever its name. It is not `metaData.id` of the log.
        location: URI of the table's root.
        managed: whether the catalog decides which commits exist.
        latest: the newest ratified version. None if the catalog does not say: then all published versions are.
        commits: the ratified commits that the catalog still has, ascending.
    """

    table_id: str
    location: str
    managed: bool = False
    latest: int | None = None
    commits: tuple[RatifiedCommit, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError if commits have one version, or one that is not ratified."""
        versions = [commit.version for commit in self.commits]
        if versions != sorted(set(versions)):
            raise ValueError("two commits have one version")
        if self.latest is not None and not -1 <= self.latest <= MAX_VERSION:
            raise ValueError(f"the newest version is {self.latest}")
        if versions and self.latest is not None and versions[-1] > self.latest:
            raise ValueError(f"there is a commit of version {versions[-1]}, but the newest version is {self.latest}")


@dataclass(frozen=True, slots=True)
class Credential:
    """A temporary credential of a store.

    Attributes:
        prefix: URI of the folder that it is for.
        config: the credential, by the keys of Unity Catalog's API: `s3.access-key-id` and so on. Empty for a folder of this machine.
        ends_ms: when it ends, in ms since the Unix epoch; None if it does not.
    """

    prefix: str
    config: Mapping[str, str] = field(repr=False)
    ends_ms: int | None = None


class Catalog(Protocol):
    """One catalog, for all tables of a process with the same options. All coroutines run in `cdfd.storage.s3.loop.request_loop`.

    Every coroutine raises `StorageError`, with `retriable` set while the catalog cannot answer; errors name the request and its status, and
    never a secret. `NotATableError` if nothing has the name.
    """

    vends: bool
    """Whether the catalog has credentials for the stores of its tables."""

    trusted_locations: bool
    """Whether locations may be on this machine. A catalog elsewhere could otherwise make cdfd read any of its files."""

    def parts(self, name: str) -> tuple[str, ...]:
        """The names that a name consists of: those of a table, or of a schema, which has one less.

        Raises:
            ConfigError: it is malformed.
        """

    @property
    def depth(self) -> int:
        """How many names the name of a table consists of."""

    async def load(self, name: str) -> CatalogTable:
        """A table, with all ratified commits that the catalog still has."""

    async def credentials(self, name: str, table_id: str | None) -> Sequence[Credential]:
        """Credentials to read a table; `table_id` if known."""

    async def tables(self, schema: str) -> Sequence[str]:
        """The names of the Delta tables of a schema, without that of the schema, sorted."""

    def store_options(self, location: str) -> Mapping[str, object]:
        """The options that a user gave for the store of a location."""


def holds(prefix: str, location: str) -> bool:
    """Whether a location is a prefix's folder, or in it. `s3a` and `s3` are one scheme."""
    folder, place = canonical(prefix), canonical(location)
    return place == folder or place.startswith(f"{folder}/")


def canonical(location: str) -> str:
    """A location without a final slash, with one spelling of its scheme."""
    scheme, mark, path = location.partition("://")
    scheme = scheme.lower()
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}{mark}{path}".rstrip("/") if mark else location.rstrip("/")


def unreadable(what: str, request: str) -> StorageError:
    """The error for an answer that is not what the API says."""
    return StorageError(f"the catalog's answer cannot be used: {what}; the request was {request}", retriable=True)
