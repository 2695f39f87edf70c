"""Unity Catalog as `cdfd.catalogs.base.Catalog`: the Delta REST API, and the older one where a server or a table needs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from cdfd.catalogs.base import CatalogTable, Credential, RatifiedCommit, unreadable
from cdfd.catalogs.uc import answers
from cdfd.catalogs.uc.client import Refusal, UnityClient
from cdfd.catalogs.uc.options import parse
from cdfd.errors import CdfdError, ConfigError, NotATableError, UnsupportedError

T = TypeVar("T")

VERSIONS = "1.0"
"""Protocol versions of the Delta REST API that are implemented, as the server takes them."""
LOAD = "GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
CREDENTIALS = f"{LOAD}/credentials"
NAME_SECONDS = 30.0
"""Time for which the older API's table of a name is used, when only its commits are asked for."""
MAX_TABLES = 100_000
"""Tables of a schema."""
NO_API = frozenset({404, 405, 501})


class UnityCatalog:
    """One Unity Catalog server. It accesses nothing before the first request.

    Raises:
        ConfigError: an option is unknown or invalid.
    """

    depth = 3

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = parse(options)
        self._client = UnityClient(self._options)
        self._has_api: dict[str, asyncio.Task[bool]] = {}
        self._older: set[str] = set()
        """Tables that only the older API knows."""
        self._resolved: dict[str, tuple[float, CatalogTable]] = {}

    @property
    def vends(self) -> bool:
        """Whether credentials come from the catalog."""
        return self._options.credentials == "vended"

    @property
    def trusted_locations(self) -> bool:
        """Whether the catalog is on this machine, too, or the user trusts it."""
        if self._options.local_locations is None:
            return urlsplit(self._options.endpoint).hostname in ("localhost", "127.0.0.1", "::1")
        return self._options.local_locations

    def parts(self, name: str) -> tuple[str, ...]:
        """`catalog.schema.table`, or `catalog.schema`; see the port."""
        parts = tuple(name.split("."))
        if len(parts) not in (2, 3) or not all(part and part.isprintable() and "/" not in part for part in parts):
            raise ConfigError(f"{name!r:.200} names no table of Unity Catalog", hint="Write uc://catalog.schema.table")
        return parts

    def store_options(self, location: str) -> Mapping[str, object]:
        """Those whose names begin with the kind of the store; see the port."""
        scheme = location.partition(":")[0].lower()
        kind = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}.get(scheme, scheme)
        return {name.partition(".")[2]: value for name, value in self._options.store if name.startswith(f"{kind}.")}

    async def load(self, name: str) -> CatalogTable:
        """The table and its ratified commits: one request of the Delta REST API; see the port."""
        if name in self._older:
            return await self._load_older(name)
        if not await self._has_delta_api(name):
            try:
                return await self._load_older(name)
            except CdfdError:
                # A proxy's page may have said that there is no API.
                self._has_api.pop(name.partition(".")[0], None)
                raise
        try:
            return self._parse_answer(answers.table_of, await self._client.ask("GET", _path(name)), name)
        except Refusal as error:
            if error.kind != "UnsupportedTableFormatException":
                raise self._explain(error, name, "load") from None
        self._older.add(name)
        return await self._load_older(name)

    async def credentials(self, name: str, table_id: str | None) -> Sequence[Credential]:
        """Credentials for one table; see the port."""
        try:
            if name in self._older or not await self._has_delta_api(name):
                table = (self._resolved.get(name) or (0, None))[1] or await self._older_table(name)
                body = {"table_id": table_id or table.table_id, "operation": "READ"}
                answer = await self._client.ask("POST", "/temporary-table-credentials", body=body)
                return self._parse_answer(lambda json: answers.older_credentials_of(json, table.location), answer, name)
            answer = await self._client.ask("GET", f"{_path(name)}/credentials", {"operation": "READ"})
        except Refusal as error:
            raise self._explain(error, name, "credentials") from None
        return self._parse_answer(answers.credentials_of, answer, name)

    async def tables(self, schema: str) -> Sequence[str]:
        """The Delta tables of a schema, page by page of the older API, which alone lists them; see the port."""
        catalog, name = self.parts(schema)
        parameters = {"catalog_name": catalog, "schema_name": name}
        tables: set[str] = set()
        token: str | None = ""
        asked: set[str | None] = {None}
        while token not in asked and max(len(tables), len(asked)) < MAX_TABLES:
            asked.add(token)
            query = parameters | ({"page_token": token} if token else {})
            try:
                answer = await self._client.ask("GET", "/tables", query)
            except Refusal as error:
                raise self._explain(error, schema, "list") from None
            names, token = self._parse_answer(answers.page_of, answer, schema)
            # A name that could not be written in a URI of one table is left out.
            tables |= {each for each in names if "." not in each and "/" not in each}
        return sorted(tables)

    # --- the older API ---

    async def _load_older(self, name: str) -> CatalogTable:
        asked, table = self._resolved.get(name, (-NAME_SECONDS, None))
        if table is None or not table.managed or time.monotonic() - asked >= NAME_SECONDS:
            table = await self._older_table(name)
            self._resolved[name] = time.monotonic(), table
        if not table.managed:
            return table
        commits: dict[int, RatifiedCommit] = {}
        start = 0
        while True:
            body = {"table_id": table.table_id, "table_uri": table.location, "start_version": start}
            try:
                answer = await self._client.ask("GET", "/delta/preview/commits", body=body)
            except Refusal as error:
                self._resolved.pop(name, None)
                raise self._explain(error, name, "load") from None
            page, latest = self._parse_answer(answers.older_commits_of, answer, name)
            commits |= {commit.version: commit for commit in page}
            if not page or page[-1].version >= latest or page[-1].version < start:
                break
            start = page[-1].version + 1
        ascending = tuple(commits[version] for version in sorted(commits) if version <= latest)
        return replace(table, latest=latest, commits=ascending)

    async def _older_table(self, name: str) -> CatalogTable:
        try:
            answer = await self._client.ask("GET", f"/tables/{quote(name, safe='')}")
        except Refusal as error:
            raise self._explain(error, name, "load") from None
        table, kind = self._parse_answer(answers.older_table_of, answer, name)
        if kind.upper() != "DELTA":
            raise UnsupportedError(
                f"the catalog says that the table's format is {kind!r}", hint="cdfd reads Delta tables"
            )
        return table

    # --- requests ---

    async def _has_delta_api(self, name: str) -> bool:
        """Whether the server has the Delta REST API for a catalog. It is asked once."""
        catalog = name.partition(".")[0]
        task = self._has_api.get(catalog)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._has_api[catalog] = asyncio.get_running_loop().create_task(self._ask_for_api(catalog, name))
        return await asyncio.shield(task)

    async def _ask_for_api(self, catalog: str, name: str) -> bool:
        parameters = {"catalog": catalog, "protocol-versions": VERSIONS}
        try:
            answer = await self._client.ask("GET", "/delta/v1/config", parameters)
        except Refusal as error:
            # A server without the API has no such address; one with it names the catalog that it does not have.
            if error.status in NO_API and error.kind != "NoSuchCatalogException":
                return False
            raise self._explain(error, name, "load") from None
        endpoints = answer.get("endpoints") if isinstance(answer, dict) else None
        return isinstance(endpoints, list) and LOAD in endpoints and CREDENTIALS in endpoints

    def _parse_answer(self, parse: Callable[[Any], T], answer: Any, name: str) -> T:
        try:
            return parse(answer)
        except (ValueError, AttributeError, TypeError) as error:
            raise unreadable(f"{error}", f"about {name} to {self._options.host}") from None

    def _explain(self, error: Refusal, name: str, doing: str) -> Exception:
        """The error as users understand it: what does not exist, or which grant is missing."""
        if error.status == 404 and not error.kind:
            # A page of a proxy, such as one that has no server behind it for a while. It says nothing about the table.
            error.error.hint = (
                "The answer is not that of Unity Catalog: check `endpoint`, and what is between it and cdfd"
            )
            error.error.retriable = True
        elif error.status == 404 and doing != "list":
            hint = "Check the name, and that you may see the table: it needs USE CATALOG, USE SCHEMA and SELECT"
            return NotATableError(f"the catalog {self._options.host} has no table {name}: {error}", hint=hint)
        if error.status == 403:
            catalog, schema = name.split(".")[0], ".".join(name.split(".")[:2])
            grants = f"USE CATALOG on {catalog}, USE SCHEMA on {schema} and SELECT on {name}"
            if doing == "credentials":
                grants = f"SELECT on {name}, and on Databricks EXTERNAL USE SCHEMA on {schema},"
            error.error.hint = f"Grant {grants} to cdfd's principal"
        return error.error


def _path(name: str) -> str:
    catalog, schema, table = (quote(part, safe="") for part in name.split("."))
    return f"/delta/v1/catalogs/{catalog}/schemas/{schema}/tables/{table}"
