"""A table's position in Kafka without its sink: looked at while a daemon delivers, moved by hand, and whether it all could work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TypeVar

from cdfd.changes.position import Position
from cdfd.sinks.kafka.client.producer import send_record
from cdfd.sinks.kafka.client.worker import Worker, finished
from cdfd.sinks.kafka.destination import Destination, MakeProducer
from cdfd.sinks.kafka.progress import records as progress_records
from cdfd.sinks.kafka.progress.records import Progress, key_of, value_of
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION, Found, TopicAdmin
from cdfd.sinks.kafka.records.batches import Batching

T = TypeVar("T")


async def read_position(destination: Destination) -> Position | None:
    """What is to be delivered next, as `read_progress` says."""
    found = await read_progress(destination)
    return None if found is None else found.position


async def read_progress(destination: Destination) -> Progress | None:
    """What the last commit that can be seen left behind; None where there is none.

    Disturbs nobody. A transaction that is open, of any table of the pipeline, may hide what is newer.

    Raises:
        SinkError: the cluster cannot be reached, or the record is not ours.
    """
    return await _in_thread(partial(_read, destination))


async def progress_end(destination: Destination) -> int:
    """The offset that the next record of any position of the pipeline gets, at least. The topic must be there.

    Raises:
        SinkError: the cluster cannot be reached.
    """
    return await _in_thread(partial(_end, destination))


async def move_position(destination: Destination, make_producer: MakeProducer, position: Position | None) -> None:
    """Make a table stand at a position, at None as if nothing had ever been delivered. A daemon that delivers it is fenced.

    Raises:
        SinkError: the cluster cannot be reached, or does not take it.
        FencedError: a daemon has taken over meanwhile.
    """
    await _in_thread(partial(_move, destination, make_producer, position))


async def check(destination: Destination) -> str:
    """What is there and what would be created, in a few words. Nothing is written.

    Raises:
        SinkError: a sink could not be opened.
    """
    return await _in_thread(partial(_check, destination))


async def _in_thread(work: Callable[[], T]) -> T:
    worker = Worker("cdfd-kafka-positions")
    try:
        return await finished(worker.submit(work))
    finally:
        worker.close()


def _read(destination: Destination) -> Progress | None:
    if not destination.exactly_once:
        return None
    topic = destination.progress.name
    with TopicAdmin(destination.connection, timeout=destination.timeout) as admin:
        if topic not in admin.find([topic]):
            return None
        first, end = admin.bounds(topic, PROGRESS_PARTITION, committed=True)
    key = key_of(destination.pipeline, destination.delivery_name)
    bounds = max(first, destination.since), end
    return progress_records.newest(destination.connection, topic, key, bounds, destination.timeout, destination.timeout)


def _end(destination: Destination) -> int:
    topic = destination.progress.name
    with TopicAdmin(destination.connection, timeout=destination.timeout) as admin:
        return admin.bounds(topic, PROGRESS_PARTITION, committed=False)[1]


def _move(destination: Destination, make_producer: MakeProducer, position: Position | None) -> None:
    if not destination.exactly_once:
        return
    with TopicAdmin(destination.connection, timeout=destination.timeout) as admin:
        admin.ensure([destination.progress])
    value = None if position is None else value_of(Progress(position))
    with closing(make_producer(destination.producer_settings(Batching()))) as producer:
        producer.init_transactions()
        producer.begin()
        key = key_of(destination.pipeline, destination.delivery_name)
        send_record(producer, destination.progress.name, PROGRESS_PARTITION, key, value)
        producer.commit()


def _check(destination: Destination) -> str:
    with TopicAdmin(destination.connection, timeout=destination.timeout) as admin:
        found = admin.check(destination.needed())
        if destination.exactly_once:
            admin.check_transactions(destination.transactional_id)
    missing = [topic.name for topic in destination.needed() if topic.name not in found]
    told = [_told(found[destination.topic])] if destination.topic in found else []
    if missing:
        told.append(f"will be created: {', '.join(missing)}")
    return f"ok, {'; '.join(told)}"


def _told(found: Found) -> str:
    count = f"{found.partitions} partition{'' if found.partitions == 1 else 's'}"
    return f"topic {found.name} has {count}{' and is compacted' if found.compacted else ''}"
