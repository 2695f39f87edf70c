"""A log line each minute: deliveries since the previous line, and the lag of all tables. Also warns of tables at risk."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cdfd.daemon.http.retention_warnings import RetentionWarnings
from cdfd.daemon.http.status import Status
from cdfd.runtime.background import background
from cdfd.runtime.clock import Clock

logger = logging.getLogger("cdfd.daemon")

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Line:
    """One summary line.

    Attributes:
        versions, rows: delivered since the previous line.
        lag_versions: undelivered versions of all tables.
        lag_seconds: age of the oldest undelivered commit.
        not_ready: number of tables that are not ready.
    """

    versions: int
    rows: int
    lag_versions: int
    lag_seconds: float
    not_ready: int

    def __str__(self) -> str:
        text = (
            f"delivered {_counted(self.versions, 'version')} and {_counted(self.rows, 'row')} since the last such line"
        )
        if self.lag_versions:
            text += f"; {_counted(self.lag_versions, 'version')} behind, the oldest for {self.lag_seconds:.1f} s"
        if self.not_ready:
            text += f"; {_counted(self.not_ready, 'table')} not ready"
        return text


class Summary:
    """Computes summary lines from the totals at the previous line.

    Args:
        status: of the daemon.
    """

    def __init__(self, status: Status) -> None:
        self._status = status
        self._versions = self._rows = 0

    def line(self) -> Line | None:
        """The next line; None if nothing was delivered and there is no lag."""
        tables = self._status.tables()
        versions, rows = sum(each.commits for each in tables), sum(each.rows for each in tables)
        readings = [each.reading() for each in tables]
        line = Line(
            versions=versions - self._versions,
            rows=rows - self._rows,
            lag_versions=sum(each.lag_versions or 0 for each in readings),
            lag_seconds=max((each.lag_seconds or 0.0 for each in readings), default=0.0),
            not_ready=len(self._status.not_ready()),
        )
        self._versions, self._rows = versions, rows
        return line if line.versions or line.rows or line.lag_versions or line.not_ready else None

    async def run(self, clock: Clock) -> None:
        """Log a line each minute, forever."""
        warnings = RetentionWarnings(self._status, clock)
        while True:
            await clock.sleep(SECONDS)
            warnings.check()
            line = self.line()
            if line is not None:
                extra = {name: getattr(line, name) for name in ("versions", "rows", "lag_versions", "not_ready")}
                logger.info("%s", line, extra=extra | {"lag_seconds": round(line.lag_seconds, 3)})


@asynccontextmanager
async def log_summaries(status: Status, clock: Clock) -> AsyncIterator[None]:
    """Log summary lines until the block ends."""
    async with background("summary", Summary(status).run(clock)):
        yield


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
