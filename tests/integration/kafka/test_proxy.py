"""The proxy does what its name promises: the fault tests are worth no more than that. They use kafka-python, so this is librdkafka."""

import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient

from cdfd.encode.records import Records
from cdfd.errors import SinkError
from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings
from tests.support.kafka.broker import Broker
from tests.support.kafka.proxy import END_TXN, METADATA, PRODUCE, Proxy
from tests.support.kafka.reading import read_topic


@pytest.fixture
def direct(broker_behind: tuple[Proxy, Broker]) -> str:
    return broker_behind[1].bootstrap_servers


@pytest.fixture
def writer(proxy: Proxy, direct: str, topic: str) -> Iterator[Producer]:
    with KafkaAdminClient(bootstrap_servers=direct) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    settings = ProducerSettings({"bootstrap_servers": [proxy.address]}, f"cdfd.{topic}", timeout=20)
    producer = LibrdkafkaProducer(settings)
    producer.init_transactions()
    yield producer
    producer.close()


def deliver(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin()
    producer.send(topic, 0, Records(None, pa.array([value], pa.large_binary())), 1)
    producer.commit()


def values(address: str, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in read_topic(address, topic, at_least=count)]


def test_lets_everything_through(writer: Producer, proxy: Proxy, direct: str, topic: str) -> None:
    before = proxy.passed(END_TXN)
    deliver(writer, topic, b"a")
    assert values(direct, topic, 1) == values(proxy.address, topic, 1) == [b"a"]
    assert proxy.passed(END_TXN) == before + 1
    assert proxy.passed(METADATA) > 0


@pytest.mark.parametrize("fate", ["lost", "halved", "unanswered"])
@pytest.mark.parametrize("api", [PRODUCE, END_TXN])
def test_clients_try_again(writer: Producer, proxy: Proxy, direct: str, topic: str, api: int, fate: str) -> None:
    fault = proxy.next(api, fate)
    deliver(writer, topic, b"a")
    assert fault.happened
    deliver(writer, topic, b"b")
    assert values(direct, topic, 2) == [b"a", b"b"]


def test_stalled_and_going_on(writer: Producer, proxy: Proxy, direct: str, topic: str) -> None:
    proxy.stall()
    delivering = threading.Thread(target=deliver, args=(writer, topic, b"a"))
    delivering.start()
    with pytest.raises(TimeoutError):
        proxy.wait_for(PRODUCE, timeout=0.5)
    assert values(direct, topic, 0) == []
    proxy.resume()
    delivering.join()
    assert values(direct, topic, 1) == [b"a"]


def test_cut(writer: Producer, proxy: Proxy, direct: str, topic: str) -> None:
    deliver(writer, topic, b"a")
    proxy.cut()
    deliver(writer, topic, b"b")
    assert values(direct, topic, 2) == [b"a", b"b"]


def test_refused(proxy: Proxy) -> None:
    proxy.refuse()
    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client,
    ):
        client.recv(1)
    settings = ProducerSettings({"bootstrap_servers": [proxy.address]}, "cdfd.refused", timeout=1)
    with pytest.raises(SinkError):
        LibrdkafkaProducer(settings).init_transactions()
