"""Retention headroom: how long until clean-up may take what is not delivered."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from cdfd.daemon.http.status import Status
from cdfd.daemon.http.summary import REPEAT_SECONDS, Summary
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.deliver.admission import Admission
from cdfd.delta.retention import Retention
from cdfd.errors import (
    CdfdError,
    GapError,
    MissingFileError,
    NotATableError,
    SinkError,
    TableChangedError,
    UnsupportedError,
)
from cdfd.model.control import Control, Pause
from tests.support.feeding import MemoryPlace, feed
from tests.support.lake import BEGINNING, Lake, entry_path, manual_clock, rows, run, table
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, at, configuration, measured, snapshot_at, table_monitor, version

DAY = 86_400
RETENTION = Retention(30 * DAY * 1000, 7 * DAY * 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def status(clock: ManualClock) -> Status:
    return Status(configuration(), clock)


@pytest.fixture
def orders(status: Status) -> TableMonitor:
    return table_monitor(status, "orders")


def left(table: TableMonitor) -> dict[str, float]:
    """Days of headroom by the kind of clean-up."""
    return {each.kind: each.seconds / DAY for each in table.reading().headrooms}


def behind(table: TableMonitor, days: float) -> None:
    table.retained(RETENTION)
    table.started(at(4))
    table.oldest_pending(version(4, NOW_MS - round(days * DAY * 1000)))


def test_it_is_unknown_until_the_table_is_read(orders: TableMonitor) -> None:
    assert left(orders) == {}
    orders.started(at(4))
    orders.undelivered_since(NOW_MS)
    assert left(orders) == {}
    orders.retained(RETENTION)
    assert left(orders) == {"log": 30, "deleted_files": 7}


def test_at_the_tip_it_is_all_of_the_retention_and_stays(orders: TableMonitor, clock: ManualClock) -> None:
    behind(orders, 3)
    orders.committed(at(5), [version(4)], {"insert": 1}, 1)
    orders.at_tip()
    clock.advance(100 * DAY)
    assert left(orders) == {"log": 30, "deleted_files": 7}


def test_it_counts_from_the_oldest_undelivered_commit(orders: TableMonitor, clock: ManualClock) -> None:
    behind(orders, 2)
    assert left(orders) == {"log": 28, "deleted_files": 5}
    clock.advance(6 * DAY)
    assert left(orders) == {"log": 22, "deleted_files": -1}
    orders.committed(at(5), [version(4, NOW_MS)], {"insert": 1}, 1)
    assert left(orders) == {"log": 24, "deleted_files": 1}


def test_after_an_error_at_the_tip_it_counts_from_then(orders: TableMonitor, clock: ManualClock) -> None:
    """The loop no longer sees new commits: the oldest that it may have missed came just after the error."""
    orders.retained(RETENTION)
    orders.started(at(4))
    orders.at_tip()
    clock.advance(10 * DAY)
    orders.failed(SinkError("away", retriable=True), 5.0)
    clock.advance(DAY)
    orders.started(at(4))
    clock.advance(DAY)
    assert left(orders) == {"log": 28, "deleted_files": 5}


def test_the_files_of_a_snapshot_are_safe_until_a_later_commit_deletes_them(orders: TableMonitor) -> None:
    """However old the table's last commit is."""
    orders.retained(RETENTION)
    orders.started(snapshot_at(4))
    orders.undelivered_since(NOW_MS - DAY * 1000)
    orders.oldest_pending(version(4, NOW_MS - 400 * DAY * 1000, "snapshot"))
    assert left(orders) == {"log": 29, "deleted_files": 6}


@pytest.mark.parametrize(
    ("error", "expected"),
    [(GapError("gone"), {"log": 0, "deleted_files": 6}), (MissingFileError("gone"), {"log": 29, "deleted_files": 0})],
)
def test_what_is_gone_has_none(orders: TableMonitor, error: CdfdError, expected: dict[str, float]) -> None:
    behind(orders, 1)
    orders.failed(error, 60.0)
    orders.started(at(4))
    assert left(orders) == expected
    assert orders.urgency() is None  # it would be too late
    orders.committed(at(5), [version(4)], {}, 0)
    orders.at_tip()
    assert left(orders) == {"log": 30, "deleted_files": 7}


