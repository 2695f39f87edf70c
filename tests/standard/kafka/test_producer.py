"""The contract of every `Producer`, over each client, with a real broker.

To add an implementation, add it to `PRODUCERS`.
"""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from threading import Timer
from typing import Any, get_args

import kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Place
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from cdfd.encode.records import Records
from cdfd.errors import FencedError, SinkError
from cdfd.sinks.kafka.client import kafka_python, kafka_python_client
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings, send_record
from cdfd.sinks.kafka.records.batches import Batching, Compression
from tests.support.axes import under_test
from tests.support.kafka.broker import Broker
from tests.support.kafka.reading import Record, read_topic
from tests.support.kafka.shared import SharedBroker

PRODUCERS: dict[str, Callable[[ProducerSettings], Producer]] = {
    "kafka-python": KafkaPythonProducer,
    "librdkafka": LibrdkafkaProducer,
}
Open = Callable[..., Producer]


class Opener:
    """Opens producers of one kind on one broker and closes them all at the end."""

    def __init__(self, kind: str, servers: str, name: str) -> None:
        self.kind = kind
        self.servers = servers
        self.name = name
        self._stack = ExitStack()

    def __call__(self, *, ready: bool = True, transactions: bool = True, **settings: Any) -> Producer:
        connection = {"bootstrap_servers": [self.servers]} | settings.pop("connection", {})
        transactional_id = f"cdfd.{self.name}" if transactions else None
        producer = PRODUCERS[self.kind](ProducerSettings(connection, transactional_id, **settings))
        self._stack.enter_context(closing(producer))
        if ready:
            producer.init_transactions()
        return producer

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(params=under_test("producer", PRODUCERS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def start(kind: str, broker: SharedBroker, name: str) -> Iterator[Open]:
    with closing(Opener(kind, broker.bootstrap_servers, name)) as opener:
        yield opener


def binary(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.large_binary())


def of(*values: bytes | None, keys: Sequence[bytes | None] | None = None, headers: Any = ()) -> Records:
    return Records(None if keys is None else binary(keys), binary(values), headers)


def values_of(records: Sequence[Record], partition: int | None = None) -> list[bytes | None]:
    return [record.value for record in records if partition in (None, record.partition)]


def send_and(finish: Callable[[], None], producer: Producer, topic: str, partition: int, value: bytes) -> None:
    """Send, and finish: an error may come from either."""
    producer.send(topic, partition, of(value), 1)
    finish()


def whole_transaction(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin()
    producer.send(topic, 0, of(*values), 1)
    producer.commit()


def test_records_that_may_wait_for_others(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic, 2)
    producer = start()
    producer.begin()
    producer.send(topic, 0, of(b"taken back"), 1, more=True)
    producer.abort()
    producer.begin()
    producer.send(topic, 0, of(b"a"), 1, more=True)
    producer.send(topic, 1, of(b"b"), 1, more=True)
    producer.commit()
    actual = read(topic, at_least=2)
    assert values_of(actual, 0) == [b"a"]
    assert values_of(actual, 1) == [b"b"]


def test_visible_when_committed_and_not_before(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic, 2)
    producer = start()
    producer.begin()
    producer.send(topic, 0, of(b"a", b"b"), 1)
    producer.send(topic, 1, of(b"c"), 1)
    producer.flush()
    assert len(read(topic, at_least=3, committed=False)) == 3
    assert read(topic) == []
    producer.commit()
    actual = read(topic, at_least=3)
    assert values_of(actual, 0) == [b"a", b"b"]
    assert values_of(actual, 1) == [b"c"]


def test_invisible_when_aborted_and_the_producer_goes_on(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic)
    producer = start()
    producer.begin()
    producer.send(topic, 0, of(b"dropped"), 1)
    producer.flush()
    producer.abort()
    producer.begin()
    producer.send(topic, 0, of(b"dropped before it was flushed"), 1)
    producer.abort()
    whole_transaction(producer, topic, b"kept")
    assert values_of(read(topic, at_least=1)) == [b"kept"]


def test_records_arrive_as_they_were(start: Open, create: Any, read: Any, broker: SharedBroker, topic: str) -> None:
    create(topic, 3)
    producer = start()
    producer.begin()
    keys = [b"k", b"", b"long" * 100, b"t"]
    headers = (("name", b"value"), ("empty", b""), ("Zoë", bytes(range(256))))
    producer.send(topic, 2, of(b"v", b"x" * 9000, b"", None, keys=keys, headers=headers), 1_234_567)
    producer.send(topic, 1, of(b"no key"), 1)
    send_record(producer, topic, 0, b"one", b"record")
    producer.commit()
    expected = [
        Record(0, 0, b"one", b"record", ()),
        Record(1, 0, None, b"no key", ()),
        *(Record(2, n, keys[n], value, headers) for n, value in enumerate([b"v", b"x" * 9000, b"", None])),
    ]
    assert read(topic, at_least=6) == expected
    assert set(timestamps(broker, topic, 2)) == {1_234_567}
    assert abs(timestamps(broker, topic, 0)[0] - time.time() * 1000) < 60_000


def timestamps(broker: SharedBroker, topic: str, partition: int) -> list[int]:
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, enable_auto_commit=False)) as consumer:
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek_to_beginning()
        times: list[int] = []
        deadline = time.monotonic() + 60
        while not times and time.monotonic() < deadline:
            times += [record.timestamp for batch in consumer.poll(100).values() for record in batch]
    return times


@pytest.mark.parametrize("compression", get_args(Compression))
def test_many_transactions_exactly_once_and_in_order(
    start: Opener, create: Any, read: Any, topic: str, compression: Compression
) -> None:
    create(topic, 3, retention_ms="-1")  # the records are of 1970, and the broker would remove them some minutes later
    producer = start(batching=Batching(compression, target=20_000))
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for transaction in range(6):
        producer.begin()
        for part in range(5):
            values = [b"%d %d %d %s" % (transaction, part, n, b"." * (n % 400)) for n in range(300)]
            producer.send(topic, part % 3, of(*values), 1)
            if transaction % 3 != 2:
                expected[part % 3] += values
        if transaction % 3 == 2:
            producer.abort()
        else:
            producer.commit()
    actual = read_with_librdkafka(start.servers, topic, at_least=6000)
    assert {place: [value for partition, value in actual if partition == place] for place in expected} == expected


def read_with_librdkafka(servers: str, topic: str, at_least: int) -> list[tuple[int, bytes]]:
    """Committed records, read by a client that knows all compressions."""
    reading = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic} | reading)
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    consumer.assign([Place(topic, number, 0) for number in partitions])
    records: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + 60
    while len(records) < at_least and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=0.2):
            assert message.error() is None
            records.append((message.partition(), message.value()))
    consumer.close()
    return records


