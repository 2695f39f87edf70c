"""Versions and first snapshots that are too large for the daemon alone: handed to an engine, as jobs of many parts.

    the table's own producer                    the parts' producers, in executors
    job J begins at version 7, BEGIN    ->      part 0 of J, part 1 of J, ...
    version 7 is delivered, END         <-      all of them are

The job's name and cut are in the table's own progress record before any part is delivered. So a daemon that dies meanwhile goes on with the
same job, with whatever engine it then has, and parts that are delivered are not delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import uuid4

from cdfd.changes.position import Position
from cdfd.changes.slices import Measured, Slice, cut, placed
from cdfd.changes.stream import Version
from cdfd.daemon.loop.admission import Admission
from cdfd.daemon.loop.monitor import Monitor
from cdfd.errors import SinkError
from cdfd.jobs.assignment import Assignment, Engine, Part, digest, measured_here, stages
from cdfd.sinks.kafka.transactions.delivery import KafkaDelivery
from cdfd.sinks.kafka.transactions.parts import Counts, Job
from cdfd.sinks.kafka.transactions.sink import KafkaSink

log = logging.getLogger("cdfd.engine")

T = TypeVar("T")

LOOK_SECONDS = 10.0
"""How often it is looked whether another daemon has taken over the table, while a job runs."""


@dataclass(slots=True)
class LargeVersions:
    """Delivers large versions of one table.

    Attributes:
        table: its URI, for messages.
        sink: the table's own.
        assign: what executors have to know, of a version at a position.
        progress_end: the end of the progress topic.
        engine: runs jobs.
        threshold: bytes of files beyond which a version is large. None: none is, but what was begun as a job is finished as one.
        part_bytes: bytes of files of a part.
        stop: where it is set, a job ends early.
        monitor: is told of deliveries.
    """

    table: str
    sink: KafkaSink
    assign: Callable[[Version, Position], Assignment]
    progress_end: Callable[[], Awaitable[int]]
    engine: Engine
    threshold: int | None
    part_bytes: int
    stop: asyncio.Event
    monitor: Monitor

    @property
    def begun(self) -> bool:
        """Whether a job is under way at the position where the sink stands."""
        return Job.of(self.sink.progress) is not None

    def is_large(self, version: Version) -> bool:
        """Whether a version is to be handed over."""
        return self.threshold is not None and version.plan.size > self.threshold

    def takes(self, version: Version, position: Position) -> bool:
        """Whether what stands at `position` is to be handed over. What the daemon has begun by itself, it finishes."""
        return not position.part and (self.begun or self.is_large(version))

    async def deliver(self, version: Version, position: Position) -> Counts | None:
        """Deliver a version; its rows, or None where a stop came first.

        Raises:
            CdfdError: what a part failed of, or the job cannot be gone on with.
        """
        known = Job.of(self.sink.progress)
        assignment = self.assign(version, position)
        slices = await self._slices(version, assignment, self.part_bytes if known is None else known.bytes)
        if slices is None:
            return None
        job = await self._begin(version, position, slices) if known is None else self._resumed(known, slices)
        begins = "is delivered" if known is None else "goes on"
        log.info("version %d %s as a job of %d parts", position.version, begins, job.parts, extra=self._about(position))
        assignment = replace(assignment, job=job.id, since=job.since)
        total = Counter[str]()
        for some in stages(slices):
            found = await self._watched(self.engine.deliver(assignment, some), position, job)
            if found is None:
                return None
            total.update(found)
        await self._finish(version, position, total)
        return total

    async def _slices(self, version: Version, assignment: Assignment, limit: int) -> list[Slice] | None:
        slices = cut(version.plan, limit)
        if all(each.is_placed for each in slices):
            return slices
        measured = await self._watched(self.engine.measure(assignment, slices))
        return None if measured is None else placed(version.plan, slices, measured)

    async def _begin(self, version: Version, position: Position, slices: Sequence[Slice]) -> Job:
        since = await self.progress_end()
        job = Job(uuid4().hex, position.version, position.phase, len(slices), self.part_bytes, digest(slices), since)
        async with self._delivery(position) as delivery:
            await delivery.start_version(version)
            await delivery.commit(position, job=job.fields())
        return job

    def _resumed(self, job: Job, slices: Sequence[Slice]) -> Job:
        if (job.parts, job.digest) == (len(slices), digest(slices)):
            return job
        raise SinkError(
            f"this version was begun as {job.parts} parts, and what it would be cut into now are others",
            table=self.table,
            version=job.version,
            hint="Put `changes` back to what it was; or see which of its rows are delivered, and `cdfd progress set` where to go on",
        )

    async def _finish(self, version: Version, position: Position, counts: Counts) -> None:
        async with self._delivery(position) as delivery:
            delivery.resume_version(version, counts)
            await delivery.commit(position.after_version(version.digest))

    async def _watched(
        self, work: Coroutine[Any, Any, T], position: Position | None = None, job: Job | None = None
    ) -> T | None:
        """The result of an engine's work; None where a stop came first. While a job runs, another daemon that takes over ends it."""
        working = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            while True:
                await asyncio.wait((working, stopped), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return working.result()
                if stopped.done():
                    return None
                if position is not None and job is not None:
                    await self._claim(position, job)
        finally:
            for future in (working, stopped):
                future.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)

    async def _claim(self, position: Position, job: Job) -> None:
        """Say again what is under way: where another daemon has taken over, that is refused."""
        async with self._delivery(position) as delivery:
            await delivery.commit(position, job=job.fields())

    @asynccontextmanager
    async def _delivery(self, position: Position) -> AsyncGenerator[KafkaDelivery, None]:
        """One of the table's own, aborted where what happens inside fails or is cancelled."""
        delivery = await self.sink.begin(position)
        try:
            yield delivery
        except BaseException:
            await delivery.abort()
            raise

    def _about(self, position: Position) -> dict[str, object]:
        return {"table": self.table, "version": position.version, "part": position.part}


class EmbeddedEngine:
    """The `Engine` port in this process, one part after the other: for what was begun on a cluster that is no longer configured.

    Args:
        admission: of large deliveries.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def measure(self, assignment: Assignment, slices: Sequence[Slice]) -> list[Measured]:
        """See the port."""
        return await measured_here(assignment, slices)

    async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> Counts:
        """See the port."""
        total = Counter[str]()
        for number, part in some:
            async with self._admission.admit(part.plan.size):
                total.update(await assignment.deliver(number, part))
        return total
