"""Versions to deliveries: one delivery for several small versions, or several parts for a large version."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cdfd.deliver.admission import Admission
from cdfd.deliver.large_versions import LargeVersions
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.rates import Rates, Stop
from cdfd.encode.side import RowCounts
from cdfd.errors import CdfdError, SinkError
from cdfd.log.stream import PlanStream
from cdfd.log.tailer import Tailer
from cdfd.model.batch import ChangeBatch
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime.clock import Clock
from cdfd.runtime.progress_line import ProgressLine
from cdfd.runtime.tasks import iterate_in_thread
from cdfd.scan.execute import Execution
from cdfd.scan.splits import ranges, ranges_of_one_schema
from cdfd.sinks.base import Sink, aborting

PART_BYTES = 128 << 20
"""Default size of a part: a version with more bytes of files is delivered in parts."""
ROWS = 100_000
"""Default limit of the rows of a delivery of several versions."""
_SWITCH_BATCHES = 64
_SWITCH_BYTES = 256 << 10
_SMALL_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one delivery.

    Attributes:
        part_bytes: bytes of files of a part. You can change it between restarts, because a part is a number of file scans.
        max_rows, max_bytes, max_seconds: limits of a delivery of several versions; the bytes are those of their files.
        one_schema: whether all rows of a delivery have one schema, also if the version replaces it.
    """

    part_bytes: int = PART_BYTES
    max_rows: int = ROWS
    max_bytes: int = 64 << 20
    max_seconds: float = 10.0
    one_schema: bool = False


