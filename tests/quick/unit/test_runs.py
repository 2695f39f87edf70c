"""Runs: rows of several small versions that are delivered at once. The same rows, positions and counts as version by version."""

import asyncio
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.deliver.admission import Admission
from cdfd.deliver.deliverer import Deliverer, Limits
from cdfd.deliver.monitor import Monitor
from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles, pack
from cdfd.delta.types.schema import Primitive, StructField, StructType, TableSchema
from cdfd.errors import CdfdError
from cdfd.model import plan as plans
from cdfd.model.columns import COMMIT_VERSION
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan, LiveScans
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.runtime import native
from cdfd.runtime.progress_line import ProgressLine
from cdfd.scan.execute import Execution
from cdfd.scan.table_files import TableFiles
from cdfd.storage.local import LocalStorage
from tests.support.manual_time import ManualClock
from tests.support.memory_sink import MemoryDelivery, MemorySink
from tests.support.threads import observe_threads

SCHEMA = TableSchema(StructType((StructField("n", Primitive("long")),)))
FIRST = 10
FILES = [1, 1, 0, 2, 1, 1, 0, 0, 1, 5, 1, 1, 0]
"""Data files of each version, of three rows each."""

pytestmark = pytest.mark.skipif(not native.built, reason="files are read together only with cdfd-native")


class RunsDelivery(MemoryDelivery):
    """A delivery that may take runs, and notes how versions are started."""

    takes_runs = True
    started: list[int]
    runs: list[Sequence[int]]

    async def start_version(self, version: Version) -> None:
        self.started.append(version.plan.version)

    async def write(self, batch: pa.RecordBatch) -> None:
        numbers = batch.column(COMMIT_VERSION).unique().to_pylist()
        if len(numbers) > 1:
            self.runs.append(numbers)
        await super().write(batch)


class RunsSink(MemorySink):
    def __init__(self, *, takes_runs: bool) -> None:
        super().__init__()
        self.takes_runs = takes_runs
        self.started: list[int] = []
        self.runs: list[Sequence[int]] = []

    async def begin(self, position: Position) -> RunsDelivery:
        self._cursor.begin(position)
        delivery = RunsDelivery(self.delivered, self._cursor, position)
        delivery.takes_runs, delivery.started, delivery.runs = self.takes_runs, self.started, self.runs
        return delivery

    def rows(self) -> list[list[dict[str, Any]]]:
        return [[row for batch in each.batches for row in batch.to_pylist()] for each in self.delivered]


class Counting(Monitor):
    def __init__(self) -> None:
        self.committed_versions: list[tuple[list[int], Mapping[str, int]]] = []

    def committed(
        self, following: Position, versions: Sequence[Version], rows: Mapping[str, int], bytes_read: int
    ) -> None:
        self.committed_versions.append(([version.plan.version for version in versions], rows))


def versions_in(folder: Path) -> list[Version]:
    versions, number = [], 0
    for version, files in enumerate(FILES, FIRST):
        scans = []
        for at in range(number, number + files):
            sink = io.BytesIO()
            pq.write_table(pa.table({"n": pa.array(range(3 * at, 3 * at + 3), pa.int64())}), sink)
            (folder / f"{at}.parquet").write_bytes(sink.getvalue())
            scans.append(FileScan(f"{at}.parquet", "insert", {}, len(sink.getvalue())))
        number += files
        plan = ChangePlan(version, 1_000 * version, SCHEMA, tuple(scans), "files" if scans else "none")
        versions.append(Version(plan, "t", digest=f"{version}"))
    return versions


def deliver(folder: Path, sink: RunsSink, versions: Sequence[Version], **options: Any) -> tuple[list[int], Counting]:
    """How many versions each delivery has, and what the monitor saw."""
    storage, clock, monitor, stop = LocalStorage(folder), ManualClock(), Counting(), asyncio.Event()
    if options.pop("stopping", False):
        stop.set()
    deliverer = Deliverer(
        "table",
        sink,
        Execution(TableFiles(storage, lambda _: storage), workers=2),
        Limits(**options),
        stop,
        monitor,
        ProgressLine(logging.getLogger("test"), "delivered", "table", clock=clock),
        Admission(1),
        clock,
    )

    async def run() -> list[int]:
        left, counts = list(versions), list[int]()
        while left:
            position = await sink.last_position() or Position("t", left[0].plan.version)
            counts.append(await deliverer.deliver(left, position))
            left = left[counts[-1] :]
        return counts

    return asyncio.run(run()), monitor


