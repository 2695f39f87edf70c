"""A delivery to Kafka: rows go through two threads, one that encodes and one that sends."""

import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from cdfd.encode.records import Records, SnapshotPart
from cdfd.encode.side import EVENTS, RowCounts, begin_record, end_record, schema_record
from cdfd.errors import CdfdError, SinkError
from cdfd.model.control import Control
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.sinks.base import Delivery
from cdfd.sinks.cursor import Cursor, DeliveryState, require_open
from cdfd.sinks.kafka.client.worker import Worker, wait_for_result
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.transactions.writer import Chunk, Encoded, RecordWriter

log = logging.getLogger("cdfd.kafka")

# Limit of chunks in flight: one is encoded, one is sent, and one waits between them. Encoded rows take several times the memory of rows.
_MAX_CHUNKS = 3


@dataclass(slots=True, eq=False)
class DeliveryContext:
    """The state that the successive deliveries of a sink share.

    Attributes:
        destination: of the table.
        writer: encodes in `encoder`, or in `sender` while `encoder` is idle, and sends in `sender`.
        encoder: the thread that encodes.
        sender: the thread that sends.
        cursor: the position of the sink.
        progress: the progress record of the last committed delivery.
        chunk_bytes: size of a full chunk.
        closing_timeout: seconds to wait until an aborted delivery, or the sink, has ended.
    """

    destination: Destination
    writer: RecordWriter
    encoder: Worker
    sender: Worker
    cursor: Cursor
    progress: Progress | None
    chunk_bytes: int
    closing_timeout: float

    async def wait_for_end(self, work: Future[None]) -> None:
        """Wait until a delivery or the sink has ended, but not forever.

        A broker that hangs blocks a call for longer than a daemon may take to stop. After a timeout the sink is unusable, and its threads
        end once their calls return.
        """
        try:
            await wait_for_result(work, self.closing_timeout)
        except TimeoutError:
            self.cursor.mark_uncertain()
            if self.closing_timeout:  # log it once
                log.warning(
                    "Kafka does not answer: not waiting for the current delivery to end",
                    extra={"table": self.destination.table},
                )
            self.closing_timeout = 0


