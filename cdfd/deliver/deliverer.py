"""Versions to deliveries: one delivery for several small versions, or several parts for a large version."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from cdfd.deliver.admission import Admission
from cdfd.deliver.large_versions import LargeVersions
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.rates import Rates, Stop
from cdfd.encode.side import RowCounts
from cdfd.errors import CdfdError, SinkError
from cdfd.log.stream import PlanStream
from cdfd.log.tailer import Tailer
from cdfd.model.batch import ChangeBatch
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import Clock
from cdfd.runtime.in_thread import iterate_in_thread
from cdfd.runtime.progress_line import ProgressLine
from cdfd.scan.execute import Execution
from cdfd.scan.splits import ranges
from cdfd.sinks.base import Delivery, Sink

PART_BYTES = 128 << 20
"""Default size of a part: a version with more bytes of files is delivered in parts."""
ROWS = 100_000
"""Default limit of the rows of a delivery of several versions."""
_CHUNK_BATCHES = 64
_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one delivery.

    Attributes:
        part_bytes: bytes of files of a part. You can change it between restarts, because a part is a number of file scans.
        max_rows, max_bytes, max_seconds: limits of a delivery of several versions; the bytes are those of their files.
    """

    part_bytes: int = PART_BYTES
    max_rows: int = ROWS
    max_bytes: int = 64 << 20
    max_seconds: float = 10.0