def test_a_run_has_all_versions(tmp_path: Path) -> None:
    sink, one_by_one = RunsSink(takes_runs=True), RunsSink(takes_runs=False)
    versions = versions_in(tmp_path)
    counts, seen = deliver(tmp_path, sink, versions)
    assert (counts, seen.committed_versions) == ([len(FILES)], [([*range(10, 23)], seen.committed_versions[0][1])])
    other, also_seen = deliver(tmp_path, one_by_one, versions)
    assert (other, also_seen.committed_versions) == (counts, seen.committed_versions)
    assert sink.rows() == one_by_one.rows()
    assert [each.following for each in sink.delivered] == [each.following for each in one_by_one.delivered]
    assert (sink.runs, one_by_one.runs) == ([[10 + at for at, files in enumerate(FILES) if files]], [])
    assert sink.started == one_by_one.started == [*range(10, 23)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_rows": 1},
        {"max_rows": 3},
        {"max_rows": 10},
        {"max_seconds": 0.0},
        {"stopping": True},
        {"max_bytes": 3_000},
    ],
)
def test_limits_hold_for_versions_in_a_run(tmp_path: Path, options: dict[str, Any]) -> None:
    sink, one_by_one = RunsSink(takes_runs=True), RunsSink(takes_runs=False)
    versions = versions_in(tmp_path)
    counts, seen = deliver(tmp_path, sink, versions, **options)
    assert len(counts) > 1
    other, also_seen = deliver(tmp_path, one_by_one, versions, **options)
    assert (counts, seen.committed_versions) == (other, also_seen.committed_versions)
    assert sink.rows() == one_by_one.rows()
    assert sink.started == one_by_one.started


def test_from_the_middle_of_a_version(tmp_path: Path) -> None:
    """Its first parts were delivered before a restart."""
    versions = versions_in(tmp_path)[3:]
    sink, one_by_one = RunsSink(takes_runs=True), RunsSink(takes_runs=False)
    for each in (sink, one_by_one):

        async def begin(into: RunsSink = each) -> None:
            delivery = await into.begin(Position("t", 13))
            await delivery.commit(Position("t", 13, 1, ordinal=3))

        asyncio.run(begin())
        deliver(tmp_path, each, versions)
    assert sink.runs
    assert sink.rows() == one_by_one.rows()
    assert sink.rows()[1][0]["_change_ordinal"] == 3


def test_versions_before_one_that_cannot_be_read(tmp_path: Path) -> None:
    versions = versions_in(tmp_path)
    (tmp_path / "6.parquet").write_bytes(b"PAR1")
    sink = RunsSink(takes_runs=True)
    with pytest.raises(CdfdError) as caught:
        deliver(tmp_path, sink, versions)
    assert (caught.value.version, caught.value.path) == (18, "6.parquet")
    assert [row["n"] for rows in sink.rows() for row in rows] == [*range(18)]
    assert sink.delivered[-1].following == Position("t", 18, digest="17")


def test_scans_of_a_part_are_created_in_a_thread_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part may have tens of thousands of small files."""
    versions_in(tmp_path)
    adds = [Add(f"{at}.parquet", {}, 100, 1, True) for at in range(12)]
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack(adds)])))
    version = Version(ChangePlan(FIRST, 1, SCHEMA, scans, "snapshot"), "t", digest="10")
    sink = RunsSink(takes_runs=True)
    threads = observe_threads(monkeypatch, plans, "insert_scan")
    deliver(tmp_path, sink, [version], part_bytes=600)
    assert [len(rows) for rows in sink.rows()] == [18, 18]
    # One for the ordinal of the position between the parts.
    assert (threads.count(False), threads.count(True)) == (1, 12)