class KafkaDelivery(Delivery):
    """A delivery into a `KafkaSink`.

    One thread encodes, sends and commits a small delivery in one step. A larger delivery is a pipeline: while one chunk is sent, the next
    one is encoded and the one after it read.

    The next call raises an error from a thread, and the delivery cannot be committed any more. After a cancelled call the delivery can only
    be aborted; a thread first finishes its current step.
    """

    def __init__(self, context: DeliveryContext, position: Position) -> None:
        self._context = context
        self._position = position
        self._chunk = Chunk(context.chunk_bytes)
        self._version: Version | None = None
        destination, progress = context.destination, context.progress
        self._origin = destination.origin(position.table_id)
        self._announced = progress is not None and progress.announced
        # Rows of the version: in this delivery, and in earlier ones.
        self._counts = RowCounts(destination.event_key, destination.key_rules)
        self._counts_before: Mapping[str, int] = {} if progress is None else progress.counts
        self._in_flight: deque[Future[None]] = deque()
        self._submitted = self._has_rows = self._incremental = False
        self._state: DeliveryState = "open"
        self._aborting: Future[None] | None = None
        # Shared by the threads. They skip further steps once one of them is set.
        self._aborted = self._failed = False

    async def start_version(self, version: Version) -> None:
        """See the port."""
        require_open(self._state, self._position)
        self._state = "failed"
        plan, destination = version.plan, self._context.destination
        if self._version is None or self._version.plan.version != plan.version:
            self._end_version()
            continued = bool(self._position.part) and self._position.version == plan.version
            self._version, self._counts = version, RowCounts(destination.event_key, destination.key_rules)
            if not continued:
                self._counts_before = {}
            topic = destination.schema_topic
            if topic is not None and (not self._announced or (version.schema_change and not continued)):
                change = version.schema_change if self._announced else None
                self._chunk.side_records[topic].append(schema_record(self._origin, plan, change))
                self._announced = True
            if destination.transactions_topic is not None and not continued:
                self._chunk.side_records[destination.transactions_topic].append(begin_record(self._origin, plan))
        if self._chunk.full:
            await self._submit()
        if not self._aborted:
            self._state = "open"

    def resume_version(self, version: Version, counts: Mapping[str, int]) -> None:
        """Like `start_version`, for a version that an earlier delivery started. `counts`: its rows from other producers, by type."""
        require_open(self._state, self._position)
        self._version, self._counts_before = version, counts

    async def write(self, batch: pa.RecordBatch) -> None:
        """See the port. Waits while too many chunks are in flight."""
        require_open(self._state, self._position)
        if not batch.num_rows:
            return
        self._state = "failed"
        self._has_rows = True
        if not self.takes_runs:
            self._counts.add(batch)
        plan = None if self._version is None else self._version.plan
        snapshot = plan.origin == "snapshot" if plan is not None else self._position.phase == "snapshot"
        version = plan.version if plan is not None else self._position.version
        # The last rows of a snapshot are not submitted before `commit`, which marks them.
        waits = snapshot and not self._incremental
        if waits and self._chunk.full:
            await self._submit()
        part = SnapshotPart.INCREMENTAL if self._incremental else SnapshotPart.MIDDLE
        self._chunk.add(batch, snapshot=snapshot, version=version, part=part)
        if self._chunk.full and not waits:
            await self._submit()
        if not self._aborted:
            self._state = "open"

    @property
    def events(self) -> int | None:
        """Events of the rows so far; None if rows are counted instead."""
        return self._counts.events

    @property
    def takes_runs(self) -> bool:
        """Whether the rows of each version are not counted: for its END record, or for that of the job of a part. See the port."""
        return self._context.destination.transactions_topic is None and self._context.destination.event_key is None

    async def commit(
        self, following: Position, job: Mapping[str, str | int] | None = None, counts: Mapping[str, int] | None = None
    ) -> None:
        """See the port. `job` and `counts` are stored with the position.

        Args:
            following: the position after the delivery.
            job: a new job; None: the current job, which ends once the position advances.
            counts: the rows of a part; None if this is not a part.
        """
        require_open(self._state, self._position)
        self._context.cursor.check(following, rows=self._has_rows)
        self._state = "failed"
        # With another part to come, the snapshot goes on. Parts of a job are delivered side by side, so none of them is the last.
        groups = self._chunk.groups
        if groups and groups[-1].snapshot and following.phase == "stream" and job is None:
            groups[-1].part = SnapshotPart.END
        if self._version is not None and following.version > self._version.plan.version:
            self._end_version()
        before = self._context.progress or Progress(self._position)
        if job is None:
            job = before.job if following == self._position else {}
        if counts is None:
            counts = self._count_rows() if following.part else {}
        counts = {name: count for name, count in counts.items() if count}
        # Where the position moves without a version, changes of the schema may be skipped.
        announced = self._announced and (self._version is not None or following == self._position)
        await self._complete(Progress(following, counts, announced, job, before.backfill, before.control))

    def hold_version(self, version: Version) -> None:
        """The next rows belong to a version that is delivered already, and is not begun or ended again: they have no BEGIN and END."""
        require_open(self._state, self._position)
        topic = self._context.destination.schema_topic
        if topic is not None and not self._announced:
            self._chunk.side_records[topic].append(schema_record(self._origin, version.plan, None))
            self._announced = True
        self._version, self._incremental = version, True

    async def commit_control(self, control: Control, to: Position | None = None) -> None:
        """Make the rows and a control durable. The position stays, or without rows moves to `to`."""
        require_open(self._state, self._position)
        self._state = "failed"
        before = self._context.progress
        if before is None or to is not None:
            backfill = {} if before is None else before.backfill
            progress = Progress(to or self._position, {}, self._announced and to is None, {}, backfill, control)
        else:
            progress = replace(before, announced=self._announced, control=control)
        await self._complete(progress)

    def _end_version(self) -> None:
        """The END record of the version before, if this delivery has its last rows."""
        if self._version is None or self._incremental:
            return
        topic = self._context.destination.transactions_topic
        if topic is not None:
            self._chunk.side_records[topic].append(end_record(self._origin, self._version.plan, self._count_rows()))
        self._counts_before = {}

    def _count_rows(self) -> Mapping[str, int]:
        """Rows of the version so far, including those of earlier deliveries; and events, if records are events."""
        before = {name: count for name, count in self._counts_before.items() if name != EVENTS}
        total = Counter(self._counts.by_type())
        total.update(before)
        if self._counts.events is None:
            return total
        # Parts that an earlier release has delivered count rows alone.
        return {**total, EVENTS: self._counts.events + self._counts_before.get(EVENTS, sum(before.values()))}

    async def _complete(self, progress: Progress) -> None:
        if self._submitted:
            self._encode()
            while self._in_flight:
                await wait_for_result(self._in_flight.popleft())
        self._submitted = True
        await wait_for_result(self._context.sender.submit(partial(self._finish, self._chunk, progress)))
        self._state = "ended"

    async def abort(self) -> None:
        """See the port. Does nothing after a commit."""
        if self._state != "ended":
            self._state = "ended"
            self._aborted = True
            if not self._submitted:
                self._context.cursor.abandon()
                return
            # Runs after all earlier steps of both threads.
            self._aborting = Future()
            self._context.encoder.submit(lambda: self._context.sender.submit(self._abort_in_thread, self._aborting))
        if self._aborting is not None:
            await self._context.wait_for_end(self._aborting)

    async def _submit(self) -> None:
        """Pass the current chunk to the threads, once few enough chunks are in flight. Raises the error of one that was sent."""
        while self._in_flight and (len(self._in_flight) >= _MAX_CHUNKS or self._in_flight[0].done()):
            await wait_for_result(self._in_flight.popleft())
        self._encode()

    def _encode(self) -> None:
        self._submitted = True
        sent: Future[None] = Future()
        chunk, self._chunk = self._chunk, Chunk(self._chunk.limit)
        self._context.encoder.submit(partial(self._encode_in_thread, chunk, sent))
        self._in_flight.append(sent)

    # In threads.

    def _encode_in_thread(self, chunk: Chunk, sent: Future[None]) -> None:
        """Encode a chunk and pass it to the thread that sends. `sent` gets the end of both, or the error."""
        try:
            with self._guard(chunk.version):
                encoded = self._context.writer.encode(chunk, self._position.table_id)
            # The rows themselves are not kept until they are sent.
            self._context.sender.submit(partial(self._send, encoded, chunk.side_records, chunk.version), sent)
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            sent.set_exception(error)

    def _send(self, encoded: Encoded, side_records: Mapping[str, Sequence[Records]], version: int | None) -> None:
        with self._guard(version):
            self._context.writer.send(encoded, side_records)

    def _finish(self, chunk: Chunk, progress: Progress) -> None:
        context = self._context
        with self._guard(chunk.version):
            encoded = context.writer.encode(chunk, self._position.table_id)
            context.writer.send(encoded, chunk.side_records, last=True)
            context.cursor.mark_uncertain()
            context.writer.commit(progress)
            context.cursor.advance(progress.position)
            context.progress = progress

    def _abort_in_thread(self) -> None:
        """Changes nothing after a commit that succeeded although its call was cancelled."""
        self._context.writer.abort()
        self._context.cursor.abandon()

    @contextmanager
    def _guard(self, version: int | None) -> Iterator[None]:
        """Run a step, unless an earlier one failed. Errors name the table and the version, if there is one."""
        if self._aborted or self._failed:
            raise SinkError("the delivery has failed", version=self._position.version)
        done = False
        try:
            yield
            done = True
        except CdfdError as error:
            error.within(table=self._context.destination.table, version=version)
            raise
        finally:
            self._failed = self._failed or not done
