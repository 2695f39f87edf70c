"""The needs of a pipeline: the work of versions by their plans, and the arithmetic of costs."""

import json
from collections import Counter
from importlib.resources import files

import pyarrow.compute as pc
import pytest

from cdfd.config.settings import Table as ConfiguredTable
from cdfd.daemon.sizing.estimate import Costs, Setup, SinkCosts, needs
from cdfd.daemon.sizing.reading import _versions, costs
from cdfd.daemon.sizing.workload import HOUR_MS, RowCounts, TableWork, VersionWork, changed_rows, version_work
from cdfd.delta.actions import DeletionVectorDescriptor
from cdfd.delta.types.datatypes import StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.demo.writer import TableWriter
from cdfd.log.log import DeltaLog
from cdfd.log.table import Table
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, Origin
from cdfd.model.refinement import Refinement
from cdfd.runtime.clock import SystemClock
from cdfd.scan.table_files import TableFiles
from cdfd.storage.base import Stat
from tests.support.lake import SCHEMA, rows
from tests.support.memory_storage import MemoryStorage

SINK = SinkCosts(row_us=2.0, byte_ns=10.0, version_ms=5.0, cores=0.5, row_bytes=1, written=1.5, large_mb=200)
COSTS = Costs({"kafka/json": SINK}, 100, 2, 0.001, 4, "today", 1.0)
MB = 1_000_000


def planned(*scans: FileScan, origin: Origin = "files", refinement: Refinement | None = None) -> ChangePlan:
    return ChangePlan(3, 0, TableSchema(StructType(())), scans, origin, refinement=refinement)


def scan(path: str = "a", size: int = 1000, count: int | None = None, **others: object) -> FileScan:
    return FileScan(path, "insert", {}, size, num_records=count, **others)  # type: ignore[arg-type]


def vector(count: int) -> DeletionVectorDescriptor:
    return DeletionVectorDescriptor("u", "x", 1, 10, count)


class TestRows:
    def test_a_file_has_the_rows_of_its_statistics_without_the_deleted_ones(self) -> None:
        assert version_work(planned(scan(count=10)), {}, RowCounts(9.0)).rows == 10
        assert version_work(planned(scan(count=10, without=vector(4))), {}, RowCounts(9.0)).rows == 6

    def test_a_deletion_vector_deletes_what_the_one_before_did_not(self) -> None:
        assert version_work(planned(scan(only=vector(10), without=vector(4))), {}, RowCounts(9.0)).rows == 6

    def test_a_file_without_statistics_has_the_rows_of_its_bytes(self) -> None:
        assert version_work(planned(scan(size=1000)), {}, RowCounts(0.5)).rows == 500

    def test_a_removed_file_has_the_rows_that_it_was_added_with(self) -> None:
        counts = RowCounts(9.0)
        version_work(planned(scan(count=10)), {}, counts)
        assert version_work(planned(scan(without=vector(4))), {}, counts).rows == 6

    @pytest.mark.parametrize(
        "metrics",
        [
            {"numTargetRowsInserted": "5", "numTargetRowsUpdated": "3", "numTargetRowsDeleted": "2"},
            {"num_target_rows_inserted": "5", "num_target_rows_updated": "3", "num_target_rows_deleted": "2"},
        ],
    )
    def test_change_data_files_have_the_rows_of_the_commit_where_an_update_is_two(
        self, metrics: dict[str, str]
    ) -> None:
        assert version_work(planned(scan(), origin="cdc"), metrics, RowCounts(9.0)).rows == 13

    def test_both_phases_of_a_change_data_file_are_one_file(self) -> None:
        phases = [scan(size=1001, image_phase=phase) for phase in ("early", "late")]
        work = version_work(planned(*phases, origin="cdc"), {"numUpdatedRows": "4"}, RowCounts(1.0))
        assert (work.size, work.files, work.rows) == (1001, 1, 8)

    def test_a_refined_version_reads_both_sides_and_has_the_rows_that_changed(self) -> None:
        refinement = Refinement((scan("a", 500), scan("b", 700)))
        work = version_work(planned(refinement=refinement), {"numUpdatedRows": "4"}, RowCounts(1.0))
        assert (work.size, work.files, work.rows, work.refined) == (1200, 2, 8, 1200)

    @pytest.mark.parametrize("count", ["all", "\u00b2", "-1", "9" * 400])
    def test_metrics_that_say_nothing_of_rows_do_not_say_none(self, count: str) -> None:
        assert changed_rows({"numFiles": "1", "numDeletedRows": count}) is None


def table(*versions: VersionWork, hours: float = 10.0, remote: bool = False, live: int = 0) -> TableWork:
    return TableWork("t", remote, hours, versions, live / 100, live)


def test_means_are_by_the_hour_and_the_peak_is_the_busiest_hour_of_all_tables() -> None:
    first = table(VersionWork(0, 1000, 100, 1), VersionWork(HOUR_MS, 3000, 100, 1))
    second = table(VersionWork(HOUR_MS + 1, 500, 100, 1), VersionWork(5 * HOUR_MS, 3200, 100, 1))
    actual = needs([first, second], COSTS, Setup(SINK))
    assert (actual.tables[0].mean.rows, actual.total.mean.rows) == (400, 770)
    assert [actual.tables[0].peak.rows, actual.tables[1].peak.rows, actual.total.peak.rows] == [3000, 3200, 3500]


def test_processor_time_is_of_versions_rows_bytes_and_tables_at_rest() -> None:
    actual = needs([table(VersionWork(0, 1_000_000, 100 * MB, 1), hours=1)], COSTS, Setup(SINK))
    assert actual.total.mean.cores == pytest.approx((0.005 + 2.0 + 1.0) / 3600 + 0.001)
    assert needs([], COSTS, Setup(SINK)).total.peak.cores == 0


