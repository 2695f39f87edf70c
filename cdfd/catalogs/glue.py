"""AWS Glue as `cdfd.catalogs.base.Catalog`: names of Delta tables, whose commits are in their logs alone.

A table is a Delta table if its parameters say so. Spark writes a placeholder as its location, and the real one as `path`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar, cast

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError, NoCredentialsError

from cdfd.catalogs.base import CatalogTable, Credential, unreadable
from cdfd.errors import ConfigError, NotATableError, StorageError, UnsupportedError
from cdfd.storage.s3.errors import BAD_KEYS, EXPIRED, FAILURES, FOREIGN, code_of
from cdfd.storage.s3.loop import request_loop
from cdfd.storage.s3.native import ChainCredentials
from cdfd.storage.s3.options import parse

T = TypeVar("T")

_DENIED = frozenset({"AccessDeniedException", "AccessDenied"})
_TRANSIENT = frozenset(
    {"ThrottlingException", "InternalServiceException", "OperationTimeoutException", "ServiceUnavailable"}
)
_REFUSED_KEYS = EXPIRED | BAD_KEYS | {"UnrecognizedClientException", "InvalidSignatureException"}
_OPERATIONS = {"get_table": ("glue:GetTable", "Table"), "get_tables": ("glue:GetTables", "TableList")}
"""Of each method of the client: the permission, and the part that each answer has."""
MAX_TABLES = 100_000
"""Tables of a database."""
ATTEMPTS = 5
"""Attempts of a request by botocore."""


class GlueCatalog:
    """The data catalog of one AWS account and region. It accesses nothing before the first request.

    Raises:
        ConfigError: an option is unknown or invalid.
    """

    depth = 2
    vends = False
    trusted_locations = False

    def __init__(self, options: Mapping[str, object]) -> None:
        own = {key.lower(): value for key, value in options.items()}
        self._store = {name: own.pop(name) for name in list(own) if name.startswith("s3.")}
        catalog = own.pop("catalog_id", None)
        if catalog is not None and not (isinstance(catalog, str) and catalog):
            raise ConfigError("the option catalog_id of Glue is expected to be text")
        self._catalog = {} if catalog is None else {"CatalogId": catalog}
        # The environment's endpoint of S3 is not that of Glue.
        self._options = parse({"endpoint_url": None} | own, {})
        self._chain = ChainCredentials(self._options.profile)
        self._lock = asyncio.Lock()
        self._client: Any = None
        self._stack = AsyncExitStack()
        request_loop().on_close(self._stack.aclose)

    def parts(self, name: str) -> tuple[str, ...]:
        """`database.table`, or `database`; see the port."""
        parts = tuple(name.split("."))
        if len(parts) > self.depth or not all(part and part.isprintable() and "/" not in part for part in parts):
            raise ConfigError(f"{name!r:.200} names no table of Glue", hint="Write glue://database.table")
        return parts

    def store_options(self, location: str) -> Mapping[str, object]:
        """The options for S3, and Glue's own credentials where there are no others; see the port."""
        of_store = {name.removeprefix("s3.").removeprefix("aws_"): value for name, value in self._store.items()}
        shared = ("access_key_id", "secret_access_key", "session_token", "profile", "region")
        own = (
            {}
            if {"access_key_id", "profile"} & set(of_store)
            # Parsed ones have one name each, however the user wrote it.
            else {name: value for name in shared if (value := getattr(self._options, name)) is not None}
        )
        return own | of_store if location.lower().startswith(("s3:", "s3a:")) else {}

    async def load(self, name: str) -> CatalogTable:
        """A table; see the port."""
        database, own_name = cast(tuple[str, str], self.parts(name))
        answer = await self._ask("get_table", name, DatabaseName=database, Name=own_name)
        table = answer["Table"]
        if not _is_delta(table):
            raise UnsupportedError(
                f"{name} is not a Delta table in Glue",
                hint="Its parameter spark.sql.sources.provider is expected to be delta, or table_type to be DELTA",
            )
        storage = table.get("StorageDescriptor") or {}
        path = (storage.get("SerdeInfo") or {}).get("Parameters", {}).get("path")
        location = str(path or storage.get("Location") or "").rstrip("/")
        if not location or ".." in location.split("/") or not location.isprintable():
            raise UnsupportedError(f"{name} has no location in Glue", hint="Set the location of its storage descriptor")
        created = table.get("CreateTime")
        # A table that is created again has another time. There is no id.
        return CatalogTable(f"{table.get('CatalogId', '')}:{name}:{created}", location)

    async def credentials(self, name: str, table_id: str | None) -> Sequence[Credential]:
        """None: Glue vends no credentials; see the port."""
        return ()

    async def tables(self, schema: str) -> Sequence[str]:
        """The Delta tables of a database, page by page; see the port."""
        names: set[str] = set()
        parameters: dict[str, str] = {"DatabaseName": schema}
        while len(names) < MAX_TABLES:
            answer = await self._ask("get_tables", schema, **parameters)
            names |= {table["Name"] for table in answer["TableList"] if table and "Name" in table and _is_delta(table)}
            token = answer.get("NextToken")
            if not token or token == parameters.get("NextToken"):
                break
            parameters["NextToken"] = token
        return sorted(names)

    async def _ask(self, operation: str, name: str, **parameters: str) -> Mapping[str, Any]:
        action, part = _OPERATIONS[operation]
        try:
            answer = await self._send(operation, parameters)
        except FAILURES as error:
            code = code_of(error)
            if code == "EntityNotFoundException":
                hint = "Check the name, the region and the account"
                raise NotATableError(f"Glue has no table or database {name}", hint=hint) from None
            denied = code in _DENIED
            hint = f"Allow {action} on it to cdfd's role" if denied else "Check the region and the credentials"
            what = code or self._options.redact(f"{type(error).__name__}: {error}")
            status = error.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(error, ClientError) else 503
            expired = code in EXPIRED and self._options.access_key_id is None
            transient = expired or code in _TRANSIENT or status == 429 or status >= 500
            raise StorageError(f"Glue refuses {action} of {name}: {what}", hint=hint, retriable=transient) from None
        except FOREIGN as error:
            raise unreadable(f"it is not one of Glue: {type(error).__name__}", f"{action} of {name}") from None
        # A proxy's page can have the status 200, too.
        if part not in answer:
            raise unreadable("it is not one of Glue", f"{action} of {name}")
        return answer

    async def _send(self, operation: str, parameters: Mapping[str, str]) -> Mapping[str, Any]:
        async with self._lock:
            if self._client is None:
                self._client = await self._open()
        send = partial(getattr(self._client, operation), **self._catalog, **parameters)
        try:
            answer: Mapping[str, Any] = await send()
        except (ClientError, NoCredentialsError) as error:
            refused = code_of(error) in _REFUSED_KEYS or isinstance(error, NoCredentialsError)
            if not refused or self._options.access_key_id is not None:
                raise
            # They have expired, or were rotated.
            self._chain.expire()
            answer = await send()
        return answer

    async def _open(self) -> Any:
        options = self._options
        session = AioSession(profile=options.profile)
        session._credentials = self._chain
        return await self._stack.enter_async_context(
            session.create_client(
                "glue",
                region_name=options.region,
                endpoint_url=options.endpoint_url,
                aws_access_key_id=options.access_key_id,
                aws_secret_access_key=options.secret_access_key,
                aws_session_token=options.session_token,
                config=AioConfig(
                    connect_timeout=options.connect_timeout,
                    read_timeout=options.read_timeout,
                    retries={"mode": "adaptive", "total_max_attempts": ATTEMPTS},
                    user_agent="cdfd",
                ),
            )
        )


def _is_delta(table: Mapping[str, Any]) -> bool:
    parameters = {str(key).lower(): str(value).lower() for key, value in (table.get("Parameters") or {}).items()}
    return parameters.get("spark.sql.sources.provider") == "delta" or parameters.get("table_type") == "delta"
