"""The page for people: the status of every table, as plain HTML that refreshes itself and loads nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from string import Template
from typing import Any

from cdfd.console.durations import duration
from cdfd.console.escaping import one_line

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content-Security-Policy: no scripts and no resources. Text that gets past escaping can do no harm."""

REFRESH_SECONDS = 5

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="$refresh">
<title>cdfd $pipeline</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .4rem .8rem .4rem 0; text-align: left; vertical-align: top; }
td.number, th.number { font-variant-numeric: tabular-nums; text-align: right; }
td.error { overflow-wrap: anywhere; }
small { color: #888; display: block; overflow-wrap: anywhere; }
.state { border-radius: .3rem; color: #fff; padding: .1rem .5rem; white-space: nowrap; }
.at_tip { background: #2a7d3f; } .catching_up, .snapshot { background: #2563a8; }
.starting, .stopped { background: #6b7280; } .backing_off { background: #a45a00; } .failed { background: #b3261e; }
</style>
</head>
<body>
<h1>$pipeline <span class="state $verdict_class">$verdict</span></h1>
<p>cdfd $version, up $uptime, since $started</p>
<table>
<thead><tr><th>table</th><th>state</th><th class="number">delivered</th><th class="number">newest</th>
<th class="number">lag</th><th class="number">rows</th><th>last delivery</th><th>last error</th></tr></thead>
<tbody>
$rows</tbody>
</table>
<p><a href="/status">status</a> · <a href="/metrics">metrics</a> · <a href="/readyz">ready</a> · <a href="/healthz">health</a></p>
</body>
</html>
""")

_ROW = Template("""<tr><td>$name<small>$uri → $topic</small></td><td><span class="state $state">$state</span></td>
<td class="number">$delivered</td><td class="number">$newest</td><td class="number">$lag</td>
<td class="number">$rows</td><td>$last</td><td class="error">$error</td></tr>
""")


def render(status: Mapping[str, Any]) -> str:
    """The page of a status document (`Status.document`). All text in it is escaped."""
    verdict, verdict_class = ("ready", "at_tip") if status["ready"] else ("not ready", "backing_off")

    return _PAGE.substitute(
        refresh=REFRESH_SECONDS,
        pipeline=_escaped(status["pipeline"]),
        verdict=verdict,
        verdict_class=verdict_class,
        version=_escaped(status["cdfd"]),
        uptime=duration(status["uptime_seconds"]),
        started=_moment(status["started"]),
        rows="".join(_row(name, table) for name, table in status["tables"].items()),
    )


def _row(name: str, table: Mapping[str, Any]) -> str:
    lag = "?" if table["lag_seconds"] is None else f"{table['lag_versions']:,}"
    if table["lag_versions"]:
        lag += f"<small>{duration(table['lag_seconds'])}</small>"
    return _ROW.substitute(
        name=_escaped(name),
        uri=_escaped(table["uri"]),
        topic=_escaped(table["topic"]),
        state=_escaped(table["state"]),
        delivered=_number(table["delivered_version"]),
        newest=_number(table["table_version"]),
        lag=lag,
        rows=_number(sum(table["rows"].values())),
        last=_moment(table["last_delivery"]),
        error="" if table["last_error"] is None else _error(table["last_error"]),
    )


def _error(error: Mapping[str, Any]) -> str:
    places = [
        error["family"],
        _moment(error["at"]),
        "" if error["version"] is None else f"version {error['version']}",
        error["path"] or "",
        "" if error["retry_in"] is None else f"retry in {error['retry_in']:.0f} s",
    ]
    where = ", ".join(_escaped(place) for place in places if place)
    hint = f"<small>{_escaped(error['hint'])}</small>" if error["hint"] else ""
    return f"{_escaped(error['what'])}<small>{where}</small>{hint}"


def _escaped(text: str) -> str:
    """Text escaped for HTML. `one_line` also escapes characters that change the direction of text, which could falsify the page."""
    return escape(one_line(text))


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _moment(iso: str | None) -> str:
    return "never" if iso is None else escape(iso.replace("T", " "))