def test_an_older_producer_is_fenced(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic)
    older = start()
    older.begin()
    older.send(topic, 0, of(b"of the older one"), 1)
    older.flush()
    newer = start()
    newer.begin()
    newer.send(topic, 0, of(b"first"), 1)
    with pytest.raises(FencedError):
        older.commit()
    with pytest.raises(FencedError):
        older.begin()
    older.abort()
    older.close()
    newer.send(topic, 0, of(b"second"), 1)
    newer.commit()
    assert values_of(read(topic, at_least=2)) == [b"first", b"second"]


def test_an_older_producer_is_fenced_when_it_sends(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic)
    older = start()
    older.begin()
    older.send(topic, 0, of(b"of the older one"), 1)
    older.flush()
    newer = start()
    with pytest.raises(FencedError):
        send_and(older.flush, older, topic, 0, b"more of the older one")
    older.close()
    whole_transaction(newer, topic, b"of the newer one")
    assert values_of(read(topic, at_least=1)) == [b"of the newer one"]


def test_an_idle_older_producer_is_fenced(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic)
    older = start()
    newer = start()
    with pytest.raises(FencedError):
        whole_transaction(older, topic, b"of the older one")
    whole_transaction(newer, topic, b"of the newer one")
    assert values_of(read(topic, at_least=1)) == [b"of the newer one"]


@pytest.mark.parametrize("kind", ["kafka-python", "librdkafka"])
def test_an_older_producer_that_learns_of_it_between_two_calls_is_fenced(start: Open, create: Any, topic: str) -> None:
    """librdkafka then says only that there is a fatal error."""
    create(topic)
    older = start()
    start()
    older.begin()

    def send_on() -> None:
        for _ in range(500):
            older.send(topic, 0, of(b"of the older one"), 1)
            time.sleep(0.02)

    with pytest.raises(FencedError):
        send_on()


