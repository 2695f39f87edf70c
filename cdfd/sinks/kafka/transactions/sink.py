"""Delivers change rows to Kafka topics exactly once: each delivery is one transaction with the rows and the position."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from threading import Lock, Thread
from typing import Self
from uuid import uuid4

from cdfd.encode.side import EVENTS
from cdfd.errors import SinkError
from cdfd.model.control import EMPTY, Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.sinks.base import Backfill, Sink, StageTimer, aborting, unmeasured
from cdfd.sinks.cursor import Cursor
from cdfd.sinks.jobs import Delivered, Job, counts_of
from cdfd.sinks.kafka.client.producer import Producer
from cdfd.sinks.kafka.client.worker import Worker, wait_for_result
from cdfd.sinks.kafka.destination import Destination, MakeEncoder, MakeProducer, TopicFacts
from cdfd.sinks.kafka.progress.positions import last_progress, newest_progress, progress_end, start_transactions
from cdfd.sinks.kafka.progress.records import NewestRecord, Progress
from cdfd.sinks.kafka.progress.topic_admin import CONNECT_SECONDS, TopicAdmin
from cdfd.sinks.kafka.progress.topics import ExistingTopic, tombstones
from cdfd.sinks.kafka.records.batches import Batching
from cdfd.sinks.kafka.transactions.delivery import DeliveryContext, KafkaDelivery
from cdfd.sinks.kafka.transactions.writer import CHUNK_BYTES, RecordWriter

log = logging.getLogger("cdfd.kafka")

# A row of a small batch must not become an oversized record, because the version of such a record would be unknown.
_GROWTH = 16

_JOB_FIELDS = {"id": str, "version": int, "phase": str, "parts": int, "bytes": int, "digest": str, "since": int}


@dataclass(frozen=True, slots=True, eq=False)
class Connected:
    """The connections of a sink that has taken nothing over, and what was read by them.

    Attributes:
        admin: of the cluster.
        producer: it has not fenced others yet.
        newest: the newest progress record.
        facts: of the table's topic.
        existing: the topics before the connection, by name, without those that were missing.
    """

    admin: TopicAdmin
    producer: Producer
    newest: NewestRecord
    facts: TopicFacts
    existing: Mapping[str, ExistingTopic]

    def close(self) -> None:
        """Disconnect. Blocks, and does not raise."""
        self.producer.close()
        self.newest.close()
        self.admin.close()


_Opened = tuple[Connected, Progress | None, str | None]
"""The results of opening a sink: its connections, its progress, and `Sink.lost_position`."""


@dataclass(eq=False)
class KafkaSink(Sink):
    """The `Sink` port over topics of a Kafka cluster; open it with `KafkaSink.open`.

    With `at_least_once` an opened sink has no position, and rows of an aborted delivery may be in the topic.
    """

    context: DeliveryContext
    _delivery: KafkaDelivery | None = field(default=None, init=False)
    _closing: Future[None] | None = field(default=None, init=False)

    @classmethod
    async def open(
        cls,
        destination: Destination,
        make_producer: MakeProducer,
        make_encoder: MakeEncoder,
        stage: StageTimer = unmeasured,
        prepared: Future[Connected | None] | None = None,
    ) -> Self:
        """Take over a table's delivery: fence other producers, wait for the end of their transactions, and read the position.

        Args:
            destination: of the table.
            make_producer: creates the producer.
            make_encoder: creates the encoder.
            stage: receives the durations of `encode` and `send`, from other threads.
            prepared: connections to the same destination, which this sink takes; None: there are none.

        Raises:
            SinkError: the cluster cannot be reached, a topic is unsuitable, or the position cannot be read.
            FencedError: another process took over at the same time.
        """
        sender = Worker(f"cdfd-send-{destination.table}")
        takeover = _Takeover()
        opening = sender.submit(partial(_open, destination, make_producer, takeover, prepared))
        try:
            connected, progress, lost_position = await wait_for_result(opening)
        except BaseException:
            closing = sender.submit(partial(_close_unused, opening))
            sender.close()
            if takeover.give_up():
                # It would fence the next sink if that were opened at once.
                with suppress(TimeoutError):
                    await wait_for_result(closing, destination.closing_timeout)
            raise
        facts = connected.facts
        context = DeliveryContext(
            destination,
            RecordWriter(make_encoder, connected.producer, destination, facts, stage),
            Worker(f"cdfd-encode-{destination.table}", yields=True),
            sender,
            Cursor(None if progress is None else progress.position),
            progress,
            min(CHUNK_BYTES, facts.limit // _GROWTH),
            2 * destination.closing_timeout,
        )
        sink = cls(context)
        sink.lost_position = lost_position
        return sink

    async def last_position(self) -> Position | None:
        """The next position to deliver; see the port."""
        return self.context.cursor.position

    @property
    def progress(self) -> Progress | None:
        """The progress record of the last committed delivery; None if nothing is delivered."""
        return self.context.progress

    @property
    def backfill(self) -> Backfill | None:
        """The backfill in the progress record; see the port."""
        return None if self.progress is None else Backfill(self.progress.position, self.progress.backfill)

    def move_to(self, position: Position, backfill: Mapping[str, str | int] | None = None) -> None:
        """Move to the start of a part or a backfill, from any position. The first delivery there makes it durable.

        Args:
            position: the new position.
            backfill: the range of the backfill; see `Progress`.

        Raises:
            SinkError: a delivery is in progress.
        """
        context = self.context
        context.cursor.move(position)
        context.progress = Progress(position, backfill=backfill or {})

    @property
    def stores_control(self) -> bool:
        """Whether there are progress records, which have the control; see the port."""
        return self.context.destination.exactly_once

    @property
    def control(self) -> Control:
        """The control of the last committed delivery; see the port."""
        return EMPTY if self.progress is None else self.progress.control

    async def begin_chunk(self, position: Position, version: Version) -> KafkaDelivery:
        """Start a transaction that leaves the position where it is; see the port."""
        delivery = await self.begin(position)
        delivery.hold_version(version)
        return delivery

    async def begin(self, position: Position) -> KafkaDelivery:
        """Start a delivery; see the port. Sends nothing until there are rows."""
        self.context.cursor.begin(position)
        self._delivery = KafkaDelivery(self.context, position)
        return self._delivery

    @property
    def job(self) -> Job | None:
        """The job under way; see the port."""
        return job_of(self.progress)

    def takes_job(self, position: Position) -> bool:
        """Any version can; see the port."""
        return True

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> Job:
        """Make a new job durable; see the port."""
        since = await progress_end(self.context.destination)
        job = Job(uuid4().hex, position.version, position.phase, parts, size, digest, since)
        async with aborting(await self.begin(position)) as delivery:
            await delivery.start_version(version)
            await delivery.commit(position, job=asdict(job))
        return job

    async def claim_job(self, position: Position, job: Job) -> None:
        """Make the job durable again; see the port."""
        async with aborting(await self.begin(position)) as delivery:
            await delivery.commit(position, job=asdict(job))

    async def finish_job(self, version: Version, position: Position, job: Job, parts: Sequence[Delivered]) -> None:
        """Move to the position after the version; see the port."""
        async with aborting(await self.begin(position)) as delivery:
            counts = dict(counts_of(parts))
            # A part without rows has no receipt where an earlier attempt has delivered it.
            if parts and all(part.receipt or not any(part.counts.values()) for part in parts):
                counts[EVENTS] = sum(int(part.receipt or 0) for part in parts)
            delivery.resume_version(version, counts)
            await delivery.commit(position.after_version(version.digest))

    async def close(self) -> None:
        """Abort the current delivery, if any, and disconnect. If Kafka does not answer, the threads disconnect later."""
        context = self.context
        if self._delivery is not None:
            await self._delivery.abort()
        context.cursor.close()
        if self._closing is None:
            self._closing = context.sender.submit(context.writer.close)
            context.encoder.close()
            context.sender.close()
        await context.wait_for_end(self._closing)


def job_of(progress: Progress | None) -> Job | None:
    """The job in a table's progress record; None if there is none.

    Raises:
        SinkError: the job in the record is invalid.
    """
    if progress is None or not progress.job:
        return None
    job, position = dict(progress.job), progress.position
    is_complete = all(type(job.get(name)) is kind for name, kind in _JOB_FIELDS.items())
    if is_complete and (job["version"], job["phase"]) == (position.version, position.phase):
        parts, size, since = (int(job[name]) for name in ("parts", "bytes", "since"))
        return Job(str(job["id"]), position.version, position.phase, parts, size, str(job["digest"]), since)
    raise SinkError(
        "the table's position is part of a job that this version of cdfd does not know",
        version=position.version,
        hint="A newer version of cdfd may have written it: continue with that version",
    )


@dataclass(eq=False)
class _Takeover:
    """Whether a sink that is being opened in a thread may fence other producers."""

    _lock: Lock = field(default_factory=Lock, init=False)
    _given_up: bool = field(default=False, init=False)
    _begun: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Call it before others are fenced.

        Raises:
            SinkError: opening was given up.
        """
        with self._lock:
            if self._given_up:
                raise SinkError("opening the sink was given up")
            self._begun = True

    def give_up(self) -> bool:
        """The caller no longer waits for the sink. Returns whether other producers may be fenced nevertheless."""
        with self._lock:
            self._given_up = True
            return self._begun


