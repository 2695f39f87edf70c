"""Access rules of the HTTP endpoints, over real connections, with and without TLS."""

import asyncio
import base64
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cdfd.config.sections import Http
from cdfd.config.values import Listen
from cdfd.daemon.http import server
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.tls import ServerTls
from cdfd.errors import ConfigError, SinkError
from tests.support.kafka.certificates import Certificates
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, configuration, serve_status, table_monitor

ANY_PORT = Listen("127.0.0.1", 0)
PROBES = ("/healthz", "/readyz")
PROTECTED = ("/", "/metrics", "/status", "/nowhere")
PASSWORD, TOKEN = "pässword: with colon", "t0ken-of-many-letters"
BASIC = {"username": "ops", "password": PASSWORD}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Client:
    def __init__(self, status: Status, address: Listen, scheme: str = "http") -> None:
        self.status = status
        self.url = f"{scheme}://{address}"

    async def get(
        self, path: str, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None, **more: Any
    ) -> tuple[int, str, list[str]]:
        """Status, body and challenges. A connection of its own."""
        async with (
            aiohttp.ClientSession() as session,
            session.request("GET", self.url + path, headers=headers, ssl=tls or True, **more) as response,
        ):
            return response.status, await response.text(), response.headers.getall("WWW-Authenticate", [])


@asynccontextmanager
async def client(**http: Any) -> AsyncIterator[Client]:
    settings = Http.model_validate({"listen": ANY_PORT, **http})
    status = Status(configuration(), ManualClock(NOW_MS))
    async with serve_status(settings, status) as address:
        yield Client(status, address, "http" if settings.tls is None else "https")


