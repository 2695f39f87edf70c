"""Rows a second from Arrow to Kafka's wire: batches alone, then transactions of them with a broker on this machine.

python -m bench.kafka_batches [--without-broker]
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import get_args

import numpy as np
import pyarrow as pa
from kafka import KafkaAdminClient

from cdfd.encode.records import Records
from cdfd.sinks.kafka.client.kafka_python import KafkaPythonProducer
from cdfd.sinks.kafka.client.librdkafka import LibrdkafkaProducer
from cdfd.sinks.kafka.client.producer import Producer, ProducerSettings, send_record
from cdfd.sinks.kafka.records.batches import BatchBuilder, Batching, Compression, RecordBatch
from cdfd.sinks.kafka.records.murmur2 import partitions
from tests.support.kafka.broker import Broker

ROWS = 65_536
ROUNDS = 7
PARTITIONS = 4
TRANSACTIONS = 400
PAUSE = 0.01
SECONDS = 5.0

Make = Callable[[ProducerSettings], Producer]


def orders(size: int) -> Records:
    """Keys and values as a table of orders has them: JSON, of `size` bytes each on average."""
    random = np.random.default_rng(7)
    numbers = random.integers(0, 10**9, ROWS).tolist()
    words = [f"word{number}" for number in random.integers(0, 5000, 4000).tolist()]
    values = []
    for ordinal, number in enumerate(numbers):
        text = f'{{"order_id":{number},"city":"{words[number % 997]}","amount":"{number % 99_991}.{number % 100:02}","comment":"'
        end = f'","_change_type":"insert","_commit_version":4711,"_commit_timestamp":"2026-01-01T00:00:00Z","_change_ordinal":{ordinal}}}'
        comment = " ".join(words[(number + step * 31) % 4000] for step in range(30))
        values.append((text + comment[: size - len(text) - len(end)] + end).encode())
    keys = [b'{"order_id":%d}' % number for number in numbers]
    return Records(pa.array(keys, pa.large_binary()), pa.array(values, pa.large_binary()))


def best(work: Callable[[], object]) -> float:
    """Rows a second in the best of a few rounds."""
    shortest = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        shortest = min(shortest, time.perf_counter() - start)
    return ROWS / shortest


def built(records: Records, compression: Compression) -> int:
    """Bytes of batches that are ready to be sent."""
    size = 0
    places = 0 if records.keys is None else partitions(records.keys, PARTITIONS)
    for _, batch in BatchBuilder(Batching(compression)).batches(records, places, 1):
        assert isinstance(batch, RecordBatch)
        batch.stamp(1, 1, 1, transactional=True)
        size += len(batch.data)
    return size


def report_batches() -> None:
    records = orders(270)
    keyless = Records(None, records.values)
    print(f"{'one thread, values of 270 bytes':40}{'keys':>12}{'no keys':>12}   rows/s   bytes/row")
    for compression in get_args(Compression):
        with_keys, without = (best(partial(built, each, compression)) for each in (records, keyless))
        print(
            f"{'batches, ' + compression:40}{with_keys:12,.0f}{without:12,.0f}{built(records, compression) / ROWS:21.1f}"
        )
    print(f"{'partitions of keys':40}{best(lambda: partitions(records.keys, PARTITIONS)):12,.0f}")


def report_transactions(servers: str) -> None:
    makers: dict[str, Make] = {
        "kafka-python": KafkaPythonProducer,
        "librdkafka": LibrdkafkaProducer,
    }
    print(f"\n{'a broker on the same machine':40}{'rows/s':>12}   one record: p50    p90    p99 ms")
    records = orders(300)
    for name, make in makers.items():
        topic = uuid.uuid4().hex
        with closing(KafkaAdminClient(bootstrap_servers=servers)) as admin:
            admin.create_topics(
                {topic: {"num_partitions": PARTITIONS, "replication_factor": 1}}, wait_for_metadata=True
            )
        with closing(make(ProducerSettings({"bootstrap_servers": [servers]}, topic))) as producer:
            producer.init_transactions()
            rate = throughput(producer, topic, records)
            middle, high, highest = np.percentile(latencies(producer, topic), [50, 90, 99])
        print(f"{name:40}{rate:12,.0f}{middle:18.1f}{high:7.1f}{highest:7.1f}")


def throughput(producer: Producer, topic: str, records: Records) -> float:
    """Rows a second in transactions of a batch of rows each, keys hashed and sorted by partition on the way."""
    rows, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        producer.begin()
        producer.send(topic, partitions(records.keys, PARTITIONS), records, 1_767_225_600_000)
        producer.commit()
        rows += len(records)
    return rows / (time.perf_counter() - start)


def latencies(producer: Producer, topic: str) -> list[float]:
    """Milliseconds of transactions of one record, one every few milliseconds as commits come."""
    milliseconds = []
    for _ in range(TRANSACTIONS):
        time.sleep(PAUSE)
        start = time.perf_counter()
        producer.begin()
        send_record(producer, topic, 0, b"key", b"v" * 300)
        producer.commit()
        milliseconds.append((time.perf_counter() - start) * 1000)
    return milliseconds


def main() -> None:
    report_batches()
    if "--without-broker" not in sys.argv:
        with Broker(jvm=()) as broker:
            print("\nfirst a broker's own warming up; the second table counts")
            report_transactions(broker.bootstrap_servers)
            report_transactions(broker.bootstrap_servers)


if __name__ == "__main__":
    main()
