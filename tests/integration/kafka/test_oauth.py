"""Logins with tokens (OAUTHBEARER), at brokers with Kafka's own validators: the unsecured one, and the one with keys (JWKS)."""

import gc
import itertools
import logging
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer

from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.connection import arguments, network
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings, send_record
from cdfd.sinks.kafka.progress.topic_admin import TopicAdmin
from cdfd.sinks.kafka.settings import KafkaSettings
from tests.support.axes import under_test
from tests.support.commands import CDFD
from tests.support.kafka.broker import Broker
from tests.support.kafka.certificates import Certificates
from tests.support.kafka.installation import QUICK
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.reading import read_topic
from tests.support.kafka.token_server import AUDIENCE, CLIENT, ISSUER, SECRET, TokenServer
from tests.support.lake import rows

# kafka-python leaves sockets whose connection is refused to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

PRODUCERS = {"kafka-python": KafkaPythonProducer, "librdkafka": LibrdkafkaProducer}
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
_JWKS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenServer]:
    """The identity provider whose keys the broker knows."""
    with TokenServer(signed=True) as server:
        yield server


@pytest.fixture(scope="module")
def secured(needs_broker: None, certificates: Certificates, issuer: TokenServer) -> Iterator[Broker]:
    """In the clear it takes unsecured tokens, with TLS only signed ones. It ends sessions whose token has expired."""
    properties = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": _LOGIN,
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": _LOGIN,
        "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": _JWKS,
        "listener.name.sasl_plaintext.oauthbearer.connections.max.reauth.ms": "3600000",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.jwks,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    with Broker(
        protocols=("SASL_PLAINTEXT", "SASL_SSL"),
        certificates=certificates,
        properties=properties,
        jvm=(*QUICK, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.jwks}"),
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def master(secured: Broker) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=secured.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def unsecured() -> Iterator[TokenServer]:
    """An identity provider of unsecured tokens."""
    with TokenServer() as server:
        yield server


def security(server: TokenServer, **oauth: Any) -> dict[str, Any]:
    options = {"token_url": server.url, "client_id": CLIENT, "client_secret": SECRET}
    return {"protocol": "SASL_PLAINTEXT", "mechanism": "OAUTHBEARER", "oauth": options | oauth}


def sink(address: str, **security: Any) -> KafkaSettings:
    return KafkaSettings.model_validate({"kind": "kafka", "bootstrap_servers": address, "security": security})


def plain(broker: Broker, server: TokenServer, **oauth: Any) -> KafkaSettings:
    return sink(broker.address("SASL_PLAINTEXT"), **security(server, **oauth))


def signed(broker: Broker, server: TokenServer, certificates: Certificates, **oauth: Any) -> KafkaSettings:
    tls = {"protocol": "SASL_SSL", "ca_path": str(certificates.ca)}
    return sink(broker.address("SASL_SSL"), **security(server, **oauth) | tls)


def connect(settings: KafkaSettings, timeout: float = 20.0) -> None:
    TopicAdmin(arguments(settings), timeout=timeout).close()


def producer(kind: str, settings: KafkaSettings, name: str, timeout: float = 20.0) -> Producer:
    made: Producer = PRODUCERS[kind](ProducerSettings(arguments(settings), f"cdfd.{name}", timeout=timeout))
    return made


def refusal(settings: KafkaSettings, kind: str = "admin") -> SinkError:
    with pytest.raises(SinkError) as caught:
        connect(settings) if kind == "admin" else producer(kind, settings, "nobody").close()
    assert SECRET not in str(caught.value)
    assert caught.value.hint
    return caught.value


CLIENTS = ("admin", *PRODUCERS)


class TestLogins:
    def test_the_administration_and_readers(self, secured: Broker, unsecured: TokenServer) -> None:
        settings = plain(secured, unsecured)
        connect(settings)
        with network(arguments(settings)) as options:
            consumer = KafkaConsumer(**options, group_id=None)
        with closing(consumer):
            assert isinstance(consumer.topics(), set)
        assert len(unsecured.issued) == 1  # all connections have one token

    @pytest.mark.parametrize("kind", under_test("producer", PRODUCERS))
    def test_producers(
        self,
        secured: Broker,
        issuer: TokenServer,
        certificates: Certificates,
        master: KafkaAdminClient,
        name: str,
        kind: str,
    ) -> None:
        master.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        with closing(producer(kind, signed(secured, issuer, certificates), name)) as made:
            made.init_transactions()
            made.begin()
            send_record(made, name, 0, b"k", b"v")
            made.commit()
        assert [record.value for record in read_topic(secured.bootstrap_servers, name, at_least=1)] == [b"v"]

    @pytest.mark.parametrize("kind", CLIENTS)
    def test_a_token_of_another_issuer(
        self, secured: Broker, certificates: Certificates, issuer: TokenServer, kind: str
    ) -> None:
        with TokenServer(signed=True) as other:
            error = refusal(signed(secured, other, certificates), kind)
        # kafka-python overlooks some of the answers.
        assert "have refused the token" in error.what or "invalid_token" in error.what
        assert "sink.security.oauth" in str(error.hint)
        assert not error.retriable
        assert other.issued[0] not in str(error)

    def test_a_token_for_another_audience(
        self, secured: Broker, certificates: Certificates, issuer: TokenServer
    ) -> None:
        issuer.audience = "elsewhere"
        try:
            error = refusal(signed(secured, issuer, certificates, scope="elsewhere"))
        finally:
            issuer.audience = AUDIENCE
        assert "audience" in str(error.hint)

    @pytest.mark.parametrize("kind", CLIENTS)
    @pytest.mark.parametrize(
        ("status", "retriable", "said"), [(401, False, "401 invalid_client"), (500, True, "500 invalid_client")]
    )
    def test_no_token(
        self, secured: Broker, unsecured: TokenServer, kind: str, status: int, retriable: bool, said: str
    ) -> None:
        unsecured.answer = lambda _: (status, b'{"error": "invalid_client"}')
        begun = time.monotonic()
        error = refusal(plain(secured, unsecured), kind)
        assert time.monotonic() - begun < 5  # not the time-out of the client
        assert f"cannot get a token from {unsecured.url}: {said}" in error.what
        assert error.retriable == retriable

    def test_a_refused_token_that_was_not_new_is_replaced(self, secured: Broker, unsecured: TokenServer) -> None:
        settings = plain(secured, unsecured)
        connect(settings)
        provider = arguments(settings)["sasl_oauth_token_provider"]
        # The provider has revoked it, which the broker knows.
        provider.tokens._token = provider.tokens._token.__class__("revoked", time.time() + 100, time.time())
        connect(settings)
        assert len(unsecured.issued) == 2

    @pytest.mark.parametrize("kind", under_test("producer", PRODUCERS))
    def test_sessions_outlive_tokens(self, secured: Broker, master: KafkaAdminClient, name: str, kind: str) -> None:
        master.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        with TokenServer(lifetime=4) as server, closing(producer(kind, plain(secured, server), name)) as made:
            made.init_transactions()
            begun, sent = time.monotonic(), 0
            while time.monotonic() < begun + 10:
                made.begin()
                send_record(made, name, 0, b"k", str(sent).encode())
                made.commit()
                sent += 1
                time.sleep(0.2)
        assert len(server.issued) >= 3
        values = [record.value for record in read_topic(secured.bootstrap_servers, name, at_least=sent)]
        assert values == [str(number).encode() for number in range(sent)]

    def test_a_port_without_logins(self, secured: Broker, unsecured: TokenServer) -> None:
        error = refusal(sink(secured.bootstrap_servers, **security(unsecured)))
        assert "sink.security.protocol" in str(error.hint)


class TestDaemon:
    @pytest.fixture
    def shop(self, secured: Broker, tmp_path: Path, name: str) -> Pipeline:
        return Pipeline(tmp_path, name, secured.address("SASL_PLAINTEXT"), secured.bootstrap_servers)

    def configured(self, shop: Pipeline, server: TokenServer, **sink: Any) -> None:
        secret = shop.folder / "client-secret"
        secret.write_text(server.secret)
        oauth = {"token_url": server.url, "client_id": CLIENT, "client_secret_file": str(secret)}
        access = {"protocol": "SASL_PLAINTEXT", "mechanism": "OAUTHBEARER", "oauth": oauth}
        shop.configure(sink={"security": access, "topics": {"prefix": f"{shop.name}.", "partitions": 3}} | sink)

    def command(self, shop: Pipeline, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CDFD, *arguments, "-c", str(shop.config)], capture_output=True, text=True, timeout=60, check=False
        )

    @pytest.mark.parametrize("kind", under_test("producer", PRODUCERS))
    def test_it_delivers_while_the_endpoint_is_away_and_the_secret_changes(self, shop: Pipeline, kind: str) -> None:
        """The endpoint fails for the last fifth of the first token's lifetime, and wants another secret afterwards."""
        table = shop.table()
        with TokenServer(lifetime=20) as server:
            self.configured(shop, server, producer=kind)
            with shop.daemon() as daemon:
                do(table.insert(rows(0, 1, 2)))
                shop.read(3)
                server.answer = lambda _: (503, b"")
                daemon.wait_for("The earlier token stays in use")
                do(table.insert(rows(3, 4, 5)))
                assert len(shop.read(6)) == 6
                server.secret = "s3cond-cl1ent-secret"
                (shop.folder / "client-secret").write_text(server.secret)
                server.lifetime = 5
                server.answer = None
                issued, numbers = len(server.issued), itertools.count(6)
                deadline = time.monotonic() + 30
                while len(server.issued) < issued + 2 and time.monotonic() < deadline:
                    do(table.insert(rows(next(numbers))))
                    time.sleep(0.3)
                assert len(server.issued) >= issued + 2
                daemon.stop()
                said = daemon.log()
            assert shop.finish() > 6
        assert not leaked(said, [SECRET, server.secret, *server.issued])

    def test_commands(self, shop: Pipeline, unsecured: TokenServer) -> None:
        table = shop.table()
        do(table.insert(rows(0, 1, 2)))
        self.configured(shop, unsecured)
        said = [self.command(shop, "check")]
        with shop.daemon() as daemon:
            shop.read(3)
            daemon.stop()
        said += [self.command(shop, "progress", "show"), self.command(shop, "backfill", "orders", "--from", "0")]
        assert [done.returncode for done in said] == [0, 0, 0], said
        assert "orders" in said[1].stdout

    def test_check_says_which_address_and_what_to_do(self, shop: Pipeline, unsecured: TokenServer) -> None:
        do(shop.table().insert(rows(0)))
        self.configured(shop, unsecured)
        unsecured.secret = "another"
        actual = self.command(shop, "check")
        assert actual.returncode == 1
        text = " ".join(actual.stdout.split())
        assert f"cannot get a token from {unsecured.url}: 401 invalid_client" in text
        assert "Check sink.security.oauth.client_id and client_secret" in text
        assert not leaked(actual.stdout + actual.stderr, [SECRET])


def leaked(text: str, secrets: Sequence[str]) -> list[str]:
    return [secret for secret in secrets if re.search(re.escape(secret), text)]


def test_no_log_has_a_token(
    secured: Broker,
    unsecured: TokenServer,
    certificates: Certificates,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the most detailed levels that `--log-level debug` writes."""
    with caplog.at_level(logging.DEBUG, "cdfd"), caplog.at_level(logging.WARNING, "kafka"):
        connect(plain(secured, unsecured))
        for kind in PRODUCERS:
            producer(kind, plain(secured, unsecured), name).close()
        unsecured.answer = lambda _: (500, SECRET.encode())
        with TokenServer() as other:
            refusal(signed(secured, other, certificates))
    assert not leaked(caplog.text, [SECRET, *unsecured.issued, *other.issued])
    told = f"{arguments(plain(secured, unsecured))!r}"
    assert not leaked(told, [SECRET, *unsecured.issued])
