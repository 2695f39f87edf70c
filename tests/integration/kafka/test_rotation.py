"""Passwords and certificates that are replaced while producers and daemons run: nothing is restarted but the broker."""

import gc
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from cdfd.errors import SinkError
from cdfd.runtime.mounted import MountedText
from cdfd.sinks.kafka.client.connection import arguments
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings, send_record
from cdfd.sinks.kafka.settings import KafkaSettings
from tests.support.axes import under_test
from tests.support.kafka.broker import Broker
from tests.support.kafka.certificates import Certificates
from tests.support.kafka.pipeline import Pipeline, do
from tests.support.kafka.reading import read_topic
from tests.support.lake import rows

# kafka-python leaves sockets whose connection is refused to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

PRODUCERS = {"kafka-python": KafkaPythonProducer, "librdkafka": LibrdkafkaProducer}
producers = pytest.mark.parametrize("kind", under_test("producer", PRODUCERS))


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    yield
    gc.collect()


class Cluster:
    """A broker with TLS and a user, and a client's folder as the kubelet mounts it.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mount = folder / "mount"
        self._count = 0
        self._brokers = folder / "brokers"
        self.certificates = self._issue()
        shutil.copytree(self.certificates.ca.parent, self._brokers)
        its_own = Certificates(**{name: self._brokers / getattr(self.certificates, name).name for name in _FILES})
        self.broker = Broker(protocols=("SSL", "SASL_PLAINTEXT"), users={}, certificates=its_own)

    def start(self) -> None:
        self.broker.start()
        self.renew()

    def renew(self) -> None:
        """Another authority, other certificates and another password, for both sides. No connection survives it."""
        certificates = self._issue()
        shutil.copytree(certificates.ca.parent, self._brokers, dirs_exist_ok=True)
        password = f"s3cret-{self._count}"
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap_servers) as admin:
            user = UserScramCredentialUpsertion("alice", ScramMechanism.SCRAM_SHA_512, password, iterations=4096)
            assert admin.alter_user_scram_credentials([user]) == {"alice": None}
        version = self.mount / f"..{self._count}"
        version.mkdir(parents=True)
        for name, content in {
            "ca.crt": certificates.ca.read_bytes(),
            "tls.crt": certificates.client.read_bytes(),
            "tls.key": certificates.client_key.read_bytes(),
            "password": password.encode(),
        }.items():
            (version / name).write_bytes(content)
            if not (self.mount / name).is_symlink():
                (self.mount / name).symlink_to(f"..data/{name}")
        (self.mount / "..tmp").symlink_to(version.name)
        (self.mount / "..tmp").replace(self.mount / "..data")
        self.broker.restart()

    def tls(self) -> dict[str, Any]:
        paths = {"ca_path": "ca.crt", "certificate_path": "tls.crt", "key_path": "tls.key"}
        return {"protocol": "SSL"} | {key: str(self.mount / name) for key, name in paths.items()}

    def scram(self) -> dict[str, Any]:
        return {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512", "username": "alice"}

    def _issue(self) -> Certificates:
        self._count += 1
        folder = self.folder / f"issued-{self._count}"
        folder.mkdir()
        return Certificates.issue(folder)


_FILES = tuple(field.name for field in fields(Certificates) if field.name != "key_password")


@pytest.fixture(scope="module")
def cluster(needs_broker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    with closing(made.broker):
        made.start()
        yield made


@pytest.fixture
def filled(cluster: Cluster, name: str) -> str:
    with KafkaAdminClient(bootstrap_servers=cluster.broker.bootstrap_servers) as admin:
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    return name


def producer(kind: str, address: str, name: str, security: dict[str, Any]) -> Producer:
    sink = KafkaSettings.model_validate({"kind": "kafka", "bootstrap_servers": address, "security": security})
    made: Producer = PRODUCERS[kind](ProducerSettings(arguments(sink), f"cdfd.{name}", timeout=20.0))
    return made


def deliver(made: Producer, topic: str, value: bytes) -> None:
    made.begin()
    send_record(made, topic, 0, b"k", value)
    made.commit()


@producers
def test_a_producer_logs_in_with_the_new_password(cluster: Cluster, filled: str, kind: str) -> None:
    security = cluster.scram() | {"password": MountedText(str(cluster.mount / "password"))}
    with closing(producer(kind, cluster.broker.address("SASL_PLAINTEXT"), filled, security)) as made:
        made.init_transactions()
        deliver(made, filled, b"before")
        cluster.renew()
        deliver(made, filled, b"after")
    values = [record.value for record in read_topic(cluster.broker.bootstrap_servers, filled, at_least=2)]
    assert values == [b"before", b"after"]


def test_a_producer_connects_with_new_certificates(cluster: Cluster, filled: str) -> None:
    with closing(producer("kafka-python", cluster.broker.address("SSL"), filled, cluster.tls())) as made:
        made.init_transactions()
        deliver(made, filled, b"before")
        cluster.renew()
        deliver(made, filled, b"after")


def test_librdkafka_reads_certificates_once(cluster: Cluster, filled: str) -> None:
    """So the producer says that another one is needed, before it begins a transaction."""
    address = cluster.broker.address("SSL")
    with closing(producer("librdkafka", address, filled, cluster.tls())) as made:
        made.init_transactions()
        deliver(made, filled, b"before")
        deliver(made, filled, b"before")
        cluster.renew()
        for _ in range(2):
            with pytest.raises(SinkError, match=r"the files of sink\.security have changed") as caught:
                made.begin()
            assert caught.value.retriable
    with closing(producer("librdkafka", address, filled, cluster.tls())) as made:
        made.init_transactions()
        deliver(made, filled, b"after")


def test_librdkafka_waits_until_files_fit_together(cluster: Cluster, filled: str, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    shutil.copytree(cluster.mount / "..data", folder)
    paths = {"ca_path": "ca.crt", "certificate_path": "tls.crt", "key_path": "tls.key"}
    security = {"protocol": "SSL"} | {key: str(folder / name) for key, name in paths.items()}
    other = cluster._issue()
    with closing(producer("librdkafka", cluster.broker.address("SSL"), filled, security)) as made:
        made.init_transactions()
        shutil.copy(other.client, folder / "tls.crt")  # and not yet its key
        deliver(made, filled, b"before")
        shutil.copy(other.client_key, folder / "tls.key")
        with pytest.raises(SinkError, match="have changed"):
            made.begin()


@pytest.mark.parametrize(("access", "kind"), [("password", "kafka-python"), ("certificates", "librdkafka")])
def test_a_daemon_delivers_on(cluster: Cluster, tmp_path: Path, name: str, kind: str, access: str) -> None:
    protocol, security = ("SSL", cluster.tls())
    if access == "password":
        protocol, security = "SASL_PLAINTEXT", cluster.scram() | {"password_file": str(cluster.mount / "password")}
    address = cluster.broker.address("SSL" if protocol == "SSL" else "SASL_PLAINTEXT")
    shop = Pipeline(tmp_path, name, address, cluster.broker.bootstrap_servers)
    shop.configure(sink={"security": security, "producer": kind, "topics": {"prefix": f"{name}.", "partitions": 3}})
    table = shop.table()
    with shop.daemon() as daemon:
        do(table.insert(rows(0, 1, 2)))
        shop.read(3)
        cluster.renew()
        do(table.insert(rows(3, 4, 5)))
        shop.read(6)
        daemon.stop()
    assert shop.finish() == 6
