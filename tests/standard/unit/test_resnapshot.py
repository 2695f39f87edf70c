"""An incremental snapshot while the table streams: each live row once, never an old value after a new one, wherever the daemon dies."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdfd.daemon.http.status import Status
from cdfd.deliver import feed as feeds
from cdfd.deliver import resnapshotter
from cdfd.deliver.mailbox import Mailbox
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.requests import Notification, Request
from cdfd.delta.actions import Add, DeletionVectorDescriptor, Remove
from cdfd.delta.commit import Commit
from cdfd.delta.files import PackedFiles, pack
from cdfd.demo.writer import TableWriter
from cdfd.errors import StorageError
from cdfd.log.stream import version_batches
from cdfd.model.control import EMPTY, Control
from cdfd.model.plan import LiveScans
from cdfd.model.position import ORDINAL_SPAN, Position
from cdfd.model.version import Touched
from cdfd.plan import resnapshot
from cdfd.plan.resnapshot import NumberedFiles
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import Shape
from cdfd.storage.base import Stat
from tests.support.feeding import Crash, DeltaPlace, FilesPlace, MemoryPlace, Place, feed
from tests.support.histories import OPERATIONS, restore, write_more
from tests.support.lake import SCHEMA, Lake, manual_clock, rows, run, table
from tests.support.sampling import stride
from tests.support.statuses import configuration, table_monitor
from tests.support.threads import observe_threads

HISTORIES = st.lists(st.one_of(OPERATIONS, st.tuples(st.just("restore"), st.integers(0, 20))), max_size=7)


@pytest.fixture(params=[MemoryPlace, FilesPlace, DeltaPlace], ids=lambda place: place.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return request.param(tmp_path / "out")


@pytest.fixture(autouse=True)
def _in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is a chunk, and chunks and versions take turns."""
    monkeypatch.setattr(resnapshot, "CHUNK_FILES", 1)
    monkeypatch.setattr(feeds, "version_batches", partial(version_batches, max_versions=1))


class Operator(Monitor):
    """Sends requests, and ends the feed once everything is delivered."""

    def __init__(self, *requests: Request, crash_at: int = -1) -> None:
        self.news: list[Notification] = []
        self.mailbox = Mailbox(self.news.append)
        self.stop = asyncio.Event()
        self.last = -1
        self.crash_at = crash_at
        self._control: Control = EMPTY
        self._following = 0
        self._sent = False
        self._requests = requests
        self.answers: list[asyncio.Future[Notification]] = []

    def send(self) -> None:
        if not self._sent:
            self._sent = True
            self.answers = [self.mailbox.put(request) for request in self._requests]

    def hook(self, event: str, about: Any) -> None:
        if event == "hasten":
            return  # beside the loop, so that a crash in it would not end the loop
        if self.crash_at == 0:
            self.crash_at -= 1
            raise Crash
        self.crash_at -= 1
        if event in ("controlled", "chunk committed"):
            self._control = about
        if event == "committed":
            self._following = about.version
        self.at_tip()

    def at_tip(self, listed: int = -1) -> None:
        if self._following > self.last and self._control.snapshot is None and self.mailbox.first is None:
            self.stop.set()


def request(action: Any, id: str = "a", **fields: Any) -> Request:
    return Request(action, id, "orders", **fields)


async def finished(lake: Lake, place: Place, operator: Operator, **options: Any) -> None:
    """Run the feed until everything is delivered, again after a crash."""
    operator.send()
    while True:
        operator.stop.clear()
        sink = await place.open()
        position, control = await sink.last_position(), sink.control
        await sink.close()
        operator._control, operator._following = control, -1 if position is None else position.version
        try:
            await feed(
                lake,
                place,
                manual_clock(),
                hook=operator.hook,
                stop=operator.stop,
                mailbox=operator.mailbox,
                monitor=operator,
                **options,
            )
        except Crash:
            continue
        return


async def delivered(lake: Lake, place: Place, last: int) -> None:
    """Deliver the versions up to the last one."""
    operator = Operator()
    operator.last = last
    await finished(lake, place, operator, start="earliest")


