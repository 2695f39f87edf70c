"""Controls over HTTP and the socket: who may, what is refused, and what the answers say."""

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cdfd.config.sections import Controls, Http, HttpAuthentication
from cdfd.config.settings import Settings
from cdfd.config.values import Listen, Secret
from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.http.connections import LONGEST_PATH, private_socket
from cdfd.daemon.http.controls import ControlRoutes
from cdfd.daemon.http.history import History
from cdfd.daemon.http.server import serve, serve_socket
from cdfd.daemon.http.status import Status
from cdfd.daemon.supervision.preflight import preflight
from cdfd.deliver.mailbox import MOST_WAITING
from cdfd.deliver.requests import MOST_BYTES, Refused, answer, parse_request
from cdfd.errors import ConfigError, ListenError
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, configuration

TOKEN = "a-token-of-some-length"
Answer = tuple[int, Any]


class Client:
    def __init__(self, address: Listen, session: aiohttp.ClientSession, controller: Controller, status: Status) -> None:
        self.address = address
        self.session = session
        self.controller = controller
        self.status = status

    async def post(self, path: str, body: Any = None, token: str | None = TOKEN, method: str = "POST") -> Answer:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        url = f"http://{self.address}{path}"
        async with self.session.request(method, url, data=data, headers=headers) as response:
            text = await response.text()
            content = json.loads(text) if response.content_type == "application/json" else text
            return response.status, content


def obeying(controller: Controller) -> asyncio.Task[None]:
    """A loop of `orders` that carries out everything."""

    async def obey() -> None:
        mailbox = controller.tables["orders"]
        while True:
            await mailbox.interrupt.wait()
            request = mailbox.first
            assert request is not None
            mailbox.settle(answer(request, "PAUSED", f"{request.action} of {request.table}", version=7))

    return asyncio.create_task(obey())


@asynccontextmanager
async def serving(token: str | None = TOKEN, authentication: HttpAuthentication | None = None) -> AsyncIterator[Client]:
    clock = ManualClock(NOW_MS)
    status, controller = Status(configuration(), clock), Controller("shop", clock)
    for name in ("orders", "customers"):
        controller.add(name)
    status.notifications = controller.recent
    routes = ControlRoutes(controller, None if token is None else Secret(token), clock)
    settings = Http(listen=Listen("127.0.0.1", 0), authentication=authentication)
    async with serve(settings, status, History(status), routes) as address, aiohttp.ClientSession() as session:
        loop = obeying(controller)
        yield Client(address, session, controller, status)
        loop.cancel()


async def test_the_answer_is_a_notification_that_log_and_status_have_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cdfd.controls"):
        async with serving() as client:
            code, answer = await client.post("/tables/orders/pause", {"id": "ops-1"})
            assert code == 200
            assert answer == {
                "id": "ops-1",
                "aggregate_type": "Table",
                "type": "PAUSED",
                "additional_data": {
                    "connector_name": "shop",
                    "data_collection": "orders",
                    "message": "pause of orders",
                    "version": "7",
                },
                "timestamp": NOW_MS,
            }
            assert client.status.document()["notifications"] == [answer]
    assert "pause of orders" in caplog.messages


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tables/orders/pause", None),
        ("/tables/orders/resume", {}),
        ("/tables/orders/snapshot", {"where": "day >= '2026-01-01' and country in ('de', 'fr')"}),
        ("/tables/orders/snapshot/stop", {}),
        ("/tables/orders/move", {"version": 12}),
    ],
)
async def test_each_action_is_answered_by_the_state_of_the_table(path: str, body: Any) -> None:
    async with serving() as client:
        code, answer = await client.post(path, body)
        assert (code, answer["type"]) == (200, "PAUSED")


async def test_the_log_level() -> None:
    before = logging.getLogger("cdfd").level

    try:
        async with serving() as client:
            assert (await client.post("/log-level", {"level": "debug"}))[0] == 200
            assert logging.getLogger("cdfd").level == logging.DEBUG
            assert (await client.post("/log-level", {"level": "loud"}))[0] == 400
    finally:
        logging.getLogger("cdfd").setLevel(before)


