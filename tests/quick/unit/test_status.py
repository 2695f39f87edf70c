"""The status of a table, derived from the events of its loop."""

import json
from collections.abc import Callable
from typing import cast

import pytest

from cdfd.config.settings import Table
from cdfd.config.values import Secret
from cdfd.daemon.election.candidate import Candidate
from cdfd.daemon.election.election import Election
from cdfd.daemon.http.status import Status
from cdfd.daemon.http.table_status import TableMonitor
from cdfd.deliver.grace import START_SECONDS
from cdfd.deliver.monitor import Monitor
from cdfd.errors import SinkError, StorageError
from cdfd.escaping import LONGEST_LINE
from cdfd.model.control import Pause
from cdfd.sinks.kafka.settings import KafkaSettings
from cdfd.sinks.lease import Claim, Lease
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, PASSWORD, at, configuration, measured, snapshot_at, table_monitor, version

RETRIABLE = SinkError("the broker is away", hint="Look after it", retriable=True)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def status(clock: ManualClock) -> Status:
    return Status(configuration(), clock)


@pytest.fixture
def orders(status: Status) -> TableMonitor:
    return table_monitor(status, "orders")


def test_no_event_of_a_loop_is_ignored() -> None:
    assert {name for name in vars(Monitor) if not name.startswith("_")} <= set(vars(TableMonitor))


# Lag


def test_lag_grows_while_nothing_happens_and_is_0_at_the_tip(orders: TableMonitor, clock: ManualClock) -> None:
    orders.started(at(4))
    orders.found_version(6)
    orders.oldest_pending(version(4, NOW_MS - 5_000))
    assert (orders.reading().lag_versions, orders.reading().lag_seconds) == (3, 5.0)
    clock.advance(60)
    assert orders.reading().lag_seconds == 65.0
    orders.committed(at(7), [version(4), version(5), version(6)], {"insert": 1}, 1)
    assert (orders.reading().lag_versions, orders.reading().lag_seconds) == (0, 0.0)
    orders.at_tip()
    clock.advance(3600)
    assert (orders.reading().lag_versions, orders.reading().lag_seconds) == (0, 0.0)