def again(place: Place) -> list[dict[str, Any]]:
    """The rows of incremental snapshots."""
    return [row for row in place.rows() if row["_change_ordinal"] >= ORDINAL_SPAN]


def values(listing: Iterable[dict[str, Any]]) -> Counter[tuple[int, str]]:
    return Counter((row["id"], row["v"]) for row in listing)


def check_consumer(place: Place, writer: TableWriter) -> None:
    """Follow the rows as a consumer does that keeps the last value of each key."""
    state: dict[int, str] = {}
    versions: dict[int, int] = {}
    for row in place.rows():
        if row["_change_ordinal"] >= ORDINAL_SPAN:
            assert state[row["id"]] == row["v"], "an old value, or a row that was deleted"
            assert versions[row["id"]] <= row["_commit_version"]
        elif row["_change_type"] in ("insert", "update_postimage"):
            state[row["id"]] = row["v"]
            versions[row["id"]] = row["_commit_version"]
        elif row["_change_type"] == "delete":
            state.pop(row["id"])
    assert Counter(state.items()) == values(writer.rows().to_pylist())
    identities = Counter((row["_commit_version"], row["_change_ordinal"]) for row in place.rows())
    assert all(count == 1 for count in identities.values())


@settings(max_examples=60 // stride(3), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=HISTORIES, after=HISTORIES, crash_at=st.integers(-1, 60))
@pytest.mark.parametrize("kind", [MemoryPlace, FilesPlace])
def test_each_live_row_once_and_in_order(
    kind: type[Place],
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[str, int]],
    after: list[tuple[str, int]],
    crash_at: int,
) -> None:
    async def scenario() -> None:
        place = kind(tmp_path_factory.mktemp("out"))
        clock = manual_clock()
        lake = Lake(clock)
        writer = TableWriter(lake, SCHEMA, clock=clock, table_id="T")
        await writer.create()
        await write_more(writer, before)
        await delivered(lake, place, writer.version)
        live = values(writer.rows().to_pylist())
        await write_more(writer, after)
        operator = Operator(request("snapshot"), crash_at=crash_at)
        operator.last = writer.version
        await finished(lake, place, operator)
        assert values(again(place)) == live
        check_consumer(place, writer)
        [answer] = operator.answers
        assert answer.result().type == "STARTED"
        # The news is lost if the daemon dies after the last chunk.
        assert [each.type for each in operator.news] in (["COMPLETED"], [] if crash_at >= 0 else ["COMPLETED"])

    run(scenario())


def test_rows_that_a_rewrite_moves_are_published_before_it(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 4, clock)
        await delivered(lake, place, 3)
        live = values(writer.rows().to_pylist())
        await writer.optimize()
        await writer.insert(rows(9))
        operator = Operator(request("snapshot"))
        operator.last = 5
        await finished(lake, place, operator)
        assert values(again(place)) == live
        assert {row["_commit_version"] for row in again(place)} == {3}
        check_consumer(place, writer)

    run(scenario())


def test_files_that_are_removed_with_another_deletion_vector_are_published_before(place: Place) -> None:
    """Otherwise their rows would come back after their deletes."""

    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = TableWriter(lake, SCHEMA, clock=clock, table_id="T")
        await writer.create()
        for version in range(1, 5):
            await writer.insert(rows(version, 10 + version))
        await writer.delete(pc.field("id") > 10)
        await delivered(lake, place, 5)
        live = values(writer.rows().to_pylist())
        # This writer leaves the deletion vectors out.
        removes = [writer._remove(file)[1] for file in list(writer._files.values())]
        await writer.commit("DELETE", [("remove", {**each, "deletionVector": None}) for each in removes])
        operator = Operator(request("snapshot"))
        operator.last = 6
        await finished(lake, place, operator)
        assert values(again(place)) == live
        check_consumer(place, writer)

    run(scenario())


