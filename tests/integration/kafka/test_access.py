"""Daemons that the broker rejects, or that lack permissions: their errors, and their recovery once they have access."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from cdfd.demo.writer import TableWriter
from tests.support.kafka.broker import Broker
from tests.support.kafka.certificates import Certificates
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.lake import rows

PASSWORD = "s3cret-and-long"
WRONG = "s3cret-and-wrong"
LITERAL, PREFIXED = ACLResourcePatternType.LITERAL, ACLResourcePatternType.PREFIXED


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(needs_broker: None, certificates: Certificates) -> Iterator[Broker]:
    """A broker whose users may do nothing that is not allowed in so many words."""
    with Broker(
        protocols=("SSL", "SASL_SSL"), users={"alice": PASSWORD}, certificates=certificates, authorizer=True
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def master(secured: Broker) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=secured.bootstrap_servers) as admin:
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            alice = UserScramCredentialUpsertion("alice", mechanism, PASSWORD, iterations=4096)
            assert admin.alter_user_scram_credentials([alice]) == {"alice": None}
        yield admin


class Secured(Pipeline):
    """One whose daemon is a user."""

    def log_in(self, **security: Any) -> None:
        self.configure(sink={"security": security})


@pytest.fixture
def pipeline(secured: Broker, master: KafkaAdminClient, tmp_path: Path, name: str) -> Secured:
    return Secured(tmp_path, name, secured.address("SASL_SSL"), secured.bootstrap_servers)


def rights(pipeline: Pipeline, user: str) -> list[ACL]:
    """The ACLs that a daemon needs."""

    def on(kind: ResourceType, name: str, pattern: ACLResourcePatternType, operation: ACLOperation) -> ACL:
        return ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(kind, name, pattern))

    topic, transaction = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    return [
        on(topic, pipeline.name, PREFIXED, ACLOperation.CREATE),
        on(topic, pipeline.name, PREFIXED, ACLOperation.WRITE),
        on(topic, pipeline.name, PREFIXED, ACLOperation.DESCRIBE_CONFIGS),
        on(topic, f"_cdfd_progress.{pipeline.name}", LITERAL, ACLOperation.CREATE),
        on(topic, f"_cdfd_progress.{pipeline.name}", LITERAL, ACLOperation.WRITE),
        on(topic, f"_cdfd_progress.{pipeline.name}", LITERAL, ACLOperation.READ),
        on(transaction, f"cdfd.{pipeline.name}.", PREFIXED, ACLOperation.WRITE),
    ]


def allow(master: KafkaAdminClient, acls: list[ACL]) -> None:
    assert not master.create_acls(acls)["failed"]


def scram(certificates: Certificates, **changed: Any) -> dict[str, Any]:
    security = {
        "protocol": "SASL_SSL",
        "mechanism": "SCRAM-SHA-512",
        "username": "alice",
        "password": PASSWORD,
        "ca_path": str(certificates.ca),
    }
    return security | changed


class TestLetIn:
    @pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
    def test_a_user_with_the_least_rights(
        self,
        pipeline: Secured,
        table: TableWriter,
        master: KafkaAdminClient,
        certificates: Certificates,
        mechanism: str,
    ) -> None:
        allow(master, rights(pipeline, "alice"))
        pipeline.log_in(**scram(certificates, mechanism=mechanism))
        with pipeline.daemon() as daemon:
            assert pipeline.check() == 3
            daemon.stop()
        assert PASSWORD not in daemon.log()
        assert pipeline.finish() == 3

    def test_a_client_with_a_certificate(
        self,
        pipeline: Secured,
        secured: Broker,
        table: TableWriter,
        master: KafkaAdminClient,
        certificates: Certificates,
    ) -> None:
        allow(master, rights(pipeline, "CN=client"))
        pipeline.servers = secured.address("SSL")
        pipeline.log_in(
            protocol="SSL",
            ca_path=str(certificates.ca),
            certificate_path=str(certificates.client),
            key_path=str(certificates.client_locked_key),
            key_password=certificates.key_password,
        )
        assert pipeline.finish() == 3


class TestWrongCredentials:
    """They end the daemon: no time heals them, and accounts are locked after a few attempts."""

    def refused(self, pipeline: Secured, **security: Any) -> str:
        pipeline.log_in(**security)
        with pipeline.daemon() as daemon:
            assert daemon.ended() == 1, daemon.log()
        assert daemon.error
        for password in (PASSWORD, WRONG):
            assert password not in daemon.log()
        return daemon.error

    @pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
    def test_a_wrong_password(
        self, pipeline: Secured, table: TableWriter, certificates: Certificates, mechanism: str
    ) -> None:
        error = self.refused(pipeline, **scram(certificates, mechanism=mechanism, password=WRONG))
        assert "refused" in error
        assert "sink.security" in error

    def test_nobody_we_know(self, pipeline: Secured, table: TableWriter, certificates: Certificates) -> None:
        assert "refused" in self.refused(pipeline, **scram(certificates, username="mallory"))

    def test_a_broker_that_nobody_vouches_for(
        self, pipeline: Secured, table: TableWriter, certificates: Certificates
    ) -> None:
        error = self.refused(pipeline, **scram(certificates, ca_path=str(certificates.other_ca)))
        assert "certificate is not trusted" in error

    def test_a_file_that_is_not_there(self, pipeline: Secured, table: TableWriter, certificates: Certificates) -> None:
        pipeline.log_in(**scram(certificates, ca_path="no-such.pem"))
        with pipeline.daemon() as daemon:
            assert daemon.ended() == 2, daemon.log()
        assert "sink.security.ca_path" in daemon.error

    def test_right_again(
        self, pipeline: Secured, table: TableWriter, master: KafkaAdminClient, certificates: Certificates
    ) -> None:
        allow(master, rights(pipeline, "alice"))
        self.refused(pipeline, **scram(certificates, password=WRONG))
        pipeline.log_in(**scram(certificates))
        assert pipeline.finish() == 3


class TestRights:
    @pytest.mark.parametrize("lacking", [0, 1, 2, 5, 6])
    def test_all_but_one(
        self,
        pipeline: Secured,
        table: TableWriter,
        master: KafkaAdminClient,
        certificates: Certificates,
        lacking: int,
    ) -> None:
        needed = rights(pipeline, "alice")
        missing = needed.pop(lacking)
        allow(master, needed)
        pipeline.log_in(**scram(certificates))
        with pipeline.daemon() as daemon:
            assert daemon.ended() == 1, daemon.log()
        assert missing.resource_pattern.resource_name.rstrip(".") in daemon.error
        assert pipeline.name in daemon.error
        allow(master, [missing])
        assert pipeline.finish() == 3

    def test_standby_needs_the_right_to_its_group(
        self, pipeline: Secured, table: TableWriter, master: KafkaAdminClient, certificates: Certificates
    ) -> None:
        allow(master, rights(pipeline, "alice"))
        pipeline.log_in(**scram(certificates))
        with pipeline.daemon("--standby") as daemon:
            assert daemon.ended() == 1, daemon.log()
        group = f"cdfd.{pipeline.name}.standby"
        assert f"Read on the group {group}" in daemon.error
        right = ResourcePattern(ResourceType.GROUP, group, LITERAL)
        allow(master, [ACL("User:alice", "*", ACLOperation.READ, ACLPermissionType.ALLOW, right)])
        with pipeline.daemon("--standby") as daemon:
            daemon.wait_for("leading the pipeline")
            assert pipeline.check() == 3
            daemon.stop()

    def test_taken_away_while_it_delivers(
        self, pipeline: Secured, table: TableWriter, master: KafkaAdminClient, certificates: Certificates
    ) -> None:
        needed = rights(pipeline, "alice")
        allow(master, needed)
        pipeline.log_in(**scram(certificates))
        with pipeline.daemon() as daemon:
            assert pipeline.check() == 3
            master.delete_acls([needed[1]])
            do(table.insert(rows(3)))
            assert daemon.ended() == 1, daemon.log()
        assert pipeline.topic in daemon.error
        assert "Write" in daemon.error
        allow(master, [needed[1]])
        assert pipeline.finish() == 4
