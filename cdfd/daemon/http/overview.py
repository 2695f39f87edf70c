"""The documents that the page loads: all tables in short, and the last hour of one of them.

Texts come from tables, brokers and files. They are made printable here, and the page inserts them as text, never as HTML.
"""

import math
from collections.abc import Mapping
from typing import Any

from cdfd import __version__
from cdfd.daemon.http.explanation import Facts, explain
from cdfd.daemon.http.history import POINTS, SECONDS, History
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.deliver.headroom import Headroom
from cdfd.escaping import one_line

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
        "pipeline": one_line(status.pipeline),
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
    found: dict[str, Any] = _printable(
        {
            **_row(table, history),
            **{name: document[name] for name in shown},
            "history": history.table(table.table.name).document(),
            "errors": table.errors(),
        }
    )
    return found


def _row(table: TableMonitor, history: History) -> dict[str, Any]:
    reading, activity, ring = table.reading(), table.activity, history.table(table.table.name)
    error, progress = table.last_error, table.resnapshot_progress
    facts = Facts(
        state=reading.state,
        lag_versions=reading.lag_versions,
        position=table.position,
        files=activity.files,
        waiting=activity.waiting,
        busiest=activity.busiest(),
        error=None if error is None else error.error,
        retry_in=table.retry_in(),
        seconds_to_tip=ring.seconds_to_tip(),
        paused_for=table.paused_for(),
        resnapshot=None if progress is None else (progress.files - progress.remaining, progress.files),
    )
    explanation = explain(facts)
    least = min(reading.headrooms, key=lambda each: each.seconds, default=None)
    return {
        "name": one_line(table.table.name),
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
        "headroom": None if least is None else _headroom(least),
        "resnapshot": progress is not None,
        "trend": ring.trend(),
    }


def _headroom(headroom: Headroom) -> dict[str, Any]:
    return {"seconds": round(headroom.seconds), "at_risk": headroom.at_risk, "lost": headroom.lost}


def _printable(value: Any) -> Any:
    """The same JSON values with printable texts, and without infinities."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {key: _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