def _open(
    destination: Destination,
    make_producer: MakeProducer,
    takeover: _Takeover,
    prepared: Future[Connected | None] | None,
) -> _Opened:
    waiting = None
    if prepared is not None:
        try:
            waiting = prepared.result(CONNECT_SECONDS)
        except TimeoutError:
            discard(prepared)
        except SinkError as error:
            log.debug("no connections are prepared: %s", error)
    if waiting is not None:
        try:
            return _take_over(destination, waiting, takeover)
        except SinkError as error:
            if not error.retriable:
                raise
            log.debug("the connections cannot be used: %s", error, extra={"table": destination.table})
    connected = connect(destination, make_producer)
    assert connected is not None
    return _take_over(destination, connected, takeover)


def discard(prepared: Future[Connected | None]) -> None:
    """Disconnect, without waiting for it."""

    def close(done: Future[Connected | None]) -> None:
        if done.exception() is None and (connected := done.result()) is not None:
            Thread(target=connected.close, name="cdfd-discard", daemon=True).start()

    prepared.add_done_callback(close)


def prepare(
    destination: Destination, make_producer: MakeProducer, before: Future[Connected | None] | None
) -> Connected | None:
    """Connections to the topics, and what has changed since they were made; None if a topic is missing, or another one. Blocks.

    Args:
        destination: of a table.
        make_producer: creates the producer.
        before: the end of the preparation before, whose connections are used again; None: there was none.

    Raises:
        SinkError: the cluster cannot be reached, a topic is unsuitable, or the position cannot be read.
    """
    connected = None if before is None or before.exception() is not None else before.result()
    connected = connected or connect(destination, make_producer, creates=False)
    if connected is None:
        return None
    try:
        needed = [topic.name for topic in destination.needed()]
        existing = connected.admin.find(needed)
        # Offsets in a topic that was created again say nothing about those that were read before.
        if len(existing) == len(needed) and existing == connected.existing:
            if destination.exactly_once:
                last_progress(destination, connected.admin, connected.newest, committed=True)
            connected.producer.prepare(list(existing))
            return connected
    except SinkError:
        connected.close()
        raise
    connected.close()  # the next call connects again
    return None


