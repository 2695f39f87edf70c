"""The real server, asked over real connections."""

import asyncio
import contextlib
import json
import logging
import math
import os
import socket
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import aiohttp
import pytest

from cdfd.config.sections import Http
from cdfd.config.values import Listen
from cdfd.daemon.http import connections, server
from cdfd.daemon.http.status import Status
from cdfd.errors import ConfigError, ListenError, SinkError, StorageError
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, PASSWORD, at, configuration, samples, serve_status, table_monitor, version
from tests.support.threads import observe_threads

ANY_PORT = Http(listen=Listen("127.0.0.1", 0))
PATHS = ("/", "/metrics", "/healthz", "/readyz", "/status", "/overview", "/overview/table?name=orders")


class Client:
    def __init__(self, status: Status, address: Listen, session: aiohttp.ClientSession) -> None:
        self.status = status
        self.address = address
        self.session = session

    async def get(self, path: str, method: str = "GET") -> tuple[int, str, aiohttp.ClientResponse]:
        async with self.session.request(method, f"http://{self.address}{path}") as response:
            return response.status, (await response.read()).decode(), response

    async def json(self, path: str) -> tuple[int, Any]:
        code, text, response = await self.get(path)
        assert response.content_type == "application/json"
        return code, json.loads(text)


@asynccontextmanager
async def serving() -> AsyncIterator[Client]:
    status = Status(configuration(), ManualClock(NOW_MS))
    async with serve_status(ANY_PORT, status) as address, aiohttp.ClientSession() as session:
        yield Client(status, address, session)


async def test_metrics_are_in_the_format_of_prometheus() -> None:
    async with serving() as client:
        table_monitor(client.status, "orders").committed(at(5), [version(4)], {"insert": 3}, 10)
        code, text, response = await client.get("/metrics")
        assert code == 200
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert samples(text.encode(), "orders")['cdfd_rows_total{change_type="insert"}'] == 3
        assert samples(text.encode(), "customers")['cdfd_rows_total{change_type="insert"}'] == 0


async def test_ready_once_every_table_is() -> None:
    async with serving() as client:
        both = {"orders": "not started yet", "customers": "not started yet"}
        assert await client.json("/readyz") == (503, {"ready": False, "role": "alone", "not_ready": both})
        for name in both:
            table_monitor(client.status, name).started(at(1))
            table_monitor(client.status, name).at_tip()
        assert await client.json("/readyz") == (200, {"ready": True, "role": "alone", "not_ready": {}})
        table_monitor(client.status, "orders").failed(SinkError("a topic is gone"), 5.0)
        why = {"orders": "retry in 5.0 s: a topic is gone"}
        assert await client.json("/readyz") == (503, {"ready": False, "role": "alone", "not_ready": why})
        table_monitor(client.status, "orders").started(at(1))
        table_monitor(client.status, "orders").committed(at(2), [version(1)], {"insert": 1}, 1)
        assert (await client.json("/readyz"))[0] == 200


async def test_healthy_while_a_table_fails() -> None:
    async with serving() as client:
        table_monitor(client.status, "orders").failed(SinkError("refused"), None)
        assert await client.json("/healthz") == (200, {"healthy": True})


async def test_status_with_the_configuration() -> None:
    async with serving() as client:
        code, document = await client.json("/status")
        assert code == 200
        assert document["configuration"]["sink"]["security"]["username"] == "u"
        assert list(document["tables"]) == ["orders", "customers"]


async def test_the_text_of_the_status_is_written_beside_the_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = observe_threads(monkeypatch, server, "as_json")
    async with serving() as client:
        assert (await client.get("/status"))[0] == 200
    assert threads == [True]


async def test_no_page_has_the_password() -> None:
    async with serving() as client:
        for path in PATHS:
            assert PASSWORD not in (await client.get(path))[1]


