"""First loads as jobs of ranges of paths: rows and ordinals of the embedded engine, once, wherever a process dies, from any checkpoint."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd
from cdfd.config.settings import Settings
from cdfd.daemon.engines import EmbeddedEngine
from cdfd.deliver import assignment as assignments
from cdfd.deliver import path_ranges
from cdfd.deliver.admission import Admission
from cdfd.deliver.assignment import Assignment, Engine
from cdfd.deliver.large_versions import LargeVersions, ListedVersion
from cdfd.deliver.splits import MARK, RangeSplit
from cdfd.delta import paths
from cdfd.errors import DataError, SinkError
from cdfd.log.table import Table
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.scan.splits import Measured, Part, Split
from cdfd.sinks.base import Write
from cdfd.sinks.jobs import Counts, Delivered, Job, counts_of
from cdfd.storage.local import LocalStorage
from tests.support import checkpoint_layout, lake
from tests.support.checkpointed_table import CHECKPOINT, LAYOUTS, STATS, changed, checkpoint, filled, writer
from tests.support.delta_copies import Copy, Twice
from tests.support.faulty_storage import Died
from tests.support.sampling import stride

NEWEST = CHECKPOINT + 3


def engine() -> Engine:
    return EmbeddedEngine(Admission(1))


class Rows:
    """A delivery that keeps its rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    async def start_version(self, version: Version) -> None:
        assert version.plan.scans == ()

    async def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()


@dataclass
class Store:
    """The rows, with a record of each delivery that names its job: a transaction has both, or neither. So it is with Kafka.

    Attributes:
        dies: called before and after each commit, with how many came before.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    records: dict[int, tuple[str, Counts]] = field(default_factory=dict)
    sent: int = 0
    dies: Callable[[int, str], bool] = lambda number, when: False

    async def deliver_part(
        self, table: object, number: int, job: Job, position: Position, write: Write, role: str | None
    ) -> Delivered:
        of_job, counts = self.records.get(number, ("", {}))
        if of_job == job.id:
            return Delivered(counts)
        delivery = Rows()
        counts = await write(delivery)  # type: ignore[arg-type] # as much of one as a part needs
        self._commit("before")
        self.records[number] = job.id, counts
        self.rows += delivery.rows
        self.sent += 1
        self._commit("after")
        return Delivered(counts)

    def _commit(self, when: str) -> None:
        if self.dies(self.sent - (when == "after"), when):
            raise Died

    @property
    def ordered(self) -> list[dict[str, Any]]:
        return sorted(self.rows, key=lambda row: row["_change_ordinal"])


@dataclass
class Sink:
    """Keeps the job of a table."""

    job: Job | None = None
    begun_at: Position | None = None
    takes: bool = True
    finished: Counts | None = None

    def takes_job(self, position: Position) -> bool:
        return self.takes

    async def begin_job(self, version: Version, position: Position, parts: int, size: int, digest: str) -> Job:
        self.job, self.begun_at = Job(uuid4().hex, position.version, position.phase, parts, size, digest, 0), position
        return self.job

    async def claim_job(self, position: Position, job: Job) -> None:
        assert job == self.job

    async def finish_job(self, version: Version, position: Position, job: Job, parts: Sequence[Delivered]) -> None:
        assert job == self.job
        self.job, self.finished = None, counts_of(parts)


class Nothing:
    """An engine whose process ends before it delivers."""

    async def measure(self, assignment: Assignment, splits: Sequence[Split]) -> list[Measured]:
        return await engine().measure(assignment, splits)

    async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> list[Delivered]:
        raise Died


@dataclass
class Load:
    """The first load of a table, by one process after the other."""

    path: str
    store: Store
    sink: Sink = field(default_factory=Sink)
    more: dict[str, Any] = field(default_factory=dict)
    version: int = NEWEST

    @property
    def config(self) -> Settings:
        table = {"uri": self.path, "name": "rows", **self.more}
        sink = {"kind": "kafka", "bootstrap_servers": "nowhere:9092"}
        return Settings.model_validate({"pipeline": "loads", "tables": [table], "sink": sink})

    def large(self, **options: Any) -> LargeVersions:
        settings: dict[str, Any] = {"threshold": 0, "part_bytes": 150_000, "planning": "executors", "engine": engine()}
        assign = partial(Assignment.of, self.config, "rows")
        stop = asyncio.Event()
        return LargeVersions(self.path, self.sink, assign, stop=stop, **settings | options)  # type: ignore[arg-type]

    async def planned(self, large: LargeVersions, part: int = 0) -> tuple[Version, Position]:
        table = Table.open(self.path)
        position = Position("T", self.version, part, "snapshot")
        with table.tailer() as tailer:
            stream = table.stream(self.config.tables[0].rows)
            return await large.snapshot(stream, position, tailer), position

    async def run(self, **options: Any) -> None:
        large = self.large(**options)
        version, position = await self.planned(large)
        assert large.takes(version, position)
        actual = await large.deliver(version, position)
        assert actual is not None
        assert actual[0] == self.sink.finished
        assert actual[1] > 0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def made(folder: Path) -> Path:
        one = writer(folder)
        await filled(one)
        await changed(one)
        assert one.version == NEWEST
        return folder

    return lake.run(made(tmp_path_factory.mktemp("lake")))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    fake = Store()
    monkeypatch.setattr(assignments, "connector", lambda config: fake)
    return fake


async def copied(
    written: Path, folder: Path, layout: str = "three parts", stats: str = "all", at: int = CHECKPOINT
) -> str:
    shutil.copytree(written, folder)
    await checkpoint(LocalStorage(str(folder)), at, LAYOUTS[layout], STATS[stats])
    return str(folder)


@pytest.fixture
def path(written: Path, tmp_path: Path) -> str:
    return lake.run(copied(written, tmp_path / "rows"))


@pytest.fixture(params=["ranges of a file", "ranges of some"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a delivery: ranges have one delivery, or several."""
    if request.param == "ranges of some":
        monkeypatch.setattr(assignments, "_READ_BYTES", 40_000)
    return 150_000