def test_memory_is_of_tables_and_of_large_deliveries() -> None:
    small, large = table(VersionWork(0, 1, 1000, 1)), table(VersionWork(0, 1, 2 * MB, 1))
    assert needs([small, small], COSTS, Setup(SINK)).memory == 102 * MB
    assert needs([small, large, large], COSTS, Setup(SINK)).memory == (100 + 2 * 2 + 2 * 200) * MB
    assert needs([large] * 5, COSTS, Setup(SINK)).memory == (100 + 4 * 2 + 2 * 200) * MB
    assert needs([table(live=2 * MB)], COSTS, Setup(SINK)).memory == 300 * MB


def test_a_refined_version_spills_what_does_not_fit_into_memory() -> None:
    work = [VersionWork(0, 1, size, 1, refined=size) for size in (10 << 20, 64 << 20)]
    assert needs([table(*work)], COSTS, Setup(SINK)).total.spill == (4 * 64 - 128) << 20
    assert needs([table(work[0])], COSTS, Setup(SINK)).total.spill == 0


def test_topics_keep_what_arrives_in_all_replicas_and_files_keep_a_month() -> None:
    written = table(VersionWork(0, 1, 1000, 1), hours=1)
    topics = Setup(SINK, partitions=3, replicas=2, own_topics={"p": 1}, keep_hours=24)
    actual = needs([written, written], COSTS, topics)
    assert (actual.topics, actual.partitions, actual.disk) == (3, 7, 2 * 1501 * 24 * 2)
    actual = needs([written], COSTS, Setup(SINK))
    assert (actual.topics, actual.partitions, actual.disk) == (0, 0, 1501 * 730)


def test_requests_of_an_idle_table_are_those_of_its_polls() -> None:
    idle = table(remote=True)
    assert needs([idle], COSTS, Setup(SINK, 1, 5)).total.gets == 720 + 120
    assert needs([idle], COSTS, Setup(SINK, 1, 60)).total.gets == 60 + 120
    assert needs([idle], COSTS, Setup(SINK, 1, 60, notified=True)).total.gets == 60 + 120 + 180
    assert needs([table()], COSTS, Setup(SINK)).total.gets == 0


def test_a_version_is_two_entries_and_its_files() -> None:
    busy = table(*(VersionWork(0, 1, 1000, 3) for _ in range(10)), hours=1, remote=True)
    assert needs([busy], COSTS, Setup(SINK, 1, 1)).total.gets == pytest.approx(3600 + 120 + 10 * (2 + 3), abs=0.01)


def test_money_is_what_prices_say() -> None:
    prices = dict.fromkeys(("core_hour", "gb_hour", "million_gets", "million_lists", "disk_gb_month"), 1.0)
    actual = needs([table(remote=True)], COSTS, Setup(SINK, prices=prices))
    assert actual.money["processor"] == pytest.approx(0.73)
    assert actual.money["memory"] == pytest.approx(0.1 * 730)
    assert actual.money["requests"] == pytest.approx(730 * (840 + 4) / 1e6)
    assert actual.money["disk"] == 0


def test_a_form_that_was_not_measured_has_the_costs_of_the_dearest_one() -> None:
    cheap = SinkCosts(1, 1, 1, 1, 1, 1, 1)
    some = Costs({"kafka/arrow": cheap, "kafka/json": SINK, "files/jsonl": cheap}, 1, 1, 1, 1, "", 1)
    assert some.sink("kafka", "arrow") == ("kafka/arrow", cheap)
    assert some.sink("kafka", "another") == ("kafka/json", SINK)


def test_the_measured_costs_are_there_and_fit_a_run_within_30_percent() -> None:
    measured = costs()
    assert {"kafka/json", "kafka/debezium", "kafka/avro", "files/jsonl", "delta/changelog"} <= measured.sinks.keys()
    assert all(sink.row_us + sink.byte_ns > 0 and sink.version_ms > 0 for sink in measured.sinks.values())
    document = json.loads(files("cdfd.daemon.sizing").joinpath("costs.json").read_text())
    assert {"versions", "rows", "bytes", "processor seconds", "memory, MB"} == document["check"].keys()
    for predicted, real in document["check"].values():
        assert predicted == pytest.approx(real, rel=0.3)


class Requests(MemoryStorage):
    """Counts the requests for log entries. Updates have the metrics that Spark writes."""

    remote = True

    def __init__(self) -> None:
        super().__init__("s3://lake/orders")
        self.asked = Counter[str]()

    async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
        self.asked[path] += path.endswith(".json")
        return await super().fetch(path, length)

    async def put_if_absent(self, path: str, data: bytes) -> None:
        metrics = b'"operation":"UPDATE","operationMetrics":{"numUpdatedRows":"1"}'
        await super().put_if_absent(path, data.replace(b'"operation":"UPDATE"', metrics))


async def test_an_entry_with_change_data_files_is_read_once() -> None:
    store = Requests()
    writer = TableWriter(store, SCHEMA, feed=True)
    await writer.create()
    await writer.insert(rows(*range(10)))
    for number in range(3):
        await writer.update(pc.field("id") == number, {"v": pc.scalar("b")})
    source = Table(DeltaLog(store), TableFiles(store, lambda _: store))
    store.asked.clear()
    work = await _versions(
        source, ConfiguredTable(uri=store.uri, name="t", topic="t"), 0, writer.version, RowCounts(9.0), SystemClock()
    )
    assert [version.rows for version in work] == [0, 10, 2, 2, 2]
    assert max(store.asked.values()) == 1
