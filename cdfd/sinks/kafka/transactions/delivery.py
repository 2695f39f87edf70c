"""A delivery to Kafka: rows on their way through two threads, one that encodes and one that sends."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pyarrow as pa

from cdfd.changes.position import Position
from cdfd.changes.stream import Version
from cdfd.errors import CdfdError, SinkError
from cdfd.sinks.cursor import Cursor
from cdfd.sinks.kafka.client.worker import Worker, finished
from cdfd.sinks.kafka.destination import Destination
from cdfd.sinks.kafka.progress.records import Progress
from cdfd.sinks.kafka.transactions.gathering import Gathering, Parcel
from cdfd.sinks.kafka.transactions.markers import Markers
from cdfd.sinks.kafka.transactions.outgoing import Encoded, Encoding, Sending

log = logging.getLogger("cdfd.kafka")

# Parcels under way: one is encoded, one is sent, and one may wait for each.
_AHEAD = 4


@dataclass(slots=True, eq=False)
class Works:
    """What the deliveries of a sink share, one after the other.

    Attributes:
        destination: of the table.
        encoding: used by `encoder`, or by `sender` while there is nothing for `encoder` to do.
        sending: used by `sender`.
        encoder: a thread.
        sender: another one.
        cursor: where the sink stands.
        progress: of the last delivery that counts.
        small: bytes under which batches are put together.
        patience: seconds to wait for the end of a delivery that is dropped, or of the sink.
    """

    destination: Destination
    encoding: Encoding
    sending: Sending
    encoder: Worker
    sender: Worker
    cursor: Cursor
    progress: Progress | None
    small: int
    patience: float

    async def ended(self, work: Future[None]) -> None:
        """Wait for what ends a delivery or the sink, but not for ever: a broker that hangs holds up a call for longer than a daemon may take
        to stop. The sink is of no use then, and its threads end when they are let go.
        """
        try:
            await finished(work, self.patience)
        except TimeoutError:
            self.cursor.doubt()
            if self.patience:  # said once
                log.warning(
                    "Kafka does not answer: what is under way is left to end by itself",
                    extra={"table": self.destination.table},
                )
            self.patience = 0


class KafkaDelivery:
    """A delivery into a `KafkaSink`.

    Small ones are encoded, sent and committed in one go, by one thread. Of larger ones, each parcel of rows is sent while the next is encoded
    and the one after it read.

    What fails in a thread is raised by the next call, and nothing is committed any more. A call that is cancelled leaves a delivery that can
    only be aborted; what a thread does then, it ends first.
    """

    def __init__(self, works: Works, position: Position) -> None:
        self._works = works
        self._position = position
        self._markers = Markers(works.destination, position, works.progress)
        self._gathering = Gathering(works.small)
        self._version: Version | None = None
        self._under_way: deque[Future[Future[None]]] = deque()
        self._handed_over = self._any_rows = False
        self._state: Literal["open", "failed", "ended"] = "open"
        self._aborting: Future[None] | None = None
        # Between threads: work is dropped once one of the first two is set, and the third says that the delivery counts.
        self._dropped = self._broken = self._committed = False

    async def start_version(self, version: Version) -> None:
        """See the port."""
        self._require_open()
        self._state = "failed"
        for note in self._markers.start(version):
            self._gathering.note(note)
        self._version = version
        if self._gathering.full:
            await self._hand_over()
        self._reopen()

    def resume_version(self, version: Version, counts: Mapping[str, int]) -> None:
        """As `start_version`, of one that an earlier delivery began, and of which others have sent rows: `counts`, by change type."""
        self._require_open()
        self._markers.resume(version, counts)
        self._version = version

    async def write(self, batch: pa.RecordBatch) -> None:
        """See the port. Waits while the threads are behind by a few parcels."""
        self._require_open()
        if not batch.num_rows:
            return
        self._state = "failed"
        self._any_rows = True
        self._markers.count(batch)
        plan = None if self._version is None else self._version.plan
        self._gathering.add(
            batch,
            snapshot=plan.origin == "snapshot" if plan is not None else self._position.phase == "snapshot",
            version=plan.version if plan is not None else self._position.version,
        )
        if self._gathering.full:
            await self._hand_over()
        self._reopen()

    async def commit(
        self, following: Position, job: Mapping[str, str | int] | None = None, counts: Mapping[str, int] | None = None
    ) -> None:
        """See the port; `job` and `counts` are remembered with the position, see `Markers.progress`."""
        self._require_open()
        self._works.cursor.check(following, rows=self._any_rows)
        self._state = "failed"
        for note in self._markers.finish(following):
            self._gathering.note(note)
        progress = self._markers.progress(following, job, counts)
        parcel = self._gathering.take()
        if self._handed_over:
            self._encode(parcel, last=True)
            while self._under_way:
                await self._next_arrival()
            parcel = Parcel()
        self._handed_over = True
        await finished(self._works.sender.submit(partial(self._finish, parcel, progress)))
        self._state = "ended"

    async def abort(self) -> None:
        """See the port. Does nothing after a commit."""
        if self._state != "ended":
            self._state = "ended"
            self._dropped = True
            if not self._handed_over:
                self._works.cursor.abandon()
                return
            # After all that was given to the one thread, and by it to the other.
            self._aborting = Future()
            self._works.encoder.submit(lambda: self._works.sender.submit(self._drop, self._aborting))
        if self._aborting is not None:
            await self._works.ended(self._aborting)

    async def _hand_over(self) -> None:
        """Give what is gathered to the threads, as soon as they have room for it."""
        while self._under_way and (len(self._under_way) >= _AHEAD or _over(self._under_way[0])):
            await self._next_arrival()
        self._encode(self._gathering.take(), last=False)

    def _encode(self, parcel: Parcel, *, last: bool) -> None:
        self._handed_over = True
        work = partial(self._encode_in_thread, parcel, last=last)
        self._under_way.append(self._works.encoder.submit(work))

    async def _next_arrival(self) -> None:
        """Return when the oldest parcel under way is sent; raise what failed."""
        await finished(await finished(self._under_way[0]))
        self._under_way.popleft()

    def _reopen(self) -> None:
        if not self._dropped:
            self._state = "open"

    def _require_open(self) -> None:
        if self._state != "open":
            hint = "Abort it and begin again where last_position says" if self._state == "failed" else None
            raise SinkError(f"the delivery has {self._state}", version=self._position.version, hint=hint)

    # In threads.

    def _encode_in_thread(self, parcel: Parcel, *, last: bool) -> Future[None]:
        with self._working(parcel):
            encoded = self._works.encoding.encode(parcel, self._position.table_id, last=last)
        return self._works.sender.submit(partial(self._send, encoded, parcel))

    def _send(self, encoded: list[Encoded], parcel: Parcel) -> None:
        with self._working(parcel):
            self._works.sending.send(encoded, parcel.notes)

    def _finish(self, parcel: Parcel, progress: Progress) -> None:
        works = self._works
        with self._working(parcel):
            works.sending.send(works.encoding.encode(parcel, self._position.table_id, last=True), parcel.notes)
            works.cursor.doubt()
            works.sending.commit(progress)
            works.cursor.advance(progress.position)
            works.progress = progress
            self._committed = True

    def _drop(self) -> None:
        if not self._committed:
            self._works.sending.abort()
            self._works.encoding.forget()
            self._works.cursor.abandon()

    @contextmanager
    def _working(self, parcel: Parcel) -> Iterator[None]:
        """A piece of work, which is not begun after another one failed."""
        if self._dropped or self._broken:
            raise SinkError("the delivery has failed", version=self._position.version)
        done = False
        try:
            yield
            done = True
        except CdfdError as error:
            error.within(table=self._works.destination.table, version=parcel.version)
            raise
        finally:
            self._broken = self._broken or not done


def _over(handed_over: Future[Future[None]]) -> bool:
    """Whether a parcel was sent, or failed."""
    if not handed_over.done():
        return False
    return handed_over.exception() is not None or handed_over.result().done()
