"""The feed: where it starts, what it delivers, and how it ends."""

import asyncio
import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdfd.deliver.monitor import Monitor
from cdfd.deliver.resuming import Policies, check_schema_change
from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.delta.types.schema_change import Rename, SchemaChange, compare
from cdfd.demo.writer import TableWriter
from cdfd.errors import (
    CdfdError,
    ConfigError,
    DataError,
    GapError,
    LogError,
    MissingColumnError,
    MissingFileError,
    SchemaChangedError,
    SinkError,
    TableChangedError,
)
from cdfd.log.log import DeltaLog
from cdfd.model.position import Position
from cdfd.plan import refining
from cdfd.plan.row_options import RowOptions
from cdfd.plan.shape.chosen import Chosen
from cdfd.plan.shape.masks import Mask
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import Shape
from cdfd.sinks.base import Sink
from tests.support.feeding import Crash, DeltaPlace, FilesPlace, MemoryPlace, Place, feed, ids, position
from tests.support.lake import BEGINNING, Lake, checkpoint, entry_path, manual_clock, rows, table
from tests.support.manual_time import ManualClock
from tests.support.memory_sink import MemorySink
from tests.support.renamed_column import renamed_table


@pytest.fixture(params=[MemoryPlace, FilesPlace], ids=lambda place: place.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return request.param(tmp_path / "out")


class TestStarts:
    @pytest.mark.parametrize(
        ("start", "first", "expected"),
        [
            ("snapshot", Position("T", 3, 0, "snapshot"), [("insert", 3, 1), ("insert", 3, 2), ("insert", 3, 3)]),
            ("earliest", Position("T", 0), [("insert", 1, 1), ("insert", 2, 2), ("insert", 3, 3)]),
            ("latest", Position("T", 4), []),
            (2, Position("T", 2), [("insert", 2, 2), ("insert", 3, 3)]),
            (
                datetime.fromtimestamp(BEGINNING / 1000, UTC) + timedelta(seconds=2.5),
                Position("T", 3),
                [("insert", 3, 3)],
            ),
        ],
    )
    async def test_it_is_durable_before_the_first_row_and_stays(
        self,
        place: Place,
        start: Any,
        first: Position,
        expected: list[tuple[str, int, int]],
        clock: ManualClock,
        lake: Lake,
    ) -> None:
        writer = await table(lake, 1, clock)
        for version in range(1, 4):
            clock.advance(1)
            await writer.insert(rows(version))

        def die(event: str, about: Any) -> None:
            if event == "committed":
                raise Crash

        with pytest.raises(Crash):
            await feed(lake, place, clock, start=start, hook=die)
        assert await position(place) == first
        assert place.rows() == []
        await writer.insert(rows(4))
        # The snapshot is of then, whatever came since; and nothing of the start's meaning is asked again.
        await feed(lake, place, clock, 4, start="latest")
        assert sorted(ids(place), key=lambda row: row[1:]) == [*expected, ("insert", 4, 4)]
        assert await position(place) == Position("T", 5)

    @pytest.mark.parametrize("start", [5, 99, datetime(2099, 1, 1, tzinfo=UTC)])
    async def test_a_start_that_cannot_be_leaves_nothing_behind(
        self, place: Place, start: Any, clock: ManualClock, lake: Lake
    ) -> None:
        writer = await table(lake, 4, clock)
        with pytest.raises(LogError, match=r"there is no version | is in the future"):
            await feed(lake, place, clock, start=start)
        assert await position(place) is None
        await writer.insert(rows(4))
        await feed(lake, place, clock, 4, start=4)
        assert ids(place) == [("insert", 4, 4)]

    async def test_a_table_that_is_not_there_yet(self, place: Place, clock: ManualClock, lake: Lake) -> None:
        feeding = asyncio.create_task(feed(lake, place, clock, 1, start="latest"))
        await clock.wait_for_sleepers()
        await table(lake, 2, clock)
        clock.advance(5)
        await feeding
        assert ids(place) == [("insert", 1, 1)]

    async def test_a_stop_ends_the_waiting(self, place: Place, clock: ManualClock) -> None:
        stop = asyncio.Event()
        feeding = asyncio.create_task(feed(Lake(clock), place, clock, stop=stop))
        await clock.wait_for_sleepers()
        stop.set()
        await feeding
        assert await position(place) is None

    async def test_a_lost_position_is_told_once(
        self, clock: ManualClock, lake: Lake, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Counting(Monitor):
            lost = 0

            def lost_position(self) -> None:
                self.lost += 1

        monkeypatch.setattr(MemorySink, "lost_position", "the topic has records")
        await table(lake, 2, clock)
        place, monitor = MemoryPlace(), Counting()
        for until in (0, 1):
            await feed(lake, place, clock, until, start=0, monitor=monitor)
        assert monitor.lost == 1
        assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == [
            "the topic has records. The table begins again as `start` says: see docs/recovery.md"
        ]

    async def test_a_stop_hastens_a_delivery(self, place: Place, clock: ManualClock, lake: Lake) -> None:
        """The sink hears of it, so that work that may wait does not delay the end of the process."""
        await table(lake, 1, clock)
        stop, hastened = asyncio.Event(), asyncio.Event()

        def hook(event: str, about: Any) -> None:
            if event == "committed":
                stop.set()
            if event == "hasten":
                hastened.set()

        await feed(lake, place, clock, stop=stop, hook=hook)
        assert hastened.is_set()

    async def test_versions_without_changes_move_the_position(
        self, place: Place, clock: ManualClock, lake: Lake
    ) -> None:
        writer = await table(lake, 3, clock)
        await writer.optimize()
        await writer.optimize()
        await feed(lake, place, clock, 4, start="earliest")
        assert ids(place) == [("insert", 1, 1), ("insert", 2, 2)]
        assert await position(place) == Position("T", 5)

    async def test_versions_that_come_while_it_waits(self, place: Place, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 1, clock)
        feeding = asyncio.create_task(feed(lake, place, clock, 5, start="earliest"))
        for version in range(1, 6):
            await clock.wait_for_sleepers()
            await writer.insert(rows(version))
            clock.advance(5)
        await feeding
        assert ids(place) == [("insert", version, version) for version in range(1, 6)]


class TestParts:
    @staticmethod
    async def updated(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Lake:
        """Version 4 updates two of three rows, each in a file of its own. Refined, it has several parts."""
        monkeypatch.setattr(refining, "BUCKET_BYTES", 1_000)
        lake = Lake(clock)
        writer = await table(lake, 4, clock)
        await writer.update(pc.field("id") > 1, {"v": pc.scalar("b")})
        return lake

    @staticmethod
    async def first_part(lake: Lake, place: Place, clock: ManualClock, refine: str) -> None:
        """Deliver the first part of version 4 that has rows."""
        stop = asyncio.Event()

        def stop_soon(event: str, about: Any) -> None:
            if event == "write":
                stop.set()

        options: dict[str, Any] = {"start": 4, "changes": "files", "refine": refine, "key": ("id",), "part_bytes": 1}
        await feed(lake, place, clock, stop=stop, hook=stop_soon, **options)
        actual = await position(place)
        assert actual is not None
        assert actual.part > 0
        assert place.rows()

    async def test_one_delivery_for_each_part(self, clock: ManualClock) -> None:
        lake, whole, parted = Lake(clock), MemoryPlace(), MemoryPlace()
        writer = await table(lake, 4, clock)
        await writer.update(pc.field("id") > 0, {"v": pc.scalar("b")})
        for place, part_bytes in ((whole, 1 << 30), (parted, 1)):
            await feed(lake, place, clock, 4, start="snapshot", part_bytes=part_bytes)
        assert parted.rows() == whole.rows()
        assert len(parted.rows()) == 3
        assert [delivery.following for delivery in parted.delivered] == [
            Position("T", 4, 0, "snapshot"),
            Position("T", 4, 1, "snapshot", 1),
            Position("T", 4, 2, "snapshot", 2),
            Position("T", 5),
        ]
        assert [delivery.following for delivery in whole.delivered] == [
            Position("T", 4, 0, "snapshot"),
            Position("T", 5),
        ]

    async def test_a_stop_comes_between_two_of_them(self, place: Place, clock: ManualClock) -> None:
        lake, other = Lake(clock), MemoryPlace()
        await table(lake, 5, clock)
        await feed(lake, other, clock, 4, start="snapshot")
        stops = 0
        for _ in range(10):
            stop = asyncio.Event()

            def stop_soon(event: str, about: Any, stop: asyncio.Event = stop) -> None:
                if event == "write":
                    stop.set()

            await feed(lake, place, clock, stop=stop, hook=stop_soon, part_bytes=1)
            stops += 1
            if await position(place) == Position("T", 5):
                break
        assert stops == 4
        assert [row["id"] for row in place.rows()] == [row["id"] for row in other.rows()]
        assert [row["_change_ordinal"] for row in place.rows()] == [0, 1, 2, 3]

    async def test_versions_after_the_last_part_count_with_their_bytes(self, clock: ManualClock) -> None:
        """The delivery that ends a version, and has others, waits for a slot and for the rate limits by the bytes of all."""
        lake, place, stop, sizes = Lake(clock), MemoryPlace(), asyncio.Event(), list[int]()
        writer = await table(lake, 3, clock)
        await writer.update(pc.field("id") > 0, {"v": pc.scalar("b")})
        for version in (4, 5):
            await writer.insert(rows(version))

        class Sizes(Monitor):
            def committed(self, following: Position, versions: Any, rows: Any, bytes_read: int) -> None:
                sizes.append(bytes_read)
                if following.part:
                    stop.set()

        options: dict[str, Any] = {"start": 3, "changes": "files", "max_bytes": 1 << 30, "monitor": Sizes()}
        await feed(lake, MemoryPlace(), clock, 5, **options)
        [whole] = sizes
        sizes.clear()
        await feed(lake, place, clock, stop=stop, part_bytes=1, **options)
        await feed(lake, place, clock, 5, **options)
        assert len(sizes) == 2
        assert sum(sizes) == whole

    @pytest.mark.parametrize("appears", [True, False])
    async def test_a_filtered_snapshot_has_the_same_parts_whatever_the_statistics(
        self, place: Place, clock: ManualClock, lake: Lake, appears: bool
    ) -> None:
        """A checkpoint of its version may have no statistics, and appear, or be removed, while it is delivered."""
        await table(lake, 12, clock)
        for version in range(1, 12):
            actions = list(map(json.loads, lake.bytes_of(entry_path(version)).splitlines()))
            for action in actions:
                if "add" in action:
                    bounds = {"minValues": {"id": version}, "maxValues": {"id": version}}
                    action["add"]["stats"] = json.dumps({"numRecords": 1, **bounds})
            lake.replace(entry_path(version), "\n".join(map(json.dumps, actions)).encode())
        name = f"_delta_log/{11:020}.checkpoint.parquet"
        if not appears:
            await checkpoint(lake, 11)
        options: dict[str, Any] = {"shape": Shape(where=parse_filter("id IN (2, 5)")), "part_bytes": 1}
        stop = asyncio.Event()

        def stop_soon(event: str, about: Any) -> None:
            if event == "committed" and about.part == 1:
                stop.set()

        await feed(lake, place, clock, stop=stop, hook=stop_soon, **options)
        if appears:
            await checkpoint(lake, 11)
        else:
            lake.forget(name)
        await feed(lake, place, clock, 11, **options)
        assert sorted(row["id"] for row in place.rows()) == [2, 5]

    async def test_a_position_that_the_version_does_not_have(
        self, place: Place, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, 3, clock)
        sink = await place.open()
        delivery = await sink.begin(Position("T", 2))
        await delivery.write(pa.record_batch({"id": [7]}) if isinstance(place, MemoryPlace) else _row())
        await delivery.commit(Position("T", 2, 3, ordinal=1))
        await sink.close()
        with pytest.raises(SinkError, match=r"after 3 parts of this version, but it has 1.*version 2"):
            await feed(lake, place, clock, 2)

    @pytest.mark.parametrize(("before", "after"), [("off", "auto"), ("key", "auto"), ("off", "key")])
    async def test_a_version_is_ended_as_it_was_begun(
        self, place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, before: str, after: str
    ) -> None:
        """A restart ignores a changed `refine`: other rows with the same ordinals would be lost or doubled."""
        lake, whole = await self.updated(clock, monkeypatch), MemoryPlace()
        await feed(lake, whole, clock, 4, start=4, changes="files", refine=before, key=("id",))
        await self.first_part(lake, place, clock, before)
        await feed(lake, place, clock, 4, changes="files", refine=after, key=("id",), part_bytes=1)
        assert ids(place) == ids(whole)
        numbers = [[row["_change_ordinal"] for row in each.rows()] for each in (place, whole)]
        assert numbers[0] == numbers[1]

    @pytest.mark.parametrize("kind", [MemoryPlace, FilesPlace, DeltaPlace])
    @pytest.mark.parametrize(("refine", "key"), [("off", ("id",)), ("key", ("v",))], ids=["refinement", "key"])
    async def test_a_refined_version_that_is_begun_is_not_ended_with_another(
        self,
        kind: type[Place],
        refine: str,
        key: tuple[str, ...],
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        lake, place, whole = await self.updated(clock, monkeypatch), kind(tmp_path / "out"), MemoryPlace()
        await feed(lake, whole, clock, 4, start=4, changes="files", refine="key", key=("id",))
        await self.first_part(lake, place, clock, "key")
        known = place.rows()
        with pytest.raises(SinkError, match=r"or other ones.*version 4.*`refine`, `key`"):
            await feed(lake, place, clock, 4, changes="files", refine=refine, key=key, part_bytes=1)
        assert place.rows() == known
        await feed(lake, place, clock, 4, changes="files", refine="key", key=("id",), part_bytes=1)
        assert ids(place) == ids(whole)


def _row() -> pa.RecordBatch:
    return pa.record_batch({"id": [7], "_change_type": pa.array(["insert"]).dictionary_encode()})


class TestMissingFiles:
    """VACUUM was faster."""

    @staticmethod
    async def vacuumed(lake: Lake, clock: ManualClock, versions: int = 5) -> TableWriter:
        """Version 2 inserts a row whose file is gone since a version after it removed it."""
        writer = await table(lake, 3, clock)
        await writer.delete(pc.field("id") == 99)
        gone = list(writer._files.values())[1].path
        await writer.commit("DELETE", [writer._remove(writer._files[gone])])
        for version in range(5, versions):
            await writer.insert(rows(version))
        lake.forget(gone)
        return writer

    async def test_missing_file_stops_the_table(self, place: Place, clock: ManualClock, lake: Lake) -> None:
        await self.vacuumed(lake, clock)
        with pytest.raises(MissingFileError, match=r"memory://orders, version 2, file part-"):
            await feed(lake, place, clock, start="earliest")
        assert ids(place) == [("insert", 1, 1)]
        assert await position(place) == Position("T", 2)

    async def test_skipped_file_leaves_its_version_without_its_rows(
        self, place: Place, clock: ManualClock, lake: Lake
    ) -> None:
        await self.vacuumed(lake, clock, 7)
        left_out: list[MissingFileError] = []
        await feed(lake, place, clock, 6, start="earliest", on_missing_file="skip", on_missing=left_out.append)
        assert ids(place) == [("insert", 1, 1), ("insert", 5, 5), ("insert", 6, 6)]
        assert [error.version for error in left_out] == [2, 4]

    async def test_resnapshot_replaces_the_history_whose_file_is_missing(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "cdfd"):
            clock = manual_clock()
            lake = Lake(clock)
            writer = await self.vacuumed(lake, clock, 7)
            await feed(lake, place, clock, 6, start="earliest", on_missing_file="snapshot")
            assert ids(place)[0] == ("insert", 1, 1)
            assert sorted(ids(place)[1:]) == [("insert", 6, 1), ("insert", 6, 5), ("insert", 6, 6)]
            await writer.insert(rows(7))
            await feed(lake, place, clock, 7, on_missing_file="snapshot")
            assert ids(place)[-1] == ("insert", 7, 7)
        assert ["starting again from a snapshot" in record.message for record in caplog.records] == [True]

    async def test_snapshot_that_a_sink_needs_behind_entries_without_bytes(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        """They are delivered, although the newest state counts them as unfinished."""

        class Reshaped(MemorySink):
            @property
            def needs_snapshot(self) -> str | None:
                return None if self.delivered[-1].batches else "it has another shape"

        class Reshapes(MemoryPlace):
            async def open(self) -> Sink:
                return Reshaped(self.delivered)

        place = Reshapes()
        await table(lake, 2, clock)
        for version in (2, 3):
            await lake.put(entry_path(version), b"")
        delivery = await (await place.open()).begin(Position("T", 0))
        await delivery.commit(Position("T", 4, digest=await DeltaLog(lake).digest(3)))
        await feed(lake, place, clock, 3)
        assert ids(place) == [("insert", 3, 1)]

    async def test_resnapshot_of_the_version_whose_changes_are_gone(
        self, place: Place, clock: ManualClock, lake: Lake
    ) -> None:
        await self.vacuumed(lake, clock)
        await feed(lake, place, clock, 4, start=4, on_missing_file="snapshot")
        assert ids(place) == [("insert", 4, 1)]
        assert await position(place) == Position("T", 5)

    @pytest.mark.parametrize("other_id", ["T", "U"])
    async def test_a_table_whose_files_are_gone_because_it_was_replaced(
        self, other_id: str, place: Place, clock: ManualClock, lake: Lake
    ) -> None:
        """After its log is read, and before its files are. A snapshot of the other table does not follow the position."""
        await table(lake, 3, clock)
        other = Lake(clock)
        await table(other, 6, clock, other_id, first_id=100)

        def replace_table(method: str, path: str) -> None:
            if path.endswith(".parquet"):
                lake.before = lambda method, path: None
                lake.forget("")
                lake.copy_from(other)

        lake.before = replace_table
        with pytest.raises(
            TableChangedError, match="its id was T and is U now" if other_id == "U" else "with the same id"
        ):
            await feed(lake, place, clock, start="earliest", on_missing_file="snapshot")
        delivered = await position(place)
        assert delivered is not None
        assert (delivered.table_id, delivered.phase) == ("T", "stream")

    async def test_a_resnapshot_that_would_not_help(self, place: Place, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 4, clock)
        lake.forget(list(writer._files)[1])
        for _ in range(2):
            with pytest.raises(MissingFileError, match="version 3"):
                await feed(lake, place, clock, start="snapshot", on_missing_file="snapshot")
        assert place.rows() == []
        # Once there is something newer there is hope again.
        gone = list(writer._files.values())[1]
        await writer.commit("DELETE", [writer._remove(gone)])
        await feed(lake, place, clock, 4, on_missing_file="snapshot")
        assert sorted(ids(place)) == [("insert", 4, 1), ("insert", 4, 3)]

    async def test_a_version_that_is_delivered_by_half_when_its_files_go(
        self, place: Place, clock: ManualClock, lake: Lake
    ) -> None:
        writer = await table(lake, 1, clock)
        await writer.commit("WRITE", [await writer._add(rows(n)) for n in (1, 2, 3)])
        lake.forget(sorted(writer._files)[1])
        options: dict[str, Any] = {"part_bytes": 1, "on_missing_file": "snapshot"}
        for _ in range(2):
            with pytest.raises(MissingFileError, match="version 1"):
                await feed(lake, place, clock, start="earliest", **options)
        gone = writer._files[sorted(writer._files)[1]]
        await writer.commit("DELETE", [writer._remove(gone)])
        await feed(lake, place, clock, 2, **options)
        actual = ids(place)
        assert len(actual) == 3
        assert sorted(row for row in actual if row[1] == 2) == sorted(
            ("insert", 2, n) for n in (1, 2, 3) if n != gone.rows["id"][0].as_py()
        )


class TestSchemaChanges:
    @staticmethod
    async def renamed(lake: Lake, clock: ManualClock) -> TableWriter:
        """Version 2 adds a column, version 4 replaces another."""
        writer = await table(lake, 2, clock)
        await writer.add_column(pa.field("extra", pa.int32()))
        await writer.insert(pa.table({"id": [3], "v": ["a"], "extra": pa.array([3], pa.int32())}))
        writer.schema = pa.schema([("id", pa.int64()), ("w", pa.string()), ("extra", pa.int32())])
        await writer.commit("REPLACE COLUMNS", [writer._metadata()])
        await writer.insert(pa.table({"id": [5], "w": ["b"], "extra": pa.array([5], pa.int32())}))
        return writer

    @pytest.mark.parametrize("max_bytes", [0, 1 << 30], ids=["one version at a time", "several at once"])
    async def test_stop_comes_before_the_version_and_again_after_a_restart(
        self, place: Place, clock: ManualClock, lake: Lake, max_bytes: int
    ) -> None:
        await self.renamed(lake, clock)
        for _ in range(3):
            with pytest.raises(SchemaChangedError, match=r"added w; dropped v.*version 4") as caught:
                await feed(lake, place, clock, 5, start="earliest", on_schema_change="stop", max_bytes=max_bytes)
            assert "on_schema_change: continue" in str(caught.value.hint)
            assert ids(place) == [("insert", 1, 1), ("insert", 3, 3)]
            assert await position(place) == Position("T", 4)
        await feed(lake, place, clock, 5, on_schema_change="continue", max_bytes=max_bytes)
        assert ids(place)[2:] == [("insert", 5, 5)]

    @pytest.mark.parametrize(
        ("shape", "keyed", "ends"),
        [(Shape(), True, True), (Shape(), False, False), (Shape((Chosen("id", "id"), Chosen("v"))), True, False)],
        ids=["keyed records", "no keyed records", "alias"],
    )
    async def test_key_column_renamed_only_in_case(
        self, shape: Shape, keyed: bool, ends: bool, clock: ManualClock, lake: Lake
    ) -> None:
        """Records would have the key `{"ID":1}` instead of `{"id":1}`, also after a restart."""
        place = MemoryPlace()
        writer = await table(lake, 2, clock)
        writer.schema = pa.schema([("ID", pa.int64()), ("v", pa.string())])
        await writer.commit("REPLACE COLUMNS", [writer._metadata()])
        await writer.insert(pa.table({"ID": [3], "v": ["b"]}))
        options: dict[str, Any] = {"start": "earliest", "key": ("id",), "keyed": keyed, "shape": shape}
        if ends:
            for _ in range(2):
                with pytest.raises(
                    SchemaChangedError, match="the key column 'id' is 'ID' from this version on"
                ) as caught:
                    await feed(lake, place, clock, 3, **options)
                assert (caught.value.table, caught.value.version) == (lake.uri, 2)
            assert await position(place) == Position("T", 2)
            return
        await feed(lake, place, clock, 3, **options)
        assert [row["_commit_version"] for row in place.rows()] == [1, 3]

    @pytest.mark.parametrize(
        ("path", "columns", "ends"),
        [
            (("id",), None, True),
            (("k", "a"), None, True),
            (("v",), None, False),
            (("id",), (Chosen("id", "id"),), True),
        ],
    )
    def test_key_column_whose_name_another_column_may_have(
        self, path: tuple[str, ...], columns: tuple[Chosen, ...] | None, ends: bool
    ) -> None:
        """Records would have the key of another column. An alias keeps a name, but not for another column."""
        change = SchemaChange(added=(path,), renamed=(Rename(path, (*path[:-1], "old")),))
        policies = Policies(rows=RowOptions(key=("ID", "k"), shape=Shape(columns)), keyed=True)
        if ends:
            with pytest.raises(SchemaChangedError, match=rf"the key column '{'.'.join(path)}' is '.*old' from this"):
                check_schema_change(change, policies)
        else:
            check_schema_change(change, policies)

    @pytest.mark.parametrize("keyed", [True, False])
    @pytest.mark.parametrize(
        ("old", "new", "what"),
        [
            (pa.int64(), None, "'id' is gone"),
            (pa.decimal128(5, 2), pa.decimal128(9, 4), r"'id' is of type decimal\(9,4\)"),
            (pa.int32(), pa.float64(), "'id' is of type double"),
            (pa.date32(), pa.timestamp("us"), "'id' is of type timestamp_ntz"),
            (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())]), "'id' has the field"),
            (pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.struct([("a", pa.int64())]), "'id.b' is gone"),
            (
                pa.struct([("a", pa.int64()), ("b", pa.int64())]),
                pa.struct([("b", pa.int64()), ("a", pa.int64())]),
                "'id' has its fields in another order",
            ),
            (pa.int32(), pa.int64(), None),
            (pa.float32(), pa.float64(), None),
            (pa.decimal128(5, 2), pa.decimal128(9, 2), None),
            (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())]), None),
        ],
    )
    def test_the_same_rows_keep_their_keys(
        self, old: pa.DataType, new: pa.DataType | None, what: str | None, keyed: bool
    ) -> None:
        """A consumer would keep the row of the old key for ever."""
        before, after = (
            TableSchema(from_arrow(pa.schema([("v", pa.string()), *([("Id", kind)] if kind else [])])))
            for kind in (old, new)
        )
        change, policies = compare(before, after), Policies(rows=RowOptions(key=("id",)), keyed=keyed)
        if what is None or not keyed:
            check_schema_change(change, policies)
            return
        with pytest.raises(SchemaChangedError, match=f"(?i)the key column {what}.* from this version on"):
            check_schema_change(change, policies)

    @pytest.mark.parametrize(
        ("old", "new", "ends"),
        [
            (pa.int32(), pa.int64(), True),
            (pa.struct([("a", pa.list_(pa.int8()))]), pa.struct([("a", pa.list_(pa.int64()))]), True),
            (pa.decimal128(5, 2), pa.decimal128(9, 2), True),
            (pa.int8(), pa.int16(), False),
            (pa.float32(), pa.float64(), False),
        ],
    )
    def test_keys_with_a_schema_have_another_one_for_a_wider_type(
        self, old: pa.DataType, new: pa.DataType, ends: bool
    ) -> None:
        before, after = (TableSchema(from_arrow(pa.schema([("id", kind), ("v", kind)]))) for kind in (old, new))
        typed = frozenset(("long", "decimal"))
        policies = Policies(rows=RowOptions(key=("id",)), keyed=True, typed_keys=typed)
        if ends:
            with pytest.raises(SchemaChangedError, match=r"the key column 'id.* is of type .* from this version on"):
                check_schema_change(compare(before, after), policies)
        else:
            check_schema_change(compare(before, after), policies)
        masked = Shape(masks=(("ID", Mask("hmac_sha256", key=b"k" * 16)),))
        for options in (RowOptions(key=("other",)), RowOptions(key=("id",), shape=masked)):
            # A hash is a text, and the same for the same number.
            check_schema_change(compare(before, after), replace(policies, rows=options))

    async def test_a_key_column_that_is_dropped_ends_delivery_before_another_one_has_its_name(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        """Deletes of older rows would have the key of the new column, which is null in them."""
        place = MemoryPlace()
        writer = await table(lake, 2, clock)
        for names in (["v"], ["v", "id"]):
            writer.schema = pa.schema([(name, {"v": pa.string(), "id": pa.int64()}[name]) for name in names])
            await writer.commit("REPLACE COLUMNS", [writer._metadata()])
        await writer.insert(pa.table({"v": ["b"], "id": [4]}))
        # After a restart, it is the configuration that does not fit.
        for error, what in (
            (SchemaChangedError, "the key column 'id' is gone from this version on"),
            (MissingColumnError, "there is no column 'id', which `key` names"),
        ):
            with pytest.raises(error, match=what):
                await feed(lake, place, clock, 4, start="earliest", key=("id",), keyed=True)
            assert await position(place) == Position("T", 2)

    async def test_a_change_begins_a_new_delivery(self, clock: ManualClock, lake: Lake) -> None:
        """A delivery of several versions has the columns of one schema."""
        place = MemoryPlace()
        writer = await self.renamed(lake, clock)
        await writer.insert(pa.table({"id": [6], "w": ["b"], "extra": pa.array([6], pa.int32())}))
        await feed(lake, place, clock, 6, start="earliest", max_bytes=1 << 30)
        versions = [(each.position.version, each.following.version) for each in place.delivered]
        assert versions == [(0, 0), (0, 2), (2, 4), (4, 7)]

    async def test_continue_says_what_it_goes_on_over(self, place: Place, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "cdfd"):
            clock = manual_clock()
            lake = Lake(clock)
            await self.renamed(lake, clock)
            await feed(lake, place, clock, 5, start="earliest")
            assert [set(row) - {"id"} for row in place.rows()][2] >= {"w", "extra"}
        told = [record.message for record in caplog.records if "schema" in record.message]
        assert told == ["schema change: added extra", "schema change: added w; dropped v"]

    @staticmethod
    def masks(*names: str) -> Shape:
        return Shape(masks=tuple((name, Mask("nullify")) for name in names))

    async def test_a_mask_of_a_later_name_publishes_nothing_by_the_earlier_one(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        place = MemoryPlace()
        await renamed_table(lake, clock)
        filtered = Shape(where=parse_filter("tax_id IS NULL OR id > 0"))
        for shape in (self.masks("tax_id"), filtered):
            with pytest.raises(MissingColumnError, match="column 'tax_id' has the name 'ssn'") as caught:
                await feed(lake, place, clock, 3, start="earliest", shape=shape)
            assert "'ssn'" in str(caught.value.hint)
            assert not place.rows()
        # With the earlier name, the delivery goes on to the version that renames it.
        with pytest.raises(MissingColumnError, match="'ssn' is gone"):
            await feed(lake, place, clock, 3, shape=self.masks("ssn"))
        await feed(lake, place, clock, 3, shape=self.masks("tax_id"))
        assert [(row["id"], row.get("ssn"), row.get("tax_id")) for row in place.rows()] == [
            (1, None, None),
            (2, None, None),
        ]

    async def test_masks_of_both_names_go_past_the_version_that_renames_the_column(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        place = MemoryPlace()
        await renamed_table(lake, clock)
        await feed(lake, place, clock, 3, start="earliest", shape=self.masks("ssn", "tax_id"))
        assert [(row["id"], row.get("ssn"), row.get("tax_id")) for row in place.rows()] == [
            (1, None, None),
            (2, None, None),
        ]
        with pytest.raises(ConfigError, match="no column 'ssn'"):
            await feed(lake, place, clock, 4, shape=self.masks("ssn", "tax_id"))

    async def test_deletes_of_the_version_that_renames_a_column_need_a_mask_of_its_earlier_name(
        self, clock: ManualClock, lake: Lake
    ) -> None:
        place = MemoryPlace()
        await renamed_table(lake, clock, removes=True)
        for start in (2, None):
            with pytest.raises(MissingColumnError, match="column 'tax_id' has the name 'ssn'"):
                await feed(
                    lake, place, clock, 3, shape=self.masks("tax_id"), **({} if start is None else {"start": start})
                )
        await feed(lake, place, clock, 3, shape=self.masks("ssn", "tax_id"))
        assert [(row["_change_type"], row["id"], row.get("ssn"), row.get("tax_id")) for row in place.rows()] == [
            ("delete", 1, None, None),
            ("insert", 2, None, None),
        ]


class TestOtherTables:
    @pytest.mark.parametrize("versions", [0, 1, 2, 3, 9])
    @pytest.mark.parametrize("stopped_at", ["snapshot", "stream"])
    async def test_a_table_that_is_created_anew_while_nobody_looks(
        self, place: Place, versions: int, stopped_at: str, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, 4, clock, "old")

        def die(event: str, about: Any) -> None:
            if event == "committed" and (about.part == 1 or about.phase == "stream"):
                raise Crash

        part_bytes = 1 if stopped_at == "snapshot" else 1 << 30
        with pytest.raises(Crash):
            await feed(lake, place, clock, hook=die, part_bytes=part_bytes)
        before = place.rows()
        lake.forget("")
        if versions:
            await table(lake, versions, clock, "new")
        told = "its id was old and is new" if versions else "the table old was deleted"
        with pytest.raises(TableChangedError, match=told):
            await feed(lake, place, clock, part_bytes=part_bytes)
        assert place.rows() == before

    async def test_log_clean_up_that_overtook_the_feed(self, place: Place, clock: ManualClock, lake: Lake) -> None:
        writer = await table(lake, 3, clock)
        await feed(lake, place, clock, 2, start="earliest")
        for version in range(3, 8):
            await writer.insert(rows(version))
        await checkpoint(lake, 6)
        lake.forget(*map(entry_path, range(6)))
        with pytest.raises(GapError, match=r"version 2 is no longer|versions? 3"):
            await feed(lake, place, clock)
        assert await position(place) == Position("T", 3)

    async def test_a_backup_that_is_restored_before_the_newest_versions_are_read(self, place: Place) -> None:
        """Versions that were listed before the restore do not count as lag after it."""

        class Restoring(Monitor):
            def __init__(self, lake: Lake, stop: asyncio.Event) -> None:
                self.lake, self.stop = lake, stop
                self.newest_seen: list[int] = []
                self.tips: list[int] = []

            def found_version(self, newest: int) -> None:
                if not self.newest_seen:
                    self.lake.forget(entry_path(4), entry_path(5))
                self.newest_seen.append(newest)

            def at_tip(self, listed: int = -1) -> None:
                self.tips.append(listed)
                self.stop.set()

        clock, stop = manual_clock(), asyncio.Event()
        lake = Lake(clock)
        await table(lake, 6, clock)
        await feed(lake, place, clock, 1, start="earliest")
        monitor = Restoring(lake, stop)
        await feed(lake, place, clock, stop=stop, monitor=monitor)
        assert ids(place) == [("insert", 1, 1), ("insert", 2, 2), ("insert", 3, 3)]
        assert (monitor.newest_seen[0], monitor.tips) == (5, [3])


class TestErrors:
    async def test_nothing_of_a_version_counts_that_cannot_be_read_to_its_end(
        self, place: Place, clock: ManualClock, lake: Lake
    ) -> None:
        writer = await table(lake, 2, clock)
        adds = [await writer._add(rows(n)) for n in (1, 2, 3)]
        await writer.commit("WRITE", adds)
        damaged = max(str(fields["path"]) for _, fields in adds)
        whole = lake.bytes_of(damaged)
        await lake.put(damaged, whole[:-20])
        events: list[str] = []
        with pytest.raises(DataError, match=rf"memory://orders, version 2, file {damaged}"):
            await feed(lake, place, clock, start=2, hook=lambda event, _: events.append(event))
        assert events[-1] == "abort"
        assert place.rows() == []
        await lake.put(damaged, whole)
        await feed(lake, place, clock, 2)
        assert [row["_change_ordinal"] for row in place.rows()] == [0, 1, 2]

    @pytest.mark.parametrize("when", ["write", "commit"])
    async def test_what_the_sink_refuses(self, place: Place, when: str, clock: ManualClock, lake: Lake) -> None:
        await table(lake, 3, clock)
        events: list[str] = []

        def refuse(event: str, about: Any) -> None:
            events.append(event)
            if event == when and "write" in events:
                raise SinkError("the disk is full")

        with pytest.raises(SinkError, match="the disk is full"):
            await feed(lake, place, clock, start=1, hook=refuse)
        assert events[-1] == "abort"
        assert place.rows() == []
        await feed(lake, place, clock, 2)
        assert ids(place) == [("insert", 1, 1), ("insert", 2, 2)]

    async def test_what_is_delivered_before_a_broken_entry_counts(
        self, place: Place, clock: ManualClock, lake: Lake
    ) -> None:
        await table(lake, 4, clock)
        await lake.put(entry_path(4), b"{broken")
        clock.advance(60)
        with pytest.raises(CdfdError, match="version 4"):
            await feed(lake, place, clock, start="earliest")
        assert ids(place) == [("insert", version, version) for version in (1, 2, 3)]

    async def test_a_cancelled_feed_leaves_nothing_behind(self, place: Place, clock: ManualClock, lake: Lake) -> None:
        """As after a signal, when a delivery takes too long: also while a thread reads."""

        await table(lake, 6, clock)
        reading = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell(method: str, path: str) -> None:
            if method == "open" and path.endswith(".parquet"):
                loop.call_soon_threadsafe(reading.set)

        lake.before = tell
        feeding = asyncio.create_task(feed(lake, place, clock, start="snapshot"))
        await reading.wait()
        feeding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await feeding
        assert place.rows() == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await feed(lake, place, clock, 5)
        assert sorted(row["id"] for row in place.rows()) == [1, 2, 3, 4, 5]
