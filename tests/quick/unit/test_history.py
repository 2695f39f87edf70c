"""The last hour of tables, in bounded memory, and the words for their states."""

import math
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from cdfd.daemon.http.activity import MOST_ERRORS, Activity
from cdfd.daemon.http.history import BYTES, POINTS, SECONDS, TREND_POINTS, History, Ring, Sample, _together
from cdfd.daemon.http.overview import explain, overview
from cdfd.daemon.http.status import Status
from cdfd.deliver.monitor import ResnapshotProgress
from cdfd.errors import SinkError, StorageError
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, at, configuration, snapshot_at, version


def ring(*lags: float | None) -> Ring:
    filled = Ring()
    for lag in lags:
        filled.add(Sample(lag, lag, 0.0, None))
    return filled


def test_a_ring_keeps_the_newest_samples() -> None:
    actual = ring(*range(POINTS + 5))
    assert actual.series("lag_seconds") == list(range(5, POINTS + 5))
    assert actual.series("lag_seconds", 2) == [POINTS + 3, POINTS + 4]
    assert actual.series("delivery_seconds") == [None] * POINTS
    assert ring(1.5).series("lag_versions", 2) == [None, 1.5]


def test_its_memory_is_bounded() -> None:
    tracemalloc.start()
    try:
        rings = [ring(*range(400)) for _ in range(50)]
        taken = tracemalloc.get_traced_memory()[0] / len(rings)
    finally:
        tracemalloc.stop()
    assert BYTES == 5760
    assert BYTES < taken < BYTES + 1500


@pytest.mark.parametrize(
    ("lags", "together"),
    [((0.0, 0.0), 0.0), ((0.0, None), None), ((None, None), None), ((2.0, None, 1.0), 2.0), ((0.0, 3.0), 3.0)],
)
def test_lag_of_all_tables_is_unknown_if_it_may_not_be_zero(
    lags: tuple[float | None, ...], together: float | None
) -> None:
    assert _together([Sample(lag, None, 0.0, None) for lag in lags]).lag_seconds == together


def test_a_trend_has_the_largest_lag_of_each_time_and_none_without_a_lag() -> None:
    assert ring(*[0.0] * 100).trend() is None
    actual = ring(*[0.0] * (POINTS - 1), 7.0)
    assert actual.trend() == [*[0.0] * (TREND_POINTS - 1), 7.0]
    for _ in range(POINTS):
        actual.add(Sample(0.0, 0.0, 0.0, None))
    assert actual.trend() is None


@pytest.mark.parametrize(
    ("lags", "seconds"),
    [
        ([], None),
        ([None, 5], None),
        ([5, 0], None),
        ([5, 5], math.inf),
        ([5, 7], math.inf),
        ([100, 90, 80], 80 * SECONDS / 10),
        ([500, 100, 90, 80, 70, 60, 50, 40], 40 * SECONDS / 10),  # of the last minute only
    ],
)
def test_the_time_to_catch_up_goes_by_the_last_minute(lags: list[float | None], seconds: float | None) -> None:
    assert ring(*lags).seconds_to_tip() == seconds


def test_samples_of_all_tables() -> None:
    clock = ManualClock(NOW_MS)
    status = Status(configuration(), clock)
    history = History(status)
    orders, customers = status.tables()
    for table in (orders, customers):
        table.started(at(4))
    orders.committed(at(5), [version(4, NOW_MS - 2000)], {"insert": 300}, 1)
    orders.committed(at(6), [version(5, NOW_MS - 500)], {"insert": 100}, 1)
    orders.at_tip()
    customers.oldest_pending(version(4, NOW_MS - 60_000))
    history.sample()
    clock.advance(SECONDS)
    history.sample()
    assert history.table("orders").series("rows_per_second", 2) == [40, 0]
    assert history.table("orders").series("delivery_seconds", 2) == [2, None]
    assert history.table("customers").series("lag_seconds", 2) == [60, 70]
    assert history.all.series("lag_seconds", 2) == [60, 70]
    assert history.all.series("rows_per_second", 2) == [40, 0]
    assert history.table("nothing").series("lag_seconds", 1) == [None]
    assert [row["trend"] is None for row in overview(status, history)["tables"]] == [True, False]


def test_errors_that_repeat_are_counted_and_old_ones_leave() -> None:
    activity = Activity()
    for number in range(MOST_ERRORS + 2):
        for _ in range(3):
            activity.error(SinkError(f"error {number}"), number)
    assert [(each.error.what, each.count, each.at_ms) for each in activity.errors] == [
        (f"error {number}", 3, number) for number in range(2, MOST_ERRORS + 2)
    ]