@pytest.mark.parametrize(
    ("removed", "added", "expected"),
    [
        ("x", None, Touched(removed=(1,))),
        ("y", None, Touched(removed=(1,))),
        ("", None, Touched(removed=(1,))),
        ("", "z", Touched(removed=(1,))),
        ("z", "x", Touched(returned=(1,))),
        ("x", "x", Touched()),
        (None, "x", Touched(returned=(1,))),
        (None, "y", Touched()),
    ],
)
def test_which_files_a_commit_touches(removed: str | None, added: str | None, expected: Touched) -> None:
    """Of three files, of which the second one has the deletion vector `x`. "" is an action without a vector, None no action."""

    def vector(name: str) -> DeletionVectorDescriptor | None:
        return DeletionVectorDescriptor("i", name, None, 1, 1) if name else None

    def add(path: str, name: str) -> Add:
        return Add(path, {}, 1, 1, True, deletion_vector=vector(name))

    files = PackedFiles(Add, pa.Table.from_batches([pack([add("a", ""), add("b", "x"), add("c", "")])]))
    removes = () if removed is None else (Remove("b", 1, True, deletion_vector=vector(removed)),)
    adds = () if added is None else (add("b", added),)
    assert NumberedFiles(LiveScans(files)).touched(Commit(1, adds, removes)) == expected


def test_which_files_are_live_in_another_version_as_they_were() -> None:
    def packed(*files: tuple[str, str | None]) -> PackedFiles[Add]:
        adds = [
            Add(path, {}, 1, 1, True, deletion_vector=name and DeletionVectorDescriptor("i", name, None, 1, 1))
            for path, name in files
        ]
        return PackedFiles(Add, pa.Table.from_batches([pack(adds)]))

    files = NumberedFiles(LiveScans(packed(("a", None), ("b", "x"), ("c", None), ("d", "x"), ("e", "x"), ("é", None))))
    others = packed(("é", None), ("d", "y"), ("f", None), ("b", "x"), ("c", "x"), ("e", None), ("e", "x"))
    assert files.live_in(others).tolist() == [False, True, False, False, True, True]
    assert not files.live_in(packed()).any()
    assert NumberedFiles(LiveScans(packed())).live_in(others).tolist() == []


