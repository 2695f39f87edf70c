"""Plans, version by version, and the state that planning carries along."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from cdfd.delta import snapshot as snapshots
from cdfd.delta.commit import serialize
from cdfd.delta.types import schema as schemas
from cdfd.demo.writer import TableWriter
from cdfd.errors import GapError, LogError, TableChangedError, UnsupportedError
from cdfd.log import entry as entries_of_log
from cdfd.log import stream as streams
from cdfd.log.bounds import After
from cdfd.log.log import DeltaLog
from cdfd.log.start import start_version
from cdfd.log.stream import PlanStream
from cdfd.log.tailer import Tailer
from cdfd.log.watch import Backoff, PollWatch
from cdfd.model.version import Version
from cdfd.plan.row_options import RowOptions
from cdfd.plan.shape import pruning
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import Shape
from tests.support.lake import BEGINNING, SCHEMA, Lake, checkpoint, entry_path, manual_clock, rows, run, table
from tests.support.manual_time import ManualClock
from tests.support.threads import observe_threads


def tailer(lake: Lake, clock: ManualClock, table_id: str | None = None) -> Tailer:
    return Tailer(DeltaLog(lake), PollWatch(clock), clock, Backoff(1.0, 8.0), table_id)


async def planned(lake: Lake, clock: ManualClock, start: int, until: int, **options: Any) -> list[Version]:
    stream = PlanStream(DeltaLog(lake), RowOptions(refine="off", **options))
    return [version async for version in stream.versions(tailer(lake, clock), start, until)]


def scans(version: Version) -> list[tuple[str | None, str, dict[str, str | None]]]:
    return [(scan.change_type, scan.path, dict(scan.partition_values)) for scan in version.plan.scans]


def add(path: str, day: str) -> tuple[str, dict[str, Any]]:
    fields = {"path": path, "partitionValues": {"v": day}, "size": 1, "modificationTime": 0, "dataChange": True}
    return "add", fields


def remove(path: str) -> tuple[str, dict[str, Any]]:
    """As old writers write it: without partition values."""
    return "remove", {"path": path, "deletionTimestamp": 0, "dataChange": True}


async def partitioned(lake: Lake, versions: list[list[tuple[str, dict[str, Any]]]]) -> None:
    """A table partitioned by `v`, with these actions from version 1 on."""
    metadata = {
        "id": "T",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schemas.serialize(schemas.from_arrow(SCHEMA)),
        "partitionColumns": ["v"],
        "configuration": {},
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    await lake.put(entry_path(0), serialize([("protocol", protocol), ("metaData", metadata)]))
    for version, actions in enumerate(versions, 1):
        await lake.put(entry_path(version), serialize(actions))


class TestRemovesWithoutPartitionValues:
    async def test_the_state_is_loaded_once_and_kept_up_to_date(self, clock: ManualClock, lake: Lake) -> None:
        await partitioned(
            lake,
            [
                [add("a", "mon"), add("b", "tue")],
                [add("c", "wed")],
                [remove("b")],
                [add("d", "thu")],
                [remove("d"), remove("a")],
                [remove("c"), add("c", "fri")],
                [remove("c")],
            ],
        )
        await checkpoint(lake, 1)
        stream = PlanStream(DeltaLog(lake))
        actual, open_counts = [], []
        async for version in stream.versions(tailer(lake, clock), 2, 7):
            actual.append(scans(version))
            open_counts.append([method for method, _ in lake.calls].count("open"))
            if version.plan.version == 3:
                lake.calls.clear()
        # The checkpoint: for protocol and metadata, then for its files, and never again.
        assert (open_counts[0], open_counts[1] > 1, open_counts[2:]) == (1, True, [0, 0, 0, 0])
        assert actual == [
            [("insert", "c", {"v": "wed"})],
            [("delete", "b", {"v": "tue"})],
            [("insert", "d", {"v": "thu"})],
            [("delete", "a", {"v": "mon"}), ("delete", "d", {"v": "thu"})],
            [],  # the same file, removed and added
            [("delete", "c", {"v": "fri"})],
        ]
        reads = [path for method, path in lake.calls if method != "stat"]
        # The reader also looks for the entry after the last one.
        assert list(dict.fromkeys(reads)) == [entry_path(version) for version in range(4, 9)]

    @pytest.mark.parametrize(("actions", "entries"), [(2, 65_536), (2_000, 4), (2_000, 65_536)])
    async def test_large_commits_and_states_are_planned_in_a_thread(
        self, clock: ManualClock, lake: Lake, monkeypatch: pytest.MonkeyPatch, actions: int, entries: int
    ) -> None:
        await partitioned(
            lake,
            [
                [add(name, "mon") for name in "abcdef"],
                [remove("a")],
                [remove("b"), remove("c")],
                [remove("d")],
                [remove("e"), add("g", "tue")],
                [remove("f"), remove("g")],
            ],
        )
        monkeypatch.setattr(entries_of_log, "INLINE_ACTIONS", actions)
        monkeypatch.setattr(entries_of_log, "COMPACT_AT", entries)
        monkeypatch.setattr(streams, "COMPACT_AT", entries)
        threads = observe_threads(monkeypatch, streams, "plan")
        stream = PlanStream(DeltaLog(lake))
        actual = [scans(version) async for version in stream.versions(tailer(lake, clock), 2, 6)]
        assert actual == [
            [("delete", "a", {"v": "mon"})],
            [("delete", "b", {"v": "mon"}), ("delete", "c", {"v": "mon"})],
            [("delete", "d", {"v": "mon"})],
            [("delete", "e", {"v": "mon"}), ("insert", "g", {"v": "tue"})],
            [("delete", "f", {"v": "mon"}), ("delete", "g", {"v": "tue"})],
        ]
        assert any(threads) is (actions == 2 or entries == 4)
        # Tombstones are not kept: there are ever more of them.
        assert stream._snapshot is not None
        assert (len(stream._snapshot.tombstones()) < 7) is (entries == 4)

    async def test_schema_changes_are_planned_in_a_thread(
        self, clock: ManualClock, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = await table(lake, 2, clock)
        await writer.add_column(pa.field("w", pa.int32()))
        await writer.insert(pa.table({"id": [2], "v": ["b"], "w": pa.array([1], pa.int32())}))
        plans, comparisons = (observe_threads(monkeypatch, streams, name) for name in ("plan", "compare"))
        versions = [version async for version in PlanStream(DeltaLog(lake)).versions(tailer(lake, clock), 1, 3)]
        assert [version.schema_change is not None for version in versions] == [False, True, False]
        assert (plans, comparisons) == ([False, True, False], [True])

    async def test_states_that_are_loaded_are_replayed_in_a_thread_if_they_are_large(
        self, clock: ManualClock, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await partitioned(
            lake, [[add("a", "mon")], [add("b", "mon"), add("c", "tue")], [remove("a")], [add("d", "tue")]]
        )
        monkeypatch.setattr(entries_of_log, "COMPACT_AT", 4)
        threads = observe_threads(monkeypatch, snapshots, "replay")
        state = await DeltaLog(lake).snapshot()
        assert {file.path for file in state.live()} == {"b", "c", "d"}
        # Each action of the commit may be two entries.
        assert threads == [False, True, True, True]

    async def test_removes_with_other_deletion_vectors_are_reported_once_and_forgotten(
        self, clock: ManualClock, lake: Lake, caplog: pytest.LogCaptureFixture
    ) -> None:
        vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
        with_vectors = [("add", {**add(name, "mon")[1], "deletionVector": vector}) for name in "abc"]
        await partitioned(lake, [with_vectors, [remove("a")], [remove("b")], [remove("c")]])
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        lake.replace(entry_path(1), serialize([("protocol", protocol), *with_vectors]))
        log = DeltaLog(lake)
        assert (await log.snapshot(2)).mismatched == ()
        stream = PlanStream(log)
        assert [scans(version) async for version in stream.versions(tailer(lake, clock), 3, 4)]
        assert stream._snapshot is not None
        assert stream._snapshot.mismatched == ()
        assert not len(stream._snapshot.live())
        messages = [
            record.getMessage() for record in caplog.records if "another deletion vector" in record.getMessage()
        ]
        assert [message.split(" with ")[0] for message in messages] == [
            "version 2 removes a",
            "version 3 removes b",
            "version 4 removes c",
        ]

    async def test_state_whose_entries_change_while_they_are_read_is_read_again(
        self, clock: ManualClock, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
        added = ("add", {**add("a", "mon")[1], "deletionVector": vector})
        removed = ("remove", {**remove("a")[1], "partitionValues": {"v": "mon"}})
        await partitioned(lake, [[added], [removed]])
        features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
        lake.replace(
            entry_path(1), serialize([("protocol", {"minReaderVersion": 3, "minWriterVersion": 7, **features}), added])
        )
        snapshot, log = DeltaLog.snapshot, DeltaLog(lake)
        stream = PlanStream(log)

        async def fail_once(*_: Any, **__: Any) -> Any:
            monkeypatch.setattr(DeltaLog, "snapshot", snapshot)
            raise LogError("the entry changed while it was read", retriable=True)

        monkeypatch.setattr(DeltaLog, "snapshot", fail_once)
        with pytest.raises(LogError, match="the entry changed"):
            await anext(stream.versions(tailer(lake, clock), 2))
        version = await anext(stream.versions(tailer(lake, clock), 2))
        assert version.plan.scans[0].without is not None

    async def test_a_file_that_is_not_in_the_table(self, clock: ManualClock, lake: Lake) -> None:
        await partitioned(lake, [[add("a", "mon")], [remove("b")]])
        with pytest.raises(LogError, match=r"not in the table's state \(table memory://orders, version 2, file b\)"):
            await planned(lake, clock, 0, 2)

    async def test_none_is_needed_where_there_are_no_partitions(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 3, clock)
        path = (await planned(lake, clock, 2, 2))[0].plan.scans[0].path
        await lake.put(entry_path(3), serialize([remove(path)]))
        lake.calls.clear()
        assert scans((await planned(lake, clock, 3, 3))[0]) == [("delete", path, {})]
        assert not any(method == "open" for method, _ in lake.calls)


class TestSchemas:
    async def test_a_change_is_noted_at_its_version(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        await writer.add_column(pa.field("extra", pa.int32()))
        await writer.insert(pa.table({"id": [9], "v": ["z"], "extra": pa.array([1], pa.int32())}))
        for start in (0, 1, 3):
            actual = await planned(lake, clock, start, 4)
            changes = {version.plan.version: version.schema_change for version in actual if version.schema_change}
            assert list(changes) == [3]
            assert changes[3].describe() == ("added extra",)
            assert changes[3].additive
            assert actual[-1].plan.schema.names == ("id", "v", "extra")
        assert (await planned(lake, clock, 4, 4))[0].schema_change is None

    async def test_metadata_that_changes_nothing_of_it_is_none(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 2, clock)
        await writer.commit("SET TBLPROPERTIES", [writer._metadata()])
        assert [version.schema_change for version in await planned(lake, clock, 0, 2)] == [None] * 3


class TestWhereItBegins:
    async def test_a_cleaned_log_that_starts_at_its_checkpoint(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 6, clock)
        await checkpoint(lake, 3)
        lake.forget(*map(entry_path, range(3)))
        actual = await planned(lake, clock, 3, 5)
        assert [version.plan.version for version in actual] == [3, 4, 5]
        assert [version.schema_change for version in actual] == [None] * 3
        assert all(len(version.plan.scans) == 1 for version in actual)
        lake.forget(entry_path(3))
        assert [version.plan.version for version in await planned(lake, clock, 4, 5)] == [4, 5]

    async def test_a_log_whose_state_is_not_known(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 6, clock)
        lake.forget(entry_path(0), entry_path(1))
        with pytest.raises(GapError, match="version 2 and has no complete checkpoint") as caught:
            await planned(lake, clock, 2, 5)
        assert caught.value.table == "memory://orders"

    async def test_a_version_that_is_not_there_yet(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 3, clock)
        with pytest.raises(LogError, match="version 8 is not in the log; the newest is 2"):
            await planned(lake, clock, 9, 9)

    async def test_a_header_needs_no_rows_of_a_checkpoint(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 9, clock)
        await checkpoint(lake, 4)
        lake.calls.clear()
        await planned(lake, clock, 8, 8)
        assert [path for method, path in lake.calls if method == "read" and path.endswith("json")] == [
            *(entry_path(version) for version in (7, 6, 5)),  # from the newest back, to where metadata is
            entry_path(8),
        ]


class TestTimestamps:
    async def test_times_of_versions_in_one_millisecond_increase(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 4, clock)  # in one millisecond
        times = [version.plan.timestamp_ms for version in await planned(lake, clock, 0, 3)]
        assert times == [clock.now_ms() + version for version in range(4)]

    async def test_they_are_the_same_wherever_reading_begins(self, clock: ManualClock) -> None:
        """Some stores count in seconds, and writers' clocks differ."""

        lake, other = Lake(clock), Lake(clock)
        modified = [5, 5, 5, 7, 6, 6, 8, 8, 8, 100, 99]
        await table(other, len(modified), clock)
        for version, seconds in enumerate(modified):
            behind = ManualClock(clock.now_ms() + 1000 * seconds)
            single = Lake(behind)
            await single.put(entry_path(version), other.bytes_of(entry_path(version)))
            lake.copy_from(single)
        last = len(modified) - 1
        times = {version.plan.version: version.plan.timestamp_ms for version in await planned(lake, clock, 0, last)}
        assert sorted(times.values()) == list(times.values())
        assert len(set(times.values())) == len(times)
        for start in range(1, last + 1):
            assert (await planned(lake, clock, start, start))[0].plan.timestamp_ms == times[start]
            stream, reader = PlanStream(DeltaLog(lake)), tailer(lake, clock)
            assert (await stream.snapshot(start, reader)).plan.timestamp_ms == times[start]
            following = [version async for version in stream.versions(reader, start + 1, last)]
            assert [version.plan.timestamp_ms for version in following] == [
                times[n] for n in range(start + 1, last + 1)
            ]

    @pytest.mark.parametrize("remote", [False, True])
    async def test_they_are_the_same_in_a_copy(self, clock: ManualClock, lake: Lake, remote: bool) -> None:
        """The files of a copied log have the times of the copy, in any order."""
        await table(lake, 300, clock)
        for version in range(300):
            lake.replace(entry_path(version), lake.bytes_of(entry_path(version)), BEGINNING + 2 * (299 - version))
        lake.remote = remote
        await check_times(lake, clock, [BEGINNING + 598 + version for version in range(300)], [0, 1, 65, 200, 299])

    @pytest.mark.parametrize("remote", [False, True])
    async def test_they_are_the_same_if_they_are_no_longer_in_the_commits(
        self, clock: ManualClock, lake: Lake, remote: bool
    ) -> None:
        """The writer's clock was ahead of the store's, or behind it."""
        await table(lake, 8, clock)
        first = list(map(json.loads, lake.bytes_of(entry_path(0)).splitlines()))
        protocol = next(action["protocol"] for action in first if "protocol" in action)
        protocol["writerFeatures"].append("inCommitTimestamp")
        metadata = next(action["metaData"] for action in first if "metaData" in action)
        metadata["configuration"]["delta.enableInCommitTimestamps"] = "true"
        disabled = {"metaData": metadata | {"configuration": {}}}
        for version, stated in enumerate([-50, 4000, 4001, None, None, None, None, None]):
            entry = first if version == 0 else list(map(json.loads, lake.bytes_of(entry_path(version)).splitlines()))
            entry = [action for action in entry if "commitInfo" not in action] + [disabled] * (version == 3)
            if stated is not None:
                entry.insert(0, {"commitInfo": {"inCommitTimestamp": BEGINNING + stated}})
            lake.replace(entry_path(version), "\n".join(map(json.dumps, entry)).encode(), BEGINNING + 1000 * version)
        lake.remote = remote
        times = [-50, 4000, 4001, 4002, 4003, 5000, 6000, 7000]
        await check_times(lake, clock, [BEGINNING + time for time in times], range(8))

    async def test_few_entries_are_looked_at(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 200, clock)
        for version in range(200, 210):
            clock.advance(60)
            await writer.insert(rows(version))
        await checkpoint(lake, 208)
        lake.calls.clear()
        await planned(lake, clock, 209, 209)
        assert [method for method, _ in lake.calls].count("stat") < 5


