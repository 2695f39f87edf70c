"""The metrics, and the limited number of values of their labels."""

import re
import subprocess
import sys
from pathlib import Path
from threading import Thread

from prometheus_client.parser import text_string_to_metric_families

from cdfd import __version__
from cdfd.daemon.http.metrics import Metrics
from cdfd.daemon.http.status import Search, Status
from cdfd.deliver.states import STATES
from cdfd.errors import CdfdError, FencedError, MissingFileError, StorageError
from cdfd.runtime import native
from tests.support.manual_time import ManualClock
from tests.support.statuses import NOW_MS, at, configuration, measured, snapshot_at, table_monitor, version


def running() -> tuple[Status, ManualClock]:
    clock = ManualClock(NOW_MS)
    return Status(configuration(), clock), clock


def test_everything_that_can_go_wrong_is_there_before_it_does() -> None:
    # Prometheus sees no increase in a counter that appears with its first event.
    actual = measured(running()[0])
    for sample in (
        'cdfd_rows_total{change_type="insert"}',
        'cdfd_rows_total{change_type="update_preimage"}',
        'cdfd_rows_total{change_type="update_postimage"}',
        'cdfd_rows_total{change_type="delete"}',
        "cdfd_commits_total",
        "cdfd_bytes_read_total",
        'cdfd_errors_total{family="storage"}',
        'cdfd_errors_total{family="fenced"}',
        'cdfd_transactions_total{result="committed"}',
        'cdfd_transactions_total{result="aborted"}',
        "cdfd_commit_to_delivery_seconds_count",
        'cdfd_stage_seconds_count{stage="read"}',
        'cdfd_stage_seconds_count{stage="commit"}',
        "cdfd_paused",
        "cdfd_position_lost",
    ):
        assert actual[sample] == 0
    assert actual['cdfd_table_state{state="starting"}'] == 1


def test_what_is_not_known_is_not_told() -> None:
    actual = measured(running()[0])
    for sample in ("lag_seconds", "lag_versions", "delivered_version", "table_version", "ledger_version"):
        assert f"cdfd_{sample}" not in actual
    assert "cdfd_last_delivery_timestamp_seconds" not in actual


def test_a_pattern_without_a_search_has_the_time_since_which_it_is_searched() -> None:
    status, _ = running()
    search = Search(3600, NOW_MS)
    status.searches.by_pattern = {"/lake/*": search}
    name = 'cdfd_discovery_last_search_timestamp_seconds{discover="/lake/*"}'
    assert measured(status, None)[name] == NOW_MS / 1000
    search.searched_ms = NOW_MS + 5000
    assert measured(status, None)[name] == NOW_MS / 1000 + 5
    assert measured(status, None)['cdfd_discovery_interval_seconds{discover="/lake/*"}'] == 3600


def test_no_series_of_creation_times() -> None:
    assert not any("_created" in sample for sample in measured(running()[0]))


def test_process_is_up_and_has_its_build_and_memory() -> None:
    status, _ = running()
    actual = measured(status, None)
    assert actual["cdfd_up"] == 1
    assert actual[f'cdfd_build_info{{native="{str(native.built).lower()}",version="{__version__}"}}'] == 1
    if sys.platform == "linux":
        assert actual["process_resident_memory_bytes"] > 0


def test_a_delivery_counts_rows_versions_bytes_and_the_time_since_the_commit() -> None:
    status, clock = running()
    orders = table_monitor(status, "orders")
    orders.started(at(4))
    clock.advance(0.2)
    two = [version(4), version(5, NOW_MS + 150)]
    orders.committed(at(6), two, {"insert": 7, "delete": 2}, 4096)
    actual = measured(status)
    assert actual['cdfd_rows_total{change_type="insert"}'] == 7
    assert actual['cdfd_rows_total{change_type="delete"}'] == 2
    assert actual["cdfd_commits_total"] == 2
    assert actual["cdfd_bytes_read_total"] == 4096
    assert actual['cdfd_transactions_total{result="committed"}'] == 1
    assert actual["cdfd_commit_to_delivery_seconds_count"] == 2
    assert actual["cdfd_commit_to_delivery_seconds_sum"] == 0.25
    assert actual['cdfd_commit_to_delivery_seconds_bucket{le="0.05"}'] == 1
    assert actual['cdfd_commit_to_delivery_seconds_bucket{le="0.25"}'] == 2
    assert actual["cdfd_last_delivery_timestamp_seconds"] == NOW_MS / 1000 + 0.2
    assert measured(status, "customers")["cdfd_commits_total"] == 0


