"""Snapshots whose files executors list, without Spark: rows and ordinals are those of `cdfd.snapshot`, whatever the checkpoint looks like."""

import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import checkpoint_layout

pytest.importorskip("pyspark")


import cdfd
from cdfd.deliver import path_ranges
from cdfd.deliver.path_ranges import range_numbers, sampled_bounds
from cdfd.deliver.splits import RangeSplit
from cdfd.delta import paths
from cdfd.delta.actions import Metadata
from cdfd.delta.types.datatypes import StructField, StructType
from cdfd.delta.types.schema import ID, PHYSICAL_NAME, from_arrow, serialize
from cdfd.delta.write.writing import metadata_fields
from cdfd.errors import ConfigError, LogError, MissingFileError
from cdfd.log import checkpoint_files
from cdfd.log.listing import list_live
from cdfd.log.log import DeltaLog
from cdfd.spark.source import snapshot_windows
from cdfd.spark.source.reading import ChangePartition
from cdfd.spark.source.source import BatchReader, CdfdSource
from cdfd.spark.source.stream import StreamReader
from cdfd.storage.local import LocalStorage
from tests.support import lake
from tests.support.checkpointed_table import CHECKPOINT, FILES, LAYOUTS, STATS, changed, checkpoint, filled, writer


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The table without and with the versions after the checkpoint; neither has one yet."""

    async def made(folder: Path, later: bool) -> Path:
        one = writer(folder)
        await filled(one)
        assert one.version == CHECKPOINT
        if later:
            await changed(one)
        return folder

    return {later: lake.run(made(tmp_path_factory.mktemp("lake"), later)) for later in (False, True)}


Made = Callable[..., str]


@pytest.fixture
def table(written: dict[bool, Path], tmp_path: Path) -> Made:
    def copied(layout: str = "three parts", stats: str = "all", *, later: bool = True) -> str:
        shutil.copytree(written[later], tmp_path, dirs_exist_ok=True)
        lake.run(checkpoint(LocalStorage(str(tmp_path)), CHECKPOINT, LAYOUTS[layout], STATS[stats]))
        return str(tmp_path)

    return copied


def source(path: str, **options: object) -> CdfdSource:
    return CdfdSource({"path": path, **{name: str(value) for name, value in options.items()}})


def reader(path: str, **options: object) -> BatchReader:
    values = {"startingVersion": "snapshot", "snapshotPlanning": "executors"} | options
    made = source(path, **values)
    return made.reader(made.schema())


def read(made: Any, partitions: Sequence[Any]) -> list[dict[str, Any]]:
    elsewhere = pickle.loads(pickle.dumps(made))
    batches = (batch for each in partitions for batch in elsewhere.read(pickle.loads(pickle.dumps(each))))
    return [row for batch in batches for row in batch.to_pylist()]


def rows(made: BatchReader) -> list[dict[str, Any]]:
    return read(made, made.partitions())


def embedded(path: str, version: int | None = None) -> list[dict[str, Any]]:
    return [row for batch in cdfd.snapshot(path, version) for row in batch.to_pylist()]


def are_ranges(partitions: Sequence[object]) -> bool:
    return all(
        isinstance(part, RangeSplit) for each in partitions if isinstance(each, ChangePartition) for part in each.splits
    )


@pytest.mark.parametrize(
    ("layout", "stats"), [*((layout, "some") for layout in LAYOUTS), *(("one file", stats) for stats in STATS)]
)
def test_rows_and_ordinals(table: Made, layout: str, stats: str) -> None:
    path = table(layout, stats)
    wanted = embedded(path)
    assert [row["_change_ordinal"] for row in wanted] == list(range(len(wanted)))
    for limit in (1, 400_000, 1 << 30):
        made = reader(path, maxPartitionBytes=limit)
        partitions = made.partitions()
        assert are_ranges(partitions)
        assert read(made, partitions) == wanted
    assert len(reader(path, maxPartitionBytes=1).partitions()) > FILES // 2


def test_at_the_checkpoint_itself(table: Made) -> None:
    path = table(later=False)
    assert rows(reader(path, maxPartitionBytes=1)) == embedded(path)


def test_an_older_version(table: Made) -> None:
    path = table()
    made = reader(path, maxPartitionBytes=1, endingVersion=CHECKPOINT + 1)
    assert rows(made) == embedded(path, CHECKPOINT + 1)


def test_without_ordinals(table: Made, tmp_path: Path) -> None:
    """Nothing is counted then, so files without statistics are not opened."""
    path = table(stats="none", later=False)
    gone = tmp_path / live_paths(path)[0]
    lost = pq.read_table(gone, columns=["id"])["id"].to_pylist()
    wanted = [row["id"] for row in embedded(path) if row["id"] not in lost]
    gone.unlink()
    made = reader(path, maxPartitionBytes=1, columns="id,_change_type")
    partitions = made.partitions()
    assert all(part.splits[0].following is None for part in partitions)  # type: ignore[attr-defined]
    with pytest.raises(MissingFileError):
        read(made, partitions)
    assert [row["id"] for row in rows(reader(path, columns="id,_change_type", ignoreMissingFiles="true"))] == wanted


def test_partitions_have_the_schema_of_the_requested_columns(table: Made) -> None:
    """Executors read no other column."""
    (partition, *_) = reader(table(), columns="id").partitions()
    (split, *_) = partition.splits  # type: ignore[attr-defined]
    assert split.plan.schema.names == ("id",)


def live_paths(path: str) -> list[str]:
    async def collect() -> list[str]:
        state = await DeltaLog(LocalStorage(path)).snapshot()
        return sorted(state.live().paths.to_pylist())

    return lake.run(collect())


def test_a_remove_that_names_another_deletion_vector(table: Made, tmp_path: Path) -> None:
    """Some writers remove a file without its deletion vector, and mean the file."""
    path = table(later=False)

    async def removed() -> str:
        state = await DeltaLog(LocalStorage(path)).snapshot()
        (gone, *_) = (add for add in state.live() if add.deletion_vector is not None)
        one = writer(tmp_path)
        one.version = CHECKPOINT
        await one.commit("DELETE", [("remove", {"path": gone.path, "dataChange": True, "deletionTimestamp": 1})])
        return gone.path

    gone = lake.run(removed())
    assert gone not in live_paths(path)
    assert rows(reader(path, maxPartitionBytes=1)) == embedded(path)


def test_a_partition_names_no_other_files(table: Made) -> None:
    """The driver does not hold the files: of thirteen, a partition names its bounds and those that later commits name."""
    path = table(later=False)
    for partition in reader(path, maxPartitionBytes=1).partitions():
        assert pickle.dumps(partition).count(b"part-") <= 2


class TestTheSwitch:
    def test_by_the_size_of_the_checkpoint(self, table: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        path = table()
        automatic = reader(path, snapshotPlanning="auto")
        assert not are_ranges(automatic.partitions())
        monkeypatch.setattr(path_ranges, "LARGE_BYTES", 1000)
        assert are_ranges(automatic.partitions())
        assert rows(automatic) == embedded(path)
        assert not are_ranges(reader(path, snapshotPlanning="driver").partitions())

    def test_a_log_without_a_checkpoint(self, tmp_path: Path) -> None:
        async def made() -> None:
            await filled(writer(tmp_path))

        lake.run(made())
        actual = reader(str(tmp_path))
        assert not are_ranges(actual.partitions())
        assert rows(actual) == embedded(str(tmp_path))

    def test_a_filter_needs_the_statistics(self, table: Made) -> None:
        path = table()
        actual = reader(path, where="id > 60")
        assert not are_ranges(actual.partitions())

    def test_another_word(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="snapshotPlanning is 'spark'"):
            reader(str(tmp_path), snapshotPlanning="spark")


def test_a_checkpoint_that_is_written_again(table: Made, tmp_path: Path) -> None:
    """Its files would have other ordinals than those that were planned."""
    path = table("one file", later=False)
    made = reader(path)
    partitions = made.partitions()
    name = tmp_path / paths.LOG / paths.checkpoint_name(CHECKPOINT)
    actions = [each for each in pq.read_table(name).to_pylist() if each["add"] is None]
    name.write_bytes(checkpoint_layout.parquet(checkpoint_layout.table(actions)))
    with pytest.raises(LogError, match="lists 0 files of a range, but 12 when the snapshot was planned"):
        read(made, partitions)


@contextmanager
def streaming(path: str, **options: object) -> Iterator[StreamReader]:
    one = source(path, **{"snapshotPlanning": "executors"} | options)
    made = one.streamReader(one.schema())
    yield made
    made.stop()


def insert(folder: Path, version: int, row: int) -> None:
    """Add a version after `version`."""

    async def more() -> None:
        one = writer(folder)
        one.version = version
        await one.insert(lake.rows(row))

    lake.run(more())


def test_a_checkpoint_that_takes_too_much_memory(table: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file may hold millions of equal rows."""
    path = table(later=False)
    monkeypatch.setattr(checkpoint_files, "MEMORY_BYTES", 1)
    monkeypatch.setattr(checkpoint_files, "MEMORY_RATIO", 0)
    made = reader(path)
    partitions = made.partitions()
    with pytest.raises(LogError, match="its rows take more than 1 bytes"):
        read(made, partitions)


