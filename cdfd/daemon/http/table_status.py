"""The status of one table, from the events of its loop.

Lag and age are computed at each request, so that they also grow while nothing happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cdfd.config import settings
from cdfd.config.sinks import sink_address
from cdfd.daemon.http.activity import Activity, SeenError
from cdfd.daemon.http.metrics import CHANGE_TYPES, OTHER, Reading, TableMetrics
from cdfd.deliver.grace import START_SECONDS, Outage
from cdfd.deliver.headroom import HeadroomTracker
from cdfd.deliver.monitor import Monitor, ResnapshotProgress
from cdfd.deliver.states import Event, State, next_state
from cdfd.delta.retention import Retention
from cdfd.errors import CdfdError
from cdfd.escaping import shorten
from cdfd.model.control import Pause
from cdfd.model.position import Phase, Position
from cdfd.model.version import Version
from cdfd.runtime.clock import Clock
from cdfd.runtime.times import iso


class TableMonitor(Monitor):
    """The `Monitor` of one table: receives the events of its loop and answers requests for its status.

    Args:
        sink: the name of the sink in `sinks`; empty with `sink`.
        starts_at_work: whether the table joins a daemon that is ready, which it stays for the time of a start.

    Attributes:
        name: the name of the loop; see `Settings.address`.
        commits: versions delivered since the start.
        position: the next position to deliver; None if unknown.
        resnapshot_progress: of an incremental snapshot; None if there is none.
        exemplar: returns the labels of the trace of the last delivery; None if there are no traces.
    """

    def __init__(
        self,
        table: settings.Table,
        metrics: TableMetrics,
        clock: Clock,
        sink: str = "",
        *,
        starts_at_work: bool = False,
    ) -> None:
        self.table = table
        self.name = sink_address(table.name, sink)
        self._sink = sink
        self._metrics = metrics
        self._clock = clock
        self._state: State = "starting"
        self.position: Position | None = None
        self._delivered: int | None = None
        self._newest: int | None = None
        self._ledger_version: int | None = None
        self._oldest: tuple[int, int] | None = None  # version and timestamp (ms) of the oldest pending version
        self._lag_known = False  # whether no oldest pending version means no lag
        self._was_ready = False  # whether the table delivered, or was at the tip, since the start
        self._paused = self._lost_position = False
        self._start_ends = clock.monotonic() + (START_SECONDS if starts_at_work else 0.0)
        self._outage, self._ledger_outage = Outage(), Outage()
        self._delivered_ms: int | None = None
        self._rows: Counter[str] = Counter(dict.fromkeys(CHANGE_TYPES, 0))
        self.commits = 0
        self._headroom = HeadroomTracker(clock)
        self._entry_ms: int | None = None  # time of the log entry at the position
        self.activity = Activity()
        self.exemplar: Callable[[], Mapping[str, str] | None] | None = None
        self._pause: Pause | None = None
        self.resnapshot_progress: ResnapshotProgress | None = None

    def started(self, position: Position) -> None:
        """The loop delivers from `position` on."""
        if self._oldest is not None and self._oldest[0] > position.version:
            self._oldest = None  # the table was moved back
        self._move(position)
        self._enter("started", position.phase)
        self._lag_known = False
        self._headroom.left_tip()

    def retained(self, retention: Retention) -> None:
        """The table keeps log entries and deleted files for these times."""
        self._headroom.retention = retention

    def undelivered_since(self, ms: int) -> None:
        """No undelivered commit is older than this."""
        self._headroom.undelivered_since(ms)
        if self.position is not None and self.position.phase == "stream":
            self._entry_ms = ms

    def found_version(self, newest: int) -> None:
        """The table has this version."""
        self._note(newest)
        if self.position is None or self.position.version <= newest:
            self._headroom.left_tip()
        else:
            self._headroom.nothing_undelivered()
        self._lag_known = True
        if self._oldest is None and self.position is not None and self.position.version <= newest:
            # The version's own timestamp is unknown until the loop reads it. That of its log entry is close.
            now_ms = self._clock.now_ms()
            self._oldest = (self.position.version, now_ms if self._entry_ms is None else min(now_ms, self._entry_ms))

    def at_tip(self, listed: int = -1) -> None:
        """All readable versions are delivered. A listed version that is not readable yet counts as lag."""
        self._enter("reached_tip")
        self._lag_known = self._was_ready = True
        self._work()
        self._oldest = None
        self._headroom.at_tip()
        if self.position is not None and self.position.version > 0:
            self._newest = max(self.position.version - 1, listed)

    def oldest_pending(self, version: Version) -> None:
        """This is the oldest version that is not delivered."""
        self._lag_known = True
        self._oldest = (version.plan.version, version.plan.timestamp_ms)
        self.activity.files = len(version.plan.scans)
        self._note(version.plan.version)
        self._enter("pending", "snapshot" if version.plan.origin == "snapshot" else "stream")
        if version.plan.origin == "snapshot":
            self._headroom.left_tip()  # its files are live: the next commit is the first that deletes any
        else:
            self._headroom.undelivered_since(version.plan.timestamp_ms)

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        """A delivery is committed. A delivery without rows and versions only stores the first position."""
        now_ms = self._clock.now_ms()
        changes = [version.plan for version in versions if version.plan.origin != "snapshot"]
        self._metrics.committed(rows, len(changes), bytes_read)
        for plan in changes:
            if plan.origin != "none":
                seconds = max(0, now_ms - plan.timestamp_ms) / 1000
                self._metrics.delivered_after(seconds, None if self.exemplar is None else self.exemplar())
                self.activity.delivered_after(seconds)
        for kind, count in rows.items():
            self._rows[kind if kind in CHANGE_TYPES else OTHER] += count
        self.commits += len(changes)
        self._move(following)
        self._enter("delivered", following.phase)
        if versions:
            last = versions[-1].plan
            newest = self._note(last.version)
            if last.origin != "snapshot":
                self._headroom.delivered(last.timestamp_ms)
            if self._oldest is None and newest > last.version:
                # The next version is not older than this one. The loop reports its timestamp soon.
                self._oldest = (following.version, last.timestamp_ms)
        if versions or any(rows.values()):
            self._was_ready = True
            self._work()
            self._delivered_ms = now_ms

    def stage(self, name: str, seconds: float) -> None:
        """Duration of one stage of a delivery. Called from any thread."""
        self._metrics.stage(name, seconds)
        self.activity.stage(name, seconds)

    def waiting(self, waits: bool) -> None:
        """A large delivery waits for a slot, or no longer waits."""
        self.activity.waiting = waits

    def aborted(self) -> None:
        """A delivery is aborted."""
        self._metrics.aborted.inc()

    def recorded(self, version: int) -> None:
        """The ledger records this version as delivered."""
        self._ledger_version = version
        self._ledger_outage.work()

    def found_record(self, version: int) -> None:
        """The ledger has this version; it may be one that can be read and not written."""
        self._ledger_version = version

    def error(self, error: CdfdError) -> None:
        """An error that does not stop the loop: most are of the ledger."""
        self._metrics.error(error, counts=self._ledger_outage.fail(error, self._clock.monotonic()))
        self.activity.error(error, self._clock.now_ms())

    def lost_position(self) -> None:
        """The table begins again, although the sink seems to have had a position."""
        self._lost_position = True

    def paused(self, pause: Pause | None) -> None:
        """A request paused the table; None: the table is not paused."""
        if pause is not None:
            self._enter("paused")
            self._work()  # the request stops the table now, and not the error
        elif self._pause is not None:
            self._enter("resumed", None if self.position is None else self.position.phase)
        self._pause = pause

    def resnapshot(self, progress: ResnapshotProgress | None) -> None:
        """An incremental snapshot began or went on; None: it ended."""
        self.resnapshot_progress = progress

    def failed(self, error: CdfdError, retry_in: float | None) -> None:
        """An error stopped the loop. It restarts after `retry_in` seconds; None: it does not restart."""
        now = self._clock.monotonic()
        self._metrics.error(error, counts=self._outage.fail(error, now) or retry_in is None)
        retry_at = None if retry_in is None else now + retry_in
        self.activity.error(error, self._clock.now_ms(), retry_at)
        self._enter("failed" if retry_in is None else "retrying")
        self._paused = True
        self._lag_known = False
        self._headroom.failed(error)

    def tolerates(self) -> bool:
        """Whether the errors that stop the loop do not count yet; see `Monitor`."""
        return self._state != "failed" and not self._outage.counts(self._clock.monotonic())

    def stopped(self) -> None:
        """The loop stopped on request."""
        self._enter("stopped")
        self._lag_known = False
        self._headroom.left_tip()

    def urgency(self) -> float | None:
        """See `Monitor`."""
        return self._headroom.urgency()

    @property
    def last_error(self) -> CdfdError | None:
        """The last error; None if there was none."""
        return self.activity.errors[-1].error if self.activity.errors else None

    @property
    def rows(self) -> int:
        """Rows delivered since the start."""
        return self._rows.total()

    def paused_for(self) -> float | None:
        """Seconds since a request paused the table; None if it is not paused."""
        return None if self._pause is None else max(0, self._clock.now_ms() - self._pause.at_ms) / 1000

    def errors(self) -> list[dict[str, Any]]:
        """The last errors, newest first, as JSON values."""
        return [self._describe(each) | {"count": each.count} for each in reversed(self.activity.errors)]

    def reading(self) -> Reading:
        """The status of the table at this moment."""
        position, newest = self.position, self._newest
        lag_versions, lag_seconds = None, None
        if position is not None and newest is not None and (self._oldest is not None or self._lag_known):
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
            ledger_version=self._ledger_version,
            lag_versions=lag_versions,
            lag_seconds=lag_seconds,
            delivered_at=None if self._delivered_ms is None else self._delivered_ms / 1000,
            headrooms=self._headroom.headrooms(),
            sink=self._sink,
            lost_position=self._lost_position,
        )

    def not_ready(self) -> str | None:
        """Why this table is not ready; None if it is. An outage that does not count yet leaves a ready table ready."""
        what = "" if self.last_error is None else shorten(self.last_error.what)
        if self._state == "failed":
            return f"failed without a retry: {what}"
        if self._state == "stopped":
            return "stopped"
        if self._state == "paused":
            return None  # as an operator wants it
        was_ready = self._was_ready or self._clock.monotonic() < self._start_ends
        if was_ready and (not self._paused or self.tolerates()):
            return None
        if self._state == "backing_off":
            return f"retry in {self.retry_in() or 0:.1f} s: {what}"
        if self._paused:
            return f"retrying after: {what}"
        return "not started yet" if self._state == "starting" else "nothing is delivered yet"

    def document(self) -> dict[str, Any]:
        """The table's part of `/status`, as JSON values."""
        reading, why = self.reading(), self.not_ready()
        names = {"table": self.table.name, "sink": self._sink} if self._sink else {}
        return {
            **names,
            "uri": self.table.uri,
            "topic": self.table.topic,
            "state": reading.state,
            "ready": why is None,
            "not_ready": why,
            "paused": reading.paused or reading.state == "paused",
            "pause": None if self._pause is None else {"id": self._pause.id, "since": iso(self._pause.at_ms)},
            "resnapshot": None if self.resnapshot_progress is None else asdict(self.resnapshot_progress),
            "position": None if self.position is None else self.position.fields(),
            "delivered_version": reading.delivered_version,
            "table_version": reading.table_version,
            "ledger_version": reading.ledger_version,
            "lag_versions": reading.lag_versions,
            "lag_seconds": reading.lag_seconds,
            "last_delivery": None if self._delivered_ms is None else iso(self._delivered_ms),
            "rows": dict(self._rows),
            "commits": self.commits,
            "retention": {
                each.kind: {
                    "headroom_seconds": round(each.seconds, 3),
                    "retention_seconds": each.retention,
                    "at_risk": each.at_risk,
                    "lost": each.lost,
                }
                for each in reading.headrooms
            },
            "last_error": self._describe(self.activity.errors[-1]) if self.activity.errors else None,
        }

    def _enter(self, event: Event, phase: Phase | None = None) -> None:
        self._state = next_state(self._state, event, phase)

    def _work(self) -> None:
        """The loop works, whatever failed before."""
        self._paused = False
        self._outage.work()

    def _note(self, version: int) -> int:
        """Note that the table has this version; the newest known version."""
        self._newest = max(version, self._newest or 0)
        return self._newest

    def _move(self, position: Position) -> None:
        if position != self.position:
            self._entry_ms = None
        self.position = position
        if position.phase == "stream":
            self._delivered = position.version - 1
        if self._oldest is not None and self._oldest[0] < position.version:
            self._oldest = None

    def retry_in(self) -> float | None:
        """Seconds until the loop restarts; None if it does not wait for a restart."""
        retry_at = self.activity.errors[-1].retry_at if self.activity.errors else None
        if self._state != "backing_off" or retry_at is None:
            return None
        return max(0.0, round(retry_at - self._clock.monotonic(), 1))

    def _describe(self, seen: SeenError) -> dict[str, Any]:
        error = seen.error
        return {
            "what": shorten(error.what),
            "family": error.family,
            "at": iso(seen.at_ms),
            "retry_in": self.retry_in(),
            "version": error.version,
            "path": None if error.path is None else shorten(error.path),
            "hint": None if error.hint is None else shorten(error.hint),
        }
