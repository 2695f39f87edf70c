"""Authentication and its errors. Passwords are never shown."""

import contextlib
import gc
import logging
import socketserver
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from cdfd.errors import ConfigError, SinkError
from cdfd.sinks.kafka.client.connection import arguments, network
from cdfd.sinks.kafka.progress.topic_admin import TopicAdmin
from cdfd.sinks.kafka.progress.topics import Topic
from cdfd.sinks.kafka.settings import KafkaSettings
from tests.support.kafka.broker import Broker
from tests.support.kafka.certificates import Certificates
from tests.support.kafka.daemon_process import until
from tests.support.kafka.node import free_ports

# kafka-python leaves sockets whose connection is refused to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

PASSWORD = "s3cret-and-long"
LATE = "s3cret-and-wrong"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """They are collected before other tests begin."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(needs_broker: None, certificates: Certificates) -> Iterator[Broker]:
    """A broker whose users may do nothing that is not allowed in so many words."""
    with (
        Broker(
            protocols=("SSL", "SASL_PLAINTEXT", "SASL_SSL"),
            users={"alice": PASSWORD},
            certificates=certificates,
            authorizer=True,
        ) as broker,
        KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            alice = UserScramCredentialUpsertion("alice", mechanism, PASSWORD, iterations=4096)
            assert admin.alter_user_scram_credentials([alice]) == {"alice": None}
        yield broker


@pytest.fixture(scope="module")
def master(secured: Broker) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=secured.bootstrap_servers) as admin:
        yield admin


def sink(address: str, **security: Any) -> KafkaSettings:
    return KafkaSettings.model_validate({"kind": "kafka", "bootstrap_servers": address, "security": security})


def scram(broker: Broker, certificates: Certificates, **changed: Any) -> KafkaSettings:
    security = {
        "protocol": "SASL_SSL",
        "mechanism": "SCRAM-SHA-512",
        "username": "alice",
        "password": PASSWORD,
        "ca_path": str(certificates.ca),
    }
    return sink(broker.address("SASL_SSL"), **(security | changed))


def connect(settings: KafkaSettings, timeout: float = 20.0) -> None:
    TopicAdmin(arguments(settings), timeout=timeout).close()


def refusal(settings: KafkaSettings, timeout: float = 20.0) -> SinkError:
    with pytest.raises(SinkError) as caught:
        connect(settings, timeout)
    assert PASSWORD not in str(caught.value)
    assert LATE not in str(caught.value)
    assert caught.value.hint
    return caught.value


class TestUsers:
    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_the_right_password(self, secured: Broker, certificates: Certificates, mechanism: str) -> None:
        connect(scram(secured, certificates, mechanism=mechanism))

    def test_in_the_clear(self, secured: Broker) -> None:
        security = {"mechanism": "SCRAM-SHA-256", "username": "alice", "password": PASSWORD}
        connect(sink(secured.address("SASL_PLAINTEXT"), protocol="SASL_PLAINTEXT", **security))

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_a_wrong_password_is_not_tried_for_ever(
        self, secured: Broker, certificates: Certificates, mechanism: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "kafka.net.manager"):
            error = refusal(scram(secured, certificates, mechanism=mechanism, password=LATE))
        assert "refused" in error.what
        assert not error.retriable
        # One, but for kafka-python, which overlooks some of the answers.
        attempts = [record for record in caplog.records if "Initializing connection" in record.message]
        assert 1 <= len(attempts) <= 3

    def test_nobody_we_know(self, secured: Broker, certificates: Certificates) -> None:
        assert "refused" in refusal(scram(secured, certificates, username="mallory")).what

    def test_no_password_is_shown(
        self, secured: Broker, certificates: Certificates, caplog: pytest.LogCaptureFixture
    ) -> None:
        told = arguments(scram(secured, certificates))
        assert PASSWORD not in f"{told} {told!r}"
        with caplog.at_level(logging.DEBUG, "kafka.admin"):
            connect(scram(secured, certificates))
        assert "Starting KafkaAdminClient" in caplog.text
        assert PASSWORD not in caplog.text


class TestCertificates:
    def test_a_broker_that_nobody_vouches_for(self, secured: Broker, certificates: Certificates) -> None:
        for wrong, hint in (
            (str(certificates.other_ca), f"sink.security.ca_path, {certificates.other_ca}, has the authority"),
            (None, "Set sink.security.ca_path"),
        ):
            error = refusal(scram(secured, certificates, ca_path=wrong))
            assert "certificate is not trusted" in error.what
            assert hint in str(error.hint)
            assert not error.retriable

    def test_a_broker_of_another_name(self, secured: Broker, certificates: Certificates) -> None:
        settings = scram(secured, certificates)
        port = secured.address("SASL_SSL").rpartition(":")[2]
        elsewhere = settings.model_copy(update={"bootstrap_servers": (f"localhost:{port}",)})
        error = refusal(elsewhere)
        assert "not valid for 'localhost'" in error.what
        assert "sink.bootstrap_servers" in str(error.hint)

    @pytest.mark.parametrize("locked", [False, True])
    def test_a_client_with_one(self, secured: Broker, certificates: Certificates, locked: bool) -> None:
        security: dict[str, Any] = {"protocol": "SSL", "ca_path": str(certificates.ca)}
        security |= {"certificate_path": str(certificates.client), "key_path": str(certificates.client_key)}
        if locked:
            security |= {"key_path": str(certificates.client_locked_key), "key_password": certificates.key_password}
        connect(sink(secured.address("SSL"), **security))

    def test_a_client_without_one(self, secured: Broker, certificates: Certificates) -> None:
        error = refusal(sink(secured.address("SSL"), protocol="SSL", ca_path=str(certificates.ca)), timeout=3)
        assert "the broker wants a client certificate" in error.what
        assert "Set sink.security.certificate_path" in str(error.hint)

    def test_a_client_whose_certificate_has_expired(self, secured: Broker, certificates: Certificates) -> None:
        old = str(certificates.expired_client)
        security = {"protocol": "SSL", "ca_path": str(certificates.ca), "certificate_path": old, "key_path": old}
        error = refusal(sink(secured.address("SSL"), **security), timeout=3)
        assert "refused the client's certificate, which has expired" in error.what
        assert error.hint == f"Renew sink.security.certificate_path, {old}"
        assert not error.retriable

    def test_a_client_of_an_authority_that_the_broker_does_not_know(
        self, secured: Broker, certificates: Certificates, tmp_path: Path
    ) -> None:
        other = Certificates.issue(tmp_path)
        security = {"certificate_path": str(other.client), "key_path": str(other.client_key)}
        error = refusal(
            sink(secured.address("SSL"), protocol="SSL", ca_path=str(certificates.ca), **security), timeout=3
        )
        assert "the broker refused the client's certificate" in error.what
        assert f"trust the authority that issued sink.security.certificate_path, {other.client}" in str(error.hint)

    def test_a_broker_whose_certificate_has_expired(self, certificates: Certificates) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.expired_server)

        class Broker(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    context.wrap_socket(self.request, server_side=True).close()

        with socketserver.TCPServer(("127.0.0.1", 0), Broker) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = f"127.0.0.1:{server.server_address[1]}"
            error = refusal(sink(address, protocol="SSL", ca_path=str(certificates.ca)), timeout=3)
            server.shutdown()
        assert "the broker's certificate is not trusted: it has expired" in error.what
        assert "Renew it" in str(error.hint)
        assert not error.retriable


class TestFiles:
    """Errors in files are found before any connection."""

    def error(self, **security: Any) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            arguments(sink("127.0.0.1:1", protocol="SSL", **security))
        return caught.value

    def test_missing(self, certificates: Certificates, tmp_path: Path) -> None:
        gone = str(tmp_path / "gone.pem")
        pair = {"certificate_path": str(certificates.client), "key_path": str(certificates.client_key)}
        for name, security in {
            "ca_path": {"ca_path": gone},
            "certificate_path": pair | {"certificate_path": gone},
            "key_path": pair | {"key_path": gone},
        }.items():
            error = self.error(**security)
            assert error.what == f"sink.security.{name} cannot be read: No such file or directory"
            assert error.path == gone

    def test_no_certificate(self, tmp_path: Path) -> None:
        (tmp_path / "ca.pem").write_text("nothing of the kind")
        assert "sink.security.ca_path cannot be used" in str(self.error(ca_path=str(tmp_path / "ca.pem")))

    def test_a_key_of_another_certificate(self, certificates: Certificates) -> None:
        security = {"certificate_path": str(certificates.ca), "key_path": str(certificates.client_key)}
        assert "key values mismatch" in str(self.error(**security))

    @pytest.mark.parametrize("password", [None, LATE])
    def test_a_locked_key(self, certificates: Certificates, password: str | None) -> None:
        security: dict[str, Any] = {
            "certificate_path": str(certificates.client),
            "key_path": str(certificates.client_locked_key),
            "key_password": password,
        }
        error = self.error(**security)
        assert "sink.security.key_path cannot be used" in str(error)
        assert "key_password" in str(error)
        assert LATE not in str(error)


class TestWrongPlaces:
    def test_nobody_there(self) -> None:
        error = refusal(sink(f"127.0.0.1:{free_ports(1)[0]}"), timeout=1)
        assert "connection refused" in error.what
        assert error.retriable

    def test_no_such_host(self) -> None:
        error = refusal(sink("no-such-host.invalid:9092"), timeout=1)
        assert "the host does not exist" in error.what
        assert error.retriable

    def test_a_listener_without_tls(self, secured: Broker, certificates: Certificates) -> None:
        settings = scram(secured, certificates).model_copy(
            update={"bootstrap_servers": (secured.address("SASL_PLAINTEXT"),)}
        )
        assert "sink.security.protocol" in str(refusal(settings, timeout=2).hint)

    def test_a_listener_with_tls(self, secured: Broker) -> None:
        assert "sink.security.protocol" in str(refusal(sink(secured.address("SSL")), timeout=2).hint)

    def test_a_listener_for_users(self, secured: Broker) -> None:
        assert "sink.security.protocol" in str(refusal(sink(secured.address("SASL_PLAINTEXT")), timeout=2).hint)

    def test_a_listener_without_users(self, secured: Broker) -> None:
        security = {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "username": "alice", "password": PASSWORD}
        error = refusal(sink(secured.bootstrap_servers, **security))
        assert "does not use a login" in error.what
        assert "sink.security.protocol" in str(error.hint)

    def test_one_of_several_servers_is_enough(self, secured: Broker) -> None:
        connect(sink(f"127.0.0.1:{free_ports(1)[0]},{secured.bootstrap_servers}"))

    def test_consumers_and_producers_are_told_the_same(self, secured: Broker, certificates: Certificates) -> None:
        settings = scram(secured, certificates, password=LATE)
        with pytest.raises(SinkError, match="refused"), network(arguments(settings)) as options:
            KafkaConsumer(**options)


def denial(admin: TopicAdmin, transactional_id: str) -> SinkError | None:
    try:
        admin.check_transactions(transactional_id)
    except SinkError as error:
        return error
    return None


class TestRights:
    @pytest.fixture
    def alice(self, secured: Broker, certificates: Certificates) -> Iterator[TopicAdmin]:
        with contextlib.closing(TopicAdmin(arguments(scram(secured, certificates)))) as admin:
            yield admin

    def allow(self, master: KafkaAdminClient, kind: ResourceType, name: str, *operations: ACLOperation) -> None:
        pattern = ResourcePattern(kind, name, ACLResourcePatternType.LITERAL)
        acls = [ACL("User:alice", "*", operation, ACLPermissionType.ALLOW, pattern) for operation in operations]
        created = master.create_acls(acls)
        assert not created["failed"]
        # The controller answers before the broker has applied them.
        known = ACLFilter("User:alice", "*", ACLOperation.ANY, ACLPermissionType.ALLOW, pattern)
        until(lambda: {acl.operation for acl in master.describe_acls(known)[0]} >= set(operations))

    def test_none_at_all(self, alice: TopicAdmin, name: str) -> None:
        for attempt in (alice.ensure, alice.check):
            with pytest.raises(SinkError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
                attempt([Topic(name, 1, 1)])
            assert "Describe and Write" in str(caught.value.hint)
            assert not caught.value.retriable

    def test_to_look_and_not_to_create(self, alice: TopicAdmin, master: KafkaAdminClient, name: str) -> None:
        self.allow(master, ResourceType.TOPIC, name, ACLOperation.DESCRIBE)
        for attempt in (alice.ensure, alice.check):
            with pytest.raises(SinkError, match=f"cannot create topic {name}") as caught:
                attempt([Topic(name, 1, 1)])
            assert "Create" in str(caught.value.hint)

    def test_to_look_and_not_to_write(self, alice: TopicAdmin, master: KafkaAdminClient, name: str) -> None:
        master.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        self.allow(master, ResourceType.TOPIC, name, ACLOperation.READ)
        with pytest.raises(SinkError, match=f"no right to Write topic {name}"):
            alice.check([Topic(name, 1, 1)])

    def test_to_write_and_not_to_read_positions(self, alice: TopicAdmin, master: KafkaAdminClient, name: str) -> None:
        master.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        self.allow(master, ResourceType.TOPIC, name, ACLOperation.WRITE)
        with pytest.raises(SinkError, match=f"no right to Read topic {name}"):
            alice.check([Topic(name, 1, 1, retained=True)])

    def test_enough_to_write(self, alice: TopicAdmin, master: KafkaAdminClient, name: str) -> None:
        operations = (ACLOperation.CREATE, ACLOperation.WRITE)
        self.allow(master, ResourceType.TOPIC, name, *operations)
        assert alice.check([Topic(name, 2, 1)]) == {}
        actual = alice.ensure([Topic(name, 2, 1)])[name]
        assert actual.partitions == 2
        assert actual.operations >= {"WRITE", "CREATE"}
        # That takes DescribeConfigs.
        assert actual.config == {}
        assert actual.compacted is None
        assert actual.retained is None
        assert actual.max_message_bytes is None

    def test_transactions(self, alice: TopicAdmin, master: KafkaAdminClient, secured: Broker, name: str) -> None:
        with pytest.raises(SinkError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as caught:
            alice.check_transactions(name)
        assert "transactional id" in str(caught.value.hint)
        self.allow(master, ResourceType.TRANSACTIONAL_ID, name, ACLOperation.WRITE)
        deadline = time.monotonic() + 20
        while (error := denial(alice, name)) is not None and time.monotonic() < deadline:
            # The first request makes the broker create a topic.
            assert error.retriable
            time.sleep(0.05)
        assert error is None
