"""The documents that the page loads: all tables in short, and the last hour of one of them.

Texts come from tables, brokers and files. They are made printable here, and the page inserts them as text, never as HTML.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdfd import __version__
from cdfd.daemon.http.history import POINTS, SECONDS, History
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.deliver.monitor import ResnapshotProgress
from cdfd.deliver.states import State
from cdfd.errors import CdfdError
from cdfd.escaping import one_line
from cdfd.model.position import Position
from cdfd.runtime.times import duration

STAGE_NAMES = {
    "read": "reading files",
    "encode": "encoding records",
    "send": "sending to the sink",
    "commit": "waiting for the sink's commit",
    "limit": "waiting for the configured `limits`",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a table at one moment. None: unknown.

    Attributes:
        state: of its loop.
        lag_versions: undelivered versions.
        position: the next one to deliver.
        files: to read for the version at `position`.
        waiting: whether a large delivery waits for a slot.
        busiest: the stage that takes most of the time.
        error: the last one.
        retry_in: seconds until the loop restarts.
        seconds_to_tip: time to catch up at the current rate; infinity while the lag does not shrink.
        paused_for: seconds since a request paused the table; None if it is not paused.
        resnapshot: the progress of an incremental snapshot; None if there is none.
    """

    state: State
    lag_versions: int | None
    position: Position | None
    files: int | None
    waiting: bool
    busiest: str | None
    error: CdfdError | None
    retry_in: float | None
    seconds_to_tip: float | None
    paused_for: float | None = None
    resnapshot: ResnapshotProgress | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state in words.

    Attributes:
        why: its cause.
        next: the next event.
        hint: the operator's part; None if there is none.
    """

    why: str
    next: str
    hint: str | None = None


def explain(facts: Facts) -> Explanation:
    """The explanation of these facts. Texts of errors are not escaped yet."""
    if facts.state in ("backing_off", "failed"):
        assert facts.error is not None
        following = "No retry: remove the cause, then restart the daemon."
        if facts.state == "backing_off":
            following = f"It retries in {duration(facts.retry_in or 0)}."
            if not facts.error.retriable:
                following += " The error stays until you act."
        explanation = Explanation(facts.error.what, following, facts.error.hint)
    elif facts.state == "paused":
        since = "" if facts.paused_for is None else f" {duration(facts.paused_for)} ago"
        explanation = Explanation(f"A request paused it{since}.", "Nothing is delivered until a request resumes it.")
    elif facts.state == "stopped":
        explanation = Explanation("The daemon is stopping.", "The next start continues at this position.")
    elif facts.state == "starting":
        why = "The sink is being opened, or the table does not exist yet."
        explanation = Explanation(why, "It starts once both answer. `cdfd check` names the cause of a long wait.")
    elif facts.state == "snapshot":
        explanation = _snapshot(facts)
    elif facts.lag_versions:
        explanation = _behind(facts)
    elif facts.state == "at_tip":
        explanation = Explanation("Everything is delivered.", "The daemon waits for the next commit.")
    else:
        explanation = Explanation("Everything that the daemon has seen is delivered.", "It looks for the next commit.")
    if facts.resnapshot is None:
        return explanation
    progress, done = facts.resnapshot, ""
    if progress.files is not None and progress.remaining is not None:
        done = f": {progress.files - progress.remaining:,} of {progress.files:,} files are done"
    return replace(explanation, why=f"{explanation.why} Its rows are published again{done}.")


def _snapshot(facts: Facts) -> Explanation:
    version = "" if facts.position is None else f" of version {facts.position.version:,}"
    why = f"The daemon delivers the live rows{version}{_files(facts)}."
    if facts.waiting:
        why += _SLOT
    following = "on" if facts.position is None else f"from version {facts.position.version + 1:,} on"
    return Explanation(why, f"Then it delivers the changes {following}.")


_SLOT = " It waits for a slot: other tables have large deliveries."


def _behind(facts: Facts) -> Explanation:
    if facts.state == "at_tip":
        why = "A newer version is listed, but its log entry cannot be read yet."
        return Explanation(why, "The daemon reads it as soon as it is complete.")
    why = "There is a backlog"
    if facts.busiest is not None:
        why += f"; most time goes to {STAGE_NAMES.get(facts.busiest, facts.busiest)}"
    why += f".{_SLOT}" if facts.waiting else "."
    following = "Version ?" if facts.position is None else f"Version {facts.position.version:,}"
    following += f" is next{_files(facts)}."
    if facts.seconds_to_tip is not None:
        shrinks = math.isfinite(facts.seconds_to_tip)
        following += (
            f" Caught up in about {duration(facts.seconds_to_tip)}." if shrinks else " The backlog does not shrink."
        )
    return Explanation(why, following)


def _files(facts: Facts) -> str:
    if not facts.files or facts.position is None or facts.files == 1:
        return ""
    return f": {facts.position.part:,} of {facts.files:,} files are delivered"


LONGEST_CELL = 300
"""Longest text of a row, in characters. The details of a table have longer ones."""


def overview(status: Status, history: History, *, controls: bool = False) -> dict[str, Any]:
    """All tables in short, as JSON values. Takes about 60 microseconds for each table.

    Args:
        status: of the daemon.
        history: its last hour.
        controls: whether the server takes requests of operators.
    """
    tables = status.tables()
    return {
        "cdfd": __version__,
        "pipeline": one_line(status.config.pipeline),
        "role": status.role,
        "leader": None if status.leader is None else one_line(status.leader),
        "controls": controls,
        "uptime_seconds": round(status.uptime()),
        "sample_seconds": SECONDS,
        "samples": POINTS,
        "history": history.all.document(),
        "tables": [_row(table, history) for table in tables],
    }


def details(table: TableMonitor, history: History) -> dict[str, Any]:
    """One table, as JSON values: its last hour, its position, its headroom and its last errors."""
    document = table.document()
    shown = ("state", "position", "ledger_version", "rows", "commits", "last_delivery", "retention")
    details: dict[str, Any] = _printable(
        {
            **_row(table, history),
            **{name: document[name] for name in shown},
            "history": history.table(table.name).document(),
            "errors": table.errors(),
        }
    )
    return details


def _row(table: TableMonitor, history: History) -> dict[str, Any]:
    reading, activity, ring = table.reading(), table.activity, history.table(table.name)
    facts = Facts(
        state=reading.state,
        lag_versions=reading.lag_versions,
        position=table.position,
        files=activity.files,
        waiting=activity.waiting,
        busiest=activity.busiest(),
        error=table.last_error,
        retry_in=table.retry_in(),
        seconds_to_tip=ring.seconds_to_tip(),
        paused_for=table.paused_for(),
        resnapshot=table.resnapshot_progress,
    )
    explanation = explain(facts)
    least = min(reading.headrooms, key=lambda each: each.seconds, default=None)
    return {
        "name": one_line(table.name),
        "uri": one_line(table.table.uri, LONGEST_CELL),
        "topic": one_line(table.table.topic, LONGEST_CELL),
        "state": reading.state,
        "lag_versions": reading.lag_versions,
        "lag_seconds": reading.lag_seconds,
        "delivered": reading.delivered_version,
        "newest": reading.table_version,
        "rows_per_second": ring.series("rows_per_second", 1)[0],
        "delivered_at": reading.delivered_at,
        "why": one_line(explanation.why, LONGEST_CELL),
        "next": one_line(explanation.next, LONGEST_CELL),
        "hint": None if explanation.hint is None else one_line(explanation.hint, LONGEST_CELL),
        "headroom": None
        if least is None
        else {"seconds": round(least.seconds), "at_risk": least.at_risk, "lost": least.lost},
        "resnapshot": table.resnapshot_progress is not None,
        "trend": ring.trend(),
    }


def _printable(value: Any) -> Any:
    """The same JSON values with printable texts, and without infinities."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {key: _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