def test_between_two_deliveries_lag_does_not_drop_to_nothing(orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.found_version(9)
    orders.oldest_pending(version(4, NOW_MS - 60_000))
    orders.committed(at(5), [version(4, NOW_MS - 60_000)], {"insert": 1}, 1)
    assert (orders.reading().lag_versions, orders.reading().lag_seconds) == (5, 60.0)
    orders.oldest_pending(version(5, NOW_MS - 50_000))
    assert orders.reading().lag_seconds == 50.0


def test_lag_goes_on_through_failures(orders: TableMonitor, clock: ManualClock) -> None:
    orders.started(at(4))
    orders.oldest_pending(version(4, NOW_MS))
    orders.failed(RETRIABLE, 5.0)
    clock.advance(5)
    assert orders.reading().lag_seconds == 5.0
    orders.started(at(4))
    clock.advance(1)
    assert orders.reading().lag_seconds == 6.0


def test_a_table_that_moves_back_is_as_old_as_the_entry_there(orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.oldest_pending(version(4, NOW_MS - 5_000))
    orders.started(at(2))
    assert orders.reading().lag_versions is None
    orders.undelivered_since(NOW_MS - 9_000)
    orders.found_version(6)
    assert (orders.reading().delivered_version, orders.reading().lag_versions) == (1, 5)
    assert orders.reading().lag_seconds == 9.0


def test_a_log_that_is_shorter_than_it_was_is_not_behind(orders: TableMonitor) -> None:
    """A backup was restored, of versions that were all delivered."""
    orders.started(at(4))
    orders.found_version(9)
    orders.failed(StorageError("timed out", retriable=True), 1.0)
    orders.started(at(4))
    assert orders.reading().table_version == 9
    orders.at_tip()
    assert (orders.reading().table_version, orders.reading().lag_versions) == (3, 0)


def test_a_version_that_is_listed_and_cannot_be_read_is_behind(orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.found_version(5)
    orders.at_tip(listed=5)
    assert (orders.reading().table_version, orders.reading().lag_versions) == (5, 2)
    orders.at_tip(listed=3)
    assert (orders.reading().table_version, orders.reading().lag_versions) == (3, 0)


def test_a_delivery_whose_outcome_was_unknown_is_found_to_count(orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.oldest_pending(version(4, NOW_MS - 5_000))
    orders.failed(RETRIABLE, 5.0)
    orders.started(at(5))
    orders.at_tip()
    assert (orders.reading().lag_versions, orders.reading().lag_seconds) == (0, 0.0)
    assert orders.reading().delivered_version == 4


def test_whoever_does_not_look_does_not_claim_to_be_at_the_tip(orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.at_tip()
    assert orders.reading().lag_seconds == 0.0
    orders.failed(StorageError("unreachable", retriable=True), 5.0)
    assert (orders.reading().lag_versions, orders.reading().lag_seconds) == (None, None)
    orders.started(at(4))
    assert orders.reading().lag_seconds is None
    orders.found_version(3)
    assert orders.reading().lag_seconds == 0.0


def test_a_version_that_was_only_seen_ages_from_then_on(orders: TableMonitor, clock: ManualClock) -> None:
    orders.started(at(4))
    orders.at_tip()
    orders.found_version(4)
    clock.advance(2)
    assert (orders.reading().lag_versions, orders.reading().lag_seconds) == (1, 2.0)
    orders.oldest_pending(version(4, NOW_MS - 1_000))
    assert orders.reading().lag_seconds == 3.0


def test_a_snapshot_is_behind_until_it_is_delivered(orders: TableMonitor) -> None:
    orders.started(snapshot_at(9))
    orders.found_version(10)
    orders.oldest_pending(version(9, NOW_MS - 1_000, "snapshot"))
    reading = orders.reading()
    assert (reading.state, reading.lag_versions, reading.lag_seconds) == ("snapshot", 2, 1.0)
    assert reading.delivered_version is None
    orders.committed(at(10), [version(9, NOW_MS - 1_000, "snapshot")], {"insert": 5}, 50)
    reading = orders.reading()
    assert (reading.state, reading.lag_versions, reading.delivered_version) == ("catching_up", 1, 9)


def test_commits_of_the_future_have_no_negative_age(orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.oldest_pending(version(4, NOW_MS + 60_000))
    assert orders.reading().lag_seconds == 0.0


def test_a_part_of_a_version_is_not_the_version(orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.found_version(4)
    orders.oldest_pending(version(4, NOW_MS - 2_000))
    orders.committed(at(4, part=3), [], {"insert": 100}, 1)
    reading = orders.reading()
    assert (reading.delivered_version, reading.lag_versions, reading.lag_seconds) == (3, 1, 2.0)


# States and errors


def test_state_follows_the_events_of_a_table(orders: TableMonitor) -> None:
    seen = [orders.reading().state]
    events: tuple[Callable[[], None], ...] = (
        lambda: orders.started(snapshot_at(3)),
        lambda: orders.committed(snapshot_at(3, 1), [], {"insert": 1}, 1),
        lambda: orders.committed(at(4), [version(3, origin="snapshot")], {"insert": 1}, 1),
        orders.at_tip,
        lambda: orders.oldest_pending(version(4)),
        lambda: orders.failed(RETRIABLE, 1.0),
        lambda: orders.started(at(4)),
        lambda: orders.failed(RETRIABLE, None),
        orders.stopped,
    )
    for tell in events:
        tell()
        seen.append(orders.reading().state)
    assert seen == [
        "starting",
        "snapshot",
        "snapshot",
        "catching_up",
        "at_tip",
        "catching_up",
        "backing_off",
        "catching_up",
        "failed",
        "stopped",
    ]


def test_paused_from_the_failure_until_something_is_delivered_or_a_request_pauses_it(
    status: Status, orders: TableMonitor
) -> None:
    def paused() -> float:
        return measured(status)["cdfd_paused"]

    orders.started(at(4))
    assert paused() == 0
    orders.failed(RETRIABLE, 1.0)
    assert paused() == 1
    orders.started(at(4))
    orders.oldest_pending(version(4))
    assert paused() == 1
    orders.failed(RETRIABLE, 2.0)
    orders.started(at(4))
    orders.committed(at(5), [version(4)], {"insert": 1}, 1)
    assert paused() == 0
    orders.failed(RETRIABLE, 1.0)
    orders.started(at(5))
    orders.at_tip()
    assert paused() == 0
    orders.failed(RETRIABLE, 1.0)
    orders.paused(Pause("a", NOW_MS))
    assert paused() == 0


def test_a_lost_position_counts_until_the_end_of_the_process(status: Status, orders: TableMonitor) -> None:
    assert measured(status)["cdfd_position_lost"] == 0
    orders.lost_position()
    orders.started(at(0))
    orders.at_tip()
    assert measured(status)["cdfd_position_lost"] == 1


def test_status_of_a_table_that_an_operator_paused(orders: TableMonitor) -> None:
    orders.started(at(3))
    for pause in (Pause("a", NOW_MS), None):
        orders.paused(pause)
        document = orders.document()
        assert document["paused"] == (document["state"] == "paused") == (pause is not None)


def test_an_error_that_the_loop_goes_on_after_pauses_nothing(status: Status, orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.at_tip()
    orders.error(StorageError("the ledger cannot be written"))
    assert measured(status)["cdfd_paused"] == 0
    assert orders.not_ready() is None
    assert orders.document()["last_error"]["retry_in"] is None


def test_the_last_error_counts_down(orders: TableMonitor, clock: ManualClock) -> None:
    error = SinkError("the broker is away", version=4, path="a.parquet", hint="Look after it", retriable=True)
    orders.failed(error, 5.0)
    clock.advance(2)
    assert orders.document()["last_error"] == {
        "what": "the broker is away",
        "family": "sink",
        "at": "2023-11-14T22:13:20.000Z",
        "retry_in": 3.0,
        "version": 4,
        "path": "a.parquet",
        "hint": "Look after it",
    }
    clock.advance(60)
    assert orders.document()["last_error"]["retry_in"] == 0.0


def test_errors_are_shown_in_so_many_characters(orders: TableMonitor) -> None:
    orders.failed(StorageError("x" * 1_000_000, hint="y" * 1_000_000, path="z" * 1_000_000), 5.0)
    assert len(json.dumps(orders.document())) < 5 * LONGEST_LINE


# Ready


def test_a_table_is_ready_once_it_has_delivered(status: Status, orders: TableMonitor) -> None:
    table_monitor(status, "customers").started(at(1))
    table_monitor(status, "customers").at_tip()
    assert status.not_ready() == {"orders": "not started yet"}
    orders.started(at(4))
    assert status.not_ready() == {"orders": "nothing is delivered yet"}
    orders.committed(at(4), [], {}, 0)  # the first position, made durable
    assert status.not_ready() == {"orders": "nothing is delivered yet"}
    orders.committed(at(5), [version(4)], {"insert": 1}, 1)
    assert status.not_ready() == {}


def test_a_table_at_the_tip_stays_ready_while_it_delivers_what_comes(orders: TableMonitor) -> None:
    orders.started(at(4))
    orders.at_tip()
    orders.oldest_pending(version(4))
    assert orders.not_ready() is None


def errors(status: Status) -> tuple[float, float]:
    """Those that count, and those within their grace."""
    series = measured(status)
    counted = sum(value for name, value in series.items() if name.startswith("cdfd_errors_total"))
    return counted, series["cdfd_transient_errors_total"]


def test_an_outage_counts_after_the_grace_of_its_error(
    status: Status, orders: TableMonitor, clock: ManualClock
) -> None:
    orders.started(at(4))
    orders.at_tip()
    orders.failed(RETRIABLE, 5.0)
    clock.advance(119)
    assert (orders.tolerates(), orders.not_ready()) == (True, None)
    assert errors(status) == (0, 1)
    clock.advance(1)
    orders.failed(RETRIABLE, 5.0)
    assert orders.not_ready() == "retry in 5.0 s: the broker is away"
    assert errors(status) == (1, 1)
    orders.started(at(4))
    assert orders.not_ready() == "retrying after: the broker is away"
    orders.at_tip()
    assert orders.not_ready() is None


def test_a_ledger_that_fails_counts_after_the_grace_of_its_error(status: Status, orders: TableMonitor) -> None:
    orders.error(StorageError("busy", retriable=True))
    assert errors(status) == (0, 1)
    orders.error(StorageError("no permission"))
    assert errors(status) == (1, 1)


def test_a_table_that_never_delivered_is_not_ready_while_it_fails(orders: TableMonitor) -> None:
    orders.failed(RETRIABLE, 5.0)
    assert orders.not_ready() == "retry in 5.0 s: the broker is away"


def test_a_table_that_joins_a_ready_daemon_has_time_to_start(status: Status, clock: ManualClock) -> None:
    at_first = status.add(
        Table(name="at-first", uri="/at-first", topic="at-first"), starts_at_work=not status.not_ready()
    )
    assert at_first.not_ready() == "not started yet"
    for monitor in status.tables():
        monitor.started(at(1))
        monitor.at_tip()
    joined = status.add(Table(name="joined", uri="/joined", topic="joined"), starts_at_work=not status.not_ready())
    assert joined.not_ready() is None
    clock.advance(START_SECONDS)
    assert joined.not_ready() == "not started yet"


def test_a_table_that_failed_is_ready_again_once_it_delivers(orders: TableMonitor, clock: ManualClock) -> None:
    orders.started(at(4))
    orders.at_tip()
    orders.failed(SinkError("a topic is gone"), 5.0)
    clock.advance(1)
    assert orders.not_ready() == "retry in 4.0 s: a topic is gone"
    orders.started(at(4))
    assert orders.not_ready() == "retrying after: a topic is gone"
    orders.at_tip()
    assert orders.not_ready() is None
    orders.failed(RETRIABLE, None)
    assert orders.not_ready() == "failed without a retry: the broker is away"
    orders.stopped()
    assert orders.not_ready() == "stopped"


# The document


def test_document_has_position_lag_and_time_of_each_table(
    status: Status, orders: TableMonitor, clock: ManualClock
) -> None:
    orders.started(at(4))
    orders.committed(at(5), [version(4)], {"insert": 3}, 10)
    orders.recorded(4)
    orders.at_tip()
    clock.advance(90)
    document = status.document()
    assert (document["pipeline"], document["uptime_seconds"], document["ready"]) == ("shop", 90.0, False)
    assert document["started"] == "2023-11-14T22:13:20.000Z"
    assert document["tables"]["orders"] == {
        "uri": "s3://lake/orders",
        "topic": "orders",
        "state": "at_tip",
        "ready": True,
        "not_ready": None,
        "paused": False,
        "pause": None,
        "resnapshot": None,
        "position": {"table_id": "id", "version": 5, "part": 0, "phase": "stream", "ordinal": 0},
        "delivered_version": 4,
        "table_version": 4,
        "ledger_version": 4,
        "lag_versions": 0,
        "lag_seconds": 0.0,
        "last_delivery": "2023-11-14T22:13:20.000Z",
        "rows": {"insert": 3, "update_preimage": 0, "update_postimage": 0, "delete": 0},
        "commits": 1,
        "retention": {},
        "last_error": None,
    }
    assert document["tables"]["customers"]["state"] == "starting"


def test_no_secret_is_in_the_document(status: Status) -> None:
    assert PASSWORD not in json.dumps(status.document())
    sink = configuration().sink
    assert isinstance(sink, KafkaSettings)
    assert sink.security.password == Secret(PASSWORD)


class TestStandby:
    """A status of a process that takes part in an election."""

    @pytest.fixture
    def status(self, clock: ManualClock) -> Status:
        status = Status(configuration(), clock, standby=True)
        status.election = Election(cast(Lease, None), clock, 0.1, Candidate("me", 2.5))
        return status

    def read(self, status: Status, claim: Claim) -> None:
        assert status.election is not None
        status.election.candidate, _ = status.election.candidate.after(claim, 0)

    def test_standby_is_ready_once_it_has_read_the_lease(self, status: Status) -> None:
        assert status.role == "standby"
        assert list(status.not_ready()) == ["standby"]
        self.read(status, Claim("other", 1))
        assert status.not_ready() == {}
        assert (status.document()["role"], status.document()["leader"]) == ("standby", "other")

    def test_standby_has_no_tables_and_no_lag(self, status: Status) -> None:
        self.read(status, Claim("other", 1))
        text = status.metrics()().decode()
        assert 'cdfd_leader{pipeline="shop"} 0.0' in text
        assert "cdfd_lag_seconds{" not in text
        assert status.document()["tables"] == {}

    def test_leader_is_ready_once_its_tables_deliver(self, status: Status) -> None:
        self.read(status, Claim("me", 1))
        assert list(status.not_ready()) == ["leader"]
        monitors = [status.add(table, starts_at_work=not status.not_ready()) for table in configuration().listed]
        status.has_begun = True
        assert status.not_ready() == {monitor.name: "not started yet" for monitor in monitors}
        for monitor in monitors:
            monitor.started(at(1))
            monitor.at_tip()
        assert status.not_ready() == {}
        assert (
            status.add(
                Table(name="joined", uri="/joined", topic="joined"), starts_at_work=not status.not_ready()
            ).not_ready()
            is None
        )
        status.stand_by()
        assert list(status.not_ready()) == ["leader"]

    def test_leader_that_steps_down_forgets_its_tables(self, status: Status) -> None:
        self.read(status, Claim("me", 1))
        status.add(configuration().listed[0], starts_at_work=not status.not_ready())
        assert (status.role, status.leader, len(status.tables())) == ("leader", "me", 1)
        assert 'cdfd_leader{pipeline="shop"} 1.0' in status.metrics()().decode()
        status.stand_by()
        self.read(status, Claim("other", 2))
        assert (status.role, status.leader, status.tables()) == ("standby", "other", ())
        assert 'table="orders"' not in status.metrics()().decode()

    def test_process_without_an_election_is_alone(self, clock: ManualClock) -> None:
        assert Status(configuration(), clock).document()["role"] == "alone"
