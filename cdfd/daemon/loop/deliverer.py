"""Versions into deliveries: several small ones in one, a large one in parts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

from cdfd.changes.execute import ChangeBatch, Execution, in_thread
from cdfd.changes.parts import parts
from cdfd.changes.plan import ChangePlan
from cdfd.changes.position import Position
from cdfd.changes.stream import Version
from cdfd.console.progress_line import Report
from cdfd.daemon.loop.admission import Turns
from cdfd.daemon.loop.large_versions import LargeVersions
from cdfd.daemon.loop.monitor import Monitor
from cdfd.encoding.side import RowCounts
from cdfd.errors import CdfdError, SinkError
from cdfd.sinks.base import Delivery, Sink
from cdfd.tail.clock import Clock

PART_BYTES = 128 << 20
"""Bytes of files from which a version is delivered in parts, where nothing else is said."""
_LOT_BATCHES = 64
_LOT_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """What one delivery may hold.

    Attributes:
        part_bytes: bytes of files from which a version is delivered in parts. Another value after a restart is no harm: parts are file scans.
        max_rows, max_bytes, max_seconds: of several versions in one delivery; the bytes are those of the files.
    """

    part_bytes: int = PART_BYTES
    max_rows: int = 100_000
    max_bytes: int = 64 << 20
    max_seconds: float = 10.0


@dataclass(slots=True)
class Deliverer:
    """Delivers versions of one table to one sink, in order.

    Attributes:
        table: its URI, for messages.
        sink: where they go.
        execution: how files are read.
        limits: of a delivery.
        stop: where it is set, a delivery of several versions, or a version in parts, ends early.
        monitor: is told of deliveries.
        report: counts rows for people.
        turns: large deliveries wait for theirs.
        clock: time.
        large: where versions go that are too large for this process; None where there is no such place.
    """

    table: str
    sink: Sink
    execution: Execution
    limits: Limits
    stop: asyncio.Event
    monitor: Monitor
    report: Report
    turns: Turns
    clock: Clock
    large: LargeVersions | None = None

    @property
    def half_delivered(self) -> bool:
        """Whether a part of the version where the sink stands may be delivered already, beyond what its position says."""
        return self.large is not None and self.large.begun

    async def deliver(self, versions: Sequence[Version], position: Position) -> int:
        """Deliver what stands at `position`: the first of `versions`, and of those after it as many as go with it.

        Returns:
            How many are delivered whole; 0 where a stop came between two parts of the first.
        """
        first = versions[0]
        plan, part = first.plan, position.part
        if part > len(plan.scans):
            raise SinkError(
                f"{part} files of this version are delivered, but it has {len(plan.scans)} to read",
                table=self.table,
                version=plan.version,
                hint="Put `changes` back to what it was, or deliver into an empty sink",
            )
        self.monitor.behind(first)
        if self.large is not None and self.large.takes(first, position):
            return await self._elsewhere(self.large, first, position)
        for start, end in parts(plan, part, self.limits.part_bytes):
            if start == part and end == len(plan.scans):
                return await self._as_many(self._group(versions), position)
            if start > part and self.stop.is_set():
                return 0
            position = await self._part(first, position, end)
        return 1

    async def _elsewhere(self, large: LargeVersions, version: Version, position: Position) -> int:
        """Have a version delivered by others; 0 where a stop came before its end."""
        counts = await large.deliver(version, position)
        if counts is None:
            return 0
        self.monitor.committed(_after(version), [version], counts, version.plan.size)
        self.report.count(version.plan.version, sum(counts.values()))
        return 1

    def _group(self, versions: Sequence[Version]) -> Sequence[Version]:
        """Those that one delivery may hold, by the sizes of their files; a schema begins a delivery of its own."""
        size = 0
        for count, version in enumerate(versions):
            size += version.plan.size
            large = self.large is not None and self.large.is_large(version)
            if count and (size > self.limits.max_bytes or version.schema_change is not None or large):
                return versions[:count]
        return versions

    async def _as_many(self, versions: Sequence[Version], position: Position) -> int:
        """Deliver several versions; where one of them cannot be read, those before it all the same."""
        while True:
            try:
                return await self._together(versions, position)
            except SinkError:
                raise
            except CdfdError:
                if len(versions) == 1:
                    raise
                versions = versions[: len(versions) // 2]

    async def _part(self, version: Version, position: Position, end: int) -> Position:
        """Deliver a part of a version, up to its scan number `end`; where the next one begins."""
        plan, last = version.plan, end == len(version.plan.scans)
        some = replace(plan, scans=plan.scans[:end])
        size = sum(scan.share for scan in plan.scans[position.part : end])
        async with self.turns.turn(size) as moved, _delivery(self.sink, position, self.monitor) as delivery:
            writing = _Writing(delivery, [version], position.ordinal)
            await self._write(writing, [some], position, moved)
            await writing.finish()
            following = _after(version) if last else position.at_part(end, writing.ordinal, version.digest)
            await self._commit(writing, following, [version] if last else [], size)
        return following

    async def _together(self, versions: Sequence[Version], position: Position) -> int:
        """Deliver several versions, or as many as come before a limit; how many."""
        size = sum(version.plan.size for version in versions)
        async with self.turns.turn(size) as moved, _delivery(self.sink, position, self.monitor) as delivery:
            writing = _Writing(delivery, versions)
            await self._write(writing, [version.plan for version in versions], position, moved)
            if not writing.stopped:
                await writing.finish()
            whole = versions[: writing.begun]
            await self._commit(writing, _after(whole[-1]), whole, sum(version.plan.size for version in whole))
        return len(whole)

    async def _write(
        self, writing: _Writing, plans: Sequence[ChangePlan], position: Position, moved: Callable[[], None]
    ) -> None:
        deadline = self.clock.monotonic() + self.limits.max_seconds
        lots = in_thread(_lots(self.execution.batches(plans, position)))
        async with contextlib.aclosing(_timed(lots, self.monitor)) as batches:
            async for lot in batches:
                for found in lot:
                    full = writing.rows >= self.limits.max_rows or self.clock.monotonic() >= deadline
                    if not await writing.advance(found.plan.version, end=full or self.stop.is_set()):
                        return
                    await writing.write(found)
                    moved()
                    self.report.count(found.plan.version, found.rows.num_rows)

    async def _commit(self, writing: _Writing, following: Position, whole: Sequence[Version], size: int) -> None:
        began = time.perf_counter()
        await writing.delivery.commit(following)
        self.monitor.stage("commit", time.perf_counter() - began)
        self.monitor.committed(following, whole, writing.counts.by_type(), size)


def _after(version: Version) -> Position:
    """The position after all of a version."""
    return Position(version.table_id, version.plan.version + 1, digest=version.digest)


class _Writing:
    """Versions on their way into a delivery.

    `ordinal` is that of the next row of the version whose rows come.
    """

    def __init__(self, delivery: Delivery, versions: Sequence[Version], ordinal: int = 0) -> None:
        self.delivery = delivery
        self.counts = RowCounts()
        self.rows = 0
        self.ordinal = ordinal
        self.begun = 0
        self.stopped = False
        self._versions = versions

    async def advance(self, version: int, *, end: bool) -> bool:
        """Rows of `version` come next. False, and nothing more is taken, where it would be a further one and an end is wanted."""
        while self.begun == 0 or self._versions[self.begun - 1].plan.version < version:
            if end and self.begun:
                self.stopped = True
                return False
            await self._begin()
        return True

    async def write(self, found: ChangeBatch) -> None:
        await self.delivery.write(found.rows)
        self.counts.add(found.rows)
        self.rows += found.rows.num_rows
        self.ordinal = found.following

    async def finish(self) -> None:
        """The rest of the versions have no rows."""
        while self.begun < len(self._versions):
            await self._begin()

    async def _begin(self) -> None:
        await self.delivery.start_version(self._versions[self.begun])
        self.begun += 1


@contextlib.asynccontextmanager
async def _delivery(sink: Sink, position: Position, monitor: Monitor) -> AsyncGenerator[Delivery, None]:
    """A delivery that is aborted where what happens inside fails, or is cancelled."""
    delivery = await sink.begin(position)
    try:
        yield delivery
    except BaseException:
        await delivery.abort()
        monitor.aborted()
        raise


def _lots(batches: Generator[ChangeBatch, None, None]) -> Iterator[list[ChangeBatch]]:
    """Batches, the small ones many at a time: each fetch from another thread costs more than a row."""
    lot: list[ChangeBatch] = []
    size = 0
    with contextlib.closing(batches):
        for found in batches:
            lot.append(found)
            size += found.rows.get_total_buffer_size() if found.rows.num_rows < 1024 else _LOT_BYTES
            if size >= _LOT_BYTES or len(lot) >= _LOT_BATCHES:
                yield lot
                lot, size = [], 0
    if lot:
        yield lot


async def _timed(
    lots: AsyncGenerator[list[ChangeBatch], None], monitor: Monitor
) -> AsyncGenerator[list[ChangeBatch], None]:
    """The same, and how long was waited for them."""
    async with contextlib.aclosing(lots):
        while True:
            began = time.perf_counter()
            lot = await anext(lots, None)
            monitor.stage("read", time.perf_counter() - began)
            if lot is None:
                return
            yield lot