@pytest.mark.parametrize("kind", ["kafka-python"])
def test_an_older_producer_is_fenced_while_it_waits_for_metadata(start: Open, create: Any, topic: str) -> None:
    """It raises at once. A fenced client requests no more metadata, so that a wait for it would last until the timeout."""
    create(topic)
    older = start(timeout=20.0)
    older.begin()
    older.send(topic, 0, of(b"of the older one"), 1)
    older.flush()
    start()
    older.send(topic, 0, of(b"more of the older one"), 1)
    with pytest.raises(FencedError):
        older.send(f"{topic}-that-there-is-not", 0, of(b"elsewhere"), 1)


def test_what_a_lost_producer_left_open_ends_when_the_next_one_starts(
    kind: str, start: Open, create: Any, read: Any, broker: SharedBroker, name: str, topic: str
) -> None:
    create(topic)
    lost = start()
    lost.begin()
    lost.send(topic, 0, of(b"left open"), 1)
    lost.flush()
    start()
    with closing(Opener(kind, broker.bootstrap_servers, f"{name}-other")) as other:
        producer = other()
        whole_transaction(producer, topic, b"after it")
        assert values_of(read(topic, at_least=1)) == [b"after it"]


def test_a_transaction_of_which_a_batch_failed_is_never_committed(
    start: Open, create: Any, read: Any, admin: KafkaAdminClient, topic: str
) -> None:
    """kafka-python by itself would commit such a transaction."""
    gone = f"{topic}-gone"
    create(topic)
    create(gone)
    producer = start(timeout=2.0)
    producer.begin()
    producer.send(gone, 0, of(b"first"), 1)
    producer.flush()
    admin.delete_topics([gone])
    producer.send(topic, 0, of(b"acknowledged"), 1)
    with pytest.raises(SinkError) as raised:
        send_and(producer.commit, producer, gone, 0, b"never acknowledged")
    assert not isinstance(raised.value, FencedError)
    with pytest.raises(SinkError):
        producer.commit()
    producer.close()
    again = start()
    whole_transaction(again, topic, b"again")
    assert values_of(read(topic, at_least=1)) == [b"again"]


def test_librdkafka_names_the_record_that_failed_first(
    broker: SharedBroker, create: Any, name: str, topic: str
) -> None:
    """It gives up other records for that reason, and sometimes says so first."""
    create(topic, max_message_bytes="2000")
    with closing(Opener("librdkafka", broker.bootstrap_servers, name)) as opener:
        producer = opener()
        assert isinstance(producer, LibrdkafkaProducer)
        producer.begin()
        producer._note_undelivered(KafkaError(KafkaError._PURGE_QUEUE), None)
        with pytest.raises(SinkError, match=re.escape("max.message.bytes")):
            producer.send(topic, 0, of(os.urandom(3000)), 1)


def test_a_batch_that_the_broker_finds_too_large_fails_the_transaction(
    start: Open, create: Any, read: Any, topic: str
) -> None:
    create(topic, max_message_bytes="2000")
    producer = start()
    producer.begin()
    producer.send(topic, 0, of(*(os.urandom(3000) for _ in range(20))), 1)
    with pytest.raises(SinkError, match=r"(?i)too_?large|size") as raised:
        producer.commit()
    assert "max.message.bytes" in str(raised.value)
    producer.close()
    assert start().begin() is None
    assert read(topic) == []


def test_an_oversized_record_is_left_out_and_told(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic, max_message_bytes="50000")
    producer = start(batching=Batching(limit=50_000))
    producer.begin()
    noise = os.urandom(60_000)
    (oversized,) = producer.send(topic, 0, of(b"a", noise, b"b", *[b"c" * 100] * 2000), 1)
    assert oversized.index == 1
    assert oversized.size >= 60_000
    producer.commit()
    assert values_of(read(topic, at_least=2002)) == [b"a", b"b", *[b"c" * 100] * 2000]


def test_one_oversized_record_is_an_error(start: Open, create: Any, topic: str) -> None:
    create(topic)
    producer = start(batching=Batching(limit=10_000))
    producer.begin()
    with pytest.raises(SinkError, match="too large"):
        send_record(producer, topic, 0, b"k", os.urandom(20_000))


def test_more_than_may_be_in_flight(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic, 2)
    producer = start(in_flight=100_000, batching=Batching("none", target=30_000))
    producer.begin()
    for number in range(40):
        producer.send(topic, number % 2, of(*(b"%d" % n + b"x" * 1000 for n in range(60))), 1)
    producer.commit()
    assert len(read(topic, at_least=2400)) == 2400