@pytest.mark.parametrize(
    ("path", "body", "code", "message"),
    [
        ("/tables/nope/pause", None, 404, "there is no table 'nope'"),
        ("/tables/orders/pause", b"{", 400, "not JSON"),
        ("/tables/orders/pause", b"[1]", 400, "not a JSON object"),
        ("/tables/orders/pause", b"[" * 60_000, 400, "not JSON"),
        ("/tables/orders/pause", b"\xff{}", 400, "not JSON"),
        ("/tables/orders/pause", {"extra": 1}, 400, "unknown field 'extra'"),
        ("/tables/orders/pause", {"id": ""}, 400, "`id` must be text"),
        ("/tables/orders/pause", {"id": "x" * 101}, 400, "`id` must be text"),
        ("/tables/orders/pause", {"id": "a\nb"}, 400, "`id` must be text"),
        ("/tables/orders/pause", {"id": 7}, 400, "`id` must be text"),
        ("/tables/orders/pause", b" " * (MOST_BYTES + 1), 413, f"at most {MOST_BYTES}"),
        ("/tables/orders/move", {}, 400, "`version` must be"),
        ("/tables/orders/move", {"version": -1}, 400, "`version` must be"),
        ("/tables/orders/move", {"version": True}, 400, "`version` must be"),
        ("/tables/orders/move", {"version": 1 << 63}, 400, "`version` must be"),
        ("/tables/orders/snapshot", {"where": ""}, 400, "`where` must be"),
        ("/tables/orders/snapshot", {"where": 7}, 400, "`where` must be"),
        ("/tables/orders/snapshot", {"where": "a = 1 or"}, 400, "at its end"),
        ("/tables/orders/snapshot", {"where": "a" * 5000}, 400, "`where` must be"),
    ],
)
async def test_refusals_are_notified(path: str, body: Any, code: int, message: str) -> None:
    async with serving() as client:
        actual, answer = await client.post(path, body)
        assert actual == code
        assert answer["type"] == "REFUSED"
        assert message in answer["additional_data"]["message"]
        assert list(client.controller.recent) == [answer]


async def test_an_id_is_carried_out_once() -> None:
    async with serving() as client:
        assert (await client.post("/tables/orders/pause", {"id": "a"}))[0] == 200
        code, answer = await client.post("/tables/orders/resume", {"id": "a"})
        assert (code, answer["additional_data"]["reason"]) == (409, "duplicate")


async def test_requests_of_a_table_that_does_not_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdfd.daemon.http.controls.ANSWER_SECONDS", 0.01)

    async with serving() as client:
        for _ in range(MOST_WAITING):
            code, answer = await client.post("/tables/customers/pause")
            assert (code, answer["type"]) == (202, "ACCEPTED")
        code, answer = await client.post("/tables/customers/pause")
        assert (code, answer["additional_data"]["reason"]) == (429, "busy")
        client.controller.remove("customers")
        assert {each["type"] for each in client.controller.recent} == {"REFUSED"}


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], "é"])
async def test_no_action_without_the_token(token: str | None) -> None:
    async with serving() as client:
        code, answer = await client.post("/tables/orders/pause", {"id": "a"}, token)
        assert code == 401
        assert TOKEN not in json.dumps(answer)
        assert (await client.post("/tables/orders/pause", {"id": "a"}))[0] == 200


async def test_a_flood_without_the_token_is_notified_once_in_a_while() -> None:
    async with serving() as client:
        for _ in range(20):
            assert (await client.post("/tables/orders/pause", None, "wrong"))[0] == 401
        assert len(client.controller.recent) == 1


