"""Run events: what the runs of a table count."""

from typing import Any

from cdfd.daemon.telemetry.lineage import LineageMonitor
from cdfd.errors import SinkError
from tests.support.manual_time import ManualClock
from tests.support.statuses import at, version


def test_a_run_counts_its_own_rows_also_if_it_does_not_start() -> None:
    events: list[dict[str, Any]] = []
    monitor = LineageMonitor(("shop", "orders"), ("file", "/orders"), ("file", "/out"), events.append, ManualClock())
    away = SinkError("away", retriable=True)
    monitor.started(at(3))
    monitor.committed(at(4), [version(3)], {"insert": 5}, 1000)
    monitor.failed(away, 1.0)
    monitor.failed(away, 2.0)
    monitor.started(at(4))
    monitor.stopped()
    monitor.stopped()
    counts = [
        (
            event["eventType"],
            event["inputs"][0]["inputFacets"]["inputStatistics"]["size"],
            event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"],
        )
        for event in events
    ]
    first = [("START", 0, 0), ("RUNNING", 1000, 5), ("FAIL", 1000, 5)]
    assert counts == [*first, ("START", 0, 0), ("FAIL", 0, 0), ("START", 0, 0), ("COMPLETE", 0, 0)]
    assert len({event["run"]["runId"] for event in events}) == 3
