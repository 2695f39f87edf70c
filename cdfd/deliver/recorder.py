"""Records a table's progress in the ledger, in parallel with the deliveries. The ledger lags behind, and no row waits for it."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field

from cdfd.deliver.monitor import Monitor
from cdfd.errors import CdfdError
from cdfd.runtime.clock import Clock
from cdfd.sinks.ledger.ledger import Ledger

logger = logging.getLogger("cdfd.progress")

CLOSING_SECONDS = 2.0
"""How long a clean stop waits for the ledger."""
REPEAT_SECONDS = 300.0
"""Time between two warnings about the same ledger."""


@dataclass(slots=True, weakref_slot=True)
class LedgerWarnings:
    """The warnings about one ledger, which are those of all its tables: it fails for all of them at once."""

    _warned: float = -math.inf
    _failing: bool = False

    def fail(self, now: float) -> int:
        """The ledger failed, at a time in seconds, monotonic. The level of the line about it."""
        if now - self._warned < REPEAT_SECONDS:
            return logging.DEBUG
        self._warned, self._failing = now, True
        return logging.WARNING

    def work(self) -> bool:
        """The ledger works. Whether a warning has said otherwise."""
        failed, self._failing = self._failing, False
        return failed


@dataclass(eq=False)
class Recorder:
    """Records one table's progress: the first version at once, then the newest one from time to time, so that versions do not queue up.

    A failed record is retried with the newest version, because the sink's position is authoritative.

    Attributes:
        seconds: minimum time between two records.
        renewal: seconds without a record after which the position is recorded with the present time; None: never.
        warnings: of the ledger, which its tables share.
    """

    ledger: Ledger
    app_id: str
    seconds: float
    clock: Clock
    monitor: Monitor
    renewal: float | None = None
    warnings: LedgerWarnings = field(default_factory=LedgerWarnings)
    _not_before: float = field(default=-math.inf, init=False)
    # The newest delivered version that is not recorded.
    _pending: int | None = field(default=None, init=False)
    _table_id: str = field(default="", init=False)
    _digest: str | None = field(default=None, init=False)
    _more: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def delivered(self, version: int, table_id: str, digest: str | None = None, *, ours: bool = False) -> None:
        """`version` is delivered. `digest`: hash of its log entry, if known. `ours`: it contains only our own progress."""
        # Recording a version of our own in the source table would create the next one.
        if not ours or self._pending is not None:
            self._pending, self._table_id, self._digest = version, table_id, digest
        self._more.set()

    async def run(self) -> None:
        """Record pending versions when they are due, forever."""
        while True:
            wait = self._not_before - self.clock.monotonic()
            if self._pending is not None and wait > 0:
                await self.clock.sleep(wait)
            elif self._pending is not None:
                await self._try(self._pending)
            elif self.renewal is None:
                await self._more.wait()
            elif not await self.clock.wait(self._more, self.renewal):
                # Readers of the ledger see from the renewed times that the daemon works.
                try:
                    await self.ledger.renew(self.app_id)
                except CdfdError as error:
                    self._fail("cannot renew the position in the ledger", error, self.renewal)
                else:
                    self._work()
            self._more.clear()

    async def finish(self) -> None:
        """Record the pending version at a clean stop. Log a warning if the ledger takes too long."""
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                if self._pending is not None:
                    await self._try(self._pending)
        except TimeoutError:
            about = {"ledger": self.ledger.uri, "app_id": self.app_id}
            logger.warning("the ledger did not answer within %g s; it lags now", CLOSING_SECONDS, extra=about)

    async def record_now(self) -> None:
        """Record the pending version now, for deliveries whose only position is in the ledger.

        Raises:
            CdfdError: the ledger cannot be written.
        """
        if (version := self._pending) is not None:
            await self.ledger.record(self.app_id, version, self._table_id, self._digest)
            if self._pending == version:  # later ones stay
                self._pending = None
            self.monitor.recorded(version)
            self._work()

    async def _try(self, version: int) -> None:
        self._not_before = self.clock.monotonic() + self.seconds
        try:
            await self.record_now()
        except CdfdError as error:
            self._fail(f"cannot record version {version} in the ledger", error, self.seconds)

    def _fail(self, what: str, error: CdfdError, seconds: float) -> None:
        """Report an error. The log has the first one of all tables, and another one from time to time."""
        self.monitor.error(error)
        level = self.warnings.fail(self.clock.monotonic())
        error.within(table=self.ledger.uri)
        text = "%s: %s; retrying in %g s, deliveries continue"
        logger.log(level, text, what, error, seconds, extra={"ledger": self.ledger.uri, "app_id": self.app_id})

    def _work(self) -> None:
        if self.warnings.work():
            logger.info("the ledger can be written again", extra={"ledger": self.ledger.uri})