@pytest.mark.parametrize("error", [TableChangedError("the table was deleted"), NotATableError("no log")])
def test_table_that_is_gone_has_no_retention(orders: TableMonitor, error: CdfdError) -> None:
    behind(orders, 1)
    assert left(orders)
    orders.failed(error, None)
    assert not left(orders)
    orders.retained(RETENTION)
    assert left(orders)


def test_a_table_that_keeps_all_log_entries_and_no_deleted_file(orders: TableMonitor, clock: ManualClock) -> None:
    orders.retained(Retention(None, 0))
    orders.started(at(4))
    orders.at_tip()
    assert left(orders) == {"deleted_files": 0}
    assert not any(each.at_risk for each in orders.reading().headrooms)
    orders.oldest_pending(version(4, NOW_MS))
    clock.advance(1)
    assert all(each.at_risk for each in orders.reading().headrooms)


def test_less_than_a_quarter_is_a_risk(orders: TableMonitor) -> None:
    behind(orders, 5)
    assert orders.urgency() is None
    behind(orders, 5.5)
    assert orders.urgency() == 1.5 * DAY


def test_metrics_and_status_have_it(status: Status, orders: TableMonitor) -> None:
    assert not any("retention" in name for name in measured(status))
    behind(orders, 6)
    actual = {name: value for name, value in measured(status).items() if "retention" in name}
    assert actual == {
        'cdfd_retention_headroom_seconds{retention="log"}': 24 * DAY,
        'cdfd_retention_headroom_seconds{retention="deleted_files"}': DAY,
        'cdfd_retention_seconds{retention="log"}': 30 * DAY,
        'cdfd_retention_seconds{retention="deleted_files"}': 7 * DAY,
    }
    assert orders.document()["retention"]["deleted_files"] == {
        "headroom_seconds": DAY,
        "retention_seconds": 7 * DAY,
        "at_risk": True,
        "lost": False,
    }