def test_without_transactions(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic)
    producer = start(transactions=False)
    producer.begin()
    producer.send(topic, 0, of(b"a"), 1)
    producer.flush()
    assert values_of(read(topic, at_least=1)) == [b"a"]
    producer.send(topic, 0, of(b"b"), 1)
    producer.commit()
    producer.begin()
    producer.send(topic, 0, of(b"c"), 1)
    producer.abort()
    producer.begin()
    send_record(producer, topic, 0, None, b"d")
    producer.commit()
    assert values_of(read(topic, at_least=4)) == [b"a", b"b", b"c", b"d"]


def test_a_failure_without_transactions(start: Open, create: Any, topic: str) -> None:
    create(topic, max_message_bytes="2000")
    producer = start(transactions=False)
    producer.begin()
    producer.send(topic, 0, of(*(os.urandom(3000) for _ in range(20))), 1)
    with pytest.raises(SinkError):
        producer.commit()
    with pytest.raises(SinkError):
        producer.begin()


@pytest.mark.parametrize("place", [("missing", 0), ("there", 7)])
def test_no_such_topic_or_partition(start: Open, create: Any, topic: str, place: tuple[str, int]) -> None:
    create(f"{topic}-there")
    producer = start(timeout=2.0)
    producer.begin()
    with pytest.raises(SinkError):
        send_and(producer.commit, producer, f"{topic}-{place[0]}", place[1], b"v")


def test_kafka_python_sends_nothing_if_a_partition_is_missing(
    broker: SharedBroker, create: Any, read: Any, name: str, topic: str
) -> None:
    """Without a transaction, the others would be delivered twice."""
    create(topic)
    with closing(Opener("kafka-python", broker.bootstrap_servers, name)) as opener:
        producer = opener(transactions=False)
        producer.begin()
        with pytest.raises(SinkError, match="has no partition 7"):
            producer.send(topic, np.array([0, 7], np.int32), of(b"a", b"b"), 1)
        producer.abort()
        whole_transaction(opener(transactions=False), topic, b"c")
    assert values_of(read(topic, at_least=1)) == [b"c"]


def test_a_closed_producer(start: Open, create: Any, read: Any, topic: str) -> None:
    create(topic)
    producer = start()
    producer.begin()
    producer.send(topic, 0, of(b"never committed"), 1)
    producer.flush()
    producer.close()
    producer.close()
    producer.abort()
    with pytest.raises(SinkError):
        producer.prepare([topic])
    with pytest.raises(SinkError):
        producer.begin()
    assert len(read(topic, at_least=0, committed=False)) >= 1
    other = start()
    whole_transaction(other, topic, b"after it")
    assert values_of(read(topic, at_least=1)) == [b"after it"]


def test_nobody_there(kind: str, name: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        before = time.monotonic()
        with closing(Opener(kind, servers, name)) as opener, pytest.raises(SinkError, match=servers) as raised:
            opener(timeout=1.0)
    assert raised.value.retriable
    assert time.monotonic() - before < 20


@pytest.fixture(scope="module")
def guarded(needs_broker: None) -> Iterator[Broker]:
    with Broker(protocols=("SASL_PLAINTEXT",), users={"daemon": "secret"}) as broker:
        yield broker


def credentials(password: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "daemon",
        "sasl_plain_password": password,
    }


def test_with_a_password(kind: str, guarded: Broker, name: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=guarded.bootstrap_servers)) as admin:
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    with closing(Opener(kind, guarded.address("SASL_PLAINTEXT"), name)) as start:
        whole_transaction(start(connection=credentials("secret")), name, b"v")
    assert values_of(read_topic(guarded.bootstrap_servers, name, at_least=1)) == [b"v"]


def test_with_a_wrong_password(kind: str, guarded: Broker, name: str) -> None:
    servers = guarded.address("SASL_PLAINTEXT")
    with closing(Opener(kind, servers, name)) as start, pytest.raises(SinkError, match=servers) as raised:
        start(connection=credentials("hunter2"), timeout=3.0)
    assert not raised.value.retriable
    assert "sink.security" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(ProducerSettings(credentials("hunter2"), None))


@contextmanager
def a_broker_of_its_own(topic: str, partitions: int) -> Iterator[Broker]:
    with Broker() as broker:
        with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
            wanted = {topic: {"num_partitions": partitions, "replication_factor": 1}}
            admin.create_topics(wanted, wait_for_metadata=True)
        yield broker


