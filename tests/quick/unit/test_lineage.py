"""Run events: what the runs of a table count."""

import asyncio
from typing import Any

import aiohttp

from cdfd.daemon.telemetry.lineage import QUEUE_EVENTS, LineageMonitor, Sender
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


async def test_events_of_many_tables_that_run_displace_no_others() -> None:
    received = list[tuple[str, str, int]]()

    class Receiver(Sender):
        async def _try(self, session: aiohttp.ClientSession, event: dict[str, Any]) -> bool:
            received.append((event["eventType"], event["run"]["runId"], event["rows"]))
            return True

    sender = Receiver("http://receiver", None, ManualClock())
    runs = [f"run {number}" for number in range(2 * QUEUE_EVENTS)]

    def put(kind: str, run: str, rows: int) -> None:
        sender.put({"eventType": kind, "run": {"runId": run}, "rows": rows})

    put("START", "first", 0)
    for rows in (1, 2):
        for run in ("first", *runs):
            put("RUNNING", run, rows)
    put("COMPLETE", "first", 3)
    put("START", "last", 0)
    sending = asyncio.create_task(sender.run(None))  # type: ignore[arg-type]  # it is not used
    async with asyncio.timeout(20):
        while sender.next() is not None:
            await asyncio.sleep(0)
    sending.cancel()
    lives = [("START", "first", 0), ("COMPLETE", "first", 3), ("START", "last", 0)]
    assert received == [*lives, *(("RUNNING", run, 2) for run in runs)]
