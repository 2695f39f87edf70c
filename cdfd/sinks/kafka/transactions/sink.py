"""Change rows into Kafka topics, exactly once: each delivery is a transaction that carries the position with the rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Self

from cdfd.changes.position import Position
from cdfd.sinks.cursor import Cursor
from cdfd.sinks.kafka.client.producer import Producer
from cdfd.sinks.kafka.client.worker import Worker, finished
from cdfd.sinks.kafka.destination import Destination, MakeEncoder, MakeProducer, TopicFacts
from cdfd.sinks.kafka.progress import records as progress_records
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.progress.topics import PROGRESS_PARTITION, Found, TopicAdmin, tombstones
from cdfd.sinks.kafka.records.batches import Batching
from cdfd.sinks.kafka.transactions.delivery import KafkaDelivery, Works
from cdfd.sinks.kafka.transactions.gathering import PARCEL_BYTES
from cdfd.sinks.kafka.transactions.outgoing import Encoding, Sending, Stage

log = logging.getLogger("cdfd.kafka")

CONNECT_SECONDS = 10.0
"""How long to look for a broker before it is said that there is none: whoever mistyped its address waits for that."""
MARGIN = 30.0
"""Seconds that a broker may take to end a transaction whose time is up."""
# A row in a small batch must not become a record that is too large: then it could not be told which version it is of.
_GROWTH = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Connected:
    """What opening a sink comes to."""

    producer: Producer
    facts: TopicFacts
    progress: Progress | None


class KafkaSink:
    """The `Sink` port over topics of a Kafka cluster; open it with `KafkaSink.open`.

    With `at_least_once` it knows no position when it is opened, and what is aborted may have arrived.
    """

    def __init__(self, works: Works) -> None:
        self._works = works
        self._delivery: KafkaDelivery | None = None
        self._closing: Future[None] | None = None

    @classmethod
    async def open(
        cls,
        destination: Destination,
        make_producer: MakeProducer,
        make_encoder: MakeEncoder,
        stage: Stage = lambda name, seconds: None,
    ) -> Self:
        """Take over a table's delivery: fence whoever delivers it, wait for what was left open, and find out where it stands.

        Args:
            destination: where to.
            make_producer: the client.
            make_encoder: the format; see `encoders`.
            stage: is told what `encode` and `send` took, from other threads.

        Raises:
            SinkError: the cluster cannot be reached, topics are not as they have to be, or the position cannot be read.
            FencedError: somebody else took over meanwhile.
        """
        sender = Worker(f"cdfd-send-{destination.table}")
        connecting = sender.submit(partial(_connect, destination, make_producer))
        try:
            connected = await finished(connecting)
        except BaseException:
            sender.submit(partial(_let_go, connecting))
            sender.close()
            raise
        facts, progress = connected.facts, connected.progress
        works = Works(
            destination,
            Encoding(make_encoder, destination, facts, stage),
            Sending(connected.producer, destination, facts, stage),
            Worker(f"cdfd-encode-{destination.table}"),
            sender,
            Cursor(None if progress is None else progress.position),
            progress,
            min(PARCEL_BYTES, facts.limit // _GROWTH),
            2 * destination.closing_timeout,
        )
        return cls(works)

    @property
    def oversized(self) -> int:
        """Records that were too large and not delivered."""
        return self._works.sending.oversized.count

    async def last_position(self) -> Position | None:
        """What is to be delivered next; see the port."""
        return self._works.cursor.position

    @property
    def progress(self) -> Progress | None:
        """What the last delivery that counts left behind; None where nothing was ever delivered."""
        return self._works.progress

    def take_on(self, position: Position, whole: Mapping[str, str | int] | None = None) -> None:
        """Stand at the beginning of something else, wherever what was before ended; it counts with its first delivery.

        Args:
            position: where it begins.
            whole: what it is, see `Progress`.

        Raises:
            SinkError: a delivery is under way.
        """
        works = self._works
        works.cursor.move(position)
        works.progress = Progress(position, whole=whole or {})

    async def begin(self, position: Position) -> KafkaDelivery:
        """Start a delivery; see the port. Nothing is sent until there are rows."""
        self._works.cursor.begin(position)
        self._delivery = KafkaDelivery(self._works, position)
        return self._delivery

    async def close(self) -> None:
        """Abort the delivery under way, if any, and let go of the cluster; later, where it does not answer."""
        works = self._works
        if self._delivery is not None:
            await self._delivery.abort()
        works.cursor.close()
        if self._closing is None:
            self._closing = works.sender.submit(works.sending.close)
            works.encoder.close()
            works.sender.close()
        await works.ended(self._closing)


def _connect(destination: Destination, make_producer: MakeProducer) -> _Connected:
    """Topics, then the producer, which ends what was left open; only then is the newest position the one that counts."""
    with TopicAdmin(destination.connection, timeout=min(destination.timeout, CONNECT_SECONDS)) as admin:
        there = admin.find([destination.topic])
        found = admin.ensure(destination.needed())
        facts = _facts(destination, found[destination.topic])
        settings = destination.producer_settings(Batching(destination.compression, facts.limit))
        producer = make_producer(settings)
        try:
            producer.init_transactions()
            progress = _progress(destination, admin) if destination.exactly_once else None
            if not there and progress is not None:
                _warn_of_loss(destination, progress.position)
        except BaseException:
            producer.close()
            raise
    return _Connected(producer, facts, progress)


def _let_go(connecting: Future[_Connected]) -> None:
    """Nobody waits for it any more."""
    if connecting.exception() is None:
        connecting.result().producer.close()


def _warn_of_loss(destination: Destination, position: Position) -> None:
    """A position says what was delivered, not whether it is still there."""
    log.warning(
        "topic %s was not there and is created anew: what was delivered before version %d is not in it",
        destination.topic,
        position.version,
        extra={"table": destination.table, "version": position.version},
    )


def _facts(destination: Destination, found: Found) -> TopicFacts:
    limit = found.max_message_bytes or Batching().limit
    return TopicFacts(found.partitions, destination.keyed and tombstones(destination.tombstones, found), limit)


def _progress(destination: Destination, admin: TopicAdmin) -> Progress | None:
    topic = destination.progress.name
    first, end = admin.bounds(topic, PROGRESS_PARTITION, committed=False)
    return progress_records.newest(
        destination.connection,
        topic,
        progress_records.key_of(destination.pipeline, destination.delivery_name),
        (max(first, destination.since), end),
        destination.transaction_timeout + MARGIN,
        destination.timeout,
    )
