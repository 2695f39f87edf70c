"""Requests to Glue that fail, and keys that change while a catalog is in use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cdfd.catalogs.glue import GlueCatalog
from cdfd.errors import StorageError
from cdfd.storage.s3.loop import request_loop
from tests.support.http_server import http_server

PARAMETERS = {"table_type": "DELTA"}
TABLE = {"Name": "orders", "Parameters": PARAMETERS, "StorageDescriptor": {"Location": "s3://lake/orders"}}


class Server:
    """A Glue with one table.

    Attributes:
        url: of it.
        refused: access keys that it refuses, with the error's code.
        fault: status and body of all answers; None: those of Glue.
    """

    url = ""
    refused: tuple[str, str] | None = None
    fault: tuple[int, str] | None = None

    def answer(self, operation: str, authorization: str) -> tuple[int, str]:
        if self.refused is not None and self.refused[0] in authorization:
            return 400, json.dumps({"__type": self.refused[1]})
        if self.fault is not None:
            return self.fault
        return 200, json.dumps({"TableList": [TABLE]} if operation.endswith("GetTables") else {"Table": TABLE})


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, text = state.answer(self.headers["X-Amz-Target"], self.headers["Authorization"])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http_server(Handler) as state.url:
        yield state


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the profile that the environment has."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path / "credentials"


def keys(access_key: str) -> str:
    return f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = secret\n"


def load(catalog: GlueCatalog) -> str:
    return request_loop().submit(catalog.load("sales.orders")).result(60).location


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
def test_rotated_keys_of_a_profile(server: Server, profile: Path, code: str) -> None:
    catalog = GlueCatalog({"endpoint_url": server.url, "region": "us-east-1"})
    profile.write_text(keys("old-key"))
    assert load(catalog) == "s3://lake/orders"
    server.refused = "old-key", code
    with pytest.raises(StorageError, match=code):
        load(catalog)
    profile.write_text(keys("new-key"))
    assert load(catalog) == "s3://lake/orders"


@pytest.mark.parametrize(
    "fault",
    [
        (429, "<html>"),
        (500, "<html>"),
        (503, ""),
        (200, "<html>"),
        (200, "{}"),
        (200, "[]"),
        (400, "[]"),
        (200, '{"Table": 5, "TableList": 5}'),
    ],
    ids=lambda fault: str(fault),
)
def test_answers_of_a_proxy_are_transient(
    server: Server, profile: Path, monkeypatch: pytest.MonkeyPatch, fault: tuple[int, str]
) -> None:
    """A page with the status 200 is no database without tables: discovery would drop those that there are."""
    monkeypatch.setattr("cdfd.catalogs.glue.ATTEMPTS", 1)
    profile.write_text(keys("key"))
    catalog = GlueCatalog({"endpoint_url": server.url, "region": "us-east-1"})
    server.fault = fault
    for request in (catalog.load("sales.orders"), catalog.tables("sales")):
        with pytest.raises(StorageError) as raised:
            request_loop().submit(request).result(60)
        assert raised.value.retriable
    server.fault = None
    assert request_loop().submit(catalog.tables("sales")).result(60) == ["orders"]
