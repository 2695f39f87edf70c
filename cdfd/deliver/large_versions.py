"""Versions and first snapshots that are too large for one process: handed to an engine, as jobs of many parts.

    the table's own sink                        the parts' sinks, perhaps in executors
    job J begins at version 7, BEGIN    ->      part 0 of J, part 1 of J, ...
    version 7 is delivered, END         <-      all of them are

A Kafka sink keeps the job's name and cut with the position before any part is delivered. So a daemon that dies meanwhile goes on with the
same job, with whatever engine it then has, and parts that are delivered are not delivered again.

A Delta sink keeps nothing: parts are data files, and the version of the target at the end of the job names all of them. After a daemon
dies, the job begins again, and no version names the files before.

The files of a snapshot may be too many for one process. Its parts are then ranges of paths, and the process that delivers one lists its
files. The digest of a job says how it was cut, and a job goes on as it was begun.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from cdfd.deliver.assignment import Assignment, Engine
from cdfd.deliver.path_ranges import SnapshotPlanning, least_bytes
from cdfd.deliver.splits import MARK, digest
from cdfd.errors import SinkError
from cdfd.log.listing import LiveListing
from cdfd.log.stream import PlanStream
from cdfd.log.tailer import Tailer
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.scan.splits import Split, place_splits, plan_splits, stages
from cdfd.sinks.base import Sink
from cdfd.sinks.jobs import Counts, Delivered, Job, counts_of

log = logging.getLogger("cdfd.engine")

T = TypeVar("T")

LOOK_SECONDS = 10.0
"""How often it is looked whether another daemon has taken over the table, while a job runs."""


@dataclass(frozen=True, slots=True)
class ListedVersion(Version):
    """A snapshot whose plan has no scans.

    Attributes:
        live: where its files are listed.
    """

    live: LiveListing = field(kw_only=True)


@dataclass(slots=True)
class LargeVersions:
    """Delivers large versions of one table.

    Attributes:
        table: its URI, for messages.
        sink: the table's own.
        assign: what executors have to know, of a version at a position.
        threshold: bytes of files beyond which a version is large. None: none is, but what was begun as a job is finished as one.
        part_bytes: bytes of files of a part.
        stop: where it is set, a job ends early.
        planning: which processes list the files of a snapshot.
    """

    table: str
    sink: Sink
    assign: Callable[[Version, Position], Assignment]
    engine: Engine
    threshold: int | None
    part_bytes: int
    stop: asyncio.Event
    planning: SnapshotPlanning = "auto"

    def is_large(self, version: Version) -> bool:
        """Whether a version is to be handed over."""
        return self.threshold is not None and version.plan.size > self.threshold

    def takes(self, version: Version, position: Position) -> bool:
        """Whether what stands at `position` is to be handed over. A version that the daemon began alone is finished by it."""
        if isinstance(version, ListedVersion):
            return True
        if position.part:
            return False
        # A job that the sink has is under way at the position where the sink stands.
        return self.sink.job is not None or (self.is_large(version) and self.sink.takes_job(position))

    async def snapshot(self, stream: PlanStream, position: Position, tailer: Tailer) -> Version:
        """The live rows at a position, as they are to be delivered there: with their files, or with where these are listed.

        Raises:
            CdfdError: as `PlanStream.snapshot` says.
        """
        job = self.sink.job
        if job is not None:  # it goes on as it was begun
            by_ranges = job.digest.startswith(MARK)
        else:
            may = self.threshold is not None and self.planning != "driver"
            by_ranges = may and not position.part and self.sink.takes_job(position)
        # A filter needs the statistics of each file.
        if by_ranges and stream.rows.shape.where is None:
            least = 0 if job is not None else least_bytes(self.planning)
            listed = await stream.listed_snapshot(position.version, tailer, least_bytes=least)
            if listed is not None:
                version, live = listed
                return ListedVersion(version.plan, version.table_id, digest=version.digest, live=live)
        return await stream.snapshot(position.version, tailer, by_statistics=False)

    async def deliver(self, version: Version, position: Position) -> tuple[Counts, int] | None:
        """Deliver a version; its rows, and the bytes of its files. None where a stop came first.

        Raises:
            CdfdError: what a part failed of, or the job cannot be gone on with.
        """
        begun_job = self.sink.job
        assignment = self.assign(version, position)
        splits = await self._splits(version, assignment, self.part_bytes if begun_job is None else begun_job.bytes)
        if splits is None:
            return None
        parts, cut_as, planned_as = len(splits), digest(splits), version.plan.parts_id
        # Buckets of different keys have the same digest.
        continues = begun_job is None or position.plan in (None, planned_as)
        position = replace(position, plan=planned_as)
        if begun_job is None:
            job = await self.sink.begin_job(version, position, parts, self.part_bytes, cut_as)
        elif continues and (begun_job.parts, begun_job.digest) == (parts, cut_as):
            job = begun_job
        else:
            raise SinkError(
                f"this version was begun as {begun_job.parts} parts, and would now be divided into others",
                table=self.table,
                version=begun_job.version,
                hint="Restore the old `changes`, `refine`, `key` and `where`. Or see which rows are delivered, and use `cdfd progress set`",
            )
        begins = "is delivered" if begun_job is None else "continues"
        extra = {"table": self.table, "version": position.version, "part": position.part}
        log.info("version %d %s as a job of %d parts", position.version, begins, job.parts, extra=extra)
        assignment = replace(assignment, job=job)
        delivered: list[Delivered] = []
        for stage in stages(splits):
            stage_delivered = await self._watch(self.engine.deliver(assignment, stage), position, job)
            if stage_delivered is None:
                return None
            delivered += stage_delivered
        await self.sink.finish_job(version, position, job, delivered)
        return counts_of(delivered), sum(part.size for part in splits)

    async def _splits(self, version: Version, assignment: Assignment, limit: int) -> list[Split] | None:
        splits = list[Split]()
        if not isinstance(version, ListedVersion):
            splits = plan_splits(version.plan, limit)
        else:
            ranges = await self._watch(asyncio.to_thread(assignment.ranges, version.plan, version.live, limit))
            if ranges is None:
                return None
            splits += ranges
        if all(each.is_placed for each in splits):
            return splits
        measured = await self._watch(self.engine.measure(assignment, splits))
        return None if measured is None else place_splits(version.plan, splits, measured)

    async def _watch(
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
                    await self.sink.claim_job(position, job)
        finally:
            for future in (working, stopped):
                future.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)