class TestAuthentication:
    @pytest.mark.parametrize(
        ("authentication", "accepted", "challenges"),
        [
            (BASIC, [basic("ops", PASSWORD)], ['Basic realm="cdfd", charset="UTF-8"']),
            ({"token": TOKEN}, [bearer(TOKEN), {"Authorization": f"bEARER  {TOKEN}"}], ['Bearer realm="cdfd"']),
            (
                BASIC | {"token": TOKEN},
                [basic("ops", PASSWORD), bearer(TOKEN)],
                ['Basic realm="cdfd", charset="UTF-8"', 'Bearer realm="cdfd"'],
            ),
        ],
    )
    async def test_only_the_configured_credentials_are_accepted(
        self, authentication: dict[str, str], accepted: list[dict[str, str]], challenges: list[str]
    ) -> None:
        wrong = [
            None,
            basic("ops", "wrong"),
            basic("other", PASSWORD),
            basic("ops", ""),
            bearer("wrong"),
            bearer(""),
            bearer(PASSWORD),
            basic("ops", TOKEN),
            {"Authorization": "Basic"},
            {"Authorization": "Basic !!!"},
            {"Authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()},
            {"Authorization": "Basic " + base64.b64encode(b"ops").decode()},
            {"Authorization": TOKEN},
        ]

        async with client(authentication=authentication) as asking:
            # The page has no data. Its script asks for the token, which a browser cannot send when it opens a page.
            only_token = "username" not in authentication
            assert (await asking.get("/"))[0] == (200 if only_token else 401)
            for path in PROTECTED[1:] if only_token else PROTECTED:
                for headers in wrong:
                    code, body, asked = await asking.get(path, headers)
                    assert (code, asked) == (401, challenges), (path, headers)
                    assert "orders" not in body
                for headers in accepted:
                    code, _, asked = await asking.get(path, headers)
                    assert (code, asked) == (404 if path == "/nowhere" else 200, []), (path, headers)

    async def test_two_headers_of_credentials_are_refused(self) -> None:
        async with client(authentication={"token": TOKEN}) as asking:
            twice = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer other")]
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{asking.url}/status", headers=twice) as response,
            ):
                assert response.status == 401

    async def test_probes_need_none_and_learn_little(self) -> None:
        async with client(authentication={"token": TOKEN}) as asking:
            for name in ("orders", "customers"):
                table_monitor(asking.status, name).failed(SinkError("the broker is away"), None)
            assert (await asking.get("/healthz"))[:2] == (200, '{\n  "healthy": true\n}\n')
            assert (await asking.get("/readyz"))[:2] == (503, '{\n  "ready": false,\n  "role": "alone"\n}\n')
            assert "the broker is away" in (await asking.get("/readyz", bearer(TOKEN)))[1]

    async def test_without_authentication_everybody_reads(self) -> None:
        async with client() as asking:
            assert [(await asking.get(path))[0] for path in ("/", "/metrics", "/status")] == [200] * 3
            assert "not_ready" in (await asking.get("/readyz"))[1]

    async def test_credentials_are_bounded(self) -> None:
        async with client(authentication={"token": TOKEN}) as asking:
            assert (await asking.get("/status", bearer("x" * 4000)))[0] == 401
            assert (await asking.get("/status", bearer("x" * 20_000)))[0] == 400

    async def test_another_host_is_refused_before_credentials_are_looked_at(self) -> None:
        async with client(authentication={"token": TOKEN}) as asking:
            assert (await asking.get("/status", bearer(TOKEN) | {"Host": "evil.example"}))[0] == 421

    async def test_secrets_are_in_no_log_and_no_answer(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            async with client(authentication=BASIC | {"token": TOKEN}) as asking:
                for headers in (None, bearer(TOKEN), bearer(TOKEN + "x"), basic("ops", PASSWORD)):
                    for path in (*PROTECTED, *PROBES):
                        _, body, challenges = await asking.get(path, headers)
                        assert not any(secret in f"{body}{challenges}" for secret in (PASSWORD, TOKEN))
        assert PASSWORD not in caplog.text
        assert TOKEN not in caplog.text


def trusting(certificates: Certificates, *, client: Certificates | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if client is not None:
        context.load_cert_chain(client.client, client.client_key)
    return context


def issued(folder: Path) -> Certificates:
    folder.mkdir()
    return Certificates.issue(folder)


def tls_of(folder: Path) -> dict[str, str]:
    return {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")}


def mount(folder: Path, certificates: Certificates) -> None:
    """As the kubelet mounts and replaces a secret: by another target of a link."""
    version = folder / f"..{certificates.ca.parent.name}"
    version.mkdir(parents=True)
    (version / "tls.crt").write_bytes(certificates.server.read_bytes())
    (version / "tls.key").write_bytes(certificates.server.read_bytes())
    (version / "ca.crt").write_bytes(certificates.ca.read_bytes())
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


class TestTls:
    @pytest.fixture
    def old(self, tmp_path: Path) -> Certificates:
        return issued(tmp_path / "old")

    @pytest.fixture
    def new(self, tmp_path: Path) -> Certificates:
        return issued(tmp_path / "new")

    async def test_new_connections_use_a_renewed_certificate(
        self, tmp_path: Path, old: Certificates, new: Certificates, caplog: pytest.LogCaptureFixture
    ) -> None:
        mount(tmp_path / "tls", old)
        with caplog.at_level(logging.INFO, "cdfd.http"):
            async with client(tls=tls_of(tmp_path / "tls")) as asking:
                assert (await asking.get("/status", tls=trusting(old)))[0] == 200
                mount(tmp_path / "tls", new)
                assert (await asking.get("/status", tls=trusting(new)))[0] == 200
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await asking.get("/status", tls=trusting(old))
        assert "https://127.0.0.1" in caplog.text
        assert caplog.text.count("the files of http.tls have changed") == 1

    async def test_a_certificate_without_its_key_does_not_replace_one_that_works(
        self, tmp_path: Path, old: Certificates, new: Certificates, caplog: pytest.LogCaptureFixture
    ) -> None:
        mount(tmp_path / "tls", old)
        async with client(tls=tls_of(tmp_path / "tls")) as asking:
            (tmp_path / "tls/..data/tls.crt").write_bytes(new.server.read_bytes())
            for _ in range(2):
                assert (await asking.get("/status", tls=trusting(old)))[0] == 200
            (tmp_path / "tls/..data/tls.key").write_bytes(new.server.read_bytes())
            assert (await asking.get("/status", tls=trusting(new)))[0] == 200
        said = [
            record.message
            for record in caplog.records
            if (record.name, record.levelno) == ("cdfd.http", logging.WARNING)
        ]
        assert len(said) == 1
        assert "http.tls.key cannot be used: key values mismatch" in said[0]
        assert "The earlier certificate stays in use" in said[0]

    async def test_clients_without_a_certificate_reach_probes_only(
        self, tmp_path: Path, old: Certificates, new: Certificates
    ) -> None:
        mount(tmp_path / "tls", old)
        async with client(tls=tls_of(tmp_path / "tls") | {"client_ca": str(tmp_path / "tls/ca.crt")}) as asking:
            assert (await asking.get("/healthz", tls=trusting(old)))[0] == 200
            assert (await asking.get("/status", tls=trusting(old)))[0] == 403
            assert (await asking.get("/status", tls=trusting(old, client=old)))[0] == 200
            with pytest.raises(aiohttp.ClientError):
                await asking.get("/healthz", tls=trusting(old, client=new))
            mount(tmp_path / "tls", new)
            assert (await asking.get("/status", tls=trusting(new, client=new)))[0] == 200
            with pytest.raises(aiohttp.ClientError):
                await asking.get("/status", tls=trusting(new, client=old))

    async def test_a_certificate_does_not_replace_a_password(self, tmp_path: Path, old: Certificates) -> None:
        mount(tmp_path / "tls", old)
        tls = tls_of(tmp_path / "tls") | {"client_ca": str(old.ca)}
        async with client(tls=tls, authentication={"token": TOKEN}) as asking:
            certified = trusting(old, client=old)
            assert (await asking.get("/status", tls=certified))[0] == 401
            assert (await asking.get("/status", bearer(TOKEN), tls=certified))[0] == 200
            assert (await asking.get("/status", bearer(TOKEN), tls=trusting(old)))[0] == 403

    async def test_clients_that_do_not_shake_hands_are_disconnected(
        self, tmp_path: Path, old: Certificates, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.3)
        mount(tmp_path / "tls", old)
        async with client(tls=tls_of(tmp_path / "tls")) as asking:
            host, _, port = asking.url.removeprefix("https://").partition(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(5)]
            for reader, writer in silent:
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()
            assert (await asking.get("/healthz", tls=trusting(old)))[0] == 200

    async def test_plain_http_is_not_answered(self, tmp_path: Path, old: Certificates) -> None:
        mount(tmp_path / "tls", old)
        async with client(tls=tls_of(tmp_path / "tls")) as asking:
            asking.url = asking.url.replace("https", "http")
            with pytest.raises(aiohttp.ClientError):
                await asking.get("/healthz")

    @pytest.mark.parametrize(
        ("key", "content", "said"),
        [
            ("certificate", None, "http.tls.certificate cannot be read: No such file"),
            ("key", None, "http.tls.key cannot be read: No such file"),
            ("client_ca", None, "http.tls.client_ca cannot be read: No such file"),
            ("client_ca", "no PEM", "http.tls.client_ca cannot be used"),
            ("certificate", "no PEM", "http.tls.key cannot be used"),
        ],
    )
    def test_files_that_cannot_be_used(
        self, tmp_path: Path, old: Certificates, key: str, content: str | None, said: str
    ) -> None:
        wrong = tmp_path / "wrong.pem"
        if content is not None:
            wrong.write_text(content)
        good = {"certificate": str(old.server), "key": str(old.server), "client_ca": str(old.ca)}
        settings = Http.model_validate({"tls": good | {key: str(wrong)}}).tls
        assert settings is not None
        with pytest.raises(ConfigError, match=said) as caught:
            ServerTls(settings)
        assert caught.value.hint
