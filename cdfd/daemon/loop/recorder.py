"""Telling the ledger how far a table is delivered, beside the deliveries: it lags, and no row waits for it."""

from __future__ import annotations

import asyncio
import logging

from cdfd.daemon.loop.monitor import Monitor
from cdfd.errors import CdfdError
from cdfd.progress.interval import Pace
from cdfd.progress.ledger import Ledger, LedgerEntry
from cdfd.tail.clock import Clock

logger = logging.getLogger("cdfd.progress")

CLOSING_SECONDS = 2.0
"""How long a clean stop waits for a ledger."""


class Recorder:
    """Records one table's progress. What cannot be recorded now is tried again with the next version: the sink has the position that counts.

    Args:
        ledger: where to.
        app_id: of the pipeline's table.
        seconds: from one record to the next, at least.
        clock: time.
        monitor: is told what was recorded, and what was not.
    """

    def __init__(self, ledger: Ledger, app_id: str, seconds: float, clock: Clock, monitor: Monitor) -> None:
        self._ledger = ledger
        self._app_id = app_id
        self._clock = clock
        self._monitor = monitor
        self._pace = Pace(seconds)
        self._table_id = ""
        self._more = asyncio.Event()

    @property
    def uri(self) -> str:
        """What the ledger is called in messages."""
        return self._ledger.uri

    async def position(self) -> LedgerEntry | None:
        """What the ledger knows."""
        return await self._ledger.position(self._app_id)

    def delivered(self, version: int, table_id: str, *, ours: bool = False) -> None:
        """`version` was delivered whole. `ours`: it holds nothing but progress."""
        self._table_id = table_id
        self._pace = self._pace.delivered(version, ours=ours)
        self._more.set()

    async def run(self) -> None:
        """Record what is due, for ever."""
        while True:
            wait = self._pace.wait(self._clock.monotonic())
            if wait is None:
                await self._more.wait()
            elif wait > 0:
                await self._clock.sleep(wait)
            else:
                await self._try()
            self._more.clear()

    async def finish(self) -> None:
        """Record what is pending, at a clean stop; without a word where it takes too long."""
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                if self._pace.pending is not None:
                    await self._try()
        except TimeoutError:
            logger.warning("the ledger did not answer within %g s; it lags now", CLOSING_SECONDS, extra=self._about)

    async def record_now(self) -> None:
        """Record what is pending, for deliveries whose position is nowhere else.

        Raises:
            CdfdError: it could not be.
        """
        if self._pace.pending is not None:
            await self._record(self._pace.pending)

    async def _try(self) -> None:
        version = self._pace.pending
        assert version is not None
        self._pace = self._pace.tried(self._clock.monotonic())
        try:
            await self._record(version)
        except CdfdError as error:
            self._monitor.error(error)
            error.within(table=self._ledger.uri)
            logger.warning(
                "the ledger was not told of version %d: %s; trying again in %g s, rows do not wait for it",
                version,
                error,
                self._pace.seconds,
                extra=self._about,
            )

    async def _record(self, version: int) -> None:
        await self._ledger.record(self._app_id, version, self._table_id)
        self._pace = self._pace.recorded(version)
        self._monitor.recorded(version)

    @property
    def _about(self) -> dict[str, str]:
        return {"ledger": self._ledger.uri, "app_id": self._app_id}
