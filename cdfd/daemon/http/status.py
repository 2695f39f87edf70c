"""Where each table stands: what its loop tells, kept for metrics, `/status`, `/readyz` and `/healthz`.

Nothing here is a fact of its own; lag and age are worked out when somebody asks, so that they are true while nothing happens, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cdfd import __version__
from cdfd.changes.position import Position
from cdfd.changes.stream import Version
from cdfd.config import settings
from cdfd.config.settings import Settings
from cdfd.console.escaping import LONGEST_LINE, shortened
from cdfd.daemon.http.metrics import CHANGE_TYPES, OTHER, Metrics, Reading, State, TableMetrics
from cdfd.errors import CdfdError
from cdfd.tail.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True)
class Mishap:
    """The last error of a table.

    Attributes:
        error: what it was.
        at_ms: when, since the Unix epoch.
        retry_at: when the loop is started anew, by the monotonic clock; None where it goes on or will not be.
    """

    error: CdfdError
    at_ms: int
    retry_at: float | None = None


class TableMonitor:
    """The `Monitor` of one table: listens to its loop, and answers where the table stands.

    Args:
        table: of the configuration.
        metrics: of that table.
        clock: time.
    """

    def __init__(self, table: settings.Table, metrics: TableMetrics, clock: Clock) -> None:
        self.table = table
        self.stage = metrics.stage  # of the port: called often, and from any thread
        self._metrics = metrics
        self._clock = clock
        self._state: State = "starting"
        self._position: Position | None = None
        self._delivered: int | None = None
        self._newest: int | None = None
        self._seen = -1  # the newest since the loop began: before it did, the log may have been a longer one
        self._recorded: int | None = None
        self._oldest: tuple[int, int] | None = None  # version and timestamp in ms of the oldest that is not delivered
        self._watching = False  # whether there being nothing older means that there is nothing
        self._arrived = False  # delivered, or at the tip, once since the start
        self._paused = False
        self._delivered_ms: int | None = None
        self._rows: Counter[str] = Counter(dict.fromkeys(CHANGE_TYPES, 0))
        self._commits = 0
        self._mishap: Mishap | None = None

    def started(self, position: Position) -> None:
        """The loop delivers from here on."""
        self._move(position)
        self._state = _state_at(position)
        self._watching = False
        self._seen = -1

    def saw(self, newest: int) -> None:
        """The table has this version."""
        self._note(newest)
        self._watching = True
        if self._oldest is None and self._position is not None and self._position.version <= newest:
            # Until the loop has read it, its age is what is certain.
            self._oldest = (self._position.version, self._clock.now_ms())

    def waiting(self) -> None:
        """All versions that are known are delivered."""
        self._state = "at_tip"
        self._watching = self._arrived = True
        self._paused = False
        self._oldest = None
        if self._position is not None and self._position.version > 0:
            self._newest = max(self._position.version - 1, self._seen)

    def behind(self, version: Version) -> None:
        """This is the oldest version that is not delivered."""
        self._watching = True
        self._oldest = (version.plan.version, version.plan.timestamp_ms)
        self._note(version.plan.version)
        self._state = "snapshot" if version.plan.origin == "snapshot" else "catching_up"

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        """A delivery counts now. One without rows and versions only makes the first position durable."""
        now_ms = self._clock.now_ms()
        changes = [version.plan for version in versions if version.plan.origin != "snapshot"]
        self._metrics.committed(rows, len(changes), bytes_read)
        for plan in changes:
            if plan.origin != "none":
                self._metrics.delivered_after(max(0, now_ms - plan.timestamp_ms) / 1000)
        for kind, count in rows.items():
            self._rows[kind if kind in CHANGE_TYPES else OTHER] += count
        self._commits += len(changes)
        self._move(following)
        if self._state not in ("failed", "stopped"):
            self._state = _state_at(following)
        if versions:
            last = versions[-1].plan
            newest = self._note(last.version)
            if self._oldest is None and newest > last.version:
                # The next one is no older than this; the loop says exactly in a moment.
                self._oldest = (following.version, last.timestamp_ms)
        if versions or any(rows.values()):
            self._arrived = True
            self._paused = False
            self._delivered_ms = now_ms

    def aborted(self) -> None:
        """A delivery was dropped."""
        self._metrics.aborted()

    def recorded(self, version: int) -> None:
        """The ledger knows that this version is delivered."""
        self._recorded = version

    def error(self, error: CdfdError) -> None:
        """Something went wrong that the loop goes on after."""
        self._metrics.error(error)
        self._mishap = Mishap(error, self._clock.now_ms())

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        """The loop ended, and is started anew after so many seconds, or not at all."""
        self._metrics.error(error)
        retry_at = None if retry_in is None else self._clock.monotonic() + retry_in
        self._mishap = Mishap(error, self._clock.now_ms(), retry_at)
        self._state = "failed" if retry_in is None else "backing_off"
        self._paused = True
        self._watching = False

    def stopped(self) -> None:
        """The loop has ended because it was told to."""
        self._state = "stopped"
        self._watching = False

    @property
    def commits(self) -> int:
        """Versions delivered whole since the start."""
        return self._commits

    @property
    def rows(self) -> int:
        """Rows delivered since the start."""
        return self._rows.total()

    def reading(self) -> Reading:
        """Where the table stands now."""
        position, newest = self._position, self._newest
        lag_versions, lag_seconds = None, None
        if position is not None and newest is not None and (self._oldest is not None or self._watching):
            lag_versions = max(0, newest + 1 - position.version)
            lag_seconds = 0.0
            if self._oldest is not None:
                lag_seconds = max(0, self._clock.now_ms() - self._oldest[1]) / 1000
        return Reading(
            table=self.table.name,
            state=self._state,
            paused=self._paused,
            delivered_version=self._delivered,
            table_version=newest,
            ledger_version=self._recorded,
            lag_versions=lag_versions,
            lag_seconds=lag_seconds,
            delivered_at=None if self._delivered_ms is None else self._delivered_ms / 1000,
        )

    def not_ready(self) -> str | None:
        """Why consumers should not count on this table yet; None where they may."""
        what = "" if self._mishap is None else _short(self._mishap.error.what)
        if self._state == "failed":
            return f"failed, and is not tried again: {what}"
        if self._state == "backing_off":
            return f"tried again in {self._retry_in() or 0:.1f} s: {what}"
        if self._state == "stopped":
            return "stopped"
        if self._paused:
            return f"being tried again after: {what}"
        if self._arrived:
            return None
        return "not started yet" if self._state == "starting" else "nothing is delivered yet"

    def document(self) -> dict[str, Any]:
        """All there is to know, as JSON has it."""
        reading, why = self.reading(), self.not_ready()
        return {
            "uri": self.table.uri,
            "topic": self.table.topic,
            "state": reading.state,
            "ready": why is None,
            "not_ready": why,
            "paused": reading.paused,
            "position": None if self._position is None else self._position.fields(),
            "delivered_version": reading.delivered_version,
            "table_version": reading.table_version,
            "ledger_version": reading.ledger_version,
            "lag_versions": reading.lag_versions,
            "lag_seconds": reading.lag_seconds,
            "last_delivery": None if self._delivered_ms is None else _iso(self._delivered_ms),
            "rows": dict(self._rows),
            "commits": self._commits,
            "last_error": None if self._mishap is None else self._describe(self._mishap),
        }

    def _note(self, version: int) -> int:
        """The table has this version; the newest that is known."""
        self._seen = max(version, self._seen)
        self._newest = max(version, self._newest or 0)
        return self._newest

    def _move(self, position: Position) -> None:
        self._position = position
        if position.phase == "stream":
            self._delivered = position.version - 1
        if self._oldest is not None and self._oldest[0] < position.version:
            self._oldest = None

    def _retry_in(self) -> float | None:
        """Seconds until the loop is started anew, None where that is not what it waits for."""
        if self._state != "backing_off" or self._mishap is None or self._mishap.retry_at is None:
            return None
        return max(0.0, round(self._mishap.retry_at - self._clock.monotonic(), 1))

    def _describe(self, mishap: Mishap) -> dict[str, Any]:
        error = mishap.error
        return {
            "what": _short(error.what),
            "family": error.family,
            "at": _iso(mishap.at_ms),
            "retry_in": self._retry_in(),
            "version": error.version,
            "path": None if error.path is None else _short(error.path),
            "hint": None if error.hint is None else _short(error.hint),
        }


class Status:
    """Everything that a daemon tells of itself.

    Args:
        config: of the daemon; secrets are left out of all that is told.
        clock: time.
    """

    def __init__(self, config: Settings, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._started_ms, self._started = self._clock.now_ms(), self._clock.monotonic()
        self._dead: dict[str, str] = {}
        self._metrics = metrics = Metrics(__version__)
        self._tables = {
            table.name: TableMonitor(table, metrics.table(table.name), self._clock) for table in config.tables
        }

    def table(self, name: str) -> TableMonitor:
        """The monitor of a table of the configuration, by its name."""
        return self._tables[name]

    def tables(self) -> Sequence[TableMonitor]:
        """The monitors of all tables."""
        return tuple(self._tables.values())

    def died(self, loop: str, why: str) -> None:
        """A loop (a table's name, or of something else) has ended that nobody had ended: `/healthz` says so from now on."""
        self._dead[loop] = _short(why)

    def metrics(self) -> Callable[[], bytes]:
        """`/metrics` of this moment; what is returned writes it out, in any thread."""
        return partial(self._metrics.render, [table.reading() for table in self._tables.values()], up=not self._dead)

    def unhealthy(self) -> Mapping[str, str]:
        """The loops that ended unexpectedly, and why."""
        return dict(self._dead)

    def not_ready(self) -> Mapping[str, str]:
        """The tables that consumers should not count on yet, and why."""
        found = {name: why for name, table in self._tables.items() if (why := table.not_ready()) is not None}
        return found | {name: f"ended unexpectedly: {why}" for name, why in self._dead.items()}

    def document(self) -> dict[str, Any]:
        """`/status`, as JSON has it."""
        return {
            "cdfd": __version__,
            "pipeline": self._config.pipeline,
            "started": _iso(self._started_ms),
            "uptime_seconds": round(self._clock.monotonic() - self._started, 3),
            "healthy": not self._dead,
            "ready": not self.not_ready(),
            "tables": {name: table.document() for name, table in self._tables.items()},
            "configuration": self._config.public(),
        }


def _state_at(position: Position) -> State:
    return "snapshot" if position.phase == "snapshot" else "catching_up"


def _short(text: str) -> str:
    """What comes from a log or a broker may be of any length. JSON is data: nothing in it is escaped twice."""
    return shortened(text, LONGEST_LINE)


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
