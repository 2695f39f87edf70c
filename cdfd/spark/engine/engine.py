"""The Spark engine: parts of a large version as tasks of a job.

Executors deliver with the daemon's own sink, in parts that are delivered once.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import zlib
from collections.abc import Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cdfd.deliver.assignment import Assignment, measure_here
from cdfd.deliver.splits import measure
from cdfd.scan.splits import Measured, Part, Split
from cdfd.sinks.jobs import Delivered
from cdfd.spark.engine import tasks
from cdfd.spark.engine.sessions import FAILURES, Sessions, interrupt, with_tag
from cdfd.spark.engine.tasks import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("cdfd.engine")

_FEW_FILES = 256
"""Up to this number of files, reading their footers here is faster than starting a job."""
_WORKERS = 1
"""Threads that read in an executor: Spark gives each task one core."""
_CANCEL_ATTEMPTS = 10
_AGAIN_SECONDS = 0.3


class SparkEngine:
    """The `Engine` port. Several jobs may run at once."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def measure(self, assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
        """See the port."""
        if sum(part.count for part in splits) <= _FEW_FILES:
            return await measure_here(assignment, splits)
        return await self._run(assignment, list(enumerate(splits)), partial(measure_part, assignment))

    async def deliver(self, assignment: Assignment, stage: Sequence[Part]) -> list[Delivered]:
        """See the port."""
        results = await self._run(assignment, stage, partial(deliver_part, assignment))
        return [delivery for deliveries in results for delivery in deliveries]

    async def close(self) -> None:
        """Stop Spark."""
        await asyncio.to_thread(self._sessions.drop)

    async def _run(self, assignment: Assignment, parts: Sequence[Part], work: Work) -> list[Any]:
        """Run a job in a thread. A cancellation also cancels the job in Spark, and waits for its end for a limited time."""
        # Registering the same name again replaces the data source, so that none are left behind.
        name = f"cdfd-job-{assignment.config.pipeline}-{assignment.table}"
        items, tag, cancelled = [pack(part) for part in parts], f"cdfd-{uuid4().hex}", Event()
        used: list[SparkSession] = []

        def run() -> list[bytes]:
            spark = self._sessions.get()
            used.append(spark)
            try:
                with with_tag(spark, tag):
                    results: list[bytes] = []
                    for wave in tasks.waves(items):
                        if cancelled.is_set():
                            break
                        results += tasks.run(spark, name, wave, work)
                        log.info("%d of %d tasks done", len(results), len(items), extra={"job": name})
                    return results
            except FAILURES as failure:
                error = tasks.translate(failure)
                self._sessions.check(spark, error)
                raise error from failure

        running = asyncio.ensure_future(asyncio.to_thread(run))
        try:
            return [pickle.loads(result) for result in await asyncio.shield(running)]
        except asyncio.CancelledError:
            cancelled.set()
            for _ in range(_CANCEL_ATTEMPTS):
                for spark in used:
                    await asyncio.to_thread(interrupt, spark, tag)
                await asyncio.wait((running,), timeout=_AGAIN_SECONDS)
                if running.done():
                    running.exception()
                    raise
            log.warning("Spark does not end a cancelled job: stopping Spark")
            await asyncio.to_thread(self._sessions.drop)
            raise


def pack(part: Part) -> bytes:
    """Serialize a part for an executor."""
    return zlib.compress(pickle.dumps(part), 1)


def unpack(item: bytes) -> Part:
    """The part that was `pack`ed."""
    part: Part = pickle.loads(zlib.decompress(item))
    return part


def deliver_part(assignment: Assignment, item: bytes) -> bytes:
    """Deliver a part that was `pack`ed; the result is its deliveries, pickled. Runs in an executor.

    Raises:
        CdfdError: as in `Assignment.deliver`.
    """
    number, part = unpack(item)
    return pickle.dumps(asyncio.run(assignment.deliver(number, part, _WORKERS)))


def measure_part(assignment: Assignment, item: bytes) -> bytes:
    """Measure a part that was `pack`ed; the result is its `Measured`, pickled. Runs in an executor.

    Raises:
        CdfdError: as in `measure`.
    """
    _, split = unpack(item)
    return pickle.dumps(measure(split, assignment.execution(_WORKERS)))
