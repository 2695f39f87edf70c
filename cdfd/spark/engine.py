"""The Spark engine: parts of a large version as tasks of a job."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING
from uuid import uuid4

from cdfd.changes.cutting import Measured, Part, Slice
from cdfd.errors import CdfdError
from cdfd.jobs.assignment import Assignment, measured_here
from cdfd.sinks.base import Counts
from cdfd.spark import kafka, tasks
from cdfd.spark.sessions import Sessions, interrupt, tagged
from cdfd.spark.tasks import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("cdfd.engine")

_FEW_FILES = 256
"""Files whose footers are read here sooner than Spark has begun to."""
_CANCEL_ATTEMPTS = 10
_AGAIN_SECONDS = 0.3


class SparkEngine:
    """The `Engine` port. Several jobs may run at once.

    Args:
        sessions: where the session comes from.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def measure(self, assignment: Assignment, slices: Sequence[Slice]) -> list[Measured]:
        """See the port."""
        if sum(len(part.plan.scans) for part in slices) <= _FEW_FILES:
            return await measured_here(assignment, slices)
        items = [kafka.packed(part) for part in enumerate(slices)]
        results = await self._run(assignment, items, partial(kafka.measure, assignment))
        return [kafka.measured_of(result) for result in results]

    async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> Counts:
        """See the port."""
        items = [kafka.packed(part) for part in some]
        total = Counter[str]()
        for result in await self._run(assignment, items, partial(kafka.deliver, assignment)):
            total.update(kafka.counts_of(result))
        return total

    async def close(self) -> None:
        """Let go of Spark."""
        await asyncio.to_thread(self._sessions.drop)

    async def _run(self, assignment: Assignment, items: Sequence[bytes], work: Work) -> list[bytes]:
        """In a thread; where this is cancelled, Spark is told, and waited for a while."""
        job = _Running(self._sessions, assignment, items, work)
        running = asyncio.ensure_future(asyncio.to_thread(job.run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await job.cancel(running)
            raise


class _Running:
    """A job, in a thread of its own."""

    def __init__(self, sessions: Sessions, assignment: Assignment, items: Sequence[bytes], work: Work) -> None:
        self._sessions = sessions
        self._session: SparkSession | None = None
        self._tag = f"cdfd-{uuid4().hex}"
        # The same name again takes the place of what had it: none are left behind.
        self._name = f"cdfd-job-{assignment.config.pipeline}-{assignment.table}"
        self._items = items
        self._work = work
        self._cancelled = Event()

    def run(self) -> list[bytes]:
        """All of it, blocking."""
        self._session = spark = self._sessions.get()
        results: list[bytes] = []
        with tagged(spark, self._tag):
            for wave in tasks.waves(self._items):
                if self._cancelled.is_set():
                    break
                try:
                    results += tasks.run(spark, self._name, wave, self._work)
                except CdfdError:
                    self._sessions.drop_if_dead(spark)
                    raise
                log.info("%d of %d tasks done", len(results), len(self._items), extra={"job": self._name})
        return results

    async def cancel(self, running: asyncio.Future[list[bytes]]) -> None:
        """Have it end. Whether it can still be reached or not, this takes no longer than a while."""
        self._cancelled.set()
        for _ in range(_CANCEL_ATTEMPTS):
            if self._session is not None:
                await asyncio.to_thread(interrupt, self._session, self._tag)
            await asyncio.wait((running,), timeout=_AGAIN_SECONDS)
            if running.done():
                running.exception()
                return
        log.warning("Spark does not end a job that is cancelled, and is ended itself")
        await asyncio.to_thread(self._sessions.drop)
