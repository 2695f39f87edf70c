"""A stand-in for a Unity Catalog server: the Delta REST API and the older one, over a folder of this machine.

Its answers have the shapes that a real server gave (`test_catalog_golden.py` compares them with the recorded ones where those are there), and
Delta Kernel for Java creates, commits, publishes and reads tables through it (`kernel.py`).

    with unity_server(tmp_path) as server:
        table = server.add_table("main.sales.orders", location)
        server.ratify("main.sales.orders", 3, "0...3.uuid.json")
        server.faults.append(Fault(status=429, headers={"Retry-After": "1"}))
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from aiohttp import web

API = "/api/2.1/unity-catalog"
ENDPOINTS = [
    "POST /v1/catalogs/{catalog}/schemas/{schema}/staging-tables",
    "POST /v1/catalogs/{catalog}/schemas/{schema}/tables",
    "GET /v1/catalogs/{catalog}/schemas/{schema}/tables",
    "GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}",
    "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}",
    "DELETE /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}",
    "HEAD /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}",
    "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/rename",
    "GET /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/credentials",
    "POST /v1/catalogs/{catalog}/schemas/{schema}/tables/{table}/metrics",
    "GET /v1/staging-tables/{table_id}/credentials",
    "GET /v1/temporary-path-credentials",
]
READER_FEATURES = ["catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"]
WRITER_FEATURES = [*READER_FEATURES, "inCommitTimestamp"]


@dataclass
class Table:
    """A table of the server."""

    name: str
    location: str
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    type: str = "MANAGED"
    managed: bool = True
    columns: Mapping[str, Any] = field(default_factory=lambda: {"type": "struct", "fields": []})
    properties: dict[str, str] = field(default_factory=dict)
    commits: dict[int, dict[str, Any]] = field(default_factory=dict)
    latest: int = 0
    published: int = 0
    format: str = "DELTA"
    changed_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    last_commit: tuple[int, int] = (0, 0)

    def answer(self) -> dict[str, Any]:
        """That of `loadTable`."""
        metadata = {
            "etag": f"etag-{self.changed_ms}",
            "table-type": self.type,
            "table-uuid": self.uuid,
            "location": self.location,
            "created-time": self.changed_ms,
            "updated-time": self.changed_ms,
            "columns": self.columns,
            "partition-columns": [],
            "properties": self.properties | ({"delta.feature.catalogManaged": "supported"} if self.managed else {}),
            "last-commit-version": self.last_commit[0],
            "last-commit-timestamp-ms": self.last_commit[1],
        }
        if not self.managed:
            return {"metadata": metadata}
        # A real server's list has the newest commit also after it was published.
        newest_first = [self.commits[version] for version in sorted(self.commits, reverse=True)]
        return {"metadata": metadata, "commits": newest_first, "latest-table-version": self.latest}


@dataclass
class Fault:
    """A failure of a request, instead of its answer or after it.

    Attributes:
        path: the request is one whose path has this pattern.
        status: of the answer; None: the server hangs up.
        body, headers: of the answer.
        seconds: to wait first.
        after: whether the request is carried out first.
    """

    path: str = "."
    status: int | None = None
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    after: bool = False


@dataclass
class UnityServer:
    """The server's state. Tests change it while it runs; each request is answered under a lock.

    Attributes:
        url: of the server.
        root: folder of managed tables.
        tables: by name.
        token: the bearer token that requests need; None: none.
        oauth: client id and secret, for which the token is given.
        faults: to the next requests that each one matches.
        requests: those that came: method, path and query.
        delta_api: whether it has the Delta REST API; without it it is an older server.
        unsupported: names of tables that only the older API knows.
        credentials: those of a table; a server over local folders has empty ones.
        altered: changes an answer of `loadTable`.
        delay: seconds before each answer.
        page: tables of a page of a listing, or commits of an answer of the older API.
    """

    root: Path
    url: str = ""
    tables: dict[str, Table] = field(default_factory=dict)
    staging: dict[str, Table] = field(default_factory=dict)
    token: str | None = None
    oauth: tuple[str, str] | None = None
    token_life: int = 3600
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    delta_api: bool = True
    unsupported: set[str] = field(default_factory=set)
    credentials: Callable[[Table], list[dict[str, Any]]] | None = None
    altered: Callable[[dict[str, Any]], Any] | None = None
    page: int = 50
    delay: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def add_table(self, name: str, location: str, **facts: Any) -> Table:
        """A table at a location, whose log is there already."""
        with self.lock:
            self.tables[name] = Table(name, location, **facts)
            return self.tables[name]

    def ratify(self, name: str, version: int, file_name: str, *, size: int = 0, modified_ms: int = 0) -> None:
        """Make a staged commit the table's next version."""
        with self.lock:
            table = self.tables[name]
            table.latest = version
            table.commits[version] = commit(version, file_name, size, modified_ms)

    def rename(self, name: str, new: str) -> None:
        """Another name for a table, of this schema or another one."""
        with self.lock:
            table = self.tables.pop(name)
            table.name = new
            self.tables[new] = table

    def count(self, pattern: str) -> int:
        """How many requests matched."""
        return sum(bool(re.search(pattern, request)) for request in self.requests)