async def embedded(path: str) -> list[dict[str, Any]]:
    return await asyncio.to_thread(lambda: [row for batch in cdfd.snapshot(path) for row in batch.to_pylist()])


@pytest.mark.parametrize(
    ("layout", "stats"), [*((layout, "some") for layout in LAYOUTS), *(("one file", stats) for stats in STATS)]
)
async def test_rows_and_ordinals(
    written: Path, tmp_path: Path, store: Store, sizes: int, layout: str, stats: str
) -> None:
    load = Load(await copied(written, tmp_path / "rows", layout, stats), store)
    await load.run()
    assert store.ordered == await embedded(load.path)
    assert [row["_change_ordinal"] for row in store.ordered] == list(range(len(store.rows)))
    assert load.sink.finished == {"insert": len(store.rows)}
    assert store.sent > 9


async def test_files_in_pieces(path: str, store: Store) -> None:
    """Deliveries have numbers of their own, also where a file is several."""
    await Load(path, store).run(part_bytes=100)
    assert store.ordered == await embedded(path)
    assert store.sent > 50


async def test_excluded_inserts_leave_no_rows(path: str, store: Store) -> None:
    load = Load(path, store, more={"exclude_change_types": ["insert"]})
    await load.run(part_bytes=100)
    assert store.rows == []
    assert load.sink.finished == {}
    assert store.sent > 50


async def begun(load: Load, **options: Any) -> Job:
    with pytest.raises(Died):
        await load.run(engine=Nothing(), **options)
    assert load.sink.job is not None
    return load.sink.job