class TestStreams:
    def test_the_snapshot_and_what_follows(self, table: Made, tmp_path: Path) -> None:
        path = table()
        with streaming(path, maxPartitionBytes=1) as made:
            start, end = made.initialOffset(), made.latestOffset()
            partitions = made.partitions(start, end)
            assert are_ranges(partitions)
            assert read(made, partitions) == embedded(path)
            made.commit(end)
            insert(tmp_path, CHECKPOINT + 3, 2000)
            following = read(made, made.partitions(end, made.latestOffset()))
        assert [(row["id"], row["_commit_version"]) for row in following] == [(2000, CHECKPOINT + 4)]

    def test_with_versions_in_one_batch(self, table: Made, tmp_path: Path) -> None:
        """Versions that come before the first micro-batch is planned are in it, too. Planned again, it is the same."""
        path = table(later=False)
        wanted = embedded(path)
        with streaming(path, maxPartitionBytes=1) as made:
            start = made.initialOffset()
            insert(tmp_path, CHECKPOINT, 2000)
            end = made.latestOffset()
            actual = read(made, made.partitions(start, end))
        assert actual[:-1] == wanted
        assert (actual[-1]["id"], actual[-1]["_commit_version"]) == (2000, CHECKPOINT + 1)
        with streaming(path, maxPartitionBytes=1) as made:
            assert read(made, made.partitions(start, end)) == actual

    @pytest.mark.parametrize("planning", ["driver", "executors"])
    def test_a_column_renamed_after_a_failed_first_micro_batch(
        self, table: Made, tmp_path: Path, planning: str
    ) -> None:
        """The query starts again with the new name, and Spark repeats the micro-batch of the snapshot."""
        path = table(later=False)
        wanted = [row["v"] for row in embedded(path)]
        with streaming(path, snapshotPlanning=planning) as made:
            start, end = made.initialOffset(), made.latestOffset()
            made.partitions(start, end)

        async def rename() -> None:
            names = {"id": "id", "v": "name"}
            columns = [
                StructField(names[each.name], each.type, metadata={ID: number, PHYSICAL_NAME: each.name})
                for number, each in enumerate(from_arrow(lake.SCHEMA), 1)
            ]
            mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
            metadata = Metadata("T", serialize(StructType(tuple(columns))), (), mapping)
            one = writer(tmp_path)
            one.version = CHECKPOINT
            await one.commit("RENAME COLUMN", [("metaData", metadata_fields(metadata))])

        lake.run(rename())
        with streaming(path, snapshotPlanning=planning) as made:
            actual = read(made, made.partitions(made.initialOffset(), end))
        assert [row["name"] for row in actual] == wanted

    @pytest.mark.parametrize("window", [1, 5, 1000])
    @pytest.mark.parametrize(
        "limit", [{"maxFilesPerTrigger": 3}, {"maxRowsPerTrigger": 4}, {"maxBytesPerTrigger": 2000}]
    )
    def test_with_a_limit(
        self, table: Made, monkeypatch: pytest.MonkeyPatch, window: int, limit: dict[str, object]
    ) -> None:
        """The driver lists a window of files at a time. Offsets, ordinals and lags are those of the whole list."""
        path = table(stats="some")
        monkeypatch.setattr(snapshot_windows, "WINDOW_FILES", window)
        listed, actual = offsets_and_rows(path, **limit)
        wanted, _ = offsets_and_rows(path, snapshotPlanning="driver", **limit)
        assert actual == embedded(path)
        ends = [(each["part"], each["ordinal"], each["phase"], each.get("backlog")) for each in listed]
        # A micro-batch ends at the end of a window.
        assert len(listed) > len(wanted) if window == 1 else len(listed) >= len(wanted)
        if window == 1000:
            assert ends == [(each["part"], each["ordinal"], each["phase"], each.get("backlog")) for each in wanted]
        ordinals = dict(enumerate(starts(path)))
        assert all(each["ordinal"] == ordinals[each["part"]] for each in listed[:-1])
        assert listed[-1]["phase"] == "stream"

    def test_a_restart_within_the_snapshot(self, table: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        """The driver listed all files before, and the next query lists windows. It has no limit, and resumes where the other one ended."""
        path = table()
        monkeypatch.setattr(snapshot_windows, "WINDOW_FILES", 2)
        with streaming(path, snapshotPlanning="driver", maxFilesPerTrigger=5) as made:
            start, end = made.initialOffset(), made.latestOffset()
            actual = read(made, made.partitions(start, end))
        with streaming(path) as made:
            last = end
            made.partitions(last, last)
            while last["phase"] == "snapshot":
                at, last = last, made.latestOffset()
                actual += read(made, made.partitions(at, last))
        assert actual == embedded(path)
        with streaming(path) as made:
            assert read(made, made.partitions(end, last)) == actual[end["ordinal"] :]


def offsets_and_rows(path: str, **options: object) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The ends of the micro-batches of a snapshot, and its rows."""
    ends, rows_read = list[dict[str, Any]](), list[dict[str, Any]]()
    with streaming(path, **options) as made:
        at = made.initialOffset()
        while at["phase"] == "snapshot":
            end = made.latestOffset()
            rows_read += read(made, made.partitions(at, end))
            made.commit(end)
            ends.append(end)
            at = end
    return ends, rows_read


def starts(path: str) -> list[int]:
    """The ordinal of the first row of each file of the newest version."""

    async def plan() -> list[int]:
        state = await DeltaLog(LocalStorage(path)).snapshot(with_counts=True)
        hidden = {add.path: add.deletion_vector for add in state.live()}
        rows = {name: pq.read_metadata(Path(path) / name).num_rows for name in hidden}
        live = [rows[name] - (0 if vector is None else vector.cardinality) for name, vector in sorted(hidden.items())]
        return [sum(live[:number]) for number in range(len(live) + 1)]

    return lake.run(plan())


class TestRanges:
    def test_a_path_that_is_a_bound_belongs_to_the_range_after_it(self) -> None:
        bounds = pa.array(["b", "d"], pa.large_string())
        names = pa.array(["d", "a", "b", "c", "e", "b"], pa.large_string())
        assert range_numbers(bounds, names).tolist() == [2, 0, 1, 1, 2, 1]

    def test_a_sample_of_many(self, table: Made, tmp_path: Path) -> None:
        """The bounds are as many as asked for, are among the paths, and do not follow from their order in the checkpoint."""
        path = table("one file", later=False)
        names = [f"day={number % 8}/{number:06}" for number in range(40_000)]
        adds = [
            {"add": {"path": name, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}}
            for name in names
        ]
        log = tmp_path / paths.LOG / paths.checkpoint_name(CHECKPOINT)
        head = [each for each in pq.read_table(log).to_pylist() if each["protocol"] or each["metaData"]]
        log.write_bytes(checkpoint_layout.parquet(checkpoint_layout.table([*head, *adds])))
        storage = LocalStorage(path)
        live = lake.run(list_live(DeltaLog(storage)))
        assert live is not None
        bounds = sampled_bounds(live, storage, 100)
        assert bounds == sampled_bounds(live, storage, 100)
        assert 100 <= len(bounds) <= 200
        assert set(bounds.to_pylist()) <= set(names)
        actual = path_ranges.counted_ranges(live, bounds, storage, None)
        assert actual.files.sum() == len(names)
        # A tenth of the paths in one range would be ten times what 100 bounds leave.
        assert actual.files.max() < len(names) // 10
        whole = sorted(names)
        assert [add.path for add in actual.between(20, 40).files(storage)] == whole[
            actual.files[:20].sum() : actual.files[:40].sum()
        ]