def test_the_busiest_stage_is_that_of_the_last_minutes() -> None:
    activity = Activity()
    assert activity.busiest() is None
    activity.stage("read", 100.0)
    activity.stage("send", 5.0)
    assert activity.busiest() == "read"
    for _ in range(10):
        activity.take_slowest()
        activity.stage("send", 5.0)
    assert activity.busiest() == "send"


CAUGHT_UP = dict[str, Any](
    state="at_tip",
    lag_versions=0,
    position=at(8),
    files=1,
    waiting=False,
    busiest="send",
    error=None,
    retry_in=None,
    seconds_to_tip=None,
    paused_for=None,
    resnapshot=None,
)
BEHIND = CAUGHT_UP | {"state": "catching_up", "lag_versions": 1200}
AWAY = SinkError("the broker is away", hint="Look after it", retriable=True)


def words(**facts: Any) -> tuple[str, str, str | None]:
    """The words for a table with these facts."""
    table: Any = SimpleNamespace(
        position=facts["position"],
        last_error=facts["error"],
        resnapshot_progress=facts["resnapshot"],
        retry_in=lambda: facts["retry_in"],
        paused_for=lambda: facts["paused_for"],
        activity=SimpleNamespace(files=facts["files"], waiting=facts["waiting"], busiest=lambda: facts["busiest"]),
    )
    past: Any = SimpleNamespace(seconds_to_tip=lambda: facts["seconds_to_tip"])
    reading: Any = SimpleNamespace(state=facts["state"], lag_versions=facts["lag_versions"])
    return explain(reading, table, past)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (CAUGHT_UP, ("Everything is delivered.", "The daemon waits for the next commit.", None)),
        (
            dict(CAUGHT_UP, lag_versions=1),
            (
                "A newer version is listed, but its log entry cannot be read yet.",
                "The daemon reads it as soon as it is complete.",
                None,
            ),
        ),
        (
            BEHIND,
            ("There is a backlog; most time goes to sending to the sink.", "Version 8 is next.", None),
        ),
        (
            dict(BEHIND, busiest=None, waiting=True, files=40, position=at(8, 12), seconds_to_tip=90.0),
            (
                "There is a backlog. It waits for a slot: other tables have large deliveries.",
                "Version 8 is next: 12 of 40 files are delivered. Caught up in about 1 min 30 s.",
                None,
            ),
        ),
        (
            dict(BEHIND, seconds_to_tip=math.inf),
            (
                "There is a backlog; most time goes to sending to the sink.",
                "Version 8 is next. The backlog does not shrink.",
                None,
            ),
        ),
        (
            dict(CAUGHT_UP, state="snapshot", position=snapshot_at(8, 3), files=12),
            (
                "The daemon delivers the live rows of version 8: 3 of 12 files are delivered.",
                "Then it delivers the changes from version 9 on.",
                None,
            ),
        ),
        (
            dict(BEHIND, state="backing_off", error=AWAY, retry_in=12.0),
            ("the broker is away", "It retries in 12.0 s.", "Look after it"),
        ),
        (
            dict(BEHIND, state="backing_off", error=StorageError("no permission"), retry_in=60.0),
            ("no permission", "It retries in 1 min 0 s. The error stays until you act.", None),
        ),
        (
            dict(BEHIND, state="paused", paused_for=90.0),
            ("A request paused it 1 min 30 s ago.", "Nothing is delivered until a request resumes it.", None),
        ),
        (
            dict(CAUGHT_UP, resnapshot=ResnapshotProgress("a", 4, files=12, remaining=9, rows=7, where="")),
            (
                "Everything is delivered. Its rows are published again: 3 of 12 files are done.",
                "The daemon waits for the next commit.",
                None,
            ),
        ),
        (
            dict(CAUGHT_UP, resnapshot=ResnapshotProgress("a", -1, files=None, remaining=None, rows=0, where="")),
            ("Everything is delivered. Its rows are published again.", "The daemon waits for the next commit.", None),
        ),
        (
            dict(BEHIND, state="failed", error=AWAY),
            ("the broker is away", "No retry: remove the cause, then restart the daemon.", "Look after it"),
        ),
    ],
)
def test_a_state_in_words(facts: dict[str, Any], expected: tuple[str, str, str | None]) -> None:
    assert words(**facts) == expected


def test_every_state_has_words() -> None:
    for state in ("starting", "stopped", "catching_up", "snapshot"):
        why, following, _ = words(**dict(CAUGHT_UP, state=state, position=None, lag_versions=None))
        assert why.endswith(".")
        assert following.endswith(".")