def test_rows_of_a_snapshot_are_no_commit_that_took_years() -> None:
    status, _ = running()
    orders = table_monitor(status, "orders")
    orders.started(snapshot_at(9))
    orders.committed(snapshot_at(9, 3), [], {"insert": 10}, 100)
    orders.committed(at(10), [version(9, 0, "snapshot")], {"insert": 5}, 50)
    actual = measured(status)
    assert actual['cdfd_rows_total{change_type="insert"}'] == 15
    assert actual["cdfd_commits_total"] == 0
    assert actual["cdfd_commit_to_delivery_seconds_count"] == 0


def test_versions_caught_up_with_count_from_their_commit_and_those_without_rows_do_not() -> None:
    status, _ = running()
    orders = table_monitor(status, "orders")
    orders.committed(at(6), [version(4, NOW_MS - 3_600_000), version(5, NOW_MS - 3_600_000, "none")], {"insert": 1}, 1)
    actual = measured(status)
    assert actual["cdfd_commits_total"] == 2
    assert actual["cdfd_commit_to_delivery_seconds_count"] == 1
    assert actual["cdfd_commit_to_delivery_seconds_sum"] == 3600


def test_a_writer_whose_clock_is_ahead_takes_no_time_back() -> None:
    status, _ = running()
    table_monitor(status, "orders").committed(at(5), [version(4, NOW_MS + 60_000)], {"insert": 1}, 1)
    assert measured(status)["cdfd_commit_to_delivery_seconds_sum"] == 0


def test_errors_by_family_and_transactions_by_result() -> None:
    status, _ = running()
    orders = table_monitor(status, "orders")
    orders.aborted()
    orders.failed(MissingFileError("gone"), 1.0)
    orders.error(StorageError("the ledger cannot be written"))
    orders.failed(FencedError("another daemon"), None)
    actual = measured(status)
    assert actual['cdfd_transactions_total{result="aborted"}'] == 1
    for family in ("data", "storage", "fenced"):
        assert actual[f'cdfd_errors_total{{family="{family}"}}'] == 1


def test_words_that_nobody_knows_share_one_series() -> None:
    status, _ = running()
    orders = table_monitor(status, "orders")
    orders.committed(at(1), [], {"insert": 1}, 0)
    before = len(measured(status))

    class StrangeError(CdfdError):
        family = "strange"

    for number in range(50):
        orders.stage(f"stage {number}", 0.1)
        orders.committed(at(1), [], {f"type {number}": 1}, 0)
        StrangeError.family = f"strange {number}"
        orders.error(StrangeError("what"))
    actual = measured(status)
    assert actual['cdfd_rows_total{change_type="other"}'] == 50
    assert actual['cdfd_stage_seconds_count{stage="other"}'] == 50
    assert actual['cdfd_errors_total{family="other"}'] == 50
    buckets = sum(sample.startswith("cdfd_stage_seconds") and 'stage="other"' in sample for sample in actual)
    assert len(actual) == before + 1 + 1 + buckets


def test_every_state_has_a_series_and_one_of_them_is_1() -> None:
    status, _ = running()
    table_monitor(status, "orders").started(at(4))
    actual = measured(status)
    states = {state: actual[f'cdfd_table_state{{state="{state}"}}'] for state in STATES}
    assert states.pop("catching_up") == 1
    assert set(states.values()) == {0}


def test_stages_are_told_by_many_threads() -> None:
    status, _ = running()
    stage = table_monitor(status, "orders").stage

    def work() -> None:
        for _ in range(500):
            stage("encode", 0.25)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    actual = measured(status)
    assert actual['cdfd_stage_seconds_count{stage="encode"}'] == 2000
    assert actual['cdfd_stage_seconds_sum{stage="encode"}'] == 500


def test_the_documentation_has_every_metric_and_no_other() -> None:
    status, _ = running()
    table_monitor(status, "orders").started(at(4))
    families = text_string_to_metric_families(status.metrics()().decode())
    told = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families
        if family.name.startswith("cdfd_")
    }
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    rows = re.findall(r"(?m)^\| `(cdfd_[a-z_]+)(?:\{[a-z_]+\})?` \|", page.read_text(encoding="utf-8"))
    assert set(rows) == told
    assert len(rows) == len(told)


def test_commands_do_not_wait_for_libraries_of_the_daemon() -> None:
    program = "import sys, cdfd.cli; print([name for name in ('aiohttp', 'prometheus_client') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "[]"


def test_a_table_that_leaves_takes_its_series_along_whatever_errors_there_are_by_then() -> None:
    class LateError(CdfdError):
        family = "late"

    metrics = Metrics("1", native=True)
    metrics.table("orders")
    LateError.family = "later"
    metrics.remove("orders")
    assert b'table="orders"' not in metrics.render([])