def commit(version: int, file_name: str, size: int = 0, modified_ms: int = 0) -> dict[str, Any]:
    """A commit as the Delta REST API has it."""
    return {
        "version": version,
        "timestamp": modified_ms,
        "file-name": file_name,
        "file-size": size,
        "file-modification-timestamp": modified_ms,
    }


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message


@contextmanager
def unity_server(root: Path) -> Iterator[UnityServer]:
    """A running server, on a free port of 127.0.0.1."""
    server = UnityServer(root)
    loop = asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> None:
        application = web.Application(middlewares=[_middleware(server)])
        _add_routes(application, server)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server.url = f"http://127.0.0.1:{port}"
        stop = asyncio.Event()
        stopping.append(stop)
        started.set()
        await stop.wait()
        await runner.cleanup()

    stopping: list[asyncio.Event] = []
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="unity", daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopping[0].set)
        thread.join(30)
        loop.close()


def _check_token(server: UnityServer, request: web.Request) -> None:
    token = request.headers.get("Authorization")
    if server.token is not None and "oidc" not in request.path and token != f"Bearer {server.token}":
        raise Refused(401, "NotAuthorizedException", "Invalid access token.")


def _middleware(server: UnityServer) -> Any:
    @web.middleware
    async def middleware(request: web.Request, handler: Any) -> web.StreamResponse:
        server.requests.append(f"{request.method} {request.path_qs}")
        if server.delay:
            await asyncio.sleep(server.delay)
        fault = next((each for each in server.faults if re.search(each.path, request.path)), None)
        if fault is not None:
            server.faults.remove(fault)
            await asyncio.sleep(fault.seconds)
            if fault.after:
                await handler(request)
            if fault.status is not None:
                return web.Response(status=fault.status, text=fault.body, headers=dict(fault.headers))
            if not fault.seconds:
                assert request.transport is not None
                request.transport.abort()
        try:
            _check_token(server, request)
            response: web.StreamResponse = await handler(request)
        except Refused as error:
            model = {"message": error.message, "type": error.kind, "code": error.status, "stack": None}
            return web.json_response({"error": model}, status=error.status)
        return response

    return middleware