async def check_times(lake: Lake, clock: ManualClock, times: Sequence[int], starts: Iterable[int]) -> None:
    """Check the times of versions, wherever reading starts, and that reading continues after each."""
    last = len(times) - 1
    for start in starts:
        versions = await planned(lake, clock, start, last)
        assert [version.plan.timestamp_ms for version in versions] == times[start:]
        assert (await PlanStream(DeltaLog(lake)).snapshot(start)).plan.timestamp_ms == times[start]
        at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=times[start])
        assert await start_version(DeltaLog(lake), at) == start
        assert await start_version(DeltaLog(lake), After(at)) == start + 1


class TestSnapshots:
    async def test_the_live_rows_of_a_version_and_then_what_follows(self, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 5, clock)
        stream, reader = PlanStream(DeltaLog(lake)), tailer(lake, clock)
        actual = await stream.snapshot(2, reader)
        assert (actual.plan.version, actual.plan.origin, actual.table_id) == (2, "snapshot", "T")
        assert [kind for kind, _, _ in scans(actual)] == ["insert"] * 2
        lake.calls.clear()
        following = [version.plan.version async for version in stream.versions(reader, 3, 4)]
        assert following == [3, 4]
        assert {path for method, path in lake.calls if method == "read"} == {entry_path(3), entry_path(4)}

    def test_one_without_the_time_that_its_table_promises(self, lake: Lake) -> None:
        run(table(lake, 1, manual_clock()))
        entry = lake.bytes_of(entry_path(0)).replace(
            b'"configuration":{', b'"configuration":{"delta.enableInCommitTimestamps":"true",'
        )
        lake.replace(entry_path(0), entry)
        with pytest.raises(LogError, match="the commit has none") as caught:
            run(PlanStream(DeltaLog(lake)).snapshot())
        assert (caught.value.table, caught.value.version) == (lake.uri, 0)

    async def test_its_files_are_sorted_and_pruned_in_a_thread(
        self, clock: ManualClock, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await partitioned(lake, [[add("b", "mon"), add("a", "tue"), add("c", "tue")]])
        sorted_in = observe_threads(monkeypatch, streams, "plan_snapshot")
        pruned_in = observe_threads(monkeypatch, pruning, "prune")
        stream = PlanStream(DeltaLog(lake), RowOptions(shape=Shape(where=parse_filter("v = 'tue'"))))
        version = await stream.snapshot(1, tailer(lake, clock))
        assert scans(version) == [("insert", "a", {"v": "tue"}), ("insert", "c", {"v": "tue"})]
        assert (sorted_in, pruned_in) == ([True], [True])

    async def test_one_whose_log_entry_is_gone_has_the_time_of_its_checkpoint(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, 3, clock)
        clock.advance(5)
        await checkpoint(lake, 2)
        lake.forget(*map(entry_path, range(3)))
        actual = await PlanStream(DeltaLog(lake)).snapshot()
        assert actual.plan.timestamp_ms == clock.now_ms()
        assert len(actual.plan.scans) == 2


class TestOtherTables:
    """A reader that knows its table takes no other for it, wherever it begins."""

    @pytest.mark.parametrize("versions", [1, 4, 9])
    @pytest.mark.parametrize("start", [0, 4])
    async def test_versions_of_another_table_are_refused(
        self, versions: int, start: int, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, versions, clock, "new")
        stream = PlanStream(DeltaLog(lake))
        with pytest.raises(TableChangedError, match="its id was old and is new"):
            await anext(stream.versions(tailer(lake, clock, "old"), start))

    @pytest.mark.parametrize("versions", [1, 4, 9])
    async def test_snapshot_of_another_table_is_refused(self, versions: int, clock: ManualClock, lake: Lake) -> None:
        await table(lake, versions, clock, "new")
        with pytest.raises(TableChangedError, match="its id was old and is new"):
            await PlanStream(DeltaLog(lake)).snapshot(4, tailer(lake, clock, "old"))

    async def test_deleted_table_is_named_as_deleted(self, clock: ManualClock, lake: Lake) -> None:
        for work in (
            anext(PlanStream(DeltaLog(lake)).versions(tailer(lake, clock, "old"), 4)),
            PlanStream(DeltaLog(lake)).snapshot(4, tailer(lake, clock, "old")),
        ):
            with pytest.raises(TableChangedError, match="the table old was deleted"):
                await work


class TestRefusals:
    async def test_a_change_data_feed_that_is_asked_for_and_not_there(self, clock: ManualClock, lake: Lake) -> None:
        writer = TableWriter(lake, SCHEMA, feed=False, clock=clock, table_id="T")
        await writer.create()
        await writer.insert(rows(1))
        with pytest.raises(UnsupportedError, match=r"does not record.*\(table memory://orders, version 1, "):
            await planned(lake, clock, 1, 1, changes="cdf")

    async def test_a_protocol_that_comes_with_a_version(self, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        await writer.commit("UPGRADE", [("protocol", {"minReaderVersion": 9, "minWriterVersion": 9})])
        stream = PlanStream(DeltaLog(lake))
        versions = stream.versions(tailer(lake, clock), 1)
        assert [(await anext(versions)).plan.version for _ in range(2)] == [1, 2]
        with pytest.raises(UnsupportedError, match="version 3"):
            await anext(versions)