def test_files_are_selected_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the stream has continued before a restart, so that some of them are gone."""
    selected_in = observe_threads(monkeypatch, resnapshotter, "select_files")
    compared_in = observe_threads(monkeypatch, NumberedFiles, "live_in")

    async def scenario() -> None:
        clock, place = manual_clock(), MemoryPlace(tmp_path / "out")
        lake = Lake(clock)
        writer = await table(lake, 4, clock)
        await delivered(lake, place, 3)
        for version in range(4, 7):
            await writer.insert(rows(version))
        operator = Operator(request("snapshot", where="id >= 0"), crash_at=14)
        operator.last = 6
        await finished(lake, place, operator)
        assert selected_in
        assert all(selected_in)
        assert compared_in
        assert all(compared_in)

    run(scenario())


def test_chunks_and_versions_take_turns(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 6, clock)
        await delivered(lake, place, 5)
        for version in range(6, 9):
            await writer.insert(rows(version))
        operator = Operator(request("snapshot"))
        operator.last = 8
        await finished(lake, place, operator)
        assert len({row["_commit_version"] for row in again(place)}) > 1
        check_consumer(place, writer)

    run(scenario())


def test_a_second_one_at_the_same_version_has_other_ordinals(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 3, clock)
        await delivered(lake, place, 2)
        for id in ("a", "b"):
            operator = Operator(request("snapshot", id))
            operator.last = 2
            await finished(lake, place, operator)
        assert values(again(place)) == values(writer.rows().to_pylist() * 2)
        check_consumer(place, writer)

    run(scenario())


def test_files_that_a_condition_excludes_are_left_out(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = TableWriter(lake, SCHEMA, clock=clock, table_id="T")
        await writer.create()
        for id in range(3):
            _, add = await writer._add(rows(id))
            stats = f'{{"numRecords":1,"minValues":{{"id":{id}}},"maxValues":{{"id":{id}}},"nullCount":{{"id":0}}}}'
            await writer.commit("WRITE", [("add", {**add, "stats": stats})])
        await delivered(lake, place, 3)
        operator = Operator(request("snapshot", where="id >= 1 AND id in (1, 7)"))
        operator.last = 3
        await finished(lake, place, operator)
        assert values(again(place)) == Counter({(1, "a"): 1})

    run(scenario())


@pytest.mark.parametrize("where", ["nope = 1", "id = 'x'", "v > 7"])
def test_a_condition_that_does_not_fit_the_table_is_refused(place: Place, where: str) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        await table(lake, 2, clock)
        await delivered(lake, place, 1)
        operator = Operator(request("snapshot", where=where))
        operator.last = 1
        await finished(lake, place, operator)
        assert operator.answers[0].result().refusal == "malformed"
        assert again(place) == []

    run(scenario())


def test_a_request_waits_for_a_store_that_is_busy(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        await table(lake, 2, clock)
        await delivered(lake, place, 1)

        def busy(method: str, path: str) -> None:
            raise StorageError("busy", retriable=True)

        lake.before = busy
        operator = Operator(request("snapshot", where="id = 1"))
        operator.last = 1
        with pytest.raises(StorageError, match="busy"):
            await finished(lake, place, operator)
        assert not operator.answers[0].done()
        lake.before = lambda method, path: None
        await finished(lake, place, operator)
        assert operator.answers[0].result().type == "STARTED"

    run(scenario())


def test_an_unreadable_file_aborts_it_and_the_stream_continues(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 3, clock)
        await delivered(lake, place, 2)
        lake.forget("part-")
        await writer.insert(rows(7))
        operator = Operator(request("snapshot"))
        operator.last = 3
        await finished(lake, place, operator)
        assert [each.type for each in operator.news] == ["ABORTED"]
        assert again(place) == []
        check_consumer(place, writer)

    run(scenario())


def test_an_unreadable_file_aborts_it_while_a_removed_file_comes_back(place: Place) -> None:
    """The last file is published before its turn. RESTORE brings it back, which needs all files before it, and one is missing."""

    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 5, clock)
        await delivered(lake, place, 4)
        files = dict(writer._files)
        *_, missing, last = sorted(files)
        await writer.delete(pc.field("id") == files[last].rows["id"][0].as_py())
        await restore(writer, files)
        lake.forget(missing)
        operator = Operator(request("snapshot"))
        operator.last = 6
        await finished(lake, place, operator)
        assert [each.type for each in operator.news] == ["ABORTED"]
        assert values(again(place)).total() == len(files) - 1
        check_consumer(place, writer)

    run(scenario())


def test_files_without_a_row_for_the_filter_count_as_pending_after_a_crash(place: Place) -> None:
    """Of the files that are published before a version removes them, the progress has the number alone."""

    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = TableWriter(lake, SCHEMA, clock=clock, table_id="T")
        await writer.create()
        adds = [await writer._add(rows(id)) for id in range(20)]
        # Files are numbered in the order of their paths. The first one to be removed has no row for the filter.
        paths = sorted(writer._files)
        hidden, *others = [writer._files[path] for path in paths[10:13]]
        where = f"id <> {hidden.rows['id'][0].as_py()}"
        for _, add in adds:
            [id] = writer._files[add["path"]].rows["id"].to_pylist()
            add["stats"] = (
                f'{{"numRecords":1,"minValues":{{"id":{id}}},"maxValues":{{"id":{id}}},"nullCount":{{"id":0}}}}'
            )
        await writer.commit("WRITE", adds)
        live = values(row for row in writer.rows().to_pylist() if row["id"] != hidden.rows["id"][0].as_py())
        shape = Shape(where=parse_filter(where))
        before = Operator()
        before.last = 1
        await finished(lake, place, before, start="earliest", shape=shape)
        await writer.insert(rows(30))
        await writer.commit("DELETE", [writer._remove(file) for file in (hidden, *others)])
        operator = Operator(request("snapshot"))
        operator.last, act = 3, operator.hook
        crashes = iter([True])

        def crash_ahead(event: str, about: Any) -> None:
            if event == "chunk committed" and about.snapshot.ahead == 1 and next(crashes, False):
                raise Crash
            act(event, about)

        operator.hook = crash_ahead
        await finished(lake, place, operator, shape=shape)
        assert next(crashes, None) is None
        assert values(again(place)) == live

    run(scenario())


def test_a_snapshot_after_a_missing_file_ends_it(place: Place) -> None:
    """All rows are in the new snapshot, and those of files that are gone are not read again."""

    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 3, clock)
        await delivered(lake, place, 2)
        await writer.insert(rows(7))
        [gone] = [file for file in writer._files.values() if file.rows["id"].to_pylist() == [7]]
        lake.forget(gone.path)
        await writer.commit("OPTIMIZE", [writer._remove(gone, data_change=False)])
        operator = Operator(request("snapshot"))
        operator.last = 4
        await finished(lake, place, operator, on_missing_file="snapshot", start="earliest")
        assert [each.type for each in operator.news] == ["ABORTED"]
        assert "a snapshot of the table has all rows" in operator.news[0].message
        new = values(row for row in place.rows() if row["_commit_version"] == 4)
        assert new == values(writer.rows().to_pylist())

    run(scenario())


def test_it_can_be_stopped_and_only_one_runs(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        await table(lake, 3, clock)
        await delivered(lake, place, 2)
        sent = [
            request("snapshot"),
            request("snapshot", "b"),
            request("stop-snapshot", "c"),
            request("stop-snapshot", "d"),
        ]
        operator = Operator(*sent)
        operator.last = 2
        await finished(lake, place, operator)
        actual = [answer.result() for answer in operator.answers]
        assert [(each.type, each.refusal) for each in actual] == [
            ("STARTED", None),
            ("REFUSED", "conflict"),
            ("ABORTED", None),
            ("REFUSED", "conflict"),
        ]
        assert again(place) == []

    run(scenario())


def test_the_same_id_is_carried_out_once_even_after_a_restart(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 3, clock)
        await delivered(lake, place, 2)
        answers = []
        for _ in range(2):
            operator = Operator(request("snapshot"))
            operator.last = 2
            await finished(lake, place, operator)
            answers.append(operator.answers[0].result())
        assert [each.refusal for each in answers] == [None, "duplicate"]
        assert values(again(place)) == values(writer.rows().to_pylist())

    run(scenario())


def test_rows_keep_their_columns_after_the_schema_changed(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 3, clock)
        await delivered(lake, place, 2)
        await writer.update(pc.field("id") == 1, {"v": pc.scalar("b")})
        operator = Operator(request("snapshot"))
        operator.last = 3
        await finished(lake, place, operator)
        check_consumer(place, writer)

    run(scenario())


def test_a_file_that_was_published_early_and_comes_back_is_not_published_again(place: Place) -> None:
    """The last file is removed, and so published before its turn. RESTORE brings it back, and then the daemon dies."""

    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 5, clock)
        await delivered(lake, place, 4)
        live = values(writer.rows().to_pylist())
        files = dict(writer._files)
        last = files[max(files)]
        await writer.delete(pc.field("id") == last.rows["id"][0].as_py())
        await restore(writer, files)
        operator = Operator(request("snapshot"))
        operator.last = 6
        hook = operator.hook

        def die(event: str, about: Any) -> None:
            hook(event, about)
            if event == "committed" and about.version == 7 and not died:
                died.append(True)
                raise Crash

        died: list[bool] = []
        operator.hook = die  # type: ignore[method-assign]
        await finished(lake, place, operator)
        assert died
        assert values(again(place)) == live
        check_consumer(place, writer)

    run(scenario())


def test_an_entry_that_is_written_again_removes_no_file(place: Place) -> None:
    """A writer replaces the entry of a file, such as its statistics. The file stays, and is published once."""

    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 5, clock)
        await delivered(lake, place, 4)
        live = values(writer.rows().to_pylist())
        last = writer._files[max(writer._files)]
        removed = writer._remove(last, data_change=False)
        writer._files[last.path] = last
        await writer.commit("COMPUTE STATISTICS", [removed, writer._add_action(last, data_change=False)])
        await writer.insert(rows(9))
        operator = Operator(request("snapshot"), crash_at=25)
        operator.last = 6
        await finished(lake, place, operator)
        assert values(again(place)) == live
        check_consumer(place, writer)

    run(scenario())


def test_a_pause_stops_chunks_too_and_survives_the_process(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        writer = await table(lake, 4, clock)
        await delivered(lake, place, 3)
        operator = Operator(request("snapshot"), request("pause", "b"))
        operator.send()
        paused = asyncio.create_task(
            feed(lake, place, clock, stop=operator.stop, mailbox=operator.mailbox, hook=lambda *_: None)
        )
        await clock.wait_for_sleepers()
        assert [answer.result().type for answer in operator.answers] == ["STARTED", "PAUSED"]
        operator.stop.set()
        await paused
        assert again(place) == []
        resuming = Operator(request("resume", "c"))
        resuming.last = 3
        await finished(lake, place, resuming)
        assert resuming.answers[0].result().type == "RESUMED"
        assert values(again(place)) == values(writer.rows().to_pylist())

    run(scenario())


def test_a_paused_table_shows_its_incremental_snapshot_and_where_it_moved(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        await table(lake, 6, clock)
        await feed(lake, place, clock, until=1, start="earliest")
        monitor = table_monitor(Status(configuration(), clock), "orders")

        async def ask(*requests: Request) -> dict[str, Any]:
            """The status after requests to a loop that starts, and then stops."""
            mailbox, stop = Mailbox(), asyncio.Event()
            answers = [mailbox.put(each) for each in requests]
            paused = asyncio.create_task(feed(lake, place, clock, stop=stop, mailbox=mailbox, monitor=monitor))
            await clock.wait_for_sleepers()
            assert all(answer.done() for answer in answers)
            document = monitor.document()
            stop.set()
            await paused
            return document

        begun = (await ask(request("pause"), request("snapshot", "b")))["resnapshot"]
        assert begun == {"id": "b", "version": -1, "files": None, "remaining": None, "rows": 0, "where": ""}
        monitor.resnapshot(None)  # as after a restart
        document = await ask()
        assert (document["delivered_version"], document["lag_versions"], document["resnapshot"]) == (1, 4, begun)
        document = await ask(request("move", "c", version=5))
        assert (document["delivered_version"], document["lag_versions"], document["resnapshot"]) == (5, 0, None)
        assert document["lag_seconds"] == 0
        assert document["state"] == "paused"

    run(scenario())


def test_a_resumed_table_is_at_the_tip_once_its_backlog_is_delivered(place: Place) -> None:
    class Tips(Monitor):
        def __init__(self) -> None:
            self.following = 0
            self.tips: list[int] = []

        def committed(self, following: Position, *_: Any) -> None:
            self.following = following.version

        def at_tip(self, listed: int = -1) -> None:
            self.tips.append(self.following)

    class SlowLake(Lake):
        async def fetch(self, path: str, length: int) -> tuple[bytes, Stat]:
            await asyncio.sleep(0.01)
            return await super().fetch(path, length)

    async def until_tip(monitor: Tips, following: int) -> None:
        while monitor.tips[-1:] != [following]:
            await asyncio.sleep(0.001)

    async def scenario() -> None:
        clock, monitor, mailbox, stop = manual_clock(), Tips(), Mailbox(), asyncio.Event()
        lake = SlowLake(clock)
        writer = await table(lake, 3, clock)
        task = asyncio.create_task(
            feed(lake, place, clock, stop=stop, mailbox=mailbox, monitor=monitor, start="earliest")
        )
        await until_tip(monitor, 3)
        await mailbox.put(request("pause"))
        for _ in range(3):
            await writer.insert(rows(7))
        await mailbox.put(request("resume", "b"))
        await until_tip(monitor, 6)
        assert monitor.tips == [3, 6]
        stop.set()
        await task

    run(asyncio.wait_for(scenario(), 60))


def test_a_move_forward_and_its_bounds(place: Place) -> None:
    async def scenario() -> None:
        clock = manual_clock()
        lake = Lake(clock)
        await table(lake, 6, clock)
        operator = Operator(request("move", "a", version=3), request("move", "b", version=99))
        operator.last = 5
        await finished(lake, place, operator, start="earliest")
        moved, refused = (answer.result() for answer in operator.answers)
        assert (moved.type, refused.refusal) == ("MOVED", "conflict")
        assert [row["_commit_version"] for row in place.rows()] == [4, 5]

    run(scenario())
