"""A Delta table that is kept equal to its source: random changes, faults at every step, other writers, and what is refused."""

import asyncio
import contextlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import cdfd
from cdfd import snapshot
from cdfd.delta.snapshot import Snapshot
from cdfd.delta.types.schema import ColumnMappingMode, StructField, StructType, TableSchema, from_arrow
from cdfd.delta.types.schema_change import Rename, SchemaChange
from cdfd.errors import ExistsError, FencedError, SinkError, StorageError, UnsupportedError
from cdfd.log.log import DeltaLog
from cdfd.model.columns import VersionColumns, change_schema, constant_type
from cdfd.model.control import Control, Pause
from cdfd.model.file_scan import FileScan
from cdfd.model.plan import ChangePlan
from cdfd.model.position import Position
from cdfd.model.version import Version
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import AS_IT_IS, Shape
from cdfd.runtime.clock import Clock, SystemClock
from cdfd.scan.updates.equality import hashes
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.base import SnapshotNeededError
from cdfd.sinks.delta import compactor
from cdfd.sinks.delta.columns import columns_of_new
from cdfd.sinks.delta.compactor import Compaction
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.log_actions import mirror_mode
from cdfd.sinks.delta.mirror import delivery as mirror_delivery
from cdfd.sinks.delta.mirror import removal as mirror_removal
from cdfd.sinks.delta.mirror import sorted_run
from cdfd.sinks.delta.mirror import table as mirror_table
from cdfd.sinks.delta.mirror.removal import Removal
from cdfd.sinks.delta.mirror.sink import MirrorSink
from cdfd.sinks.delta.mirror.state import MOST_DEFERRED, MOST_DEFERRED_MS, MirrorOptions
from cdfd.sinks.delta.mirror.table import KeyIndex
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.ledger.ledger import app_id
from cdfd.storage.base import Storage
from cdfd.storage.local import LocalStorage
from tests.support.clustered import cluster, clustering
from tests.support.faulty_storage import AtStep, Died, FaultyStorage, nothing, since
from tests.support.in_commit_timestamps import check_entries, enable
from tests.support.lake import manual_clock
from tests.support.sampling import sample, stride
from tests.support.threads import observe_threads

APP = app_id("shop", "orders")
OWNERS = count(1)
COMPACTION = Compaction("snappy", 1 << 20)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("f", pa.float64())])
Row = tuple[Any, ...]


async def open_sink(
    storage: Storage,
    *,
    key: Sequence[str] = ("id",),
    change_feed: bool = False,
    partition_by: tuple[str, ...] = (),
    interval: int = 100,
    owner: int | None = None,
    clock: Clock | None = None,
    compaction: Compaction | None = None,
    file_bytes: int = 1 << 20,
    shape: Shape = AS_IT_IS,
) -> MirrorSink:
    mode = mirror_mode(change_feed=change_feed)
    layout = Layout(partition_by, checkpoint_interval=interval, mode=mode, compaction=compaction)
    target = Target(storage, APP, layout, clock or SystemClock(), owner=owner or next(OWNERS))
    files = partial(DataFiles, compression="snappy", file_bytes=file_bytes)
    return await MirrorSink.open(target, files, MirrorOptions(key, change_feed, SpillSpace(), shape))


def at(version: int, phase: Any = "stream") -> Position:
    return Position("T", version, phase=phase)


def change(version: int, kind: str, rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Change rows of one type."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    typed = pa.RecordBatch.from_arrays(
        [*columns, constant_type(kind, len(rows))], schema=pa.schema([*schema, change_schema(schema)[len(schema)]])
    )
    return VersionColumns(version, 1_767_225_600_000 + version).complete(typed, 0)


async def deliver(sink: MirrorSink, version: int, *batches: pa.RecordBatch, versions: int = 1) -> None:
    delivery = await sink.begin(at(version))
    for each in batches:
        await delivery.write(each)
    await delivery.commit(at(version + versions))


def rows_in(folder: Path, schema: pa.Schema = SCHEMA) -> Counter[Any]:
    """The rows of a mirror, as cdfd reads them."""
    rows = snapshot(folder).read_all().select(schema.names)
    return Counter(map(repr, zip(*(column.to_pylist() for column in rows.columns), strict=True)))


def by_delta_rs(folder: Path) -> Counter[Any]:
    """The rows of a mirror, as delta-rs reads them."""
    rows = pa.table(DeltaTable(folder).scan()).select(SCHEMA.names)
    return Counter(map(repr, zip(*(column.to_pylist() for column in rows.columns), strict=True)))


def bag(rows: Sequence[Row]) -> Counter[Any]:
    return Counter(map(repr, rows))


