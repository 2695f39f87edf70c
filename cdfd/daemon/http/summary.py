"""A log line each minute: deliveries since the previous line, and the lag of all tables. Also warns of tables at risk."""

import logging
from dataclasses import dataclass, field

from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.deliver.headroom import Kind
from cdfd.runtime.clock import Clock
from cdfd.runtime.times import duration

logger = logging.getLogger("cdfd.daemon")

REPEAT_SECONDS = 3600.0
"""Time between two warnings about the same table."""
_CLEAN_UP: dict[Kind, tuple[str, str]] = {
    "log": ("log clean-up", "delta.logRetentionDuration"),
    "deleted_files": ("VACUUM", "delta.deletedFileRetentionDuration"),
}
SECONDS = 60.0


@dataclass(eq=False)
class Summary:
    """Computes summary lines from the totals at the previous line, and warns of tables at risk."""

    status: Status
    _before: dict[TableMonitor, tuple[int, int]] = field(default_factory=dict, init=False)
    _warned: dict[str, float] = field(default_factory=dict, init=False)

    def line(self) -> tuple[str, dict[str, float]] | None:
        """The next line and its fields; None if nothing was delivered and there is no lag."""
        tables = self.status.tables()
        # A table that left and joined again has a new monitor, which counts from 0.
        delivered = {each: (each.commits, each.rows) for each in tables}
        before = [self._before.get(each, (0, 0)) for each in tables]
        self._before = delivered
        readings = [each.reading() for each in tables]
        versions = sum(each.commits for each in tables) - sum(versions for versions, _ in before)
        rows = sum(each.rows for each in tables) - sum(rows for _, rows in before)
        behind = sum(each.lag_versions or 0 for each in readings)
        lag_seconds = max((each.lag_seconds or 0.0 for each in readings), default=0.0)
        not_ready = len(self.status.not_ready())
        if not (versions or rows or behind or not_ready):
            return None
        text = f"delivered {_count(versions, 'version')} and {_count(rows, 'row')} since the last such line"
        if behind:
            text += f"; {_count(behind, 'version')} behind, the oldest for {lag_seconds:.1f} s"
        if not_ready:
            text += f"; {_count(not_ready, 'table')} not ready"
        fields = {"versions": versions, "rows": rows, "lag_versions": behind, "not_ready": not_ready}
        return text, fields | {"lag_seconds": round(lag_seconds, 3)}

    def warn_of_clean_up(self, clock: Clock) -> None:
        """Log a warning when a table becomes at risk, every hour while it is, and a line when it no longer is."""
        for table in self.status.tables():
            name = table.name
            risks = [each for each in table.reading().headrooms if each.at_risk]
            if not risks:
                if self._warned.pop(name, None) is not None:
                    logger.info("clean-up no longer threatens undelivered changes", extra={"table": name})
                continue
            now = clock.monotonic()
            if now - self._warned.get(name, -REPEAT_SECONDS) >= REPEAT_SECONDS:
                self._warned[name] = now
                first = min(risks, key=lambda each: each.seconds)
                extra = {"table": name, "headroom_seconds": round(first.seconds), "retention_seconds": first.retention}
                actor, prop = _CLEAN_UP[first.kind]
                remedy = f"stop it until the table has caught up, or raise the table property `{prop}`"
                if first.lost:
                    risk = "has removed undelivered changes; see the last error of the table"
                elif first.seconds <= 0:
                    ago = duration(-first.seconds)
                    risk = f"may already have removed undelivered changes, {ago} ago or later: {remedy}"
                else:
                    risk = f"may remove undelivered changes in {duration(first.seconds)}: {remedy}"
                logger.warning("%s %s", actor, risk, extra=extra)

    async def run(self, clock: Clock) -> None:
        """Log a line each minute, forever."""
        while True:
            await clock.sleep(SECONDS)
            self.warn_of_clean_up(clock)
            if (line := self.line()) is not None:
                logger.info("%s", line[0], extra=line[1])


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