async def test_the_files_decide_the_cut_and_not_the_checkpoint(
    written: Path, tmp_path: Path, store: Store, sizes: int
) -> None:
    """A job resumes from any checkpoint: an earlier one may be gone, and a new one may exist."""
    made = [
        await copied(written, tmp_path / f"{number}", *each)
        for number, each in enumerate(
            zip(LAYOUTS, 2 * list(STATS), 2 * [NEWEST, CHECKPOINT, CHECKPOINT + 1], strict=True)
        )
    ]
    jobs = [await begun(Load(path, store)) for path in made]
    assert len({replace(job, id="") for job in jobs}) == 1
    assert jobs[0].digest.startswith(MARK)
    other = await begun(Load(made[0], store), part_bytes=2_000_000)
    assert other.digest.startswith(MARK)
    assert other.digest != jobs[0].digest


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("sizes", ["ranges of some"], indirect=True)
async def test_every_crash_point(written: Path, tmp_path: Path, path: str, store: Store, sizes: int, when: str) -> None:
    """Another process resumes the job, without Spark, with another setting, and from another checkpoint."""
    elsewhere = await copied(written, tmp_path / "other", "sidecars of JSON", "none", NEWEST)
    wanted = await embedded(path)
    await Load(path, store).run(part_bytes=sizes)
    deliveries = store.sent
    assert deliveries > 9
    for number in range(0, deliveries, stride(4)):
        store.rows, store.records, store.sent = [], {}, 0
        store.dies = lambda sent, at, number=number: (sent, at) == (number, when)
        load = Load(path, store)
        with pytest.raises(Died):
            await load.run(part_bytes=sizes)
        assert store.sent == number + (when == "after")
        store.dies = lambda sent, at: False
        shutil.rmtree(Path(path) / paths.LOG)
        shutil.copytree(Path(elsewhere) / paths.LOG, Path(path) / paths.LOG)
        await load.run(threshold=None, planning="driver", part_bytes=1)
        assert store.ordered == wanted
        assert store.sent == deliveries


async def test_a_job_that_an_older_release_began(path: str, store: Store) -> None:
    """Its parts are files. It goes on so."""
    load = Load(path, store)
    store.dies = lambda sent, when: (sent, when) == (4, "after")
    with pytest.raises(Died):
        await load.run(planning="driver")
    assert load.sink.job is not None
    int(load.sink.job.digest, 16)
    await load.run()
    assert store.ordered == await embedded(path)


async def test_a_process_that_dies_before_the_end_is_stored(path: str, store: Store) -> None:
    load = Load(path, store)
    job = await begun(load)
    await load.run()
    load.sink.job = job
    await load.run()
    assert store.ordered == await embedded(path)