class Page(HTMLParser):
    """Tags, their attributes and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inline: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("script", "style"):
            self.inline.setdefault(self.tags[-1], data)


HOSTILE = """<script>alert(1)</script> "><img src=x onerror='alert(2)'> $name ${error} &lt; \ud800 \x00"""


async def test_the_page_has_no_text_of_others_and_may_run_only_its_own_script() -> None:
    async with serving() as client:
        table_monitor(client.status, "orders").failed(StorageError(HOSTILE, hint=HOSTILE, path=HOSTILE, version=4), 5.0)
        code, text, response = await client.get("/")
        assert (code, response.content_type) == (200, "text/html")
        page = Page(text)
        assert not {"img", "link", "iframe", "object", "form"} & set(page.tags)
        assert not any(name.startswith("on") or name in ("src", "style") for name, _ in page.attributes)
        assert "alert(1)" not in text
        rules = dict(each.strip().split(" ", 1) for each in response.headers["Content-Security-Policy"].split(";"))
        assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
        assert rules["connect-src"] == "'self'"
        assert (rules["require-trusted-types-for"], rules["trusted-types"]) == ("'script'", "'none'")
        for tag in ("script", "style"):
            digest = b64encode(sha256(page.inline[tag].encode()).digest()).decode()
            assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
            assert page.tags.count(tag) == 1


async def test_the_page_loads_all_tables_and_the_details_of_one() -> None:
    async with serving() as client:
        orders = table_monitor(client.status, "orders")
        orders.started(at(4))
        orders.found_version(6)
        orders.failed(StorageError(HOSTILE, hint=HOSTILE, path=HOSTILE, version=4), 5.0)
        code, document = await client.json("/overview")
        assert (code, document["pipeline"]) == (200, "shop")
        assert [each["name"] for each in document["tables"]] == ["orders", "customers"]
        row = document["tables"][0]
        assert (row["state"], row["lag_versions"], row["delivered"], row["newest"]) == ("backing_off", 3, 3, 6)
        assert row["next"] == "It retries in 5.0 s. The error stays until you act."
        assert row["why"].startswith("<script>alert(1)</script>")  # the page sets it as text
        code, actual = await client.json("/overview/table?name=orders")
        assert (code, actual["position"]["version"]) == (200, 4)
        assert [(each["family"], each["count"]) for each in actual["errors"]] == [("storage", 1)]
        assert (await client.get("/overview/table?name=nothing"))[0] == 404
        assert (await client.get("/overview/table"))[0] == 404


async def test_other_paths_and_other_methods() -> None:
    async with serving() as client:
        for path in ("/metric", "/metrics/", "/../etc/passwd", "/status/orders", "/%00", "/favicon.ico"):
            assert (await client.get(path))[0] == 404
        for path in PATHS:
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
                code, _, response = await client.get(path, method)
                assert (code, response.headers["Allow"]) == (405, "GET,HEAD")
            code, text, _ = await client.get(path, "HEAD")
            assert code in (200, 503)
            assert not text


async def test_answers_are_not_kept_and_name_no_library() -> None:
    async with serving() as client:
        for path in (*PATHS, "/nothing"):
            headers = (await client.get(path))[2].headers
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Server"] == "cdfd"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Connection"] == "close"
            assert not any(name.startswith("Access-Control") for name in headers)


async def test_what_is_no_http_is_refused_without_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with serving() as client:
            for garbage in (
                b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET /\r\nbroken header\r\n\r\n",
            ):
                reader, writer = await asyncio.open_connection(client.address.host, client.address.port)
                writer.write(garbage)
                assert b" 400 " in (await reader.readline())
                writer.close()
                await writer.wait_closed()
            assert (await client.get("/healthz"))[0] == 200
    assert [record.name for record in caplog.records] == ["cdfd.http"]  # where it listens


async def test_concurrent_requests_are_all_answered() -> None:
    async with serving() as client:
        codes = await asyncio.gather(*(client.get(path) for path in PATHS for _ in range(10)))
        assert {code for code, _, _ in codes} == {200, 503}