@dataclass(slots=True)
class Deliverer:
    """Delivers versions of one table to one sink, in order.

    Attributes:
        table: its URI, for messages.
        sink: receives the rows.
        execution: reads the files.
        limits: of one delivery.
        stop: once set, a delivery of several versions ends after the current one, and a version in parts after the current part.
        monitor: receives the events of deliveries.
        report: shows progress to people.
        admission: large deliveries wait for a slot.
        clock: the source of time.
        large: delivers versions that are too large for this process; None if there is no such engine.
        rates: limits of rows and bytes a second. They do not hold for `large`.
    """

    table: str
    sink: Sink
    execution: Execution
    limits: Limits
    stop: Stop
    monitor: Monitor
    report: ProgressLine
    admission: Admission
    clock: Clock
    large: LargeVersions | None = None
    rates: Rates = field(default_factory=Rates)

    @property
    def partly_delivered(self) -> bool:
        """Whether parts of the version at the sink's position may be delivered, although the position does not say so."""
        return self.large is not None and self.large.begun

    async def snapshot(self, stream: PlanStream, position: Position, tailer: Tailer) -> Version:
        """The live rows at a position, as `deliver` takes them.

        Raises:
            CdfdError: as `PlanStream.snapshot` says.
        """
        if self.large is None:
            return await stream.snapshot(position.version, tailer)
        return await self.large.snapshot(stream, position, tailer)

    async def deliver(self, versions: Sequence[Version], position: Position) -> int:
        """Deliver the first of `versions`, which is at `position`, and as many of the following ones as fit into the same delivery.

        Returns:
            The number of versions that are now delivered; 0 if a stop came before the first one, or between two of its parts.
        """
        first = versions[0]
        plan, part = first.plan, position.part
        if not plan.continues(position):
            raise SinkError(
                f"the position is after {part} parts of this version, but it has {len(plan.scans)} parts to read now, or other ones",
                table=self.table,
                version=plan.version,
                hint="Restore the previous values of `changes` and `refine`, or deliver into an empty sink",
            )
        self.monitor.oldest_pending(first)
        if self.large is not None and self.large.takes(first, position):
            return await self._deliver_large(self.large, first, position)
        for start, end in ranges(plan, part, self.limits.part_bytes):
            if start == part and end == len(plan.scans):
                group = self._group(versions)
                if not await self._admit(version.plan.size for version in group):
                    return 0
                return await self._deliver_group(group, position)
            if start > part and self.stop.is_set():
                return 0
            if not await self._admit(scan.share for scan in plan.scans[start:end]):
                return 0
            position = await self._deliver_part(first, position, end)
        return 1

    async def _deliver_large(self, large: LargeVersions, version: Version, position: Position) -> int:
        """Deliver one version on the engine for large versions; 0 if a stop came first."""
        found = await large.deliver(version, position)
        if found is None:
            return 0
        counts, size = found
        self.monitor.committed(_after(version), [version], counts, size)
        self.report.count(version.plan.version, sum(counts.values()))
        return 1

    async def _admit(self, sizes: Iterable[int]) -> bool:
        """Wait for the limits of rows and bytes a second, with the sizes of what comes next; False if a stop came first."""
        if not self.rates:
            return True
        began = self.clock.monotonic()
        admitted = await self.rates.admit(sum(sizes), self.stop)
        self.monitor.stage("limit", self.clock.monotonic() - began)
        return admitted

    def _group(self, versions: Sequence[Version]) -> Sequence[Version]:
        """The versions that fit into one delivery, by the sizes of their files. A schema change starts a new delivery."""
        size = 0
        for count, version in enumerate(versions):
            size += version.plan.size
            large = self.large is not None and self.large.is_large(version)
            if count and (size > self.limits.max_bytes or version.schema_change is not None or large):
                return versions[:count]
        return versions

    async def _deliver_group(self, versions: Sequence[Version], position: Position) -> int:
        """Deliver several versions. If one of them cannot be read, deliver the versions before it first."""
        while True:
            try:
                return await self._deliver_whole(versions, position)
            except SinkError:
                raise
            except CdfdError:
                if len(versions) == 1:
                    raise
                versions = versions[: len(versions) // 2]

    async def _deliver_part(self, version: Version, position: Position, end: int) -> Position:
        """Deliver the scans of a version up to number `end`; the position after them."""
        plan, last = version.plan, end == len(version.plan.scans)
        truncated = replace(plan, scans=plan.scans[:end])
        size = sum(scan.share for scan in plan.scans[position.part : end])
        async with (
            self.admission.admit(size, self.monitor.urgency, self.monitor.waiting) as progressed,
            _delivery(self.sink, position, self.monitor) as delivery,
        ):
            writer = _DeliveryWriter(delivery, [version], position.ordinal)
            await self._write(writer, [truncated], position, progressed)
            await writer.finish()
            following = (
                _after(version) if last else position.at_part(end, plan.ordinal_of(end, writer.ordinal), version.digest)
            )
            await self._commit(writer, following, [version] if last else [], size)
        return following

    async def _deliver_whole(self, versions: Sequence[Version], position: Position) -> int:
        """Deliver several versions, or as many as a limit allows; their number."""
        size = sum(version.plan.size for version in versions)
        async with (
            self.admission.admit(size, self.monitor.urgency, self.monitor.waiting) as progressed,
            _delivery(self.sink, position, self.monitor) as delivery,
        ):
            writer = _DeliveryWriter(delivery, versions)
            await self._write(writer, [version.plan for version in versions], position, progressed)
            if not writer.stopped:
                await writer.finish()
            whole = versions[: writer.started]
            size -= sum(version.plan.size for version in versions[writer.started :])
            await self._commit(writer, _after(whole[-1]), whole, size)
        return len(whole)

    async def _write(
        self, writer: _DeliveryWriter, plans: Sequence[ChangePlan], position: Position, progressed: Callable[[], None]
    ) -> None:
        deadline = self.clock.monotonic() + self.limits.max_seconds
        chunks = iterate_in_thread(_chunks(self.execution.batches(plans, position, joined=True)), _is_partial)
        async with contextlib.aclosing(_timed(chunks, self.monitor)) as timed:
            async for chunk in timed:
                for run in chunk:
                    if not await self._write_run(writer, run, deadline):
                        return
                    progressed()
                    self.report.count(run.plan.version, run.rows.num_rows)

    async def _write_run(self, writer: _DeliveryWriter, run: ChangeBatch, deadline: float) -> bool:
        """Write a run, as a whole or version by version; False if the delivery ends before all of its versions are written."""

        def ends() -> bool:
            full = writer.rows >= self.limits.max_rows or self.clock.monotonic() >= deadline
            return full or self.stop.is_set()

        if writer.takes(run) and writer.rows + run.rows.num_rows <= self.limits.max_rows and not ends():
            await writer.write_run(run)
            return True
        for batch in run.by_version():
            if not await writer.advance(batch.plan.version, end=ends()):
                return False
            await writer.write(batch)
        return True

    async def _commit(self, writer: _DeliveryWriter, following: Position, whole: Sequence[Version], size: int) -> None:
        began = time.perf_counter()
        await writer.delivery.commit(following)
        self.monitor.stage("commit", time.perf_counter() - began)
        self.rates.settle(writer.rows, size)
        self.monitor.committed(following, whole, writer.counts.by_type(), size)


def _after(version: Version) -> Position:
    """The position after a version."""
    return Position(version.table_id, version.plan.version + 1, digest=version.digest)


class _DeliveryWriter:
    """Writes versions into a delivery.

    `ordinal` is the ordinal of the next row of the current version.
    """

    def __init__(self, delivery: Delivery, versions: Sequence[Version], ordinal: int = 0) -> None:
        self.delivery = delivery
        self.counts = RowCounts()
        self.rows = 0
        self.ordinal = ordinal
        self.started = 0
        self.stopped = False
        self._versions = versions

    def takes(self, run: ChangeBatch) -> bool:
        """Whether a run can be written as a whole: all of its versions begin with it, and the sink takes several."""
        several = bool(run.earlier) and run.plan.origin != "snapshot"
        return self.delivery.takes_runs and several and self._lacks(run.earlier[0].plan.version)

    async def write_run(self, run: ChangeBatch) -> None:
        """Start the versions up to the last one of a run that `takes` allows, and write its rows."""
        before = self.started
        while self._lacks(run.plan.version):
            self.started += 1
        await self.delivery.write_run(self._versions[before : self.started], run.rows)
        self._written(run.rows, run.following)

    async def advance(self, version: int, *, end: bool) -> bool:
        """Start the versions up to `version`. If that needs another version and `end` is true, start none, stop and return False."""
        while self._lacks(version):
            if end and self.started:
                self.stopped = True
                return False
            await self._start_next()
        return True

    async def write(self, batch: ChangeBatch) -> None:
        if batch.rows.num_rows:
            await self.delivery.write(batch.rows)
        self._written(batch.rows, batch.following)

    def _written(self, rows: pa.RecordBatch, following: int) -> None:
        if rows.num_rows:
            self.counts.add(rows)
        self.rows += rows.num_rows
        self.ordinal = following

    def _lacks(self, version: int) -> bool:
        """Whether a version is not started yet."""
        return self.started == 0 or self._versions[self.started - 1].plan.version < version

    async def finish(self) -> None:
        """Start the remaining versions, which have no rows."""
        while self.started < len(self._versions):
            await self._start_next()

    async def _start_next(self) -> None:
        await self.delivery.start_version(self._versions[self.started])
        self.started += 1


@contextlib.asynccontextmanager
async def _delivery(sink: Sink, position: Position, monitor: Monitor) -> AsyncGenerator[Delivery, None]:
    """A delivery. An error or a cancellation in the block aborts it."""
    delivery = await sink.begin(position)
    try:
        yield delivery
    except BaseException:
        await delivery.abort()
        monitor.aborted()
        raise


def _chunks(runs: Generator[ChangeBatch, None, None]) -> Iterator[list[ChangeBatch]]:
    """Rows in chunks. A chunk holds many small batches, because a fetch from another thread costs more than a row."""
    chunk: list[ChangeBatch] = []
    size = 0
    with contextlib.closing(runs):
        for run in runs:
            chunk.append(run)
            size += _chunk_share(run)
            if size >= _CHUNK_BYTES or len(chunk) >= _CHUNK_BATCHES:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def _chunk_share(run: ChangeBatch) -> int:
    return run.rows.nbytes if run.rows.num_rows < 1024 else _CHUNK_BYTES


def _is_partial(chunk: list[ChangeBatch]) -> bool:
    """Whether a chunk is the last one because it is not full."""
    return len(chunk) < _CHUNK_BATCHES and sum(map(_chunk_share, chunk)) < _CHUNK_BYTES


async def _timed(
    chunks: AsyncGenerator[list[ChangeBatch], None], monitor: Monitor
) -> AsyncGenerator[list[ChangeBatch], None]:
    """The same chunks. Reports the time spent waiting for each one as stage `read`."""
    async with contextlib.aclosing(chunks):
        while True:
            began = time.perf_counter()
            chunk = await anext(chunks, None)
            monitor.stage("read", time.perf_counter() - began)
            if chunk is None:
                return
            yield chunk
