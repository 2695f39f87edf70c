"""Reading whole topics, as a careful consumer sees them."""

import re
import time
from contextlib import closing
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaConnectionError

_PROCESSED = re.compile(rb',"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+}$')


class Record(NamedTuple):
    """One record of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def read_topic(
    bootstrap_servers: str,
    topic: str,
    *,
    at_least: int = 0,
    timeout: float = 60.0,
    committed: bool = True,
    **options: Any,
) -> list[Record]:
    """All records of a topic up to its end, by partition and offset.

    The end is where a `read_committed` reader may go when it is asked for: before the first transaction that is open. With `committed`
    unset, all that is there, aborted transactions too.

    Args:
        bootstrap_servers: where the broker is.
        topic: an existing one.
        at_least: wait for so many records.
        timeout: seconds for all of it.
        committed: leave out what is not committed.
        options: more for the consumer, such as credentials.

    Raises:
        TimeoutError: the end, or so many records, was not reached in time.
    """
    deadline = time.monotonic() + timeout
    # Whether that is the end is asked after each of these.
    told = {"isolation_level": "read_committed" if committed else "read_uncommitted", "max_poll_records": 10_000}
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False, **(told | options))
    try:
        partitions = _partitions(consumer, topic, deadline)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        taken: list[Record] = []
        while len(taken) < at_least or not _at_end(consumer, partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(taken)} records of {topic} within {timeout:g} seconds, and not at its end")
            for records in consumer.poll(timeout_ms=100).values():
                taken += [Record(r.partition, r.offset, r.key, r.value, tuple(r.headers)) for r in records]
        return sorted(taken, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def wait_for_markers(bootstrap_servers: str, topic: str, seconds: float = 2.0) -> bool:
    """Wait until no transaction is open in a topic, but not longer: the markers are written after the end of one is acknowledged.

    Returns:
        Whether none is open.
    """
    levels = ("read_committed", "read_uncommitted")
    committed, all_ = (
        KafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False, isolation_level=level)
        for level in levels
    )
    with closing(committed), closing(all_):
        deadline = time.monotonic() + seconds
        partitions = _partitions(committed, topic, deadline + 60)
        while committed.end_offsets(partitions) != all_.end_offsets(partitions):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def _partitions(consumer: KafkaConsumer, topic: str, deadline: float) -> list[TopicPartition]:
    while not (numbers := _numbers(consumer, topic)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"there is no topic {topic}")
        time.sleep(0.05)
    return [TopicPartition(topic, number) for number in sorted(numbers)]


def _numbers(consumer: KafkaConsumer, topic: str) -> set[int]:
    try:
        return set(consumer.partitions_for_topic(topic) or ())
    except KafkaConnectionError:  # it asked a node that died, which the cluster has yet to notice
        return set()


def _at_end(consumer: KafkaConsumer, partitions: list[TopicPartition]) -> bool:
    ends = consumer.end_offsets(partitions)
    return all(consumer.position(place) >= ends[place] for place in partitions)


def without_processing_time(value: bytes | None) -> bytes | None:
    """A value without what Debezium's envelope says of the time of its encoding, which differs when a record is sent again."""
    return None if value is None else _PROCESSED.sub(b"}", value)