def connect(destination: Destination, make_producer: MakeProducer, *, creates: bool = True) -> Connected | None:
    """Check or create the topics, and connect a producer, which does not fence others yet. Blocks.

    Args:
        destination: of a table.
        make_producer: creates the producer.
        creates: whether to create topics that are missing. If not, and one is, the result is None.

    Raises:
        SinkError: the cluster cannot be reached, or a topic is unsuitable.
    """
    with ExitStack() as stack:
        timeout = min(destination.timeout, CONNECT_SECONDS)
        admin = stack.enter_context(closing(TopicAdmin(destination.connection, timeout=timeout)))
        needed = destination.needed()
        existing = admin.find([topic.name for topic in needed])
        if not creates and len(existing) < len(needed):
            return None
        topics = admin.ensure(needed, existing)
        topic = topics[destination.topic]
        schemas = None if destination.schema_topic is None else topics[destination.schema_topic].id
        limit = topic.max_message_bytes or Batching().limit
        with_tombstones = destination.keyed and tombstones(destination.tombstones, topic)
        facts = TopicFacts(topic.partitions, with_tombstones, limit, topic.id, schemas)
        codec = topic.config.get("compression.type", "producer")
        settings = destination.producer_settings(Batching.for_topic(destination.compression, facts.limit, codec))
        newest = stack.enter_context(closing(newest_progress(destination)))
        producer = make_producer(settings)
        stack.pop_all()
        return Connected(admin, producer, newest, facts, existing)


def _take_over(destination: Destination, connected: Connected, takeover: _Takeover) -> _Opened:
    """Start the producer. It ends open transactions, so that the newest position is final."""
    admin, producer, facts = connected.admin, connected.producer, connected.facts
    with closing(admin), closing(connected.newest):
        try:
            takeover.begin()
            start_transactions(producer, admin)
            progress = last_progress(destination, admin, connected.newest) if destination.exactly_once else None
            if progress is not None:
                # Whether the topic is not the one of this name that has the rows before the position.
                stored_topic = progress.topic
                same_name = stored_topic.get("name") == destination.topic and facts.id is not None
                # The schema topic names the topic of the rows. Records of earlier versions of cdfd have no id of it.
                if stored_topic and (
                    stored_topic.get("name") != destination.topic
                    or stored_topic.get("schemas", facts.schemas) != facts.schemas
                ):
                    progress = replace(progress, announced=False)
                if destination.topic not in connected.existing or (same_name and stored_topic.get("id") != facts.id):
                    # The position says that rows were delivered.
                    log.warning(
                        "topic %s was deleted and has been created again: it may lack the rows before version %d. "
                        "`cdfd ctl snapshot %s` publishes the live rows again",
                        destination.topic,
                        progress.position.version,
                        destination.table,
                        extra={"table": destination.table, "version": progress.position.version},
                    )
            lost = None if progress is not None else _lost_position(destination, connected)
        except BaseException:
            producer.close()
            raise
    return connected, progress, lost


def _lost_position(destination: Destination, connected: Connected) -> str | None:
    """Why a table without a position seems to have had one. After a reset, there is a record without a value."""
    if not destination.exactly_once or destination.role is not None or destination.shared or connected.newest.exists:
        return None
    if destination.topic not in connected.existing:
        return None
    if not connected.admin.has_records(destination.topic, connected.facts.partitions):
        return None
    return f"topic {destination.topic} has records, but topic {destination.progress.name} has no position of the table"


def _close_unused(opening: Future[_Opened]) -> None:
    """Close the producer of a cancelled `open`."""
    if opening.exception() is None:
        opening.result()[0].producer.close()
