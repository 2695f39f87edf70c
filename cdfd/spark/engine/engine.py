"""The Spark engine: parts of a large version as tasks of a job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING
from uuid import uuid4

from cdfd.deliver.assignment import Assignment, measure_here
from cdfd.scan.splits import Measured, Part, Split
from cdfd.sinks.jobs import Delivered
from cdfd.spark.engine import parts, tasks
from cdfd.spark.engine.sessions import FAILURES, Sessions, interrupt, with_tag
from cdfd.spark.engine.tasks import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("cdfd.engine")

_FEW_FILES = 256
"""Up to this number of files, reading their footers here is faster than starting a job."""
_CANCEL_ATTEMPTS = 10
_AGAIN_SECONDS = 0.3


class SparkEngine:
    """The `Engine` port. Several jobs may run at once.

    Args:
        sessions: provides the Spark session.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def measure(self, assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
        """See the port."""
        if sum(len(part.plan.scans) for part in splits) <= _FEW_FILES:
            return await measure_here(assignment, splits)
        items = [parts.pack(part) for part in enumerate(splits)]
        results = await self._run(assignment, items, partial(parts.measure, assignment))
        return [parts.measured_of(result) for result in results]

    async def deliver(self, assignment: Assignment, stage: Sequence[Part]) -> list[Delivered]:
        """See the port."""
        items = [parts.pack(part) for part in stage]
        results = await self._run(assignment, items, partial(parts.deliver, assignment))
        return [delivery for result in results for delivery in parts.delivered_of(result)]

    async def close(self) -> None:
        """Stop Spark."""
        await asyncio.to_thread(self._sessions.drop)

    async def _run(self, assignment: Assignment, items: Sequence[bytes], work: Work) -> list[bytes]:
        """Run a job in a thread. A cancellation also cancels the job in Spark, and waits for its end for a limited time."""
        job = _Running(self._sessions, assignment, items, work)
        running = asyncio.ensure_future(asyncio.to_thread(job.run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await job.cancel(running)
            raise


class _Running:
    """A job in a thread."""

    def __init__(self, sessions: Sessions, assignment: Assignment, items: Sequence[bytes], work: Work) -> None:
        self._sessions = sessions
        self._session: SparkSession | None = None
        self._tag = f"cdfd-{uuid4().hex}"
        # Registering the same name again replaces the data source, so that none are left behind.
        self._name = f"cdfd-job-{assignment.config.pipeline}-{assignment.table}"
        self._items = items
        self._work = work
        self._cancelled = Event()

    def run(self) -> list[bytes]:
        """Run the job. Blocks."""
        self._session = spark = self._sessions.get()
        try:
            with with_tag(spark, self._tag):
                results: list[bytes] = []
                for wave in tasks.waves(self._items):
                    if self._cancelled.is_set():
                        break
                    results += tasks.run(spark, self._name, wave, self._work)
                    log.info("%d of %d tasks done", len(results), len(self._items), extra={"job": self._name})
                return results
        except FAILURES as failure:
            error = tasks.translate(failure)
            self._sessions.check(spark, error)
            raise error from failure

    async def cancel(self, running: asyncio.Future[list[bytes]]) -> None:
        """Cancel the job. Returns after a limited time, even if Spark does not answer."""
        self._cancelled.set()
        for _ in range(_CANCEL_ATTEMPTS):
            if self._session is not None:
                await asyncio.to_thread(interrupt, self._session, self._tag)
            await asyncio.wait((running,), timeout=_AGAIN_SECONDS)
            if running.done():
                running.exception()
                return
        log.warning("Spark does not end a cancelled job: stopping Spark")
        await asyncio.to_thread(self._sessions.drop)
