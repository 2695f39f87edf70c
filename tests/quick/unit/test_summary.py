"""The line a minute of a daemon's log."""

import asyncio
import logging

import pytest

from cdfd.daemon.http.history import History
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.summary import SECONDS, Summary
from cdfd.errors import SinkError
from cdfd.runtime.tasks import background
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, at, configuration, version


def line_fields(versions: int, rows: int, lag_versions: int, not_ready: int) -> dict[str, float]:
    return {
        "versions": versions,
        "rows": rows,
        "lag_versions": lag_versions,
        "not_ready": not_ready,
        "lag_seconds": 0.0,
    }


def test_what_was_delivered_and_what_is_behind() -> None:
    clock = ManualClock(NOW_MS)
    status = Status(configuration(), clock)
    summary = Summary(status)
    tables = status.tables()
    for table in tables:
        table.started(at(4))
        table.at_tip()
    assert summary.line() is None
    tables[0].oldest_pending(version(4, NOW_MS - 1500))
    tables[0].found_version(6)
    tables[0].committed(at(5), [version(4)], {"insert": 3, "delete": 1}, 1)
    actual = summary.line()
    assert actual is not None
    text, fields = actual
    assert fields | {"lag_seconds": 0.0} == line_fields(1, 4, 2, 0)
    assert text.startswith(
        "delivered 1 version and 4 rows since the last such line; 2 versions behind, the oldest for "
    )
    tables[0].committed(at(7), [version(5), version(6)], {"insert": 1000}, 1)
    tables[0].at_tip()
    assert (summary.line() or ("", {}))[0] == "delivered 2 versions and 1,000 rows since the last such line"
    assert summary.line() is None
    tables[1].failed(SinkError("no topic"), 1.0)
    assert (summary.line() or ("", {}))[1] == line_fields(0, 0, 0, 1)


def test_a_table_that_left_and_joined_again_counts_from_zero() -> None:
    status = Status(configuration(), ManualClock(NOW_MS))
    summary, history = Summary(status), History(status)
    orders, customers = status.tables()
    for table in (orders, customers):
        table.started(at(4))
        table.committed(at(5), [version(4)], {"insert": 1000}, 1)
        table.at_tip()
    assert (summary.line() or ("", {}))[1] == line_fields(2, 2000, 0, 0)
    history.sample()
    status.remove("orders")
    again = status.add(orders.table, starts_at_work=not status.not_ready())
    again.started(at(5))
    again.committed(at(6), [version(5)], {"insert": 10}, 1)
    again.at_tip()
    assert (summary.line() or ("", {}))[1] == line_fields(1, 10, 0, 0)
    history.sample()
    assert history.table("orders").series("rows_per_second", 2) == [100, 1]


async def test_a_line_a_minute_when_there_is_something_to_say(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cdfd.daemon"):
        clock = ManualClock(NOW_MS)
        status = Status(configuration(), clock)
        async with background("summary", Summary(status).run(clock)):
            for table in status.tables():
                table.started(at(4))
                table.at_tip()
            for count in (0, 1, 0, 2):
                await clock.wait_for_sleepers()
                if count:
                    status.tables()[0].committed(at(4 + count), [version(3 + count)], {"insert": count}, 1)
                clock.advance(SECONDS)
                await asyncio.sleep(0)
            await clock.wait_for_sleepers()
    assert [(record.__dict__["versions"], record.__dict__["rows"]) for record in caplog.records] == [(1, 1), (1, 2)]
