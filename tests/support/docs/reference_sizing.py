"""The tables of docs/sizing.md, from the measured costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdfd.cli.commands.plan import amount
from cdfd.daemon.sizing.estimate import Setup, needs
from cdfd.daemon.sizing.reading import costs
from cdfd.daemon.sizing.workload import TableWork, VersionWork

COSTS = Path(__file__).parents[3] / "cdfd" / "daemon" / "sizing" / "costs.json"
HOURS = 24
ROW_BYTES = 25
PIPELINES = [(1, 100), (1, 10_000), (50, 1_000), (50, 50_000), (300, 1_000), (300, 100_000), (500, 10_000)]
"""Tables, and rows a second of all of them together."""


def _sizes() -> Iterator[str]:
    measured = costs()
    name, sink = measured.sink("kafka", "json")
    yield "| tables | rows/s | cores | memory | disk a day |"
    yield "|---|---|---|---|---|"
    for count, rows in PIPELINES:
        each = rows * 60 / count
        versions = [VersionWork(60_000 * minute, each, round(each * ROW_BYTES), 1) for minute in range(60 * HOURS)]
        table = TableWork("t", False, HOURS, versions, 0, 0)
        estimate = needs([table] * count, measured, Setup(sink, partitions=4, replicas=1, keep_hours=HOURS))
        cells = (
            f"{count:,}",
            f"{rows:,}",
            f"{estimate.total.mean.cores:.2f}",
            amount(estimate.memory),
            amount(estimate.disk),
        )
        yield f"| {' | '.join(cells)} |"
    assert name == "kafka/json"


def _costs() -> Iterator[str]:
    measured = costs()
    text = measured.measured
    yield f"{text[0].upper()}{text[1:]}.\n"
    yield "| sink and format | a million rows | a GB of data files | a small version | written for each row | large deliveries |"
    yield "|---|---|---|---|---|---|"
    for name, sink in measured.sinks.items():
        cells = (
            f"`{name}`",
            f"{sink.row_us:.2f} s",
            f"{sink.byte_ns:.1f} s",
            f"{sink.version_ms:.1f} ms",
            f"{sink.row_bytes:.0f} B and {sink.written:.2f} of the bytes",
            f"{sink.large_mb:.0f} MB",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    share = f"{1000 * measured.table_cores:.2f} thousandths of a core"
    each = f"Each further table takes {measured.table_mb:.1f} MB and, at rest, {share}."
    yield f"A daemon with one table takes {measured.base_mb:.0f} MB. {each}"


def _check() -> Iterator[str]:
    document: dict[str, Any] = json.loads(COSTS.read_text(encoding="utf-8"))
    yield "| | `cdfd plan` | measured | difference |"
    yield "|---|---|---|---|"
    for name, (predicted, measured) in document["check"].items():
        yield f"| {name} | {predicted:,.0f} | {measured:,.0f} | {predicted / measured - 1:+.0%} |"


PARTS = {"sizes": _sizes, "costs": _costs, "check": _check}