async def test_controls_are_off_without_a_token() -> None:
    async with serving(token=None) as client:
        code, answer = await client.post("/tables/orders/pause")
        assert code == 404
        assert "set `controls.token`" in answer["additional_data"]["message"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_no_action_by_another_method(method: str) -> None:
    async with serving() as client:
        for path in ("/tables/orders/pause", "/log-level", "/tables/orders/snapshot/stop"):
            assert (await client.post(path, None, method=method))[0] == 405
        assert list(client.controller.recent) == []


async def test_unknown_action_is_not_found() -> None:
    async with serving() as client:
        for path in ("/tables/orders/drop", "/tables/orders/log-level", "/tables/orders/stop-snapshot", "/tables"):
            assert (await client.post(path))[0] == 404


async def test_queries_of_spark_take_no_requests() -> None:
    controller = Controller("shop", ManualClock(), "spark")
    for action in ("pause", "resume", "snapshot", "move"):
        fields = {"version": 1} if action == "move" else {}
        notification = await controller.submit(parse_request(action, "orders", action, fields))
        assert notification.refusal == "unsupported"
        assert "engine.kind: spark" in notification.message
    level = await controller.submit(parse_request("log-level", None, "2", {"level": "info"}))
    assert level.type == "CHANGED"


async def test_another_host_is_refused_before_the_token_is_looked_at() -> None:
    async with serving() as client:
        url, headers = f"http://{client.address}/tables/orders/pause", {"Host": "evil.example", "Authorization": TOKEN}
        async with client.session.post(url, headers=headers) as response:
            assert response.status == 421


async def test_the_token_is_enough_where_reading_needs_credentials() -> None:
    async with serving(authentication=HttpAuthentication(token=Secret("reader"))) as client:
        assert (await client.post("/status", method="GET"))[0] == 200
        assert (await client.post("/status", token="reader", method="GET"))[0] == 200
        assert (await client.post("/status", token="other", method="GET"))[0] == 401
        assert (await client.post("/tables/orders/pause"))[0] == 200
        assert (await client.post("/tables/orders/pause", token="reader"))[0] == 401


def controlled_at(path: Path) -> Settings:
    config = configuration()
    return config.model_copy(update={"controls": Controls(socket=str(path))})


class TestSocket:
    @pytest.mark.parametrize(("length", "fits"), [(LONGEST_PATH, True), (LONGEST_PATH + 1, False)])
    def test_a_path_that_is_too_long_is_refused_before_the_start(
        self, length: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = Path("x" * length)
        with private_socket(str(path)) if fits else pytest.raises(ConfigError, match=f"has {length} bytes"):
            preflight(controlled_at(path))

    def served(self, path: Path, test: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
        async def run() -> None:
            clock = ManualClock(NOW_MS)
            controller = Controller("shop", clock)
            controller.add("orders")
            loop = obeying(controller)
            routes, status = ControlRoutes(controller, None, clock, trusted=True), Status(configuration(), clock)
            async with (
                serve_socket(str(path), status, History(status), routes),
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
            ):
                await test(session)
            loop.cancel()

        asyncio.run(asyncio.wait_for(run(), 30))

    def test_it_needs_no_token_and_is_for_this_user_only(self, tmp_path: Path) -> None:
        path = tmp_path / "ctl.sock"

        async def test(session: aiohttp.ClientSession) -> None:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            async with session.post("http://localhost/tables/orders/pause") as response:
                assert response.status == 200
            async with session.get("http://localhost/status") as response:
                assert response.status == 200

        self.served(path, test)
        assert not path.exists()

    def test_what_a_killed_daemon_left_is_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "ctl.sock"

        async def kill_all(session: aiohttp.ClientSession) -> None:
            os.link(path, tmp_path / "left")

        async def test(session: aiohttp.ClientSession) -> None:
            async with session.post("http://localhost/tables/orders/pause") as response:
                assert response.status == 200

        self.served(path, kill_all)
        os.rename(tmp_path / "left", path)
        self.served(path, test)

    def test_a_socket_in_use_and_a_file_are_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "ctl.sock"

        async def nothing(session: aiohttp.ClientSession) -> None:
            raise AssertionError("served")

        status = Status(configuration())

        async def test(session: aiohttp.ClientSession) -> None:
            with pytest.raises(ListenError, match="another process serves"):
                async with serve_socket(str(path), status, History(status), routes()):
                    pass
            async with session.post("http://localhost/tables/orders/pause") as response:
                assert response.status == 200

        def routes() -> ControlRoutes:
            return ControlRoutes(Controller("shop", ManualClock()), None, ManualClock(), trusted=True)

        self.served(path, test)
        path.write_text("mine")
        with pytest.raises(ConfigError, match="not a socket"):
            preflight(controlled_at(path))
        with pytest.raises(ConfigError, match="not a socket"):
            self.served(path, nothing)
        assert path.read_text() == "mine"


async def test_standby_names_the_process_to_ask() -> None:
    async with serving() as client:
        for name in tuple(client.controller.tables):
            client.controller.remove(name)
        status, answer = await client.post("/tables/orders/pause")
        assert status == 404
        assert "with standby, ask the process that leads" in json.dumps(answer)


async def test_refusals_are_on_one_line() -> None:
    controller = Controller("shop", ManualClock())
    actual = controller.refuse(Refused("malformed", "a\nb\x1b[31m" + "x" * 5000))
    assert actual.message.isprintable()
    assert len(actual.message) <= 500


async def test_a_body_that_cannot_be_read_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as client:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Encoding": "gzip"}
        url = f"http://{client.address}/tables/orders/pause"
        async with client.session.post(url, data=b"no gzip", headers=headers) as response:
            assert response.status == 400
            answer = await response.json()
        assert "the body cannot be read" in json.dumps(answer)
        assert "\\n" not in json.dumps(answer)
    assert not any(record.exc_info for record in caplog.records)
