"""Heartbeats: a record about each table in regular intervals, so that consumers tell a quiet table from a dead daemon."""

import json
import logging
from dataclasses import dataclass, field

from cdfd import __version__
from cdfd.daemon.http.status import Status
from cdfd.errors import CdfdError
from cdfd.runtime.clock import Clock
from cdfd.sinks.own_topics import Announce

logger = logging.getLogger("cdfd.daemon")


@dataclass(eq=False)
class Heartbeats:
    """Writes heartbeats. A failure is logged once, and never affects deliveries."""

    status: Status
    announce: Announce
    clock: Clock
    _failing: bool = field(default=False, init=False)

    async def beat(self) -> None:
        """Write a record about each table: its name, and the state as JSON."""
        now_ms = self.clock.now_ms()
        records = []
        for table in self.status.tables():
            reading = table.reading()
            document = {
                "pipeline": self.status.config.pipeline,
                "table": table.table.name,
                "topic": table.table.topic,
                "ts_ms": now_ms,
                "state": reading.state,
                "delivered_version": reading.delivered_version,
                "table_version": reading.table_version,
                "lag_versions": reading.lag_versions,
                "lag_seconds": None if reading.lag_seconds is None else round(reading.lag_seconds, 3),
                "cdfd": __version__,
            }
            records.append((table.table.name.encode(), json.dumps(document, separators=(",", ":")).encode()))
        if not records:
            return
        try:
            await self.announce(records)
        except CdfdError as error:
            level = logging.DEBUG if self._failing else logging.WARNING
            self._failing = True
            logger.log(level, "cannot write heartbeats: %s; deliveries continue", error)
        else:
            if self._failing:
                logger.info("heartbeats are written again")
            self._failing = False

    async def run(self, seconds: float) -> None:
        """Write heartbeats forever, the first one at once."""
        while True:
            await self.beat()
            await self.clock.sleep(seconds)
