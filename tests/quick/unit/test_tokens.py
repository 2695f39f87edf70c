"""Tokens for OAUTHBEARER: from an endpoint that works, fails and lies, and when each is asked again."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdfd.config.values import Secret
from cdfd.errors import SinkError
from cdfd.runtime.mounted import MountedText
from cdfd.sinks.kafka.client import token_endpoint
from cdfd.sinks.kafka.client.login import Credentials, login
from cdfd.sinks.kafka.client.token_endpoint import fetch
from cdfd.sinks.kafka.client.tokens import Token, Tokens, expiry, file_token
from cdfd.sinks.kafka.security import OAuth, Security
from tests.support.kafka.certificates import Certificates
from tests.support.kafka.token_server import CLIENT, SECRET, TokenServer


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer() as running:
        yield running


def oauth(server: TokenServer, **changed: Any) -> OAuth:
    options = {"token_url": server.url, "client_id": CLIENT, "client_secret": SECRET}
    return OAuth.model_validate(options | changed)


def failure(settings: OAuth, timeout: float = 5.0) -> SinkError:
    with pytest.raises(SinkError) as caught:
        fetch(settings, timeout)
    error: BaseException | None = caught.value
    while error is not None:  # nor in what caused it, which tracebacks show
        assert SECRET not in f"{error} {error!r}"
        error = error.__cause__
    assert caught.value.hint
    return caught.value


class TestEndpoint:
    @pytest.mark.parametrize("authentication", ["basic", "post"])
    def test_token_is_fetched_with_the_credentials_of_the_client(
        self, server: TokenServer, authentication: str
    ) -> None:
        before = time.time()
        token = fetch(
            oauth(server, client_authentication=authentication, scope="a b", parameters={"audience": "http://k/"})
        )
        assert token.value == server.issued[-1]
        assert before + 299 < token.expires < time.time() + 301
        form = server.forms[-1]
        assert form["grant_type"] == ["client_credentials"]
        assert (form["scope"], form["audience"]) == (["a b"], ["http://k/"])
        assert ("client_secret" in form) == (authentication == "post")

    def test_a_lifetime_in_the_token_only(self, server: TokenServer) -> None:
        server.states_lifetime = False
        assert abs(fetch(oauth(server)).expires - (time.time() + 300)) < 5

    @pytest.mark.parametrize(
        ("status", "body", "said", "hint"),
        [
            (
                400,
                b'{"error": "invalid_scope", "error_description": "no\\nsuch"}',
                "400 invalid_scope: no such",
                "scope",
            ),
            (401, b'{"error": "invalid_client"}', "401 invalid_client", "client_secret"),
            (401, b"", ": 401", "client_secret"),
            (403, b'{"error": "unauthorized_client"}', "403 unauthorized_client", "Allow the grant"),
            (404, b"<html>", ": 404", "token_url"),
            (302, b"", "a redirect", "token_url"),
            (200, b"<html>login</html>", "no access_token", "token_url"),
            (200, b"[]", "no access_token", "token_url"),
            (200, b'{"access_token": 7}', "no access_token", "token_url"),
            (200, b'{"access_token": "a\\u0001auth=b"}', "no access_token", "token_url"),
            (200, b'{"access_token": "a", "token_type": "MAC"}', "not of the type Bearer", "token_url"),
            (200, b"[" * 100_000, "no access_token", "token_url"),
            (200, b" " * (1 << 20), "larger than", "token_url"),
        ],
    )
    def test_refusals_are_final(self, server: TokenServer, status: int, body: bytes, said: str, hint: str) -> None:
        server.answer = lambda _: (status, body)
        error = failure(oauth(server))
        assert server.url in error.what
        assert said in error.what
        assert hint in str(error.hint)
        assert not error.retriable

    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
    def test_what_may_pass_is_retriable(self, server: TokenServer, status: int) -> None:
        server.answer = lambda _: (status, b'{"error": "temporarily_unavailable"}')
        error = failure(oauth(server))
        assert f"{status} temporarily_unavailable" in error.what
        assert error.retriable

    def test_a_server_that_repeats_the_secret(self, server: TokenServer) -> None:
        said = {"error": "invalid_client", "error_description": f"wrong: {SECRET}"}
        server.answer = lambda _: (401, json.dumps(said).encode())
        assert "wrong: ***" in failure(oauth(server)).what

    def test_a_server_that_hangs(self, server: TokenServer) -> None:
        server.hang()
        error = failure(oauth(server), timeout=0.3)
        assert error.retriable
        assert "timed out" in error.what

    def test_endpoint_that_refuses_connections_is_retried(self) -> None:
        with TokenServer() as server:
            settings = oauth(server)
        error = failure(settings)
        assert "refused" in error.what
        assert error.retriable

    def test_no_such_host(self) -> None:
        error = failure(
            OAuth.model_validate(
                {"token_url": "http://no-such-host.invalid/t", "client_id": CLIENT, "client_secret": SECRET}
            )
        )
        assert error.retriable
        assert "no-such-host.invalid" in error.what

    def test_endpoint_with_an_untrusted_certificate_names_the_setting(self, tmp_path: Path) -> None:
        certificates = Certificates.issue(tmp_path)
        with TokenServer(certificate=certificates.server) as server:
            assert fetch(oauth(server, ca_path=str(certificates.ca))).value == server.issued[0]
            for wrong, hint in (
                (None, "Set sink.security.oauth.ca_path"),
                (str(certificates.other_ca), f"sink.security.oauth.ca_path, {certificates.other_ca}, has"),
            ):
                error = failure(oauth(server, ca_path=wrong))
                assert "its certificate is not trusted" in error.what
                assert hint in str(error.hint)
                assert not error.retriable
            elsewhere = server.url.replace("127.0.0.1", "localhost")
            error = failure(oauth(server, token_url=elsewhere, ca_path=str(certificates.ca)))
            assert "not valid for 'localhost'" in error.what
            assert error.hint == "Use a name of the certificate in sink.security.oauth.token_url"
            (tmp_path / "none.pem").write_text("no PEM")
            for path in ("none.pem", "gone.pem"):
                assert "oauth.ca_path cannot be used" in failure(oauth(server, ca_path=str(tmp_path / path))).what
            with TokenServer(certificate=certificates.expired_server) as old:
                error = failure(oauth(old, ca_path=str(certificates.ca)))
            assert f"{old.url}: its certificate is not trusted: it has expired" in error.what
            server_without = oauth(server, token_url=server.url.replace("https", "http"), ca_path=None)
            assert failure(server_without).retriable

    def test_a_secret_that_is_replaced(self, server: TokenServer, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text(SECRET)
        settings = oauth(server, client_secret=Secret(MountedText(str(tmp_path / "secret"))))
        fetch(settings)
        server.secret = "another"
        assert not failure(settings).retriable
        (tmp_path / "secret").write_text("another")
        fetch(settings)

    def test_debug_logs_have_no_secret(self, server: TokenServer, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            token = fetch(oauth(server, client_authentication="post"))
            assert token.value not in repr(token)
        assert SECRET not in caplog.text
        assert token.value not in caplog.text


@pytest.mark.parametrize(
    ("url", "clear"),
    [
        ("https://login.example/t", False),
        ("http://login.example/t", True),
        ("http://127.0.0.1:8080/t", False),
        ("http://[::1]/t", False),
        ("http://localhost/t", False),
        ("http://127.0.0.1.example/t", True),
    ],
)
def test_addresses_without_tls(url: str, clear: bool) -> None:
    assert token_endpoint.sent_in_the_clear(url) == clear


class Source:
    """Tokens one after the other, or errors."""

    def __init__(self, lifetime: float = 100.0) -> None:
        self.lifetime = lifetime
        self.asked = 0
        self.fails: SinkError | None = None
        self.before: Callable[[], object] = lambda: None

    def __call__(self) -> Token:
        self.asked += 1
        self.before()
        if self.fails is not None:
            raise self.fails
        return Token(f"token-{self.asked}", time.time() + self.lifetime, time.time())


class TestRenewal:
    @pytest.fixture
    def source(self) -> Source:
        return Source()

    @pytest.fixture
    def later(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        """Let time pass."""
        passed = 0.0
        clocks = time.time, time.monotonic

        def add(seconds: float) -> None:
            nonlocal passed
            passed += seconds

        monkeypatch.setattr(time, "time", lambda: clocks[0]() + passed)
        monkeypatch.setattr(time, "monotonic", lambda: clocks[1]() + passed)
        return add

    def test_a_token_is_used_for_most_of_its_lifetime(self, source: Source, later: Callable[[float], None]) -> None:
        held = Tokens(source)
        assert [held.current().value for _ in range(3)] == ["token-1"] * 3
        later(79)
        assert held.current().value == "token-1"
        later(2)
        assert held.current().value == "token-2"

    def test_an_earlier_token_bridges_an_outage(
        self, source: Source, later: Callable[[float], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        held = Tokens(source)
        held.current()
        source.fails = SinkError("no answer", retriable=True)
        later(85)
        assert [held.current().value for _ in range(5)] == ["token-1"] * 5
        assert source.asked == 2  # not at each login
        assert caplog.text.count("The earlier token stays in use") == 1
        later(16)
        with pytest.raises(SinkError, match="no answer"):
            held.current()
        source.fails = None
        later(2)
        assert held.current().value == "token-4"

    def test_one_asks_for_all(self, source: Source) -> None:
        held, actual = Tokens(source), list[str]()
        source.before = lambda: time.sleep(0.2)
        threads = [threading.Thread(target=lambda: actual.append(held.current().value)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert actual == ["token-1"] * 20
        assert source.asked == 1

    def test_one_fails_for_all(self, source: Source) -> None:
        held, failed = Tokens(source), list[str]()
        source.before = lambda: time.sleep(0.2)
        source.fails = SinkError("no answer", retriable=True)

        def ask() -> None:
            with pytest.raises(SinkError) as caught:
                held.current()
            failed.append(caught.value.what)

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert failed == ["no answer"] * 20
        assert source.asked == 1

    def test_a_refused_token_is_forgotten(self, source: Source, later: Callable[[float], None]) -> None:
        held = Tokens(source)
        begun = time.monotonic()
        held.current()
        assert not held.reject(begun)  # it was made for this login: another one would be refused, too
        assert held.current().value == "token-2"
        later(10)
        assert held.reject(time.monotonic())
        assert held.current().value == "token-3"

    def test_a_token_of_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        with TokenServer(lifetime=100) as server:
            file.write_text(server.token())
            security = Security.model_validate(
                {
                    "protocol": "SASL_SSL",
                    "mechanism": "OAUTHBEARER",
                    "oauth": {"token": Secret(MountedText(str(file)))},
                }
            )
            provider = login(security, ["kafka:9092"])["sasl_oauth_token_provider"]
            assert provider.token() == server.issued[0]
            file.write_text(server.token())
            assert provider.token() == server.issued[1]
            assert abs(provider.tokens.current().expires - time.time() - 100) < 5
            file.write_text(server.token(exp=int(time.time()) - 60))
            with pytest.raises(SinkError, match=r"token_file expired 6\d s ago") as caught:
                file_token(Secret(MountedText(str(file))))
            assert caught.value.retriable

    @pytest.mark.parametrize("text", ["s3cret\n\n", "s3cret\nother", "s3 cret", "s3cr\x00et"])
    def test_file_with_more_than_a_token_is_refused_without_its_text(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "token").write_text(text)
        with pytest.raises(SinkError, match="that no token has") as caught:
            file_token(Secret(MountedText(str(tmp_path / "token"))))
        assert "s3" not in str(caught.value)
        assert caught.value.retriable


@pytest.mark.parametrize(
    "token", ["", "opaque", "a.b", "a.b.c", "a.W10.c", "a.eyJleHAiOiAieCJ9.c", "a." + "W1tbW1tb" * 50_000 + ".c"]
)
def test_tokens_that_state_no_lifetime(token: str) -> None:
    assert expiry(token) is None


def test_a_changed_password_is_used_for_new_connections(tmp_path: Path) -> None:
    for name in ("user", "password"):
        (tmp_path / name).write_text(f"{name}-1")
    security = Security.model_validate(
        {
            "protocol": "SASL_SSL",
            "mechanism": "PLAIN",
            "username": MountedText(str(tmp_path / "user")),
            "password": MountedText(str(tmp_path / "password")),
        }
    )
    options = login(security, ["kafka:9092"])
    credentials = Credentials(options, time.monotonic())
    assert not credentials.renewed()
    for name in ("user", "password"):
        (tmp_path / name).write_text(f"{name}-2")
    assert credentials.renewed()  # a refused login is tried again with it
    assert credentials.user() == ("user-2", "password-2")
    assert not credentials.refresh()
    assert "user-2" in repr(options)
    assert "password-" not in repr(options)