@pytest.mark.usefixtures("needs_broker")
def test_a_broker_that_dies_in_a_transaction_is_an_error_in_time(kind: str, name: str) -> None:
    with a_broker_of_its_own(name, 1) as broker:
        with closing(Opener(kind, broker.bootstrap_servers, name)) as start:
            producer = start(timeout=3.0, closing_timeout=1.0)
            producer.begin()
            producer.send(name, 0, of(b"before"), 1)
            producer.flush()
            broker.kill()
            before = time.monotonic()
            with pytest.raises(SinkError) as raised:
                send_and(producer.commit, producer, name, 0, b"after")
            producer.close()
            assert time.monotonic() - before < 20
            assert raised.value.retriable
            broker.start()
            again = start()
            whole_transaction(again, name, b"again")
        assert values_of(read_topic(broker.bootstrap_servers, name, at_least=1)) == [b"again"]


@pytest.mark.usefixtures("needs_broker")
def test_a_broker_that_comes_back_in_time_is_no_error(kind: str, name: str) -> None:
    """Batches are sent again with the numbers that they had: what the broker had taken already, it does not take twice."""
    with a_broker_of_its_own(name, 2) as broker:
        with closing(Opener(kind, broker.bootstrap_servers, name)) as start:
            producer = start(timeout=60.0, batching=Batching(target=20_000))
            producer.begin()
            expected: dict[int, list[bytes]] = {0: [], 1: []}
            for part in range(40):
                values = [b"%d %d %s" % (part, n, b"." * 300) for n in range(200)]
                expected[part % 2] += values
                producer.send(name, part % 2, of(*values), 1)
                if part == 20:
                    broker.kill()
                    restart = Timer(0.2, broker.start)
                    restart.start()
            restart.join()
            producer.commit()
        actual = read_topic(broker.bootstrap_servers, name, at_least=8000)
        assert {place: values_of(actual, place) for place in expected} == expected


@pytest.mark.usefixtures("needs_broker")
def test_a_broker_that_hangs_is_an_error_in_time(kind: str, name: str) -> None:
    with a_broker_of_its_own(name, 1) as broker, closing(Opener(kind, broker.bootstrap_servers, name)) as start:
        producer = start(timeout=2.0, closing_timeout=1.0)
        producer.begin()
        producer.send(name, 0, of(b"v"), 1)
        producer.flush()
        broker.pause()
        before = time.monotonic()
        with pytest.raises(SinkError):
            producer.commit()
        producer.close()
        assert time.monotonic() - before < 20
        broker.resume()


def test_the_installed_client_is_one_that_we_know_inside(broker: SharedBroker, name: str) -> None:
    with closing(Opener("kafka-python", broker.bootstrap_servers, name)) as start:
        producer = start()
        assert isinstance(producer, KafkaPythonProducer)
        assert kafka_python.incompatibilities(producer._client) == []


def test_a_client_that_we_do_not_know_inside_is_refused(
    broker: SharedBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_python, "KNOWN_VERSION", "2.")
    settings = ProducerSettings({"bootstrap_servers": [broker.bootstrap_servers]}, f"cdfd.{name}")
    with pytest.raises(SinkError, match=rf"kafka-python {kafka.__version__}: it differs inside \(version") as refused:
        KafkaPythonProducer(settings)
    assert not refused.value.retriable


def test_an_idle_producer_keeps_no_connection_and_continues_its_transactions(
    broker: SharedBroker,
    create: Callable[..., str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_python_client, "IDLE_MS", 300)
    settings = ProducerSettings({"bootstrap_servers": [broker.bootstrap_servers]}, f"cdfd.{name}")
    topic, port = create(name), int(broker.bootstrap_servers.rpartition(":")[2])
    others = connections(port)
    with closing(KafkaPythonProducer(settings)) as producer:
        producer.init_transactions()
        for number in range(3):
            producer.begin()
            producer.send(topic, 0, of(b"%d first" % number), 0)
            producer.flush()
            if number:  # a transaction may outlast its connections
                wait_for_end_of_connections(port, others)
            producer.send(topic, 0, of(b"%d second" % number), 0)
            producer.commit()
            wait_for_end_of_connections(port, others)
    expected = [b"%d %s" % (number, which) for number in range(3) for which in (b"first", b"second")]
    assert [record.value for record in read_topic(broker.bootstrap_servers, topic, at_least=6)] == expected


def connections(port: int) -> set[str]:
    """Sockets of this process that are connected to a port."""
    own = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    }
    sockets = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == "01" and int(fields[2].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    return sockets & own


def wait_for_end_of_connections(port: int, others: set[str]) -> None:
    deadline = time.monotonic() + 20
    while connections(port) - others:
        assert time.monotonic() < deadline, "the connections stay"
        time.sleep(0.05)