class TestTheChoice:
    async def listed(self, load: Load, part: int = 0, **options: Any) -> bool:
        large = load.large(**options)
        version, position = await load.planned(large, part)
        if not isinstance(version, ListedVersion):
            assert len(version.plan.scans) > 9
            return False
        assert version.plan.scans == ()
        assert large.takes(version, position)
        return True

    async def test_by_the_size_of_the_checkpoint(
        self, path: str, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load = Load(path, store)
        assert not await self.listed(load, planning="auto")
        assert await self.listed(load)
        monkeypatch.setattr(path_ranges, "LARGE_BYTES", 1000)
        assert await self.listed(load, planning="auto")
        assert not await self.listed(load, planning="driver")

    async def test_without_an_engine(self, path: str, store: Store) -> None:
        assert not await self.listed(Load(path, store), threshold=None)

    async def test_a_load_that_the_daemon_began_itself(self, path: str, store: Store) -> None:
        assert not await self.listed(Load(path, store), part=3)

    async def test_a_version_that_the_daemon_began_itself(self, path: str, store: Store) -> None:
        """The daemon finishes it whatever job the sink has, even one that it cannot read."""

        class Unreadable:
            @property
            def job(self) -> Job:
                raise SinkError("this version of cdfd does not support the job")

        large = Load(path, store).large()
        version, position = await Load(path, store).planned(large, part=3)
        assert not replace(large, sink=Unreadable()).takes(version, position)  # type: ignore[type-var, arg-type] # as much of one as it needs

    async def test_a_sink_that_takes_no_job(self, path: str, store: Store) -> None:
        assert not await self.listed(Load(path, store, Sink(takes=False)))

    async def test_a_filter_needs_the_statistics(self, path: str, store: Store) -> None:
        assert not await self.listed(Load(path, store, more={"where": "id > -1"}))

    async def test_a_log_without_a_checkpoint(self, written: Path, store: Store) -> None:
        assert not await self.listed(Load(str(written), store))


async def test_a_job_whose_parts_are_planned_in_another_way_cannot_go_on(path: str, store: Store) -> None:
    """Buckets by another key have the same numbers and sizes, so the digest of the cut is the same."""
    load = Load(path, store)
    await begun(load)
    large = load.large()
    version, position = await load.planned(large)
    assert load.sink.begun_at is not None
    assert load.sink.begun_at.plan == version.plan.parts_id
    with pytest.raises(SinkError, match="was begun as") as caught:
        await large.deliver(version, replace(position, plan=version.plan.parts_id + 1))
    assert "`key`" in str(caught.value.hint)
    assert not store.rows
    await large.deliver(version, load.sink.begun_at)
    assert store.rows


@pytest.mark.parametrize("how", ["a filter", "no checkpoint"])
async def test_a_job_that_cannot_go_on(written: Path, path: str, store: Store, how: str) -> None:
    load = Load(path, store)
    await begun(load)
    if how == "a filter":
        load.more = {"where": "id > 5"}
    else:
        load.path = str(written)
    with pytest.raises(SinkError, match="was begun as"):
        await load.run()
    assert not store.rows


async def test_statistics_that_are_wrong(written: Path, tmp_path: Path, store: Store) -> None:
    """Rows of the next range would have the numbers of this one's."""
    load = Load(await copied(written, tmp_path / "rows", "one file"), store)
    name = tmp_path / "rows" / paths.LOG / paths.checkpoint_name(CHECKPOINT)
    actions = pq.read_table(name).to_pylist()
    first = {each.name: pq.read_table(each, columns=["id"])["id"][0].as_py() for each in Path(load.path).glob("part-*")}
    # No later version touches this one.
    added = next(each["add"] for each in actions if each["add"] and first[each["add"]["path"]] == 20)
    added["stats"] = '{"numRecords": 2}'
    name.write_bytes(checkpoint_layout.parquet(checkpoint_layout.table(actions)))
    with pytest.raises(DataError, match="the file has 3 rows, and the log says 2"):
        await load.run()


async def test_into_a_delta_table(path: str, tmp_path: Path, sizes: int) -> None:
    """Each range is delivered twice, and counts once."""
    table = {"start": "snapshot"}
    alone = Copy(Path(path), tmp_path / "a", table)
    in_ranges = Copy(Path(path), tmp_path / "b", table, spark={"snapshot_planning": "executors"})
    assert (await alone.deliver(NEWEST)).rows == (
        await in_ranges.deliver(NEWEST, Twice(engine()), part_size=sizes)
    ).rows
    assert in_ranges.rows() == alone.rows()
    assert [row["_change_ordinal"] for row in in_ranges.rows()] == list(range(len(alone.rows())))
    assert len(list(in_ranges.target.glob("part-*"))) > 20


async def test_parts_are_small(path: str, store: Store) -> None:
    """The process that plans does not hold the files, and hands none over but those that later commits name."""
    seen = list[Part]()

    class Seen(Nothing):
        async def deliver(self, assignment: Assignment, some: Sequence[Part]) -> list[Delivered]:
            seen.extend(some)
            assert type(assignment.version) is Version
            assert not assignment.version.plan.scans
            raise Died

    with pytest.raises(Died):
        await Load(path, store).run(engine=Seen())
    assert len(seen) > 9
    for _, part in seen:
        assert isinstance(part, RangeSplit)
        assert part.plan.scans == ()
        assert len(part.files.others) <= 1