def _add_routes(application: web.Application, server: UnityServer) -> None:
    schema, delta = "/catalogs/{catalog}/schemas/{schema}", f"{API}/delta/v1"
    routes: list[tuple[str, str, Callable[[UnityServer, Mapping[str, str], Any, Mapping[str, str]], Any]]] = [
        ("GET", f"{API}/tables", _list),
        ("GET", f"{API}/tables/{{full_name}}", _older_load),
        ("GET", f"{API}/delta/preview/commits", _older_commits),
        ("POST", f"{API}/temporary-table-credentials", _older_credentials),
        ("GET", f"{API}/metastore_summary", lambda *_: {"metastore_id": "stand-in"}),
        ("GET", f"{delta}/config", _config),
        ("POST", f"{delta}{schema}/staging-tables", _stage),
        ("POST", f"{delta}{schema}/tables", _create),
        ("GET", f"{delta}/staging-tables/{{table_id}}/credentials", _staging_credentials),
        ("GET", f"{delta}{schema}/tables/{{table}}", _load),
        ("POST", f"{delta}{schema}/tables/{{table}}", _update),
        ("GET", f"{delta}{schema}/tables/{{table}}/credentials", _credentials),
        ("POST", f"{delta}{schema}/tables/{{table}}/rename", _rename),
        ("POST", f"{delta}{schema}/tables/{{table}}/metrics", lambda *_: None),
    ]

    def handler(answer: Callable[..., Any], path: str) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.json() if request.can_read_body else None
            with server.lock:
                if path.startswith(delta) and not server.delta_api:
                    return web.Response(status=404, text="Status: 404\nDescription: Not Found\n")
                reply = answer(server, request.match_info, body, request.query)
            if reply is None:
                return web.Response(status=204)
            return reply if isinstance(reply, web.Response) else web.json_response(reply)

        return handle

    for method, path, answer in routes:
        application.router.add_route(method, path, handler(answer, path))

    async def token(request: web.Request) -> web.StreamResponse:
        form = await request.post()
        login = base64.b64decode(request.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        if (
            server.oauth is None
            or login != ":".join(map(quote_plus, server.oauth))
            or form["grant_type"] != "client_credentials"
        ):
            return web.json_response({"error": "invalid_client"}, status=401)
        server.token = f"oauth-{uuid.uuid4()}"
        answer = {"access_token": server.token, "token_type": "Bearer", "expires_in": server.token_life}
        body = json.dumps(answer).encode()
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        await response.prepare(request)
        for piece in (body[:20], body[20:]):
            await response.write(piece)
            await asyncio.sleep(0.01)  # a body arrives in pieces
        return response

    application.router.add_route("POST", "/oidc/v1/token", token)


def _found(server: UnityServer, name: str) -> Table:
    if name not in server.tables:
        raise Refused(404, "NoSuchTableException", f"Table not found: {name}")
    return server.tables[name]


def _name(match: Mapping[str, str]) -> str:
    return f"{match['catalog']}.{match['schema']}.{match['table']}"


def _config(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    if "catalog" not in query or "1.0" not in query.get("protocol-versions", ""):
        raise Refused(400, "BadRequestException", "catalog and protocol-versions are required")
    return {"endpoints": ENDPOINTS, "protocol-version": "1.0"}


def _load(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    name = _name(match)
    if name in server.unsupported:
        raise Refused(400, "UnsupportedTableFormatException", f"Table {name} is not supported by this endpoint")
    answer = _found(server, name).answer()
    return answer if server.altered is None else server.altered(answer)


def _stage(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    name = f"{match['catalog']}.{match['schema']}.{body['name']}"
    if name in server.tables:
        raise Refused(409, "AlreadyExistsException", f"Table already exists: {name}")
    table = Table(name, "")
    table.location = (server.root / "__unitystorage" / "tables" / table.uuid).as_uri()
    server.staging[table.location] = table
    properties = {
        "delta.checkpointPolicy": "v2",
        "delta.enableDeletionVectors": "true",
        "delta.enableInCommitTimestamps": "true",
        "io.unitycatalog.tableId": table.uuid,
    }
    return {
        "table-id": table.uuid,
        "table-type": "MANAGED",
        "location": table.location,
        "storage-credentials": _vended(server, table, "READ_WRITE"),
        "required-protocol": {
            "min-reader-version": 3,
            "min-writer-version": 7,
            "reader-features": READER_FEATURES,
            "writer-features": WRITER_FEATURES,
        },
        "required-properties": properties,
    }


def _create(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    name = f"{match['catalog']}.{match['schema']}.{body['name']}"
    location = (
        body["location"].replace("file:/", "file:///") if re.match("file:/[^/]", body["location"]) else body["location"]
    )
    table = server.staging.pop(location.rstrip("/"), None)
    if table is None:
        raise Refused(404, "NoSuchTableException", f"There is no staging table at {location}")
    table.columns, table.properties = body.get("columns", table.columns), dict(body.get("properties", {}))
    server.tables[name] = table
    return table.answer()


def _update(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    table = _found(server, _name(match))
    for requirement in body["requirements"]:
        if requirement["type"] == "assert-table-uuid" and requirement["uuid"] != table.uuid:
            raise Refused(409, "UpdateRequirementConflictException", "The table has another UUID")
    for update in body["updates"]:
        match update["action"]:
            case "add-commit":
                _add_commit(server, table, update["commit"])
            case "set-latest-backfilled-version":
                table.published = max(table.published, update["latest-published-version"])
            case "set-columns":
                table.columns = update["columns"]
            case "set-properties":
                table.properties |= update["updates"]
    # The newest one stays, also if it was published.
    table.commits = {v: each for v, each in table.commits.items() if v > table.published or v == table.latest}
    return table.answer()


def _add_commit(server: UnityServer, table: Table, committed: dict[str, Any]) -> None:
    version = committed["version"]
    known = table.commits.get(version)
    if known is not None and known["file-name"] == committed["file-name"]:
        return
    if version != table.latest + 1:
        raise Refused(409, "CommitVersionConflictException", f"The newest version is {table.latest}, not {version - 1}")
    if len([v for v in table.commits if v > table.published]) >= 50:
        raise Refused(429, "ResourceExhaustedException", "Max number of unbackfilled commits reached")
    table.commits[version] = {key: committed[key] for key in commit(0, "")}
    table.latest = version


def _rename(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    name = _name(match)
    _found(server, name)
    server.rename(name, f"{match['catalog']}.{match['schema']}.{body['new-name']}")


def _credentials(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    if query.get("operation") not in ("READ", "READ_WRITE"):
        raise Refused(400, "InvalidParameterValueException", "operation is required")
    return {"storage-credentials": _vended(server, _found(server, _name(match)), query["operation"])}


def _staging_credentials(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    table = next((each for each in server.staging.values() if each.uuid == match["table_id"]), None)
    if table is None:
        raise Refused(404, "NoSuchTableException", "There is no such staging table")
    return {"storage-credentials": _vended(server, table, "READ_WRITE")}


def _vended(server: UnityServer, table: Table, operation: str) -> list[dict[str, Any]]:
    if server.credentials is not None:
        return [{"operation": operation} | each for each in server.credentials(table)]
    return [{"prefix": table.location, "operation": operation, "config": {}, "expiration-time-ms": None}]


# --- the older API ---


def _list(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    prefix = f"{query['catalog_name']}.{query['schema_name']}."
    names = sorted(name for name in server.tables if name.startswith(prefix))
    first = int(query.get("page_token", 0))
    answer: dict[str, Any] = {"tables": [_info(server.tables[name]) for name in names[first : first + server.page]]}
    return answer | {"next_page_token": str(first + server.page) if first + server.page < len(names) else None}


def _info(table: Table) -> dict[str, Any]:
    catalog, schema, name = table.name.split(".")
    properties = table.properties | ({"delta.feature.catalogManaged": "supported"} if table.managed else {})
    return {
        "name": name,
        "catalog_name": catalog,
        "schema_name": schema,
        "table_type": table.type,
        "data_source_format": table.format,
        "columns": [],
        "storage_location": table.location,
        "comment": None,
        "properties": properties,
        "owner": None,
        "created_at": table.changed_ms,
        "created_by": None,
        "updated_at": table.changed_ms,
        "updated_by": None,
        "table_id": table.uuid,
        "view_definition": None,
        "view_dependencies": None,
    }


def _older_load(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    name = match["full_name"]
    if name not in server.tables:
        return web.json_response(
            {"error_code": "NOT_FOUND", "details": [], "message": f"Table not found: {name}"}, status=404
        )
    return _info(server.tables[name])


def _older_commits(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    table = next((each for each in server.tables.values() if each.uuid == body["table_id"]), None)
    if table is None:
        return web.json_response({"error_code": "NOT_FOUND", "details": [], "message": "no such table"}, status=404)
    commits = [table.commits[version] for version in sorted(table.commits) if version >= body["start_version"]]
    page = [{key.replace("-", "_"): value for key, value in each.items()} for each in commits[: server.page]]
    return {"commits": page, "latest_table_version": table.latest}


def _older_credentials(server: UnityServer, match: Mapping[str, str], body: Any, query: Mapping[str, str]) -> Any:
    table = next(each for each in server.tables.values() if each.uuid == body["table_id"])
    [vended, *_] = _vended(server, table, body["operation"])
    config = vended["config"]
    answer: dict[str, Any] = {"expiration_time": vended["expiration-time-ms"], "url": vended["prefix"]}
    if config:
        answer["aws_temp_credentials"] = {
            "access_key_id": config["s3.access-key-id"],
            "secret_access_key": config["s3.secret-access-key"],
            "session_token": config.get("s3.session-token"),
        }
    return answer