async def test_scrapes_that_wait_at_the_same_time_share_one_text() -> None:
    """Connections may end while their requests wait, so a limit of connections does not bound the scrapes."""
    renders = 0
    rendering, released = threading.Event(), threading.Event()

    def metrics(*, openmetrics: bool = False) -> Callable[[], bytes]:
        nonlocal renders
        renders += 1
        text = f"{renders} {openmetrics}".encode()

        def render() -> bytes:
            rendering.set()
            assert released.wait(20)
            return text

        return render

    with ThreadPoolExecutor(1) as writer:
        scrapes = server.Scrapes(metrics, writer)
        first = asyncio.create_task(scrapes.text(openmetrics=False))
        await asyncio.to_thread(rendering.wait, 20)
        later = [asyncio.create_task(scrapes.text(openmetrics=number % 2 == 1)) for number in range(200)]
        await asyncio.sleep(0)
        released.set()
        assert await first == b"1 False"
        # Each text is read after its requests came.
        assert set(await asyncio.gather(*later)) == {b"2 False", b"3 True"}
        assert await scrapes.text(openmetrics=False) == b"4 False"


# Accepted requests, and limits of size, number and time


async def raw(address: Listen, request: bytes) -> bytes:
    """All that the server says to these bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


OURS = (
    "127.0.0.1:9464",
    "127.0.0.1",
    "[::1]:9464",
    "10.1.2.3:9464",
    "localhost",
    "LocalHost.:80",
    socket.gethostname(),
    "cdfd.example.com:9464",
    "a.b.internal",
)
OTHERS = (
    "evil.example",
    "evil.example:9464",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.example#localhost",
    "localhost@evil.example",
    "evilcdfd.example.com",
    "sub.cdfd.example.com",
    "internal",
    "127.0.0.1:9464@evil.example",
    "[evil.example]",
    "::1",
    "0x7f000001",
    "2130706433",
    "",
    f"{'a.' * 2_000}internal",
)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("Content-Encoding: gzip\r\nContent-Length: 7", "no gzip"),
        ("Content-Encoding: deflate\r\nContent-Length: 6", "no zip"),
        ("Transfer-Encoding: chunked", "2\r\nab\r\nzz\r\nab"),
    ],
)
@pytest.mark.parametrize("path", ["/tables/orders/pause", "/metrics", "/nowhere"])
async def test_bodies_that_cannot_be_read_have_a_line_from_time_to_time(
    coding: str, body: str, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server._client_errors, "_last", -math.inf)
    async with serving() as client:
        for _ in range(3):
            await raw(client.address, f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{coding}\r\n\r\n{body}".encode())
        assert (await client.get("/healthz"))[0] == 200
    written = [record for record in caplog.records if record.name == "cdfd.http.server"]
    assert len(written) <= 1
    for record in written:
        assert record.exc_info is None
        assert record.levelname == "WARNING"
        assert "the body of a request cannot be read" in record.getMessage()
    assert written or "gzip" not in coding


async def test_only_names_that_are_the_daemon_s_are_answered() -> None:
    status = Status(configuration(), ManualClock(NOW_MS))
    async with serve_status(
        Http(listen=Listen("127.0.0.1", 0), hosts=("cdfd.example.com", "*.internal")), status
    ) as address:
        for host in OURS:
            answer = await raw(address, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 200 "), (host, answer)
        for host in OTHERS:
            for path in ("/status", "/", "/nothing"):
                answer = await raw(address, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert answer.startswith((b"HTTP/1.1 421 ", b"HTTP/1.1 400 ")), (host, answer)
                assert b"orders" not in answer
        for request in (
            b"GET /status HTTP/1.1\r\n\r\n",
            b"GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        ):
            refused = (await raw(address, request)).split(b"\r\n")[0]
            assert b" 400 " in refused or b" 421 " in refused
        assert (await raw(address, b"GET /healthz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.0 200 ")
    async with serve_status(Http(listen=Listen("127.0.0.1", 0), hosts=("*",)), status) as address:
        answer = await raw(address, b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 10_000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["a long header", "many headers", "a long path"],
)
async def test_headers_are_bounded(request_: bytes) -> None:
    async with serving() as client:
        with contextlib.suppress(ConnectionResetError):  # closed before all was sent
            assert b" 400 " in (await raw(client.address, request_)).split(b"\r\n")[0]
        assert (await client.get("/healthz"))[0] == 200


@pytest.mark.parametrize(
    "slow",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-",
        b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{",
    ],
    ids=["nothing", "half a header", "half a body"],
)
async def test_clients_that_take_their_time_are_left(monkeypatch: pytest.MonkeyPatch, slow: bytes) -> None:
    monkeypatch.setattr(connections, "CONNECTION_SECONDS", 1.0)

    async with serving() as client:
        await raw(client.address, slow)  # ends, because the server does
        assert (await client.get("/healthz"))[0] == 200


async def test_a_client_that_does_not_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTION_SECONDS", 1.0)
    monkeypatch.setattr(server, "render_page", lambda: b"x" * 50_000_000)

    async with serving() as client:
        before = len(os.listdir("/dev/fd"))
        with socket.create_connection((client.address.host, client.address.port)) as asking:
            asking.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(0.2)
            assert len(os.listdir("/dev/fd")) == before + 2  # both ends are here
            while len(os.listdir("/dev/fd")) > before + 1:
                await asyncio.sleep(0.05)
        assert (await client.get("/healthz"))[0] == 200


async def test_connections_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 5)

    async with serving() as client:
        streams = [await asyncio.open_connection(client.address.host, client.address.port) for _ in range(20)]
        await asyncio.gather(*(reader.read() for reader, _ in streams[:15]))  # the oldest are closed
        assert not streams[-1][0].at_eof()
        assert (await client.get("/healthz"))[0] == 200
        for _, writer in streams:
            writer.close()
            await writer.wait_closed()


# The address


async def test_the_address_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cdfd.http"):
        async with serving() as client:
            assert client.address.port != 0
            assert f"metrics, health and status at http://{client.address}" in caplog.messages


async def test_an_address_in_use_is_an_error_after_which_a_restart_may_help() -> None:
    async with serving() as client:
        with pytest.raises(ListenError, match="in use") as caught:
            async with serve_status(Http(listen=client.address), client.status):
                pass
        assert caught.value.exit_code == 1
        assert str(client.address) in caught.value.what
        assert "http.listen" in (caught.value.hint or "")
        assert (await client.get("/healthz"))[0] == 200


@pytest.mark.parametrize("host", ["203.0.113.7", "host.invalid", "a..b", "x" * 300])
async def test_an_address_that_is_not_ours_is_an_error_of_the_configuration(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen at"):
        async with serve_status(Http(listen=Listen(host, 0)), Status(configuration(), ManualClock())):
            pass


# The end


async def test_connections_that_stay_open_do_not_hold_up_the_end() -> None:
    status = Status(configuration(), ManualClock())
    async with serve_status(ANY_PORT, status) as address:
        kept, half = [await asyncio.open_connection(address.host, address.port) for _ in range(2)]
        kept[1].write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await kept[0].readline()
        half[1].write(b"GET /healthz HTTP/1.1\r\nHo")
        await half[1].drain()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)
    for reader, writer in (kept, half):
        await reader.read()
        writer.close()
        await writer.wait_closed()


async def test_the_same_port_can_be_listened_at_at_once_again() -> None:
    status = Status(configuration(), ManualClock())
    async with serve_status(ANY_PORT, status) as address, aiohttp.ClientSession() as session:
        await session.get(f"http://{address}/healthz")
    async with serve_status(Http(listen=address), status) as again:
        assert again == address
