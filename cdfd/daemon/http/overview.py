"""The documents that the page loads: all tables in short, and the last hour of one of them.

Texts come from tables, brokers and files. They are made printable here, and the page inserts them as text, never as HTML.
"""

import math
from collections.abc import Mapping
from typing import Any

from cdfd import __version__
from cdfd.daemon.http.history import POINTS, SECONDS, History, Ring
from cdfd.daemon.http.metrics import Reading
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.escaping import one_line
from cdfd.runtime.times import duration

STAGE_NAMES = {
    "read": "reading files",
    "encode": "encoding records",
    "send": "sending to the sink",
    "commit": "waiting for the sink's commit",
    "limit": "waiting for the configured `limits`",
}


def explain(reading: Reading, table: TableMonitor, ring: Ring) -> tuple[str, str, str | None]:
    """The state in words: its cause, the next event, and the operator's part if there is one. Texts of errors are not escaped yet."""
    error, hint = table.last_error, None
    if reading.state in ("backing_off", "failed"):
        assert error is not None
        following = "No retry: remove the cause, then restart the daemon."
        if reading.state == "backing_off":
            following = f"It retries in {duration(table.retry_in() or 0)}."
            if not error.retriable:
                following += " The error stays until you act."
        why, hint = error.what, error.hint
    elif reading.state == "paused":
        paused_for = table.paused_for()
        since = "" if paused_for is None else f" {duration(paused_for)} ago"
        why, following = f"A request paused it{since}.", "Nothing is delivered until a request resumes it."
    elif reading.state == "stopped":
        why, following = "The daemon is stopping.", "The next start continues at this position."
    elif reading.state == "starting":
        why = "The sink is being opened, or the table does not exist yet."
        following = "It starts once both answer. `cdfd check` names the cause of a long wait."
    elif reading.state == "snapshot":
        why, following = _snapshot(table)
    elif reading.lag_versions and reading.state == "at_tip":
        why = "A newer version is listed, but its log entry cannot be read yet."
        following = "The daemon reads it as soon as it is complete."
    elif reading.lag_versions:
        why, following = _backlog(table, ring)
    elif reading.state == "at_tip":
        why, following = "Everything is delivered.", "The daemon waits for the next commit."
    else:
        why, following = "Everything that the daemon has seen is delivered.", "It looks for the next commit."
    if (progress := table.resnapshot_progress) is not None:
        done = ""
        if progress.files is not None and progress.remaining is not None:
            done = f": {progress.files - progress.remaining:,} of {progress.files:,} files are done"
        why += f" Its rows are published again{done}."
    return why, following, hint


def _snapshot(table: TableMonitor) -> tuple[str, str]:
    version = "" if table.position is None else f" of version {table.position.version:,}"
    why = f"The daemon delivers the live rows{version}{_files(table)}."
    if table.activity.waiting:
        why += _SLOT
    changes = "on" if table.position is None else f"from version {table.position.version + 1:,} on"
    return why, f"Then it delivers the changes {changes}."


_SLOT = " It waits for a slot: other tables have large deliveries."


def _backlog(table: TableMonitor, ring: Ring) -> tuple[str, str]:
    why, busiest = "There is a backlog", table.activity.busiest()
    if busiest is not None:
        why += f"; most time goes to {STAGE_NAMES.get(busiest, busiest)}"
    why += f".{_SLOT}" if table.activity.waiting else "."
    following = "Version ?" if table.position is None else f"Version {table.position.version:,}"
    following += f" is next{_files(table)}."
    if (seconds := ring.seconds_to_tip()) is not None:
        shrinks = math.isfinite(seconds)
        following += f" Caught up in about {duration(seconds)}." if shrinks else " The backlog does not shrink."
    return why, following


def _files(table: TableMonitor) -> str:
    files = table.activity.files
    if not files or table.position is None or files == 1:
        return ""
    return f": {table.position.part:,} of {files:,} files are delivered"


LONGEST_CELL = 300
"""Longest text of a row, in characters. The details of a table have longer ones."""


def overview(status: Status, history: History, *, controls: bool = False) -> dict[str, Any]:
    """All tables in short, as JSON values. Takes about 60 microseconds for each table.

    Args:
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
    reading, ring = table.reading(), history.table(table.name)
    why, following, hint = explain(reading, table, ring)
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
        "why": one_line(why, LONGEST_CELL),
        "next": one_line(following, LONGEST_CELL),
        "hint": None if hint is None else one_line(hint, LONGEST_CELL),
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
