"""Warnings in the log about tables whose undelivered changes are about to be cleaned up."""

import logging
from dataclasses import dataclass, field

from cdfd.daemon.http.status import Status
from cdfd.deliver.headroom import Headroom, Kind
from cdfd.runtime.clock import Clock
from cdfd.runtime.durations import duration

logger = logging.getLogger("cdfd.daemon")

REPEAT_SECONDS = 3600.0
"""Time between two warnings about the same table."""
_CLEAN_UP: dict[Kind, tuple[str, str]] = {
    "log": ("log clean-up", "delta.logRetentionDuration"),
    "deleted_files": ("VACUUM", "delta.deletedFileRetentionDuration"),
}


@dataclass(slots=True)
class RetentionWarnings:
    """Logs a warning when a table becomes at risk, every hour while it is, and a line when it no longer is.

    Attributes:
        status: of the daemon.
        clock: the source of time.
    """

    status: Status
    clock: Clock
    _warned: dict[str, float] = field(default_factory=dict)

    def check(self) -> None:
        """Look at all tables."""
        for table in self.status.tables():
            name = table.table.name
            risks = [each for each in table.reading().headrooms if each.at_risk]
            if not risks:
                if self._warned.pop(name, None) is not None:
                    logger.info("clean-up no longer threatens undelivered changes", extra={"table": name})
                continue
            now = self.clock.monotonic()
            if now - self._warned.get(name, -REPEAT_SECONDS) >= REPEAT_SECONDS:
                self._warned[name] = now
                first = min(risks, key=lambda each: each.seconds)
                extra = {"table": name, "headroom_seconds": round(first.seconds), "retention_seconds": first.retention}
                logger.warning("%s", describe_risk(first), extra=extra)


def describe_risk(headroom: Headroom) -> str:
    """The threat, its time, and the remedy."""
    actor, prop = _CLEAN_UP[headroom.kind]
    if headroom.lost:
        return f"{actor} has removed undelivered changes; see the last error of the table"
    if headroom.seconds <= 0:
        when = f"may already have removed undelivered changes, {duration(-headroom.seconds)} ago or later"
    else:
        when = f"may remove undelivered changes in {duration(headroom.seconds)}"
    return f"{actor} {when}: stop it until the table has caught up, or raise the table property `{prop}`"