def entries(folder: Path) -> list[list[dict[str, Any]]]:
    log = sorted((folder / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in log]


async def test_threads_handle_the_files_of_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tables wait for the event loop, which 50,000 files keep busy for seconds."""
    sink = await open_sink(LocalStorage(tmp_path), interval=1, compaction=COMPACTION)
    for version in range(8):
        await deliver(sink, version, change(version, "insert", [(version, "a", 0.5)]))
    assert operations(tmp_path)[-1] == "OPTIMIZE"
    sink = await open_sink(LocalStorage(tmp_path), interval=1, compaction=COMPACTION)
    threads = [
        observe_threads(monkeypatch, place, name)
        for place, name in (
            (Snapshot, "live"),
            (mirror_delivery, "removals"),
            (mirror_removal, "replacements"),
            (mirror_table, "_changes_rows"),
            (compactor, "removals"),
        )
    ]
    await deliver(sink, 8, change(8, "delete", [(0, "a", 0.5)]))
    for version in range(9, 17):
        await deliver(sink, version, change(version, "insert", [(version, "a", 0.5)]))
    await (await sink.begin(at(17))).commit(at(17, "snapshot"))
    delivery = await sink.begin(at(17, "snapshot"))
    await delivery.write(change(17, "insert", [(17, "a", 0.5)]))
    await delivery.commit(at(18))
    assert rows_in(tmp_path) == bag([(17, "a", 0.5)])
    assert [set(each) for each in threads] == [{True}] * 5


@pytest.mark.parametrize("in_checkpoint", [False, True])
async def test_a_clustered_file_stays_one_when_rows_are_deleted(tmp_path: Path, in_checkpoint: bool) -> None:
    sink = await open_sink(LocalStorage(tmp_path), owner=7)
    await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5), (1, "a", 0.5)]))
    before = entries(tmp_path)
    (protocol,) = (each["protocol"] for each in before[0] if "protocol" in each)
    protocol["writerFeatures"] += ["clustering", "domainMetadata"]
    (add,) = (each["add"] for entry in before for each in entry if "add" in each)
    remove = {"path": add["path"], "deletionTimestamp": 0, "dataChange": False}
    notes = {"clusteringProvider": "liquid", "tags": {"ZCUBE_ID": "x"}}
    actions = [{"protocol": protocol}, {"remove": remove}, {"add": {**add, "dataChange": False, **notes}}]
    added = tmp_path / "_delta_log" / f"{len(before):020}.json"
    added.write_text("\n".join(map(json.dumps, actions)))
    interval = 1 if in_checkpoint else 100
    await deliver(
        await open_sink(LocalStorage(tmp_path), owner=7, interval=interval), 1, change(1, "insert", [(2, "a", 0.5)])
    )
    await deliver(await open_sink(LocalStorage(tmp_path), owner=7), 2, change(2, "delete", [(0, "a", 0.5)]))
    (again,) = (each["add"] for each in entries(tmp_path)[-1] if "add" in each)
    assert again["deletionVector"]["cardinality"] == 1
    assert notes.items() <= again.items()


async def test_a_version_of_each_kind_of_change(tmp_path: Path) -> None:
    sink = await open_sink(LocalStorage(tmp_path / "t"))
    await deliver(sink, 0, change(0, "insert", [(n, "a", 0.5) for n in range(100)]))
    await deliver(
        sink,
        1,
        change(1, "update_preimage", [(3, "a", 0.5)]),
        change(1, "update_postimage", [(3, "b", 0.5)]),
        change(1, "delete", [(4, "a", 0.5)]),
        change(1, "insert", [(100, "a", 0.5)]),
    )
    expected = [(n, "b" if n == 3 else "a", 0.5) for n in range(101) if n != 4]
    assert rows_in(tmp_path / "t") == bag(expected)
    last = entries(tmp_path / "t")[-1]
    assert [next(iter(each)) for each in last].count("add") == 2
    vector = next(each["add"]["deletionVector"] for each in last if "deletionVector" in each.get("add", {}))
    assert (vector["storageType"], vector["cardinality"]) == ("i", 2)
    assert [each["commitInfo"]["isBlindAppend"] for each in last if "commitInfo" in each] == [False]
    await deliver(sink, 2, change(2, "delete", expected))
    assert rows_in(tmp_path / "t") == bag([])
    assert not any("add" in each for each in entries(tmp_path / "t")[-1])


async def test_bounds_are_wide_once_rows_are_deleted(tmp_path: Path) -> None:
    """The row with the largest value is gone, and a reader that takes bounds for exact would still answer with it."""
    sink = await open_sink(LocalStorage(tmp_path))
    await deliver(sink, 0, change(0, "insert", [(n, "a", 0.5) for n in range(100)]))

    def statistics() -> dict[str, Any]:
        (text,) = (each["add"]["stats"] for each in entries(tmp_path)[-1] if "add" in each)
        stats: dict[str, Any] = json.loads(text)
        return stats

    before = statistics()
    assert before.get("tightBounds", True)
    assert before["maxValues"]["id"] == 99
    for version, gone in ((1, 99), (2, 98)):
        await deliver(sink, version, change(version, "delete", [(gone, "a", 0.5)]))
        assert statistics() == {**before, "tightBounds": False}


async def test_change_data_files_say_that_they_change_no_data(tmp_path: Path) -> None:
    """Specification, "Add CDC File": `dataChange` is false there, and the rows count for the files of the table alone."""
    sink = await open_sink(LocalStorage(tmp_path), change_feed=True)
    await deliver(sink, 0, change(0, "insert", [(n, "a", 0.5) for n in range(10)]))
    before, after = change(1, "update_preimage", [(3, "a", 0.5)]), change(1, "update_postimage", [(3, "b", 0.5)])
    await deliver(sink, 1, before, after, change(1, "delete", [(4, "a", 0.5)]), change(1, "insert", [(10, "a", 0.5)]))
    last = [(name, fields) for each in entries(tmp_path)[-1] for name, fields in each.items()]
    flags = {name: {fields["dataChange"] for kind, fields in last if kind == name} for name in ("cdc", "add", "remove")}
    assert flags == {"cdc": {False}, "add": {True}, "remove": {True}}
    delivered = cdfd.changes(tmp_path, start=len(entries(tmp_path)) - 1).read_all()
    assert Counter(zip(delivered["_change_type"].to_pylist(), delivered["id"].to_pylist(), strict=True)) == Counter(
        [("update_preimage", 3), ("update_postimage", 3), ("delete", 4), ("insert", 10)]
    )


@pytest.mark.parametrize(
    ("value", "folder"),
    [("a", "v=a/"), (None, "v=__HIVE_DEFAULT_PARTITION__/"), ("a b", ""), ("a/b", ""), ("a%41", ""), ("x" * 300, "")],
)
async def test_change_data_files_are_in_folders_of_partitions(tmp_path: Path, value: str | None, folder: str) -> None:
    """As the specification recommends, where the folder has a name without escapes."""
    sink = await open_sink(LocalStorage(tmp_path), change_feed=True, partition_by=("v",))
    await deliver(sink, 0, change(0, "insert", [(1, value, 0.5), (2, value, 0.5)]))
    await deliver(sink, 1, change(1, "delete", [(1, value, 0.5)]))
    [path] = [each["cdc"]["path"] for each in entries(tmp_path)[-1] if "cdc" in each]
    # A random id in the name may contain "cdc-" too.
    assert path.partition("cdc-")[0] == f"_change_data/{folder}"
    version = len(entries(tmp_path)) - 1
    rows = cdfd.changes(tmp_path, start=version).read_all().select(["_change_type", "id", "v"]).to_pylist()
    assert rows == [{"_change_type": "delete", "id": 1, "v": value}]
    # delta-rs reads no data files with deletion vectors here, so the version alone.
    feed = pa.table(DeltaTable(tmp_path).load_cdf(version, version)).select(["_change_type", "id", "v"]).to_pylist()
    assert feed == rows


async def test_statistics_of_others_without_the_number_of_rows(tmp_path: Path) -> None:
    """The protocol demands the number with a deletion vector."""
    sink = await open_sink(LocalStorage(tmp_path), owner=7)
    await deliver(sink, 0, change(0, "insert", [(1, "a", 0.5), (2, "b", 0.5), (3, "c", 0.5)]))
    entry = tmp_path / "_delta_log" / f"{len(entries(tmp_path)) - 1:020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for fields in (line["add"] for line in lines if "add" in line):
        del fields["stats"]
        fields["tags"] = {"of": "others"}
    entry.write_text("\n".join(map(json.dumps, lines)))
    sink = await open_sink(LocalStorage(tmp_path), owner=7)
    await deliver(sink, 1, change(1, "delete", [(2, "b", 0.5)]))
    [added] = [each["add"] for each in entries(tmp_path)[-1] if "add" in each]
    [removed] = [each["remove"] for each in entries(tmp_path)[-1] if "remove" in each]
    assert json.loads(added["stats"])["numRecords"] == 3
    assert removed["extendedFileMetadata"]
    assert removed["tags"] == added["tags"] == {"of": "others"}
    # Rows that replace all others.
    await (await sink.begin(at(2))).commit(at(2, "snapshot"))
    delivery = await sink.begin(at(2, "snapshot"))
    await delivery.write(change(2, "insert", [(9, "z", 0.5)]))
    await delivery.commit(at(3))
    [removed] = [each["remove"] for each in entries(tmp_path)[-1] if "remove" in each]
    assert removed["tags"] == {"of": "others"}
    assert rows_in(tmp_path) == bag([(9, "z", 0.5)])


async def test_every_commit_has_an_in_commit_timestamp_where_the_target_requires_one(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    sink = await open_sink(storage, change_feed=True, owner=7)
    await deliver(sink, 0, change(0, "insert", [(n, "a", 0.5) for n in range(20)]))
    time = enable(tmp_path)
    # A process that takes it over, new rows, rows that go, compacted files.
    sink = await open_sink(storage, change_feed=True, owner=8, interval=10, compaction=COMPACTION)
    for version in range(1, 10):
        await deliver(
            sink,
            version,
            change(version, "delete", [(version, "a", 0.5)]),
            change(version, "insert", [(99 + version, "b", 1)]),
        )
    operations = check_entries(tmp_path, 3, time)
    assert operations.count("OPTIMIZE") == 1
    assert len(operations) == 11
    assert rows_in(tmp_path) == bag(
        [(n, "a", 0.5) for n in (0, *range(10, 20))] + [(99 + n, "b", 1.0) for n in range(1, 10)]
    )


class Source:
    """A multiset of rows that changes at random, with keys that repeat, null and NaN."""

    def __init__(self, seed: int, *, unique: bool) -> None:
        self.random = random.Random(seed)
        self.unique = unique
        self.rows: list[Row] = []
        self.version = 0

    def row(self, key: object) -> Row:
        return key, self.random.choice(["a", "b", None]), self.random.choice([0.5, -0.0, 0.0, float("nan"), None])

    def batches(self) -> list[pa.RecordBatch]:
        """The change rows of the next version."""
        random, version = self.random, self.version
        self.version += 1
        if random.random() < 0.1:
            gone, self.rows = self.rows, []
        else:
            chosen = [random.random() < 0.15 for _ in self.rows]
            gone = [row for row, goes in zip(self.rows, chosen, strict=True) if goes]
            self.rows = [row for row, goes in zip(self.rows, chosen, strict=True) if not goes]
        cut = random.randint(0, len(gone))
        updated, gone = gone[:cut], gone[cut:]
        after = [self.row(row[0]) for row in updated]
        keys = [random.choice([None, *range(40)]) for _ in range(random.randrange(12))]
        if self.unique:
            taken = {row[0] for row in (*self.rows, *after)}
            keys = [key for key in dict.fromkeys(keys) if key not in taken]
        new = [self.row(key) for key in keys]
        self.rows += [*after, *new]
        made = []
        for kind, rows in (("delete", gone), ("insert", new)):
            if rows:
                made.append(change(version, kind, rows))
        for before, row in zip(updated, after, strict=True):
            made += [change(version, "update_preimage", [before]), change(version, "update_postimage", [row])]
        random.shuffle(made)
        return made if self.unique else sorted(made, key=lambda batch: batch["_change_type"][0].as_py() == "insert")


@pytest.mark.parametrize("seed", sample(range(12), 3))
async def test_mirror_equals_its_source_after_random_changes(tmp_path: Path, seed: int) -> None:
    source = Source(seed, unique=seed % 2 == 0)
    options: dict[str, Any] = {
        "change_feed": seed % 3 == 0,
        "partition_by": ("v",) if seed % 4 == 1 else (),
        "key": ("id", "f") if seed % 5 == 1 else ("id",),
        "interval": 3,
        "compaction": COMPACTION if seed % 2 else None,
    }
    sink = await open_sink(LocalStorage(tmp_path / "t"), **options)
    while source.version < 30:
        first, several = source.version, source.random.randint(1, 3)
        batches = [batch for _ in range(several) for batch in source.batches()]
        await deliver(sink, first, *batches, versions=several)
        if (tmp_path / "t").exists():
            assert rows_in(tmp_path / "t") == bag(source.rows), source.version
            assert by_delta_rs(tmp_path / "t") == bag(source.rows), source.version
        if source.random.random() < 0.2:
            await sink.close()
            sink = await open_sink(LocalStorage(tmp_path / "t"), **options)
            assert await sink.last_position() == at(source.version)
    if options["change_feed"]:
        rows: Counter[Any] = Counter()
        for row in cdfd.changes(tmp_path / "t", 0).read_all().to_pylist():
            removed = row["_change_type"] in ("delete", "update_preimage")
            rows[repr((row["id"], row["v"], row["f"]))] += -1 if removed else 1
        assert +rows == bag(source.rows)
        assert not -rows


class TestFaults:
    VERSIONS = 5

    @staticmethod
    def batches(version: int) -> list[pa.RecordBatch]:
        """Version n inserts n and n + 100, updates n - 1 and deletes n + 99. Version 3 changes nothing."""
        if version == 3:
            return []
        changes = [change(version, "insert", [(version, "new", 0.5), (version + 100, "new", 0.5)])]
        before = version - 1 if version != 4 else 2
        if version and version != 4:
            changes += [
                change(version, "update_preimage", [(before, "new", 0.5)]),
                change(version, "update_postimage", [(before, "old", 0.5)]),
                change(version, "delete", [(before + 100, "new", 0.5)]),
            ]
        return changes

    @classmethod
    def expected(cls, versions: int) -> Counter[Any]:
        rows: Counter[Any] = Counter()
        for version in range(versions):
            for batch in cls.batches(version):
                for row in batch.to_pylist():
                    sign = -1 if row["_change_type"] in ("delete", "update_preimage") else 1
                    rows[repr((row["id"], row["v"], row["f"]))] += sign
        return +rows

    async def deliver_all(self, storage: Storage, *, change_feed: bool) -> None:
        sink = await open_sink(storage, change_feed=change_feed, interval=2)
        position = await sink.last_position()
        for version in range(0 if position is None else position.version, self.VERSIONS):
            await deliver(sink, version, *self.batches(version))
        await sink.close()

    # A crash after a step leaves the same state as a crash before the next one.
    @pytest.mark.parametrize(
        ("when", "error"),
        [
            ("before", Died()),
            ("before", StorageError("reset", retriable=True)),
            ("after", StorageError("reset", retriable=True)),
        ],
        ids=["dies", "fails", "fails afterwards"],
    )
    async def test_the_mirror_is_the_source_at_a_version_whatever_step_fails(
        self, tmp_path: Path, when: str, error: Exception
    ) -> None:
        for number in count(step=stride(7)):
            folder, step, feed = tmp_path / str(number), AtStep(number, error), number % 2 == 1
            try:
                await self.deliver_all(
                    FaultyStorage(LocalStorage(folder, sync=False), **{when: step}), change_feed=feed
                )
            except (SinkError, Died):
                position = await (await open_sink(LocalStorage(folder, sync=False), change_feed=feed)).last_position()
                if position is not None:
                    assert rows_in(folder) == self.expected(position.version), number
                await self.deliver_all(LocalStorage(folder, sync=False), change_feed=feed)
            assert rows_in(folder) == self.expected(self.VERSIONS), number
            assert DeltaTable(folder).transaction_version(APP) == self.VERSIONS - 1
            if not step.reached:
                break
        assert number >= 40

    async def test_rows_are_read_again_after_a_delivery_that_could_not_read_all(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path))
        for version in range(2):
            await deliver(sink, version, change(version, "insert", [(version, "a", 0.5)]))
        (file,) = (tmp_path / each["add"]["path"] for each in entries(tmp_path)[-1] if "add" in each)
        hidden, deleted = file.rename(tmp_path / "hidden"), change(2, "delete", [(1, "a", 0.5)])
        delivery = await sink.begin(at(2))
        await delivery.write(deleted)
        with pytest.raises(SinkError, match="cannot read the target"):
            await delivery.commit(at(3))
        await delivery.abort()
        hidden.rename(file)
        await deliver(sink, 2, deleted)
        assert rows_in(tmp_path) == bag([(0, "a", 0.5)])


def operations(folder: Path) -> list[str]:
    """Of the versions of a mirror, in their order."""
    return [each["commitInfo"]["operation"] for entry in entries(folder) for each in entry if "commitInfo" in each]


class TestCompaction:
    VERSIONS = 24

    @staticmethod
    def batches(version: int) -> list[pa.RecordBatch]:
        """Version n inserts five rows, updates one of the version before, and deletes another one."""
        rows = [(10 * version + place, "new", 0.5) for place in range(5)]
        before = 10 * version - 10
        if not version:
            return [change(version, "insert", rows)]
        return [
            change(version, "insert", rows),
            change(version, "update_preimage", [(before, "new", 0.5)]),
            change(version, "update_postimage", [(before, "old", 0.5)]),
            change(version, "delete", [(before + 1, "new", 0.5)]),
        ]

    @classmethod
    def expected(cls, versions: int) -> Counter[Any]:
        rows = []
        for version in range(versions):
            last = version == versions - 1
            rows.append((10 * version, "new" if last else "old", 0.5))
            rows += [(10 * version + place, "new", 0.5) for place in range(1 if last else 2, 5)]
        return bag(rows)

    async def deliver_all(self, storage: Storage, versions: int = VERSIONS, **options: Any) -> None:
        options = {"interval": 10, "compaction": COMPACTION, "change_feed": True} | options
        sink = await open_sink(storage, owner=7, **options)
        position = await sink.last_position()
        for version in range(0 if position is None else position.version, versions):
            await deliver(sink, version, *self.batches(version))
        await sink.close()

    @pytest.mark.parametrize("partition_by", [(), ("v",)])
    async def test_small_files_become_one_without_deleted_rows(
        self, tmp_path: Path, partition_by: tuple[str, ...]
    ) -> None:
        await self.deliver_all(LocalStorage(tmp_path), partition_by=partition_by)
        assert rows_in(tmp_path) == by_delta_rs(tmp_path) == self.expected(self.VERSIONS)
        assert operations(tmp_path).count("OPTIMIZE") == 2
        entry = next(entry for entry in entries(tmp_path) if "OPTIMIZE" in json.dumps(entry))
        removes = [each["remove"] for each in entry if "remove" in each]
        added = [each["add"] for each in entry if "add" in each]
        assert len(removes) > 8
        assert sum("deletionVector" in remove for remove in removes) > 4
        assert not any("deletionVector" in add for add in added)
        assert not any(each["dataChange"] for each in (*removes, *added))
        # Compaction is no change for readers of the change feed.
        rows: Counter[Any] = Counter()
        for row in cdfd.changes(tmp_path, 0).read_all().to_pylist():
            sign = -1 if row["_change_type"] in ("delete", "update_preimage") else 1
            rows[repr((row["id"], row["v"], row["f"]))] += sign
        assert +rows == self.expected(self.VERSIONS)

    @pytest.mark.parametrize(
        ("when", "error"), [("before", Died()), ("after", StorageError("reset", retriable=True))], ids=["dies", "fails"]
    )
    async def test_a_crash_at_every_step(self, tmp_path: Path, when: str, error: Exception) -> None:
        await self.deliver_all(LocalStorage(tmp_path / "0"), 10, interval=0)
        compacted = 0
        for number in count(step=stride(3)):
            folder = shutil.copytree(tmp_path / "0", tmp_path / f"step {number}")
            # The checkpoint comes first, then the compaction.
            step = AtStep(number, error, since("checkpoint.parquet"))
            with contextlib.suppress(SinkError, Died):
                await self.deliver_all(FaultyStorage(LocalStorage(folder), **{when: step}), 11, interval=11)
            assert rows_in(folder) == self.expected(11), number
            compacted += "OPTIMIZE" in operations(folder)
            await self.deliver_all(LocalStorage(folder), 12, interval=11)
            assert rows_in(folder) == self.expected(12), number
            assert DeltaTable(folder).transaction_version(APP) == 11
            if not step.reached:
                break
        assert 0 < compacted < number

    async def test_another_writer_is_first(self, tmp_path: Path) -> None:
        compacted = 0

        async def interfere(method: str, path: str) -> None:
            nonlocal compacted
            begun = method == "put" and path.startswith("part-") and (tmp_path / "_delta_log/_last_checkpoint").exists()
            if begun and not compacted:
                compacted += 1
                await asyncio.to_thread(lambda: DeltaTable(tmp_path).optimize.compact())

        await self.deliver_all(FaultyStorage(LocalStorage(tmp_path), before=interfere), 14)
        assert compacted == 1
        assert operations(tmp_path).count("OPTIMIZE") == 1
        assert rows_in(tmp_path) == self.expected(14)

    async def test_a_large_file_most_of_whose_rows_are_deleted(self, tmp_path: Path) -> None:
        """It is rewritten alone. So the bytes of deleted rows are bounded."""
        schema, size = pa.schema([("id", pa.int64()), ("f", pa.float64())]), 20_000
        random = np.random.default_rng(0)
        rows = list(zip(range(size), random.random(size).tolist(), strict=True))
        compaction = Compaction("none", 300_000)
        sink = await open_sink(LocalStorage(tmp_path), interval=1, compaction=compaction)
        await deliver(sink, 0, change(0, "insert", rows, schema))
        await deliver(sink, 1, change(1, "delete", rows[: size // 4], schema))
        assert "OPTIMIZE" not in operations(tmp_path)
        await deliver(sink, 2, change(2, "delete", rows[size // 4 : 3 * size // 4], schema))
        assert operations(tmp_path).count("OPTIMIZE") == 1
        (file,) = DeltaTable(tmp_path).file_uris()
        assert Path(file).stat().st_size < 200_000
        await deliver(sink, 3, change(3, "delete", rows[3 * size // 4 : -1], schema))
        assert rows_in(tmp_path, schema) == bag(rows[-1:])


async def compact(folder: Path) -> None:
    """Another process puts the rows of all files into one, in a version that changes no row."""
    storage = LocalStorage(folder, sync=False)
    state = await DeltaLog(storage).snapshot(with_stats=True, all_fields=True)
    await compactor.compact(storage, SystemClock(), lambda state: None, COMPACTION, state)


class TestOtherWriters:
    @staticmethod
    async def prepare(folder: Path) -> list[Row]:
        """A mirror with a checkpoint, and enough files to compact: version n has two rows n, and version 9 deletes one. Its rows."""
        sink = await open_sink(LocalStorage(folder, sync=False), interval=10)
        for version in range(9):
            await deliver(sink, version, change(version, "insert", [(version, "a", 0.5), (version, "b", 0.5)]))
        await deliver(sink, 9, change(9, "delete", [(0, "a", 0.5)]))
        return [(0, "b", 0.5), *((version, v, 0.5) for version in range(1, 9) for v in "ab")]

    async def test_compaction_between_any_two_steps_is_followed(self, tmp_path: Path) -> None:
        """Each row that was looked up is in another file by the time of the commit."""
        rows = await self.prepare(tmp_path / "prepared")
        gone = [(5, "a", 0.5), (6, "b", 0.5), (7, "b", 0.5)]
        for number in count():
            folder = shutil.copytree(tmp_path / "prepared", tmp_path / str(number))
            storage = FaultyStorage(LocalStorage(folder, sync=False))
            sink = await open_sink(storage)
            storage.before = step = AtStep(number, partial(compact, folder))
            await deliver(sink, 10, change(10, "delete", gone[:1]), change(10, "insert", [(7, "c", 0.5)]))
            await deliver(sink, 11, change(11, "delete", [*gone[1:], (7, "c", 0.5)]))
            assert rows_in(folder) == bag([row for row in rows if row not in gone]), number
            assert operations(folder).count("OPTIMIZE") == step.reached, number
            if not step.reached:
                break
        assert number >= 25

    async def test_compaction_between_any_two_steps_of_a_new_load(self, tmp_path: Path) -> None:
        """No row that was there before stays."""
        await self.prepare(tmp_path / "prepared")
        compacted = 0
        for number in count():
            folder = shutil.copytree(tmp_path / "prepared", tmp_path / str(number))
            storage = FaultyStorage(LocalStorage(folder, sync=False))
            sink = await open_sink(storage)
            await (await sink.begin(at(10))).commit(at(10, "snapshot"))
            delivery = await sink.begin(at(10, "snapshot"))
            storage.before = step = AtStep(number, partial(compact, folder))
            await delivery.write(change(10, "insert", [(6, "b", 0.5), (7, "a", 0.5)]))
            await delivery.commit(at(11))
            storage.before = nothing
            await deliver(sink, 11, change(11, "delete", [(6, "b", 0.5)]))
            assert rows_in(folder) == bag([(7, "a", 0.5)]), number
            compacted += operations(folder).count("OPTIMIZE")
            if not step.reached:
                break
        assert compacted >= 8

    @pytest.mark.parametrize("phase", ["stream", "snapshot"])
    async def test_delivery_before_which_others_always_commit_is_an_error(self, tmp_path: Path, phase: str) -> None:
        await self.prepare(tmp_path)
        storage = FaultyStorage(LocalStorage(tmp_path, sync=False))
        sink = await open_sink(storage)
        if phase == "snapshot":
            await (await sink.begin(at(10))).commit(at(10, "snapshot"))

        async def commit_before(method: str, path: str) -> None:
            if method == "put_if_absent":
                await storage.inner.put_if_absent(path, b'{"txn":{"appId":"other","version":1}}')

        delivery = await sink.begin(at(10, phase))
        await delivery.write(change(10, "insert", [(7, "c", 0.5)]))
        storage.before = commit_before
        with pytest.raises(SinkError, match="cannot commit: other writers were first each time") as caught:
            await delivery.commit(at(11))
        assert caught.value.retriable
        assert bag([(7, "c", 0.5)]) - rows_in(tmp_path)

    @pytest.mark.parametrize("opens_again", [False, True])
    @pytest.mark.parametrize("removes", [False, True])
    async def test_rows_of_others_are_refused(self, tmp_path: Path, removes: bool, opens_again: bool) -> None:
        folder = tmp_path / "t"
        sink = await open_sink(LocalStorage(folder), owner=7)
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5), (1, "a", 0.5)]))
        if removes:
            await asyncio.to_thread(DeltaTable(folder).delete, "id < 5")
        else:
            rows = pa.table({"id": [9], "v": ["x"], "f": [0.0]}, schema=SCHEMA)
            await asyncio.to_thread(write_deltalake, folder, rows, mode="append")
        if opens_again:
            sink = await open_sink(LocalStorage(folder), owner=8)
        with pytest.raises(SinkError, match="another writer has changed rows of the mirror") as caught:
            await deliver(sink, 1, change(1, "insert", [(2, "a", 0.5)]))
        assert caught.value.version == 2
        assert "progress reset" in str(caught.value.hint)

    async def test_rows_of_a_writer_that_gives_no_operation_are_refused(self, tmp_path: Path) -> None:
        folder = tmp_path / "t"
        sink = await open_sink(LocalStorage(folder))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        write_deltalake(folder, pa.table({"id": [9], "v": ["x"], "f": [0.0]}, schema=SCHEMA), mode="append")
        entry = folder / "_delta_log" / f"{2:020}.json"
        lines = [line for line in entry.read_text().splitlines() if "commitInfo" not in line]
        entry.write_text("\n".join(lines))
        with pytest.raises(SinkError, match=r"another writer has changed rows of the mirror \("):
            await deliver(sink, 1, change(1, "insert", [(2, "a", 0.5)]))

    async def test_a_deletion_vector_that_is_written_again(self, tmp_path: Path) -> None:
        """It may hide more rows than the file has bytes."""
        folder = tmp_path / "t"
        sink = await open_sink(LocalStorage(folder))
        await deliver(sink, 0, change(0, "insert", [(id, "a", 0.5) for id in range(4)]))
        await deliver(sink, 1, change(1, "delete", [(id, "a", 0.5) for id in range(3)]))
        commit = entries(folder)[-1]
        await deliver(sink, 2, change(2, "insert", [(6, "b", 0.5)]))
        add = next(action["add"] for action in commit if "add" in action) | {"dataChange": False, "size": 2}
        remove = {"path": add["path"], "deletionVector": add["deletionVector"], "dataChange": False}
        actions = [{"commitInfo": {"operation": "REORG"}}, {"remove": remove}, {"add": add}]
        path = folder / "_delta_log" / f"{len(entries(folder)):020}.json"
        path.write_text("\n".join(map(json.dumps, actions)))
        await deliver(sink, 3, change(3, "insert", [(7, "b", 0.5)]))
        assert rows_in(folder) == bag([(3, "a", 0.5), (6, "b", 0.5), (7, "b", 0.5)])

    async def test_a_log_that_is_cleaned_up_meanwhile(self, tmp_path: Path) -> None:
        folder = tmp_path / "t"
        sink = await open_sink(LocalStorage(folder), interval=1)
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5), (1, "a", 0.5)]))
        await deliver(sink, 1, change(1, "delete", [(0, "a", 0.5)]))
        for version in range(3):
            (folder / "_delta_log" / f"{version:020}.json").unlink(missing_ok=version == 2)
        again = await open_sink(LocalStorage(folder), interval=1)
        await deliver(again, 2, change(2, "delete", [(1, "a", 0.5)]))
        assert rows_in(folder) == bag([])

    async def test_the_newer_process_wins(self, tmp_path: Path) -> None:
        first = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(first, 0, change(0, "insert", [(0, "a", 0.5)]))
        second = await open_sink(LocalStorage(tmp_path / "t"))
        with pytest.raises(FencedError, match="taken the target over"):
            await deliver(first, 1, change(1, "delete", [(0, "a", 0.5)]))
        await deliver(second, 1, change(1, "delete", [(0, "a", 0.5)]))
        assert rows_in(tmp_path / "t") == bag([])

    async def test_rows_that_the_newer_process_has_deleted_are_not_missing(self, tmp_path: Path) -> None:
        first = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(first, 0, change(0, "insert", [(0, "a", 0.5)]))
        second = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(second, 1, change(1, "delete", [(0, "a", 0.5)]))
        with pytest.raises(FencedError, match="taken the target over"):
            await deliver(first, 1, change(1, "delete", [(0, "a", 0.5)]))


class TestChangeFeed:
    """A change data feed that the target has, although the settings of the sink say nothing of one."""

    @staticmethod
    def switch_on(folder: Path, name: str = "delta.enableChangeDataFeed") -> None:
        """Another writer does."""
        log = entries(folder)
        (protocol,) = (each["protocol"] for each in log[0] if "protocol" in each)
        (metadata,) = (each["metaData"] for each in log[0] if "metaData" in each)
        protocol["writerFeatures"] += ["changeDataFeed"]
        metadata["configuration"][name] = "true"
        added = folder / "_delta_log" / f"{len(log):020}.json"
        added.write_text("\n".join(map(json.dumps, [{"protocol": protocol}, {"metaData": metadata}])))

    @staticmethod
    def fed(folder: Path, version: int = -1) -> list[tuple[str, Row]]:
        """The rows of the change data files of a version, by default the last one."""
        paths = [each["cdc"]["path"] for each in entries(folder)[version] if "cdc" in each]
        rows = [row for path in paths for row in pq.read_table(folder / path).to_pylist()]
        return sorted((row["_change_type"], (row["id"], row["v"], row["f"])) for row in rows)

    UPDATE: ClassVar = [("update_preimage", (1, "a", 0.5)), ("update_postimage", (1, "b", 0.5))]

    @pytest.mark.parametrize("name", ["delta.enableChangeDataFeed", "delta.enableChangeDataCapture"])
    @pytest.mark.parametrize("opens_again", [False, True])
    async def test_it_gets_the_changes(self, tmp_path: Path, opens_again: bool, name: str) -> None:
        sink = await open_sink(LocalStorage(tmp_path), owner=7)
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5), (1, "a", 0.5)]))
        self.switch_on(tmp_path, name)
        if opens_again:
            sink = await open_sink(LocalStorage(tmp_path), owner=7)
        await deliver(sink, 1, *(change(1, kind, [row]) for kind, row in self.UPDATE))
        assert self.fed(tmp_path) == sorted(self.UPDATE)
        # Without deleted rows, the new files themselves are the changes.
        await deliver(sink, 2, change(2, "insert", [(2, "a", 0.5)]))
        assert self.fed(tmp_path) == []
        rows = cdfd.changes(tmp_path, 0).read_all().sort_by([("_commit_version", "ascending"), ("id", "ascending")])
        told = [(row["_change_type"], row["id"]) for row in rows.to_pylist()]
        assert told == [("insert", 0), ("insert", 1), ("update_preimage", 1), ("update_postimage", 1), ("insert", 2)]

    async def test_it_is_switched_on_between_any_two_steps(self, tmp_path: Path) -> None:
        """No version after that lacks its changes."""
        for number in count():
            folder = tmp_path / str(number)
            storage = FaultyStorage(LocalStorage(folder, sync=False))
            step = AtStep(number, partial(asyncio.to_thread, self.switch_on, folder))
            sink = await open_sink(storage, owner=7)
            await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5), (1, "a", 0.5)]))
            storage.before = step
            update = [change(1, kind, [row]) for kind, row in self.UPDATE]
            try:
                await deliver(sink, 1, *update)
            except SinkError as error:
                if not error.retriable:
                    raise
                sink = await open_sink(storage, owner=7)
                await deliver(sink, 1, *update)
            if not step.reached:
                break
            switched, updated = (
                next(version for version, entry in enumerate(entries(folder)) if version and word in json.dumps(entry))
                for word in ('"metaData":', '"deletionVector":')
            )
            assert self.fed(folder, updated) == (sorted(self.UPDATE) if switched < updated else []), number
        assert number >= 10


class TestPositions:
    async def test_versions_without_changes_commit_nothing_for_a_time(self, tmp_path: Path) -> None:
        folder = tmp_path / "t"
        sink = await open_sink(LocalStorage(folder))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        newest = len(entries(folder))
        for version in range(1, MOST_DEFERRED):
            rows = [(version, "a", 0.5)]
            unchanged = [change(version, "insert", rows), change(version, "delete", rows)]
            await deliver(sink, version, *(unchanged if version % 2 else []))
        assert await sink.last_position() == at(MOST_DEFERRED)
        assert len(entries(folder)) == newest
        # After a crash, the versions are delivered again.
        assert await (await open_sink(LocalStorage(folder), owner=sink.target._owner)).last_position() == at(1)
        await deliver(sink, MOST_DEFERRED)
        assert len(entries(folder)) == newest + 1
        await deliver(sink, MOST_DEFERRED + 1)
        await sink.close()
        assert len(entries(folder)) == newest + 2
        assert await (await open_sink(LocalStorage(folder))).last_position() == at(MOST_DEFERRED + 2)

    async def test_a_position_is_stored_after_an_hour(self, tmp_path: Path) -> None:
        clock = manual_clock()
        sink = await open_sink(LocalStorage(tmp_path), clock=clock)
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        newest = len(entries(tmp_path))
        clock.advance(MOST_DEFERRED_MS // 1000 - 1)
        await deliver(sink, 1)
        assert len(entries(tmp_path)) == newest
        clock.advance(1)
        await deliver(sink, 2)
        assert len(entries(tmp_path)) == newest + 1
        await deliver(sink, 3)
        assert len(entries(tmp_path)) == newest + 1

    async def test_the_beginning_of_a_snapshot_is_not_stored(self, tmp_path: Path) -> None:
        """Its rows replace all others in one version, which stores the position after it."""
        sink = await open_sink(LocalStorage(tmp_path))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        delivery = await sink.begin(at(1))
        await delivery.commit(at(1, "snapshot"))
        await sink.close()
        assert await (await open_sink(LocalStorage(tmp_path))).last_position() == at(1)

    async def test_a_snapshot_replaces_all_rows_and_columns(self, tmp_path: Path) -> None:
        folder = tmp_path / "t"
        sink = await open_sink(LocalStorage(folder), change_feed=True)
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5), (1, "a", 0.5)]))
        delivery = await sink.begin(at(1))
        await delivery.commit(at(1, "snapshot"))
        schema = pa.schema([("id", pa.int64()), ("v", pa.int32())])
        delivery = await sink.begin(at(1, "snapshot"))
        await delivery.write(change(1, "insert", [(1, 7), (2, 8)], schema))
        await delivery.commit(at(2))
        assert rows_in(folder, schema) == bag([(1, 7), (2, 8)])
        assert snapshot(folder).schema.names[:3] == ["id", "v", "_change_type"]
        delivery = await sink.begin(at(2))
        await delivery.write(change(2, "delete", [(2, 8)], schema))
        await delivery.commit(at(3))
        assert rows_in(folder, schema) == bag([(1, 7)])
        assert await (await open_sink(LocalStorage(folder), change_feed=True)).last_position() == at(3)


def set_rules(folder: Path, properties: dict[str, str], **columns: dict[str, Any]) -> None:
    """Change properties of the mirror, and parts of its columns, as another writer may."""
    log = entries(folder)
    metadata = [action["metaData"] for entry in log for action in entry if "metaData" in action][-1]
    schema = json.loads(metadata["schemaString"])
    for each in schema["fields"]:
        each |= columns.get(each["name"], {})
    changed = {"schemaString": json.dumps(schema), "configuration": metadata["configuration"] | properties}
    entry = folder / "_delta_log" / f"{len(log):020}.json"
    entry.write_text(json.dumps({"metaData": metadata | changed}))


class TestRules:
    """Rules that another writer has given to the columns of a mirror."""

    LESS: ClassVar[pa.Schema] = pa.schema([("id", pa.int64()), ("f", pa.float64())])

    async def reload(self, folder: Path, rows: Sequence[Row], sink: MirrorSink | None = None) -> None:
        """Load the mirror again from a source that has dropped a column."""
        sink = sink or await open_sink(LocalStorage(folder))
        await (await sink.begin(at(1))).commit(at(1, "snapshot"))
        delivery = await sink.begin(at(1, "snapshot"))
        await delivery.write(change(1, "insert", rows, self.LESS))
        await delivery.commit(at(2))

    async def test_rules_of_columns_outlive_another_load(self, tmp_path: Path) -> None:
        await deliver(await open_sink(LocalStorage(tmp_path)), 0, change(0, "insert", [(0, "a", 0.5)]))
        set_rules(tmp_path, {}, id={"nullable": False, "metadata": {"comment": "mine"}})
        with pytest.raises(SinkError, match="column 'id' of the target may not be null, and a row has no value"):
            await self.reload(tmp_path, [(None, 0.5)])
        await self.reload(tmp_path, [(1, 0.5)])
        assert rows_in(tmp_path, self.LESS) == bag([(1, 0.5)])
        (metadata,) = (each["metaData"] for each in entries(tmp_path)[-1] if "metaData" in each)
        assert json.loads(metadata["schemaString"])["fields"] == [
            {"name": "id", "type": "long", "nullable": False, "metadata": {"comment": "mine"}},
            {"name": "f", "type": "double", "nullable": True, "metadata": {}},
        ]

    @pytest.mark.parametrize("rule", ["mapping", "constraint", "not null"])
    async def test_rules_that_another_writer_gives_before_another_load(self, tmp_path: Path, rule: str) -> None:
        """The sink stays open, and does not know them yet. The daemon opens it again after the error."""
        sink = await open_sink(LocalStorage(tmp_path))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        if rule == "mapping":
            columns = {
                name: {"metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}}
                for number, name in enumerate(SCHEMA.names, 1)
            }
            set_rules(tmp_path, {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}, **columns)
        elif rule == "constraint":
            set_rules(tmp_path, {"delta.constraints.c": "id > 5"})
        else:
            set_rules(tmp_path, {}, id={"nullable": False})
        with pytest.raises(SinkError, match="another writer changed the columns or the rules") as error:
            await self.reload(tmp_path, [(None, 0.5)], sink)
        assert error.value.retriable
        assert rows_in(tmp_path) == bag([(0, "a", 0.5)])
        await self.reload(tmp_path, [(7, 0.5)])
        assert rows_in(tmp_path, self.LESS) == bag([(7, 0.5)])
        if rule == "mapping":
            (metadata,) = (each["metaData"] for each in entries(tmp_path)[-1] if "metaData" in each)
            assert all(
                "delta.columnMapping.id" in field["metadata"]
                for field in json.loads(metadata["schemaString"])["fields"]
            )

    @pytest.mark.parametrize("mapped", [False, True])
    async def test_rules_inside_of_columns_outlive_another_load(self, tmp_path: Path, mapped: bool) -> None:
        inside = pa.struct([("a", pa.int64()), ("b", pa.string())])
        schema = pa.schema(
            [("id", pa.int64()), ("s", inside), ("l", pa.list_(inside)), ("m", pa.map_(pa.string(), inside))]
        )
        value = {"a": 1, "b": "x"}
        sink = await TestFollow.open(tmp_path) if mapped else await open_sink(LocalStorage(tmp_path))
        await deliver(sink, 0, change(0, "insert", [(0, value, [value], [("k", value)])], schema))
        log = entries(tmp_path)
        metadata = [action["metaData"] for entry in log for action in entry if "metaData" in action][-1]
        _, struct, array, by_key = (each for each in json.loads(metadata["schemaString"])["fields"])
        for kind in (struct["type"], array["type"]["elementType"], by_key["type"]["valueType"]):
            kind["fields"][0] |= {"nullable": False, "metadata": {**kind["fields"][0]["metadata"], "comment": "inner"}}
        array["type"]["containsNull"] = by_key["type"]["valueContainsNull"] = False
        rules = {name: {"type": each["type"]} for name, each in (("s", struct), ("l", array), ("m", by_key))}
        rules["s"]["metadata"] = {**struct["metadata"], "comment": "outer"}
        set_rules(tmp_path, {}, **rules)

        async def reload(*row: Any) -> None:
            sink = await open_sink(LocalStorage(tmp_path))
            await (await sink.begin(at(1))).commit(at(1, "snapshot"))
            delivery = await sink.begin(at(1, "snapshot"))
            await delivery.write(change(1, "insert", [row], schema))
            await delivery.commit(at(2))

        wrong = {"a": None, "b": "y"}
        for row, path in (
            ((1, wrong, [value], [("k", value)]), "s.a"),
            ((1, value, [wrong], [("k", value)]), "l.element.a"),
            ((1, value, [None], [("k", value)]), "l.element"),
            ((1, value, [value], [("k", wrong)]), "m.value.a"),
            ((1, value, [value], [("k", None)]), "m.value"),
        ):
            with pytest.raises(SinkError, match=f"column '{path[0]}"):
                await reload(*row)
        await reload(2, value, [value], [("k", value)])
        assert rows_in(tmp_path, schema) == bag([(2, value, [value], [("k", value)])])
        metadata = [action["metaData"] for entry in entries(tmp_path) for action in entry if "metaData" in action][-1]
        _, struct, array, by_key = (each for each in json.loads(metadata["schemaString"])["fields"])
        assert struct["metadata"]["comment"] == "outer"
        assert {
            (kind["fields"][0]["nullable"], kind["fields"][0]["metadata"]["comment"])
            for kind in (struct["type"], array["type"]["elementType"], by_key["type"]["valueType"])
        } == {(False, "inner")}

    async def test_partitions_of_the_mirror_outlive_another_load_without_the_setting(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path), partition_by=("v",))
        await deliver(sink, 0, change(0, "insert", [(1, "a", 1), (2, "b", 2)]))
        sink = await open_sink(LocalStorage(tmp_path))
        await (await sink.begin(at(1))).commit(at(1, "snapshot"))
        delivery = await sink.begin(at(1, "snapshot"))
        await delivery.write(change(1, "insert", [(3, "c", 3)]))
        await delivery.commit(at(2))
        metadata = [action["metaData"] for entry in entries(tmp_path) for action in entry if "metaData" in action][-1]
        assert metadata["partitionColumns"] == ["v"]
        assert rows_in(tmp_path) == bag([(3, "c", 3.0)])

    @pytest.mark.parametrize("mapped", [False, True])
    async def test_columns_that_cluster_the_mirror_outlive_another_load(self, tmp_path: Path, mapped: bool) -> None:
        """With column mapping, all columns get other physical names. A column that the source has dropped clusters nothing any more."""
        sink = await TestFollow.open(tmp_path) if mapped else await open_sink(LocalStorage(tmp_path))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        cluster(tmp_path, "id", "v")
        await self.reload(tmp_path, [(1, 0.5)])
        assert clustering(tmp_path) == ["id"]

    async def test_a_column_that_a_constraint_names_stays(self, tmp_path: Path) -> None:
        """No writer could append to a table with a constraint for a column that it does not have."""
        await deliver(await open_sink(LocalStorage(tmp_path)), 0, change(0, "insert", [(0, "a", 0.5)]))
        set_rules(tmp_path, {"delta.constraints.c": "v IS NULL OR v <> 'bad'"})
        with pytest.raises(SinkError, match=r"the CHECK constraint 'c' cannot be checked .* there is no column 'v'"):
            await self.reload(tmp_path, [(1, 0.5)])
        assert rows_in(tmp_path) == bag([(0, "a", 0.5)])


class TestShape:
    """Rows that were made with other settings cannot stay."""

    NEW: ClassVar[Shape] = Shape(where=parse_filter("id > 1"))

    @staticmethod
    def stored(folder: Path) -> str | None:
        metadata = [action["metaData"] for entry in entries(folder) for action in entry if "metaData" in action]
        shape: str | None = metadata[-1]["configuration"].get("cdfd.changelog.shape")
        return shape

    async def load(self, storage: Storage) -> None:
        """Bring the mirror to version 1 in the new shape, as a daemon does."""
        sink = await open_sink(storage, shape=self.NEW)
        if sink.needs_snapshot is not None:
            assert await sink.last_position() == at(1)
            await (await sink.begin(at(1))).commit(at(0, "snapshot"))
            delivery = await sink.begin(at(0, "snapshot"))
            await delivery.write(change(0, "insert", [(2, "a", 0.5)]))
            await delivery.commit(at(1))
        assert sink.needs_snapshot is None
        await sink.close()

    async def test_all_rows_are_replaced_where_the_mirror_is_whatever_step_fails(self, tmp_path: Path) -> None:
        for number in count():
            folder, error = tmp_path / str(number), StorageError("reset", retriable=True)
            sink = await open_sink(LocalStorage(folder, sync=False))
            await deliver(sink, 0, change(0, "insert", [(1, "a", 0.5), (2, "a", 0.5)]))
            await sink.close()
            assert self.stored(folder) == AS_IT_IS.digest
            step = AtStep(number, error)
            with contextlib.suppress(SinkError):
                await self.load(FaultyStorage(LocalStorage(folder, sync=False), after=step))
            await self.load(LocalStorage(folder, sync=False))
            sink = await open_sink(LocalStorage(folder, sync=False), shape=self.NEW)
            await deliver(sink, 1, change(1, "insert", [(3, "a", 0.5)]), change(1, "delete", [(2, "a", 0.5)]))
            assert rows_in(folder) == by_delta_rs(folder) == bag([(3, "a", 0.5)])
            assert self.stored(folder) == self.NEW.digest
            if not step.reached:
                break
        assert number >= 8

    async def test_a_load_whose_commit_has_no_answer_is_not_repeated(self, tmp_path: Path) -> None:
        storage = FaultyStorage(LocalStorage(tmp_path))
        sink = await open_sink(storage, shape=self.NEW)
        assert sink.needs_snapshot is None
        await deliver(sink, 0, change(0, "insert", [(2, "a", 0.5)]))
        await (await sink.begin(at(1))).commit(at(1, "snapshot"))
        delivery = await sink.begin(at(1, "snapshot"))
        await delivery.write(change(1, "insert", [(3, "a", 0.5)]))
        before = len(entries(tmp_path))
        # The client of the store repeats the request, and finds the entry that it has just written.
        storage.after = AtStep(0, ExistsError("exists"), lambda method, _: method == "put_if_absent")
        await delivery.commit(at(2))
        assert len(entries(tmp_path)) == before + 1
        assert rows_in(tmp_path) == bag([(3, "a", 0.5)])

    async def test_nothing_else_stores_the_new_shape(self, tmp_path: Path) -> None:
        await deliver(await open_sink(LocalStorage(tmp_path)), 0, change(0, "insert", [(1, "a", 0.5)]))
        for begins in (False, True):
            sink = await open_sink(LocalStorage(tmp_path), shape=self.NEW)
            if begins:
                await (await sink.begin(at(1))).commit(at(0, "snapshot"))
            await sink.set_control(sink.control.remember(f"request {begins}"))
            await sink.close()
            assert self.stored(tmp_path) == AS_IT_IS.digest
            assert sink.needs_snapshot is not None

    async def test_a_mirror_of_an_earlier_release_gets_it_with_the_next_version(self, tmp_path: Path) -> None:
        await deliver(await open_sink(LocalStorage(tmp_path)), 0, change(0, "insert", [(1, "a", 0.5)]))
        for entry in (tmp_path / "_delta_log").glob("*.json"):
            entry.write_text(entry.read_text().replace(f',"cdfd.changelog.shape":"{AS_IT_IS.digest}"', ""))
        assert self.stored(tmp_path) is None
        sink = await open_sink(LocalStorage(tmp_path), shape=self.NEW)
        assert sink.needs_snapshot is None
        await deliver(sink, 1, change(1, "insert", [(2, "a", 0.5)]))
        assert self.stored(tmp_path) == self.NEW.digest
        assert rows_in(tmp_path) == bag([(1, "a", 0.5), (2, "a", 0.5)])


class TestControl:
    async def test_a_pause_is_stored_with_the_position(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5), (1, "a", 0.5)]))
        await deliver(sink, 1)
        paused = replace(sink.control, paused=Pause("p", 1)).remember("p")
        await sink.set_control(paused)
        again = await open_sink(LocalStorage(tmp_path))
        assert again.control == paused
        assert await again.last_position() == at(2)
        await again.set_control(replace(paused, paused=None).remember("r"))
        await deliver(again, 2, change(2, "delete", [(0, "a", 0.5)]))
        assert (await open_sink(LocalStorage(tmp_path))).control.recent == ("p", "r")
        assert rows_in(tmp_path) == bag([(1, "a", 0.5)])

    async def test_a_pause_before_the_first_row(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path))
        delivery = await sink.begin(at(3, "snapshot"))
        await delivery.commit(at(3, "snapshot"))
        assert not list(tmp_path.iterdir())
        await sink.set_control(Control(paused=Pause("p", 1)))
        again = await open_sink(LocalStorage(tmp_path))
        assert again.control.paused == Pause("p", 1)
        assert await again.last_position() == at(3, "snapshot")
        delivery = await again.begin(at(3, "snapshot"))
        await delivery.write(change(3, "insert", [(0, "a", 0.5)]))
        await delivery.commit(at(4))
        assert rows_in(tmp_path) == by_delta_rs(tmp_path) == bag([(0, "a", 0.5)])

    async def test_resnapshots_and_moves_are_refused(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        newest = len(entries(tmp_path))
        with pytest.raises(UnsupportedError, match="takes no incremental snapshot") as caught:
            await sink.set_control(sink.control.begin("s", ""))
        assert "progress reset" in str(caught.value.hint)
        with pytest.raises(UnsupportedError, match="cannot skip versions"):
            await sink.set_control(sink.control, at(5))
        assert len(entries(tmp_path)) == newest
        await deliver(sink, 1, change(1, "delete", [(0, "a", 0.5)]))
        assert rows_in(tmp_path) == bag([])


class TestSchema:
    async def test_new_columns_and_wider_types(self, tmp_path: Path) -> None:
        folder, narrow = tmp_path / "t", pa.schema([("id", pa.int32()), ("v", pa.string())])
        wide = pa.schema([("id", pa.int64()), ("new", pa.string()), ("v", pa.string())])
        sink = await open_sink(LocalStorage(folder))
        await deliver(sink, 0, change(0, "insert", [(0, "a"), (1, "a"), (2, "a")], narrow))
        await deliver(sink, 1, change(1, "delete", [(0, "a")], narrow))
        # The key is wider now, and so is each hash.
        await deliver(
            sink, 2, change(2, "delete", [(1, None, "a")], wide), change(2, "insert", [(1 << 40, "x", "a")], wide)
        )
        assert rows_in(folder, wide) == bag([(2, None, "a"), (1 << 40, "x", "a")])
        # Rows that were written since the keys were read again are known as well.
        for version, (before, after) in enumerate([("a", "b"), ("b", "c")], 3):
            old, new = ([(2, None, value)] for value in (before, after))
            await deliver(
                sink,
                version,
                change(version, "update_preimage", old, wide),
                change(version, "update_postimage", new, wide),
            )
        assert rows_in(folder, wide) == bag([(2, None, "c"), (1 << 40, "x", "a")])

    async def test_new_columns_within_a_snapshot(self, tmp_path: Path) -> None:
        narrow = pa.schema([("id", pa.int64()), ("v", pa.string())])
        sink = await open_sink(LocalStorage(tmp_path))
        delivery = await sink.begin(at(0, "snapshot"))
        await delivery.write(change(0, "insert", [(0, "a"), (1, "a")], narrow))
        await delivery.write(change(0, "insert", [(2, "a", 0.5)]))
        await delivery.commit(at(1))
        assert rows_in(tmp_path) == bag([(0, "a", None), (1, "a", None), (2, "a", 0.5)])

    async def test_a_delivery_leads_forward(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        delivery = await sink.begin(at(1))
        await delivery.write(change(1, "insert", [(1, "a", 0.5)]))
        with pytest.raises(SinkError, match="cannot lead to"):
            await delivery.commit(at(0))

    async def test_columns_that_are_missing(self, tmp_path: Path) -> None:
        less = pa.schema([("id", pa.int64()), ("v", pa.string())])
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        delivery = await sink.begin(at(1))
        with pytest.raises(SnapshotNeededError, match="no column 'f' any more"):
            await delivery.write(change(1, "insert", [(1, "a")], less))
        with pytest.raises(SinkError, match="the delivery has failed"):
            await delivery.commit(at(2))
        await delivery.abort()
        text = pa.schema([("id", pa.int64()), ("v", pa.string()), ("f", pa.string())])
        delivery = await sink.begin(at(1))
        with pytest.raises(SnapshotNeededError, match="changes its type from double to string"):
            await delivery.write(change(1, "insert", [(1, "a", "b")], text))

    @pytest.mark.parametrize(
        ("change_of_schema", "what"),
        [
            (SchemaChange(dropped=(("x",),)), "dropped x"),
            (SchemaChange(renamed=(Rename(("x",), ("y",)),)), "renamed x to y"),
        ],
    )
    async def test_version_that_drops_or_renames_a_column_needs_a_snapshot(
        self, tmp_path: Path, change_of_schema: SchemaChange, what: str
    ) -> None:
        version = Version(ChangePlan(1, 0, TableSchema(from_arrow(SCHEMA)), (), "files"), "T", change_of_schema)
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        # Without a column, there is none to lose.
        delivery = await sink.begin(at(0))
        await delivery.start_version(version)
        await delivery.write(change(0, "insert", [(0, "a", 0.5)]))
        await delivery.commit(at(1))
        with pytest.raises(SnapshotNeededError, match=f"the schema changes: {what}"):
            await (await sink.begin(at(1))).start_version(version)

    @pytest.mark.parametrize("needs", [False, True])
    async def test_columns_that_the_mirror_does_not_have_may_change(self, tmp_path: Path, needs: bool) -> None:
        lost = "f" if needs else "note"
        schema_change = SchemaChange(dropped=((lost,),), renamed=(Rename(("x",), ("y",)),))
        version = Version(ChangePlan(1, 0, TableSchema(from_arrow(SCHEMA)), (), "files"), "T", schema_change)
        shape = Shape(columns=tuple(Chosen(name) for name in SCHEMA.names))
        sink = await open_sink(LocalStorage(tmp_path / "t"), shape=shape)
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        delivery = await sink.begin(at(1))
        with pytest.raises(SnapshotNeededError, match="dropped f") if needs else contextlib.nullcontext():
            await delivery.start_version(version)
        await delivery.abort()

    async def test_columns_of_several_schemas_in_a_delivery_add_up(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        wide = [pa.schema([*SCHEMA, pa.field(name, pa.int64())]) for name in ("x", "y")]
        await deliver(
            sink,
            0,
            change(0, "insert", [(0, "a", 0.5)]),
            change(0, "insert", [(1, "a", 0.5, 7)], wide[0]),
            change(0, "insert", [(2, "a", 0.5, 8)], wide[1]),
        )
        rows = snapshot(tmp_path / "t").read_all().sort_by("id")
        assert (rows["x"].to_pylist(), rows["y"].to_pylist()) == ([None, 7, None], [None, None, 8])

    @pytest.mark.parametrize("phase", ["stream", "snapshot"])
    async def test_a_commit_whose_outcome_is_unknown_ends_the_sink(self, tmp_path: Path, phase: str) -> None:
        storage = FaultyStorage(LocalStorage(tmp_path / "t"))
        sink = await open_sink(storage)
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        if phase == "snapshot":
            await (await sink.begin(at(1))).commit(at(1, phase))
        storage.after = AtStep(0, Died(), lambda method, _: method == "put_if_absent")
        delivery = await sink.begin(at(1, phase))
        await delivery.write(change(1, "insert", [(1, "a", 0.5)]))
        with pytest.raises(Died):
            await delivery.commit(at(2))
        with pytest.raises(SinkError, match="the outcome of the last commit is unknown"):
            await sink.last_position()
        assert await (await open_sink(LocalStorage(tmp_path / "t"))).last_position() == at(2)


class TestFollow:
    """Names that the source drops or changes, in the mirror. The sink stays open, so the index of keys is that of the columns before."""

    @staticmethod
    async def open(place: Path | Storage, key: str = "id", *, change_feed: bool = False) -> MirrorSink:
        layout = Layout(on_missing_column="follow", checkpoint_interval=3, mode=mirror_mode(change_feed=change_feed))
        storage = LocalStorage(place) if isinstance(place, Path) else place
        target = Target(storage, APP, layout, SystemClock(), owner=7)
        options = MirrorOptions((key,), change_feed, SpillSpace())
        return await MirrorSink.open(target, partial(DataFiles, compression="snappy", file_bytes=1 << 20), options)

    @staticmethod
    def source(columns: pa.Schema, names: dict[str, str]) -> TableSchema:
        """The schema of a source: `names` are the physical names of columns and nested fields, by their dotted paths."""

        def mapped(struct: StructType, path: str = "") -> StructType:
            fields = []
            for child in struct:
                kind = mapped(child.type, f"{path}{child.name}.") if isinstance(child.type, StructType) else child.type
                metadata = {"delta.columnMapping.physicalName": names[path + child.name]}
                fields.append(StructField(child.name, kind, True, metadata))
            return StructType(tuple(fields))

        return TableSchema(mapped(from_arrow(columns)), (), ColumnMappingMode.NAME)

    async def deliver(
        self, sink: MirrorSink, version: int, names: dict[str, str], schema: pa.Schema, **rows: Sequence[Row]
    ) -> None:
        """Deliver deleted rows (`delete`) and new ones (`insert`) of a version of the source."""
        delivery = await sink.begin(at(version))
        plan = ChangePlan(version, 0, self.source(schema, names), (), "files")
        await delivery.start_version(Version(plan, "T"))
        for kind, some in rows.items():
            await delivery.write(change(version, kind, some, schema))
        await delivery.commit(at(version + 1))

    @pytest.mark.parametrize("change_feed", [False, True])
    @pytest.mark.parametrize("opens_again", [False, True])
    async def test_renames_and_drops(self, tmp_path: Path, opens_again: bool, change_feed: bool) -> None:
        first = pa.schema([("id", pa.int64()), ("old", pa.string()), ("gone", pa.int32())])
        renamed = pa.schema([("id", pa.int64()), ("new", pa.string()), ("gone", pa.int32())])
        less = pa.schema([("id", pa.int64()), ("new", pa.string())])
        again = pa.schema([("id", pa.int64()), ("new", pa.string()), ("gone", pa.string())])
        names = {"id": "p1", "old": "p2", "new": "p2", "gone": "p3"}
        sink = await self.open(tmp_path, change_feed=change_feed)

        async def reopened() -> MirrorSink:
            if not opens_again:
                return sink
            await sink.close()
            return await self.open(tmp_path, change_feed=change_feed)

        await self.deliver(sink, 0, names, first, insert=[(n, "a", n) for n in range(6)])
        await self.deliver(sink, 1, names, first, delete=[(0, "a", 0)])
        sink = await reopened()
        await self.deliver(sink, 2, names, renamed, delete=[(1, "a", 1)], insert=[(1, "b", 1)])
        assert rows_in(tmp_path, renamed) == bag([(1, "b", 1), *((n, "a", n) for n in range(2, 6))])
        sink = await reopened()
        await self.deliver(sink, 3, names, less, delete=[(2, "a"), (1, "b")])
        assert rows_in(tmp_path, less) == bag([(n, "a") for n in range(3, 6)])
        assert snapshot(tmp_path).schema.names[:3] == ["id", "new", "_change_type"]
        sink = await reopened()
        # A new column of the same name has none of the old values.
        await self.deliver(sink, 4, names | {"gone": "p4"}, again, delete=[(3, "a", None)], insert=[(6, "c", "x")])
        assert rows_in(tmp_path, again) == bag([(4, "a", None), (5, "a", None), (6, "c", "x")])
        table = pa.table(DeltaTable(tmp_path).scan()).select(again.names)
        assert sorted(map(tuple, zip(*(column.to_pylist() for column in table.columns), strict=True)))[2] == (
            6,
            "c",
            "x",
        )

    async def test_compaction_before_the_commit_of_a_rename(self, tmp_path: Path) -> None:
        """It changes no column, so the rows that are written are right."""
        first = pa.schema([("id", pa.int64()), ("old", pa.string())])
        renamed = pa.schema([("id", pa.int64()), ("new", pa.string()), ("more", pa.string())])
        names = {"id": "p1", "old": "p2", "new": "p2", "more": "p3"}
        storage = FaultyStorage(LocalStorage(tmp_path, sync=False))
        sink = await self.open(storage)
        for version in range(10):
            await self.deliver(sink, version, names, first, insert=[(version, "a")])
        entry = f"_delta_log/{len(entries(tmp_path)):020}.json"
        storage.before = step = AtStep(0, partial(compact, tmp_path), lambda *each: each == ("put_if_absent", entry))
        await self.deliver(sink, 10, names, renamed, delete=[(1, "a", None)], insert=[(1, "b", "c")])
        assert step.reached
        assert operations(tmp_path)[-2] == "OPTIMIZE"
        assert rows_in(tmp_path, renamed) == bag([(1, "b", "c"), *((n, "a", None) for n in range(10) if n != 1)])

    async def test_only_a_rename(self, tmp_path: Path) -> None:
        """A version with no rows after it changes nothing: the first rows with the new name rename the column."""
        schema, names = pa.schema([("id", pa.int64()), ("old", pa.string())]), {"id": "p1", "old": "p2", "new": "p2"}
        renamed = pa.schema([("id", pa.int64()), ("new", pa.string())])
        sink = await self.open(tmp_path)
        await self.deliver(sink, 0, names, schema, insert=[(0, "a")])
        await self.deliver(sink, 1, names, renamed)
        assert rows_in(tmp_path, schema) == bag([(0, "a")])
        await self.deliver(sink, 2, names, renamed, insert=[(1, "b")])
        assert rows_in(tmp_path, renamed) == bag([(0, "a"), (1, "b")])

    @pytest.mark.parametrize("nested", [False, True])
    async def test_a_column_that_is_dropped_and_added_again_before_any_rows(self, tmp_path: Path, nested: bool) -> None:
        """The mirror still has the column that was dropped. The new one has its name, and none of its values."""
        schema = pa.schema([("id", pa.int64()), ("v", pa.struct([("a", pa.string())]) if nested else pa.string())])
        less = pa.schema([("id", pa.int64()), *([("v", pa.struct([("b", pa.string())]))] if nested else [])])
        names, column = {"id": "p1", "v": "p2", "v.a": "q1", "v.b": "q2"}, "v.a" if nested else "v"
        old, new = ({"a": "x"}, {"a": "y"}) if nested else ("x", "y")
        sink = await self.open(tmp_path)
        await self.deliver(sink, 0, names, schema, insert=[(1, old), (2, old)])
        await self.deliver(sink, 1, names, less)
        names |= {column: "p3"}
        await self.deliver(sink, 2, names, schema)
        with pytest.raises(SnapshotNeededError, match=f"another column has the name '{column}' now"):
            await self.deliver(sink, 3, names, schema, insert=[(3, new)])
        await sink.close()
        sink = await self.open(tmp_path)
        await (await sink.begin(at(3))).commit(at(3, "snapshot"))
        delivery = await sink.begin(at(3, "snapshot"))
        await delivery.start_version(Version(ChangePlan(3, 0, self.source(schema, names), (), "files"), "T"))
        empty = {"a": None} if nested else None
        await delivery.write(change(3, "insert", [(1, empty), (2, empty), (3, new)], schema))
        await delivery.commit(at(4))
        await self.deliver(sink, 4, names, schema, delete=[(1, empty)])
        assert rows_in(tmp_path, schema) == bag([(2, empty), (3, new)])

    async def test_nested_fields(self, tmp_path: Path) -> None:
        def schema(**fields: pa.DataType) -> pa.Schema:
            return pa.schema([("id", pa.int64()), ("s", pa.struct(list(fields.items())))])

        names = {"id": "p1", "s": "p2", "s.a": "q1", "s.b": "q2", "s.z": "q2"}
        sink = await self.open(tmp_path)
        first, renamed, less = (
            schema(a=pa.int64(), b=pa.string()),
            schema(a=pa.int64(), z=pa.string()),
            schema(z=pa.string()),
        )
        await self.deliver(sink, 0, names, first, insert=[(n, {"a": n, "b": "x"}) for n in range(4)])
        await self.deliver(sink, 1, names, first, delete=[(0, {"a": 0, "b": "x"})])
        await self.deliver(sink, 2, names, renamed, delete=[(1, {"a": 1, "z": "x"})], insert=[(1, {"a": 1, "z": "y"})])
        assert rows_in(tmp_path, renamed) == bag([(n, {"a": n, "z": "y" if n == 1 else "x"}) for n in (1, 2, 3)])
        await self.deliver(sink, 3, names, less, delete=[(2, {"z": "x"})], insert=[(4, {"z": None})])
        assert rows_in(tmp_path, less) == bag([(1, {"z": "y"}), (3, {"z": "x"}), (4, {"z": None})])

    @pytest.mark.parametrize("nested", [False, True])
    async def test_restore_behind_a_rename(self, tmp_path: Path, nested: bool) -> None:
        """Deleted rows have the columns by the names before that version. They are compared, and are in the change feed."""

        def schema(name: str) -> pa.Schema:
            field = pa.field(name, pa.string())
            other = pa.field("z", pa.int64())
            columns = [pa.field("s", pa.struct([other, field]))] if nested else [other, field]
            return pa.schema([pa.field("id", pa.int64()), *columns])

        def row(name: str, value: str) -> Row:
            return (1, {"z": 7, name: value}) if nested else (1, 7, value)

        names = {"id": "p1", "s": "p2"} | {f"{'s.' if nested else ''}{name}": name[0] for name in ("old", "new", "z")}
        names |= {f"{'s.' if nested else ''}new": "o"}
        old, new = schema("old"), schema("new")
        sink = await self.open(tmp_path, change_feed=True)
        await self.deliver(sink, 0, names, old, insert=[row("old", "a"), row("old", "b")])
        await self.deliver(
            sink,
            1,
            names,
            new,
            delete=[row("new", "a"), row("new", "b")],
            insert=[row("new", "c"), row("new", "d")],
        )
        scans = (FileScan("a", "delete", {}, 1, schema=self.source(new, names)),)
        delivery = await sink.begin(at(2))
        await delivery.start_version(Version(ChangePlan(2, 0, self.source(old, names), scans, "files"), "T"))
        await delivery.write(change(2, "delete", [row("new", "c")], new))
        await delivery.write(change(2, "insert", [row("old", "a")], old))
        await delivery.commit(at(3))
        assert rows_in(tmp_path, old) == bag([row("old", "a"), row("old", "d")])
        changed = cdfd.changes(tmp_path, start=DeltaTable(tmp_path).version()).read_all().select(old.names)
        assert bag(list(map(tuple, map(dict.values, changed.to_pylist())))) == bag([row("old", "c"), row("old", "a")])

    async def test_rows_that_are_compared(self, tmp_path: Path) -> None:
        """Rows with one key are compared by all columns, also if files have other names for them."""
        schema, names = pa.schema([("id", pa.int64()), ("old", pa.string())]), {"id": "p1", "old": "p2", "new": "p2"}
        renamed = pa.schema([("new", pa.string()), ("id", pa.int64())])
        sink = await self.open(tmp_path)
        await self.deliver(sink, 0, names, schema, insert=[(1, "a"), (1, "b"), (1, "c")])
        await self.deliver(sink, 1, names, renamed, delete=[("b", 1)], insert=[("d", 1)])
        assert rows_in(tmp_path, renamed) == bag([("a", 1), ("c", 1), ("d", 1)])

    async def test_a_column_that_a_constraint_names_is_not_renamed(self, tmp_path: Path) -> None:
        schema, names = pa.schema([("id", pa.int64()), ("old", pa.string())]), {"id": "p1", "old": "p2", "new": "p2"}
        renamed = pa.schema([("id", pa.int64()), ("new", pa.string())])
        await self.deliver(await self.open(tmp_path), 0, names, schema, insert=[(1, "a")])
        set_rules(tmp_path, {"delta.constraints.c": "old IS NULL OR old <> 'bad'"})
        with pytest.raises(SinkError, match=r"the CHECK constraint 'c' cannot be checked .* there is no column 'old'"):
            await self.deliver(await self.open(tmp_path), 1, names, renamed, insert=[(2, "bad")])
        assert rows_in(tmp_path, schema) == bag([(1, "a")])

    async def test_a_key_that_is_renamed(self, tmp_path: Path) -> None:
        """The key is named in the settings, so a rename of it stops the table until these follow."""
        schema, names = pa.schema([("id", pa.int64()), ("v", pa.string())]), {"id": "p1", "nr": "p1", "v": "p2"}
        renamed = pa.schema([("nr", pa.int64()), ("v", pa.string())])
        sink = await self.open(tmp_path)
        await self.deliver(sink, 0, names, schema, insert=[(0, "a"), (1, "a")])
        with pytest.raises(SinkError, match="no column 'id' of the key"):
            await self.deliver(sink, 1, names, renamed, delete=[(0, "a")])
        await sink.close()
        sink = await self.open(tmp_path, key="nr")
        await self.deliver(sink, 1, names, renamed, delete=[(0, "a")])
        assert rows_in(tmp_path, renamed) == bag([(1, "a")])

    async def test_a_type_that_cannot_hold_the_values(self, tmp_path: Path) -> None:
        names = {"id": "p1", "v": "p2"}
        sink = await self.open(tmp_path)
        await self.deliver(sink, 0, names, pa.schema([("id", pa.int64()), ("v", pa.string())]), insert=[(0, "a")])
        other = pa.schema([("id", pa.int64()), ("v", pa.int64())])
        with pytest.raises(SnapshotNeededError, match="changes its type from string to long"):
            await self.deliver(sink, 1, names, other, insert=[(1, 1)])


class TestRefused:
    async def test_a_row_that_the_mirror_does_not_have(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        with pytest.raises(SinkError, match="lacks rows that the source deletes or updates: 2"):
            await deliver(sink, 1, change(1, "delete", [(0, "a", 0.5), (1, "a", 0.5), (2, "a", 0.5)]))

    async def test_a_key_that_is_no_column(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"), key=("nr",))
        with pytest.raises(SinkError, match="no column 'nr' of the key"):
            await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))

    async def test_a_key_that_is_nested(self, tmp_path: Path) -> None:
        schema = pa.schema([("id", pa.list_(pa.int64()))])
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        with pytest.raises(SinkError, match="column 'id' of the key is a struct, a list or a map"):
            await deliver(sink, 0, change(0, "insert", [([1],)], schema))

    async def test_an_append_only_target(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5)]))
        DeltaTable(tmp_path / "t").alter.set_table_properties({"delta.appendOnly": "true"})
        with pytest.raises(SinkError, match=r"delta\.appendOnly=true"):
            await deliver(sink, 1, change(1, "insert", [(1, "a", 0.5)]))

    @pytest.mark.parametrize("opens_again", [False, True])
    async def test_a_target_that_gets_row_tracking(self, tmp_path: Path, opens_again: bool) -> None:
        """Rows that are updated are new ones in a mirror, and would lose their ids."""
        sink = await open_sink(LocalStorage(tmp_path), owner=7)
        await deliver(sink, 0, change(0, "insert", [(0, "a", 0.5), (1, "a", 0.5)]))
        before = entries(tmp_path)
        protocol = next(each["protocol"] for each in before[0] if "protocol" in each)
        protocol["writerFeatures"] += ["rowTracking", "domainMetadata"]
        added = tmp_path / "_delta_log" / f"{len(before):020}.json"
        added.write_text(json.dumps({"protocol": protocol}))

        async def delete() -> None:
            target = await open_sink(LocalStorage(tmp_path), owner=8) if opens_again else sink
            await deliver(target, 1, change(1, "delete", [(0, "a", 0.5)]))

        with pytest.raises(SinkError, match="it has row tracking"):
            await delete()
        assert len(entries(tmp_path)) == len(before) + 1

    async def test_another_mode(self, tmp_path: Path) -> None:
        await deliver(await open_sink(LocalStorage(tmp_path / "t")), 0, change(0, "insert", [(0, "a", 0.5)]))
        target = Target(LocalStorage(tmp_path / "t"), APP, Layout(), SystemClock())
        with pytest.raises(SinkError, match=r"created with `sink.mode: mirror`, and not with `changelog`"):
            await target.position()


@pytest.mark.parametrize("partition_by", [(), ("v",)])
def test_rows_in_memory_are_bounded_by_the_size_of_files(partition_by: tuple[str, ...]) -> None:
    """However large a first load is: files are written as they fill."""
    limit, batches, rows = 1 << 20, 40, 10_000
    random = np.random.default_rng(0)
    columns = columns_of_new(from_arrow(SCHEMA), partition_by, follow=False)
    files = DataFiles(columns, SCHEMA, "none", limit)
    held, most, taken, written = 0, 0, 0, 0
    for number in range(batches):
        values = [f"p{(number + place) % 3}" for place in range(rows)]
        batch = pa.record_batch([random.integers(0, 1 << 60, rows), values, random.random(rows)], schema=SCHEMA)
        taken += batch.nbytes
        written += sum(file.rows for file, _ in files.write(batch))
        held = sum(files._sizes().values())
        most = max(most, held)
    assert taken > 5 * limit
    assert limit < most <= 2 * limit
    assert written > 0.6 * batches * rows
    assert written + sum(file.rows for file, _ in files.finish()) == batches * rows


class TestIndex:
    def model(self, seed: int, memory: int) -> tuple[KeyIndex, dict[int, set[int]], set[int]]:
        """An index of random hashes, a third of whose rows are deleted."""
        random = np.random.default_rng(seed)
        deleted: set[int] = set()
        index = KeyIndex(SpillSpace(), lambda rows: ~np.isin(rows, list(deleted)), memory)
        model: dict[int, set[int]] = {}
        first = 0
        for _ in range(40):
            hashes = random.integers(0, 500, random.integers(0, 100)).astype(np.uint64) << np.uint64(50)
            index.add(hashes, first)
            for row, value in enumerate(hashes.tolist(), first):
                model.setdefault(value, set()).add(row)
            first += len(hashes)
            deleted |= set(random.integers(0, first + 1, 20).tolist())
        return index, model, deleted

    @pytest.mark.parametrize(("memory", "part"), [(1 << 20, 1 << 20), (50, 1 << 20), (300, 1 << 20), (300, 64)])
    def test_finds_what_a_dictionary_finds(self, memory: int, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sorted_run, "_PART", part)
        index, model, deleted = self.model(memory, memory)
        wanted = np.unique(np.array([*model, 1, 2], np.uint64))
        places, rows = index.find(wanted)
        pairs = set(zip(wanted[places].tolist(), rows.tolist(), strict=True))
        assert len(pairs) == len(rows)
        assert pairs == {(value, row) for value, numbers in model.items() for row in numbers - deleted}

    def test_runs_are_merged_in_parts_of_bounded_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sorted_run, "_PART", 64)
        hashes = np.random.default_rng(1).integers(0, 2**64, 1000, np.uint64)
        runs = [sorted_run.SortedRun.of(hashes[half::2], np.arange(half, 1000, 2)) for half in range(2)]
        sizes = list[int]()

        def keep(rows: sorted_run.Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
            sizes.append(len(rows))
            return np.ones(len(rows), np.bool_)

        merged = sorted_run.StoredRun.merged(SpillSpace(), runs, keep)
        assert merged.hashes.tolist() == sorted(hashes.tolist())
        assert hashes[merged.rows].tolist() == merged.hashes.tolist()
        assert (len(sizes), sum(sizes)) == (1000 // 64, 1000)
        assert max(sizes) < 2 * 64
        # Parts of the pairs are looked up one after the other.
        monkeypatch.setattr(sorted_run, "_WINDOW_BYTES", 1000)
        places, rows = merged.find(np.array([*merged.hashes.tolist(), 2**64 - 1], np.uint64))
        assert places.tolist() == list(range(1000))
        assert rows.tolist() == merged.rows.tolist()

    def test_a_full_disk_is_an_error_that_returns_its_space(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            SpillSpace, "open", lambda _: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
        )
        space = SpillSpace()
        index = KeyIndex(space, lambda rows: np.ones(len(rows), np.bool_), 2)
        with pytest.raises(StorageError, match="the index of keys cannot be written: No space left on device"):
            index.add(np.arange(10, dtype=np.uint64), 0)
        assert space.used == 0

    def test_pairs_that_were_looked_up_count_as_memory(self) -> None:
        index = KeyIndex(SpillSpace(), lambda rows: np.ones(len(rows), np.bool_), 100)
        for first in range(0, 90, 30):
            index.add(np.arange(first, first + 30, dtype=np.uint64), first)
            index.find(np.zeros(1, np.uint64))
        assert index.space.used == 0
        index.add(np.arange(90, 120, dtype=np.uint64), 90)
        assert index.space.used == 120 * 16

    def test_returns_its_disk_space(self) -> None:
        space = SpillSpace()
        index = KeyIndex(space, lambda rows: np.ones(len(rows), np.bool_), 10)
        for first in range(0, 1000, 10):
            index.add(np.arange(first, first + 10).astype(np.uint64), first)
        assert space.used == 1000 * 16
        index.close()
        assert space.used == 0

    def test_index_whose_rows_are_all_deleted_finds_none(self) -> None:
        space = SpillSpace()
        index = KeyIndex(space, lambda rows: np.zeros(len(rows), np.bool_), 2)
        hashes = np.arange(10, dtype=np.uint64)
        index.add(hashes, 0)
        assert index.pairs == space.used == 0
        assert [len(each) for each in index.find(hashes)] == [0, 0]

    def test_pairs_are_counted_before_they_are_sorted(self) -> None:
        index = KeyIndex(SpillSpace(), lambda rows: np.ones(len(rows), np.bool_), 100)
        assert index.pairs == 0
        index.add(np.arange(7, dtype=np.uint64), 0)
        assert index.pairs == 7

    async def test_rows_to_delete_are_not_kept_unless_they_are_compared(self, tmp_path: Path) -> None:
        sink = await open_sink(LocalStorage(tmp_path))
        rows = [(number, "a", 0.5) for number in range(1000)]
        await deliver(sink, 0, change(0, "insert", [*rows, (7, "b", 0.5)]))
        table = sink.table
        await table.follow()
        await table.load(sink.columns)
        removal = Removal(table)
        removal.take(pa.table(change(1, "delete", rows)).select(SCHEMA.names))
        kept = [rows for _, rows in removal.parts]
        assert sum(each.num_rows for each in kept) == 1
        assert sum(each.get_total_buffer_size() for each in kept) < 1000
        before = [len(rows) for rows in removal.vectors(0).rows.values()]
        removal.again()
        assert [len(rows) for rows in removal.vectors(0).rows.values()] == before == [1000]

    async def test_hashes_that_collide(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """All keys have one of two hashes: rows are compared."""
        monkeypatch.setattr(mirror_table, "hashes", lambda columns, rows: hashes(columns, rows) % np.uint64(2))
        source = Source(3, unique=True)
        sink = await open_sink(LocalStorage(tmp_path / "t"))
        while source.version < 15:
            version = source.version
            await deliver(sink, version, *source.batches())
        assert rows_in(tmp_path / "t") == bag(source.rows)
