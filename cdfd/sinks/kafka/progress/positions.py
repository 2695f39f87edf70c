"""A table's position in Kafka without a sink: reads it while a daemon delivers, sets it, and checks the cluster."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from cdfd.errors import SinkError
from cdfd.model.position import Position
from cdfd.sinks.kafka.client.producer import Producer, send_record
from cdfd.sinks.kafka.client.worker import Worker, wait_for_result
from cdfd.sinks.kafka.destination import Destination, MakeProducer
from cdfd.sinks.kafka.progress.records import NewestRecord, Progress, key_of, progress_of, value_of
from cdfd.sinks.kafka.progress.topic_admin import CONNECT_SECONDS, TopicAdmin
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION, ExistingTopic, Topic
from cdfd.sinks.kafka.records.batches import Batching

P = ParamSpec("P")
T = TypeVar("T")

MARGIN = 30.0
"""Seconds that a broker may take to end a transaction after its timeout."""


def _in_thread(work: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let a blocking function run in a thread of its own."""

    @wraps(work)
    async def run(*args: P.args, **options: P.kwargs) -> T:
        worker = Worker("cdfd-kafka-positions")
        try:
            return await wait_for_result(worker.submit(partial(work, *args, **options)))
        finally:
            worker.close()

    return run


@_in_thread
def read_progress(destination: Destination) -> Progress | None:
    """The progress record of the last visible commit; None if there is none.

    It does not fence a daemon. An open transaction of any table of the pipeline may hide newer records.

    Raises:
        SinkError: the cluster cannot be reached, or the record is invalid.
    """
    if not destination.exactly_once:
        return None
    topic = destination.progress.name
    with closing(TopicAdmin(destination.connection, timeout=destination.timeout)) as admin:
        if topic not in admin.find([topic]):
            return None
        with closing(newest_progress(destination, destination.timeout)) as newest:
            return last_progress(destination, admin, newest, committed=True)


def newest_progress(destination: Destination, patience: float | None = None) -> NewestRecord:
    """The newest progress record of a table, which `last_progress` reads. Close it.

    Args:
        destination: of the table.
        patience: seconds to wait for transactions that hide it; None: as long as a transaction may take.
    """
    return NewestRecord(
        destination.connection,
        destination.progress.name,
        key_of(destination.pipeline, destination.delivery_name),
        destination.transaction_timeout + MARGIN if patience is None else patience,
        destination.timeout,
    )


def last_progress(
    destination: Destination, admin: TopicAdmin, newest: NewestRecord, *, committed: bool = False
) -> Progress | None:
    """The progress record of the last commit; None if there is none. Fence other producers of the table first.

    It waits for a transaction of another table that hides the record. Blocks.

    Args:
        destination: of the table.
        admin: of the cluster.
        newest: of `newest_progress`.
        committed: look only at what precedes all open transactions. Then the producer need not be fenced.

    Raises:
        SinkError: the cluster cannot be reached, or the record is invalid.
    """
    bounds = admin.bounds(destination.progress.name, PROGRESS_PARTITION, committed=committed, first=newest.end or None)
    return newest.read((max(bounds[0], destination.since), bounds[1]), progress_of)


def start_transactions(producer: Producer, admin: TopicAdmin) -> None:
    """Start the transactions of a producer; see `Producer.init_transactions`.

    Raises:
        SinkError: as there. Where a cluster cannot have transactions, the error says so, in place of a timeout.
        FencedError: another process takes over at the same time.
    """
    try:
        producer.init_transactions()
    except SinkError as error:
        if error.retriable:
            admin.has_transaction_log()
        raise


@_in_thread
def progress_end(destination: Destination) -> int:
    """The end offset of the pipeline's progress topic, which must exist.

    Raises:
        SinkError: the cluster cannot be reached.
    """
    with closing(TopicAdmin(destination.connection, timeout=destination.timeout)) as admin:
        return admin.bounds(destination.progress.name, PROGRESS_PARTITION, committed=False)[1]


@_in_thread
def move_position(destination: Destination, make_producer: MakeProducer, position: Position | None) -> None:
    """Set a table's position; None: as if nothing was delivered. Fences a daemon that delivers the table.

    Raises:
        SinkError: the cluster cannot be reached, or refuses the record.
        FencedError: a daemon took over at the same time.
    """
    if not destination.exactly_once:
        return
    with closing(TopicAdmin(destination.connection, timeout=destination.timeout)) as admin:
        admin.ensure([destination.progress])
        with closing(make_producer(destination.producer_settings(Batching()))) as producer:
            start_transactions(producer, admin)
            # A reset forgets everything.
            value = None if position is None else value_of(_progress_at(destination, admin, position))
            producer.begin()
            key = key_of(destination.pipeline, destination.delivery_name)
            send_record(producer, destination.progress.name, PROGRESS_PARTITION, key, value)
            producer.commit()


@_in_thread
def check(destination: Destination) -> str:
    """A short text about the existing topics and those to create. Writes nothing.

    Raises:
        SinkError: a sink could not be opened.
    """
    with closing(TopicAdmin(destination.connection, timeout=destination.timeout)) as admin:
        existing = admin.check(destination.needed())
        if destination.exactly_once:
            admin.check_transactions(destination.transactional_id)
    shown = [existing[destination.topic]] if destination.topic in existing else []
    return _state(shown, [topic.name for topic in destination.needed() if topic.name not in existing])


@_in_thread
def reach(connection: Mapping[str, Any]) -> None:
    """Connect, and nothing else. `SinkError` if the cluster cannot be reached."""
    with closing(TopicAdmin(connection, timeout=CONNECT_SECONDS)):
        pass


@_in_thread
def check_topics(connection: Mapping[str, Any], topics: Sequence[Topic]) -> str:
    """A short text about topics that no table has. Writes nothing.

    Raises:
        SinkError: a topic is unsuitable, or could not be created.
    """
    with closing(TopicAdmin(connection, timeout=CONNECT_SECONDS)) as admin:
        existing = admin.check(topics)
    return _state(existing.values(), [topic.name for topic in topics if topic.name not in existing])


def _progress_at(destination: Destination, admin: TopicAdmin, position: Position) -> Progress:
    """The progress at another position. A pause outlives the move."""
    try:
        with closing(newest_progress(destination)) as newest:
            last = last_progress(destination, admin, newest)
    except SinkError as error:
        if error.retriable:
            raise
        return Progress(position)  # the move replaces an invalid record
    if last is None:
        return Progress(position)
    return Progress(position, control=replace(last.control, snapshot=None), topic=last.topic)


def _state(existing: Iterable[ExistingTopic], missing: Sequence[str]) -> str:
    parts = []
    for topic in existing:
        count = f"{topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
        parts.append(f"topic {topic.name} has {count}{' and is compacted' if topic.compacted else ''}")
    if missing:
        parts.append(f"will be created: {', '.join(missing)}")
    return "ok, " + "; ".join(parts)