@dataclass(slots=True)
class Deliverer:
    """Delivers versions of one table to one sink, in order.

    Attributes:
        table: its URI, for messages.
        stop: once set, a delivery of several versions ends after the current one, and a version in parts after the current part.
        report: shows progress to people.
        admission: large deliveries wait for a slot.
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
        return self.large is not None and self.large.sink.job is not None

    async def snapshot(self, stream: PlanStream, position: Position, tailer: Tailer) -> Version:
        """The live rows at a position, as `deliver` takes them.

        Raises:
            CdfdError: as `PlanStream.snapshot` says.
        """
        if self.large is None:
            return await stream.snapshot(position.version, tailer, by_statistics=False)
        return await self.large.snapshot(stream, position, tailer)

    async def deliver(self, versions: Sequence[Version], position: Position) -> int:
        """Deliver the first of `versions`, which is at `position`, and as many of the following ones as fit into the same delivery.

        They fit by the sizes of their files, and a schema change starts a new delivery. If one of them cannot be read, the versions before it
        are delivered first. A version that is too large for one delivery is delivered in parts, or by the engine for large versions.

        Returns:
            The number of versions that are now delivered; 0 if a stop came before the first one, or between two of its parts.
        """
        first = versions[0]
        plan, part, large = first.plan, position.part, self.large
        if not plan.continues(position):
            raise SinkError(
                f"the position is after {part} parts of this version, but it has {len(plan.scans)} parts to read now, or other ones",
                table=self.table,
                version=plan.version,
                hint="Restore the previous values of `changes`, `refine`, `key` and `where`, or deliver into an empty sink",
            )
        self.monitor.oldest_pending(first)
        if large is not None and large.takes(first, position):
            return await self._deliver_large(large, first, position)
        divide = ranges_of_one_schema if self.limits.one_schema else ranges
        for start, end in divide(plan, part, self.limits.part_bytes):
            if start > part and self.stop.is_set():
                return 0
            whole, fitting = start == part and end == len(plan.scans), 1
            size = plan.size if whole else replace(plan, scans=plan.scans[start:end]).size
            for version in versions[1:] if whole else ():
                following, is_large = size + version.plan.size, large is not None and large.is_large(version)
                if following > self.limits.max_bytes or version.schema_change is not None or is_large:
                    break
                size, fitting = following, fitting + 1
            if not await self._admit(size):
                return 0
            group = versions[:fitting]
            while True:
                try:
                    count, position = await self._deliver(group, position, None if whole else end)
                    break
                except SinkError:
                    raise
                except CdfdError:
                    if len(group) == 1:
                        raise
                    group = group[: len(group) // 2]
            if whole:
                return count
        return 1

    async def _deliver_large(self, large: LargeVersions, version: Version, position: Position) -> int:
        """Deliver one version on the engine for large versions; 0 if a stop came first."""
        delivered = await large.deliver(version, position)
        if delivered is None:
            return 0
        counts, size = delivered
        self.monitor.committed(position.after_version(version.digest), [version], counts, size)
        self.report.count(version.plan.version, sum(counts.values()))
        return 1

    async def _admit(self, size: int) -> bool:
        """Wait for the limits of rows and bytes a second; False if a stop came first."""
        if not self.rates.limits:
            return True
        began = self.clock.monotonic()
        admitted = await self.rates.admit(size, self.stop)
        self.monitor.stage("limit", self.clock.monotonic() - began)
        return admitted

    async def _deliver(self, versions: Sequence[Version], position: Position, end: int | None) -> tuple[int, Position]:
        """Deliver several versions, or the scans of one version up to number `end`, in one delivery.

        Returns:
            How many versions are delivered completely, which a limit may make fewer, and the position after them.
        """
        plans = [version.plan for version in versions]
        if end is not None:
            plans = [replace(plans[0], scans=plans[0].scans[:end])]
        sizes = [plan.size for plan in plans]
        if position.part:
            sizes[0] = replace(plans[0], scans=plans[0].scans[position.part :]).size
        ordinal, started, rows, counts = position.ordinal, 0, 0, RowCounts()
        deadline = self.clock.monotonic() + self.limits.max_seconds

        def ends() -> bool:
            return rows >= self.limits.max_rows or self.clock.monotonic() >= deadline or self.stop.is_set()

        async with (
            self.admission.admit(sum(sizes), self.monitor.urgency, self.monitor.waiting) as progressed,
            aborting(await self.sink.begin(position), self.monitor.aborted) as delivery,
        ):
            scanned, read = self.execution.batches(plans, position, joined=True), partial(self.monitor.stage, "read")
            full, batches = False, iterate_in_thread(scanned, _share, read)
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    fits = delivery.takes_runs and rows + batch.rows.num_rows <= self.limits.max_rows and not ends()
                    for part in (batch,) if fits else batch.by_version():
                        first = part.earlier[0].plan.version if part.earlier else part.plan.version
                        full = bool(started) and versions[started - 1].plan.version < first and ends()
                        if full:
                            break
                        while not started or versions[started - 1].plan.version < part.plan.version:
                            await delivery.start_version(versions[started])
                            started += 1
                        if part.rows.num_rows:
                            await delivery.write(part.rows)
                            counts.add(part.rows)
                        rows += part.rows.num_rows
                        ordinal = part.following
                    if full:
                        break
                    progressed()
                    self.report.count(batch.plan.version, batch.rows.num_rows)
            while not full and started < len(versions):  # the others have no rows
                await delivery.start_version(versions[started])
                started += 1
            size, whole, last = sum(sizes[:started]), versions[:started], versions[started - 1]
            following = Position(last.table_id, last.plan.version + 1, digest=last.digest)
            if end is not None and end < len(last.plan.scans):
                ordinal = last.plan.ordinal_of(end, ordinal)
                following, whole = position.at_part(end, ordinal, last.digest, last.plan.parts_id), []
            began = time.perf_counter()
            await delivery.commit(following)
            self.monitor.stage("commit", time.perf_counter() - began)
            self.rates.settle(rows, size)
            self.monitor.committed(following, whole, counts.by_type(), size)
        return len(whole), following


def _share(batch: ChangeBatch) -> float:
    """The share of a switch to another thread that a batch fills. Small ones share it, because a switch costs more than a row."""
    return max(batch.rows.nbytes / _SWITCH_BYTES, 1 / _SWITCH_BATCHES) if batch.rows.num_rows < _SMALL_ROWS else 1.0