def test_a_warning_at_first_and_every_hour(
    status: Status, orders: TableMonitor, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    summary = Summary(status)

    def logged() -> list[str]:
        caplog.clear()
        summary.warn_of_clean_up(clock)
        return [f"{record.levelname} {record.message}" for record in caplog.records]

    with caplog.at_level(logging.INFO):
        behind(orders, 5)
        assert logged() == []
        behind(orders, 6)
        assert logged() == [
            "WARNING VACUUM may remove undelivered changes in 24 h 0 min: stop it until the table has caught up, "
            "or raise the table property `delta.deletedFileRetentionDuration`"
        ]
        assert caplog.records[0].__dict__["table"] == "orders"
        clock.advance(REPEAT_SECONDS / 2)
        assert logged() == []
        clock.advance(REPEAT_SECONDS / 2 + DAY)
        assert logged()[0].startswith("WARNING VACUUM may already have removed undelivered changes, 1 h 0 min ago")
        orders.failed(MissingFileError("gone"), 60.0)
        clock.advance(REPEAT_SECONDS)
        assert logged()[0].startswith("WARNING VACUUM has removed undelivered changes")
        orders.committed(at(5), [version(4)], {}, 0)
        orders.at_tip()
        assert logged() == ["INFO clean-up no longer threatens undelivered changes"]
        assert logged() == []


# The loop


def seen(lake: Lake, clock: ManualClock, until: int | None, **options: object) -> list[dict[str, float]]:
    """The headroom at each delivery."""
    monitor = table_monitor(Status(configuration(), clock), "orders")
    samples: list[dict[str, float]] = []

    def hook(event: str, _: object) -> None:
        if event == "commit":
            samples.append(left(monitor))

    run(feed(lake, MemoryPlace(), clock, until, hook, monitor=monitor, **options))
    return samples


def filled(clock: ManualClock) -> Lake:
    """Versions 0 to 3, a day apart, the last one a day ago."""
    lake = Lake(clock)

    async def fill() -> None:
        writer = await table(lake, 1, clock)
        for each in range(1, 4):
            clock.advance(DAY)
            await writer.insert(rows(each))
        clock.advance(DAY)

    run(fill())
    return lake


def test_a_loop_counts_from_each_version_that_it_delivers() -> None:
    clock = manual_clock()
    actual = seen(filled(clock), clock, 3, start="earliest")
    assert [each.get("deleted_files") for each in actual] == [None, 3, 4, 5, 6]  # None: the start is stored first


def test_the_properties_of_the_table_count_and_their_changes_too() -> None:
    clock = manual_clock()
    lake = filled(clock)
    entry = lake.bytes_of(entry_path(0)).replace(
        b'"configuration":{', b'"configuration":{"delta.deletedFileRetentionDuration":"interval 14 days",'
    )
    lake.replace(entry_path(0), entry.replace(b",}", b"}"), BEGINNING)
    actual = seen(lake, clock, 3, start="earliest")
    assert [each.get("deleted_files") for each in actual] == [None, 10, 11, 12, 13]


def test_a_snapshot_of_an_old_table_has_all_of_it() -> None:
    clock = manual_clock()
    lake = filled(clock)
    clock.advance(300 * DAY)
    assert seen(lake, clock, 3, start="snapshot")[-1] == {"log": 30, "deleted_files": 7}


def test_a_loop_that_cannot_read_on_knows_how_old_the_next_version_is() -> None:
    clock = manual_clock()
    lake, place = filled(clock), MemoryPlace()
    run(feed(lake, place, clock, 1, start="earliest"))
    newer = b'{"protocol":{"minReaderVersion":99,"minWriterVersion":99}}\n'
    lake.replace(entry_path(2), newer, BEGINNING + 2 * DAY * 1000)
    restarted = table_monitor(Status(configuration(), clock), "orders")
    with pytest.raises(UnsupportedError):
        run(feed(lake, place, clock, monitor=restarted))
    assert left(restarted)["deleted_files"] == 5


def test_a_table_that_is_paused_over_a_restart_has_a_headroom_that_shrinks() -> None:
    """Clean-up does not wait for a pause. Commits that come meanwhile count from their own time."""

    async def scenario(delivered: int, expected: list[float], lag: tuple[int, int]) -> None:
        clock = manual_clock()
        lake, place = Lake(clock), MemoryPlace()
        writer = await table(lake, 1, clock)
        for each in range(1, 4):
            clock.advance(DAY)
            await writer.insert(rows(each))
        clock.advance(DAY)
        await feed(lake, place, clock, delivered, start="earliest")
        sink = await place.open()
        await sink.set_control(Control(paused=Pause("a", clock.now_ms())))
        restarted, stop = table_monitor(Status(configuration(), clock), "orders"), asyncio.Event()
        running = asyncio.create_task(feed(lake, place, clock, monitor=restarted, stop=stop))
        values = []
        for day in range(len(expected)):
            await clock.wait_for_sleepers()
            values.append(left(restarted)["deleted_files"])
            if day == 1:
                await writer.insert(rows(9))
            clock.advance(DAY)
        assert restarted.reading().state == "paused"
        stop.set()
        await running
        assert values == pytest.approx(expected, abs=0.01)
        reading = restarted.reading()
        assert (reading.lag_versions, round((reading.lag_seconds or 0) / DAY)) == lag

    run(scenario(1, [5, 4, 3, 2], (3, 6)))  # version 2 is two days old
    run(scenario(3, [7, 7, 6, 5], (1, 2)))  # nothing to deliver until the second day


# The order of admission


async def test_tables_at_risk_are_admitted_first_and_the_most_urgent_before_all() -> None:
    admission, order = Admission(1), list[str]()
    go = asyncio.Event()
    urgency: dict[str, float | None] = {"calm": None, "later": None, "soon": 7200.0, "sooner": 60.0, "last": None}

    async def deliver(name: str, asked: Callable[[], float | None]) -> None:
        async with admission.admit(1 << 30, asked):
            order.append(name)
            await go.wait()

    running = [asyncio.create_task(deliver("first", lambda: None))]
    await asyncio.sleep(0)
    running += [asyncio.create_task(deliver(name, lambda name=name: urgency[name])) for name in urgency]
    await asyncio.sleep(0)
    urgency["later"] = 600.0  # while it waits
    go.set()
    await asyncio.gather(*running)
    assert order == ["first", "sooner", "later", "soon", "calm", "last"]


async def test_a_request_that_is_cancelled_takes_no_slot() -> None:
    admission = Admission(1)

    async def deliver() -> None:
        async with admission.admit(1 << 30):
            pass

    async with admission.admit(1 << 30):
        waiting, granted = asyncio.create_task(deliver()), asyncio.create_task(deliver())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    granted.cancel()  # just when it got its slot
    await asyncio.wait([waiting, granted])
    await asyncio.wait_for(deliver(), 5)
