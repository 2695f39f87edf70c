"""The broker that other tests rely on: it keeps what it has, comes back where it was, and leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from tests.support.kafka import installation
from tests.support.kafka.broker import Broker
from tests.support.kafka.node import BrokerError, free_ports, thread_dump
from tests.support.kafka.reading import Record, read_topic
from tests.support.kafka.shared import SharedBroker, shared_broker

pytestmark = pytest.mark.usefixtures("needs_broker")

OWNER = """
import time
from tests.support.kafka.broker import Broker
broker = Broker()
broker.start()
print(broker.pid, broker.folder, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def own(needs_broker: None) -> Iterator[Broker]:
    with Broker(properties={"auto.create.topics.enable": "true"}) as broker:
        yield broker


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return not (state == "" or state.startswith("Z"))


def listens(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def deliver(broker: Broker, topic: str, value: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    producer.send(topic, value).get(timeout=20)
    producer.close()


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in read_topic(broker.bootstrap_servers, topic)]


class TestNode:
    @pytest.mark.parametrize("end", [Broker.stop, Broker.kill])
    def test_it_comes_back_with_what_it_had(self, own: Broker, topic: str, end: Callable[[Broker], None]) -> None:
        deliver(own, topic, b"before")
        end(own)
        assert not own.running
        own.start()
        deliver(own, topic, b"after")
        assert values(own, topic) == [b"before", b"after"]

    def test_it_hangs_and_goes_on(self, own: Broker, topic: str) -> None:
        deliver(own, topic, b"before")
        host, port = own.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            versions_please = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
            own.pause()
            connection.sendall(versions_please)
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            own.resume()
            connection.settimeout(20)
            assert len(connection.recv(8)) == 8
        assert values(own, topic) == [b"before"]

    def test_a_dump_shows_its_threads_and_where_those_of_a_silent_one_wait(self, own: Broker) -> None:
        assert "kafka-request-handler" in thread_dump(own.folder)
        own.pause()
        try:
            assert "threads: T" in thread_dump(own.folder)
        finally:
            own.resume()

    def test_a_dump_of_a_broker_that_ended_by_itself_says_so(self) -> None:
        with Broker() as broker:
            os.kill(broker.pid, signal.SIGKILL)
            wait_until(lambda: not broker.running)
            assert thread_dump(broker.folder) == "The broker has no process."

    def test_what_is_wrong_with_it_is_said(self) -> None:
        with (
            pytest.raises(BrokerError, match="ended while it started") as caught,
            Broker(properties={"process.roles": "teapot"}),
        ):
            pass
        assert "teapot" in str(caught.value)

    def test_it_does_not_run_twice(self, own: Broker) -> None:
        with pytest.raises(BrokerError, match="runs already"):
            own.start()

    def test_ports_are_not_those_of_clients(self) -> None:
        ports = free_ports(20)
        assert len(set(ports)) == 20
        assert all(20_000 <= port < 32_000 for port in ports)


class TestNothingIsLeft:
    def test_after_it_is_closed(self) -> None:
        with Broker() as broker:
            pid = broker.pid
            assert broker.folder.exists()
        assert not lives(pid)
        assert not broker.folder.exists()
        broker.close()

    def test_after_its_owner_is_killed(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment) as owner:
            assert owner.stdout is not None
            pid, folder = owner.stdout.readline().decode().split()
            assert lives(int(pid))
            os.kill(owner.pid, signal.SIGKILL)
        wait_until(lambda: not lives(int(pid)))
        wait_until(lambda: not list(Path(folder).parent.glob(f"{Path(folder).name}*")))

    def test_after_the_last_of_its_users_has_left(self, tmp_path: Path) -> None:
        with shared_broker(tmp_path) as first:
            with shared_broker(tmp_path) as second:
                assert second == first
            pid = int((first.folder / "pid").read_text())
            assert lives(pid)
        wait_until(lambda: not first.folder.exists() and not lives(pid))
        with shared_broker(tmp_path) as another:
            assert another.folder != first.folder


class TestShared:
    def test_one_that_died_is_replaced(self, tmp_path: Path) -> None:
        with shared_broker(tmp_path) as first:
            os.killpg(int((first.folder / "pid").read_text()), signal.SIGKILL)
            wait_until(lambda: not listens(first.bootstrap_servers))
            with shared_broker(tmp_path) as second:
                assert second.bootstrap_servers != first.bootstrap_servers
                KafkaAdminClient(bootstrap_servers=second.bootstrap_servers).close()

    def test_a_note_about_one_that_is_gone_is_ignored(self, tmp_path: Path) -> None:
        gone = {"bootstrap_servers": "127.0.0.1:1", "folder": str(tmp_path / "gone")}
        (tmp_path / "kafka.json").write_text(json.dumps(gone))
        with shared_broker(tmp_path) as broker:
            assert broker.folder.exists()


class TestReading:
    @pytest.fixture
    def producer(self, broker: SharedBroker, name: str) -> Iterator[KafkaProducer]:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name)
        producer.init_transactions()
        yield producer
        producer.close()

    def test_what_is_committed(
        self, producer: KafkaProducer, topic: str, create: Callable[..., str], read: Callable[..., list[Record]]
    ) -> None:
        create(topic, partitions=2)
        producer.begin_transaction()
        producer.send(topic, b"one", key=b"k", partition=1, headers=[("h", b"v")])
        producer.send(topic, None, key=b"k", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"never", partition=1)
        producer.flush()
        producer.abort_transaction()
        expected = [Record(0, 0, b"k", None, ()), Record(1, 0, b"k", b"one", (("h", b"v"),))]
        assert read(topic) == expected
        assert [record.value for record in read(topic, committed=False)] == [None, b"one", b"never"]

    def test_not_behind_what_is_open(
        self, producer: KafkaProducer, topic: str, create: Callable[..., str], read: Callable[..., list[Record]]
    ) -> None:
        create(topic)
        producer.begin_transaction()
        producer.send(topic, b"open").get(timeout=20)
        assert read(topic) == []
        with pytest.raises(TimeoutError):
            read(topic, at_least=1, timeout=0.5)
        producer.commit_transaction()
        assert [record.value for record in read(topic, at_least=1)] == [b"open"]


class TestMissing:
    @pytest.fixture(autouse=True)
    def no_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(installation, "JARS", tmp_path)
        monkeypatch.delenv("JAVA_HOME", raising=False)

    def put(self, folder: Path, program: str, says: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / program).write_text(f"#!/bin/sh\n{says}\n")
        (folder / program).chmod(0o755)

    def test_no_java(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert "no `java` on the PATH" in str(installation.missing())
        with pytest.raises(BrokerError, match="no `java` on the PATH"):
            Broker()

    @pytest.mark.parametrize(
        "says", ["echo 'openjdk version \"11.0.2\"' >&2", "echo 'Unable to locate' >&2; exit 1", "true"]
    )
    def test_an_old_java_or_none_that_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
        self.put(tmp_path / "bin", "java", says)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
        assert "needs Java 17" in str(installation.missing())

    def test_no_maven(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.put(tmp_path / "bin", "java", "echo 'openjdk version \"21\"' >&2")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
        assert "no `mvn` on the PATH" in str(installation.missing())
