"""A changed configuration in a running daemon, without the processes of tests/standard/cli/test_many_tables.py."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cdfd.config.discovery import Discovery
from cdfd.config.parser import load
from cdfd.config.settings import Settings, Table
from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.http.status import Status
from cdfd.daemon.membership import reloading, searching
from cdfd.daemon.membership.destinations import Destinations
from cdfd.daemon.membership.discovery import Folders, FolderSearch, SharedSearches
from cdfd.daemon.membership.members import Members
from cdfd.daemon.membership.reloading import Reloading, changed_settings, file_content
from cdfd.daemon.membership.searching import Searching
from cdfd.daemon.membership.shard import Shard, owner
from cdfd.daemon.supervision.supervisor import Supervisor
from cdfd.deliver.monitor import Monitor
from cdfd.deliver.requests import Request
from cdfd.errors import SinkError, StorageError
from cdfd.runtime.file_events import FileEvents
from cdfd.runtime.tasks import background
from tests.support.manual_time import ManualClock, passing
from tests.support.threads import observe_threads

FILES: dict[str, Any] = {"pipeline": "shop", "sink": {"kind": "files", "path": "/out"}, "progress": {"ledger": "none"}}
SPARK: dict[str, Any] = {
    "pipeline": "shop",
    "sink": {"kind": "kafka", "bootstrap_servers": "h:1"},
    "engine": {"kind": "spark", "spark": {"checkpoint": "/c"}},
}


class Daemon:
    """The tables of a daemon whose loops only wait for their end."""

    def __init__(self, folder: Path, *uris: str, shard: Shard | None = None, **sections: Any) -> None:
        self.path, self.sections = folder / "cdfd.yaml", sections or FILES
        self.table_names: list[str] = []
        self.write(*uris)
        config, clock = load(self.path), ManualClock()
        self.clock = clock
        self.status = Status(config, clock, shard)
        self.controller = Controller("shop", clock)
        self.supervisor = Supervisor(asyncio.Event(), clock, awaits_tables=lambda: self.destinations.awaits_tables())
        self.members = Members(config, self.supervisor, self.status, self.open, self.controller, shard)
        events = FileEvents()
        self.searching = Searching(self.members, self.status.searches, clock, events, SharedSearches(clock))

        @asynccontextmanager
        async def open_destination(_: Settings, __: Status) -> AsyncIterator[Searching]:
            await self.members.start()
            yield self.searching

        self.destinations = Destinations(config, self.status, open_destination)
        self.reloading = Reloading(
            self.path, file_content(self.path), self.destinations, self.status.searches, clock, events, asyncio.Event()
        )

    def write(self, *uris: str, **more: Any) -> None:
        self.path.write_text(json.dumps({"tables": [{"uri": uri} for uri in uris], **self.sections, **more}))

    @asynccontextmanager
    async def open(self, table: Table, stop: asyncio.Event, monitor: Monitor) -> AsyncIterator["Loop"]:
        self.table_names.append(table.name)
        yield Loop(stop)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.supervisor.run())
        try:
            async with asyncio.timeout(20), self.destinations.running():
                await asyncio.sleep(0)
                yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Loop:
    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    async def run(self) -> None:
        await self._stop.wait()


def names(status: Status) -> list[str]:
    return [monitor.table.name for monitor in status.tables()]


def test_tables_come_and_go_with_their_status_metrics_and_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a", "/b")
        async with daemon.running():
            assert list(daemon.controller.tables) == names(daemon.status) == ["a", "b"]
            daemon.write("/b", "/c")
            await daemon.reloading.reload()
            assert (
                names(daemon.status)
                == sorted(daemon.controller.tables)
                == sorted(daemon.supervisor._tables)
                == ["b", "c"]
            )
            text = daemon.status.metrics()().decode()
            assert 'table="a"' not in text
            assert 'table="c"' in text
            document = daemon.status.document()
            assert [table["uri"] for table in document["configuration"]["tables"]] == ["/b", "/c"]
            assert document["reload"]["error"] is None
            while daemon.table_names != ["a", "b", "c"]:
                await asyncio.sleep(0)

    asyncio.run(scenario())


def test_an_error_of_one_table_ends_no_other_one_that_a_reload_changes(tmp_path: Path) -> None:
    """The table that is changed leaves slowly. Meanwhile the other one fails again, as the only one that there is."""

    class Slow(Loop):
        async def run(self) -> None:
            await super().run()
            leaves.set()
            await stays.wait()

    class Broken(Loop):
        async def run(self) -> None:
            raise SinkError("broken")

    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/bad", "/good")
        daemon.members.open_loop = open_loop
        async with daemon.running():
            while daemon.supervisor._tables["bad"].failed is None:
                await asyncio.sleep(0)
            daemon.path.write_text(
                json.dumps({"tables": [{"uri": "/bad"}, {"uri": "/good", "columns": ["id"]}], **FILES})
            )
            reload = asyncio.create_task(daemon.reloading.reload())
            await leaves.wait()
            attempts = loops.count("bad")
            daemon.controller.tables["bad"].interrupt.set()
            while loops.count("bad") == attempts:
                await asyncio.sleep(0)
            for _ in range(10):
                await asyncio.sleep(0)
            stays.set()
            await reload
            while loops.count("good") < 2:
                await asyncio.sleep(0)

    @asynccontextmanager
    async def open_loop(table: Table, stop: asyncio.Event, monitor: Monitor) -> AsyncIterator[Loop]:
        loops.append(table.name)
        yield (Broken if table.name == "bad" else Slow)(stop)

    loops = list[str]()
    leaves, stays = asyncio.Event(), asyncio.Event()
    asyncio.run(scenario())


def test_a_file_is_checked_beside_the_deliveries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = observe_threads(monkeypatch, reloading, "preflight")

    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a")
        async with daemon.running():
            daemon.write("/a", "/b")
            await daemon.reloading.reload()
            assert names(daemon.status) == ["a", "b"]

    asyncio.run(scenario())
    assert threads == [True]


def test_requests_wait_for_the_next_loop_of_a_table_that_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a", "/b")
        async with daemon.running():
            for name in ("a", "b"):
                await daemon.controller.submit(Request("pause", "p", name), timeout=0)
            daemon.path.write_text(json.dumps({"tables": [{"uri": "/a", "key": ["id"]}], **FILES}))
            await daemon.reloading.reload()
            await asyncio.sleep(0)
            request = daemon.controller.tables["a"].first
            assert request is not None
            assert request.id == "p"
            assert [each["additional_data"]["data_collection"] for each in daemon.controller.recent] == ["b"]

    asyncio.run(scenario())


def test_tables_that_fit_only_settings_that_need_a_restart_are_not_applied(tmp_path: Path) -> None:
    """Without a key, the tables of a mirror would fail, and with the last of them the daemon."""

    def sections(mode: str, *tables: dict[str, Any]) -> dict[str, Any]:
        return {"pipeline": "shop", "sink": {"kind": "delta", "path": "/out", "mode": mode}, "tables": list(tables)}

    async def scenario() -> None:
        with_key: dict[str, Any] = {"uri": "/a", "key": ["id"]}
        daemon = Daemon(tmp_path, **sections("mirror", with_key))
        async with daemon.running():
            daemon.path.write_text(json.dumps(sections("changelog", {"uri": "/a"}, {"uri": "/b"})))
            await daemon.reloading.reload()
            assert names(daemon.status) == ["a"]
            assert daemon.members.config.listed[0].key == ("id",)
            error = daemon.status.searches.reload_error
            assert error is not None
            assert "tables[0].key: required" in error
            assert "tables[1].key: required" in error
            daemon.path.write_text(json.dumps(sections("changelog", with_key, {"uri": "/b", "key": ["id"]})))
            await daemon.reloading.reload()
            assert names(daemon.status) == ["a", "b"]
            assert daemon.status.searches.reload_error is None
            assert daemon.status.searches.unapplied == ["sink.mode"]

    asyncio.run(scenario())


def test_search_that_ends_while_a_sink_is_closed_adds_no_tables(tmp_path: Path) -> None:
    """Their loops would deliver with what the sink has closed, and would keep it from being opened again."""

    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a", "/b")
        async with daemon.running():
            await asyncio.gather(daemon.members.close(), daemon.members.note_folders({}))
            assert list(daemon.supervisor._tables) == names(daemon.status) == list(daemon.controller.tables) == []

    asyncio.run(scenario())


def test_a_file_that_changes_during_the_start_is_applied(tmp_path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a")
        async with daemon.running():
            daemon.write("/a", "/b")
            async with passing(daemon.clock), background("reloading", daemon.reloading.run()):
                while names(daemon.status) != ["a", "b"]:
                    await asyncio.sleep(0)

    asyncio.run(scenario())


def test_tables_that_join_together_ask_the_others_once_whether_they_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, not_ready = list[Status](), Status.not_ready

    def count(self: Status) -> Mapping[str, str]:
        asked.append(self)
        return not_ready(self)

    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a")
        async with daemon.running():
            monkeypatch.setattr(Status, "not_ready", count)
            daemon.write("/a", *(f"/t{number}" for number in range(20)))
            await daemon.reloading.reload()
            assert len(names(daemon.status)) == 21
            assert len(asked) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_a_start_is_over_with_the_tables_of_the_first_search(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(self: Searching, discoveries: object) -> dict[Discovery, Folders]:
        raise StorageError("busy", retriable=True)

    async def scenario() -> None:
        log = tmp_path / "lake" / "orders" / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").touch()
        daemon = Daemon(tmp_path, **FILES, tables=[{"discover": f"{tmp_path}/lake/*"}])
        with monkeypatch.context() as patched:
            if fails:
                patched.setattr(Searching, "search", busy)
            async with daemon.running():
                await daemon.searching.started.wait()
                assert list(daemon.controller.tables) == ([] if fails else ["orders"])

    asyncio.run(scenario())


def test_tables_of_one_pattern_do_not_wait_long_for_the_search_for_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may hang. The start is over with the tables of its pattern."""
    answers, list_folders = asyncio.Event(), FolderSearch._list

    async def hang(self: FolderSearch) -> Folders:
        if "hanging" in self.discovery.discover:
            await answers.wait()
        return await list_folders(self)

    async def scenario() -> None:
        for name in ("hanging/orders", "lake/items"):
            log = tmp_path / name / "_delta_log"
            log.mkdir(parents=True)
            (log / f"{0:020}.json").touch()
        patterns = [{"discover": f"{tmp_path}/{name}/*"} for name in ("hanging", "lake")]
        daemon = Daemon(tmp_path, **FILES, tables=patterns)
        async with daemon.running():
            while list(daemon.controller.tables) != ["items"]:
                await asyncio.sleep(0.01)
            assert not daemon.searching.started.is_set()
            answers.set()
            await daemon.searching.started.wait()
            assert list(daemon.controller.tables) == ["items", "orders"]

    monkeypatch.setattr(searching, "START_SECONDS", 0.05)
    monkeypatch.setattr(FolderSearch, "_list", hang)
    asyncio.run(scenario())


def test_a_shard_applies_its_share_of_a_new_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        uris = [f"/t{number}" for number in range(20)]
        daemon = Daemon(tmp_path, shard=Shard(1, 2), *uris[:10])  # noqa: B026 - the tables, then how they are shared
        async with daemon.running():
            daemon.write(*uris)
            await daemon.reloading.reload()
            assert names(daemon.status) == [uri[1:] for uri in uris if owner(uri[1:], 2) == 1]
            assert daemon.status.document()["shard"] == "1/2"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"pipeline": "other"}, "pipeline cannot change"),
        ({"sink": {"kind": "kafka", "bootstrap_servers": "h:1"}}, "sink.kind cannot change"),
        ({"sink": {"kind": "files"}}, "sink.path"),
        ({"tables": []}, "at least one"),
    ],
)
def test_what_cannot_be_applied_changes_nothing(more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a")
        async with daemon.running():
            daemon.write("/a", "/b", **more)
            await daemon.reloading.reload()
            assert names(daemon.status) == ["a"]
            error = daemon.status.document()["reload"]["error"]
            assert problem in error
            assert "cdfd_config_last_reload_successful 0.0" in daemon.status.metrics()().decode()
            daemon.write("/a", "/b")
            await daemon.reloading.reload()
            assert names(daemon.status) == ["a", "b"]
            assert "cdfd_config_last_reload_successful 1.0" in daemon.status.metrics()().decode()

    asyncio.run(scenario())


def test_the_interval_of_a_pattern_is_that_of_the_newest_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a")
        async with daemon.running(), background("searches", daemon.searching.run()):
            for interval in (60, 3600):
                daemon.write(tables=[{"uri": "/a"}, {"discover": f"{tmp_path}/*", "interval": f"{interval}s"}])
                await daemon.reloading.reload()
                await asyncio.sleep(0.1)
                [search] = daemon.status.searches.by_pattern.values()
                assert search.interval == interval
                assert search.began_ms == daemon.clock.now_ms()

    asyncio.run(scenario())


def test_a_folder_in_which_files_come_and_go_is_not_searched_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, searches, search = tmp_path / "lake", 0, FolderSearch._list
    lake.mkdir()

    async def count(self: FolderSearch) -> Folders:
        nonlocal searches
        searches += 1
        return await search(self)

    monkeypatch.setattr(FolderSearch, "_list", count)

    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a")
        daemon.write(tables=[{"uri": "/a"}, {"discover": f"{lake}/*"}])
        async with daemon.running(), background("searches", daemon.searching.run()):
            await daemon.reloading.reload()
            for number in range(30):
                (lake / f"temporary-{number}").touch()
                await asyncio.sleep(0.02)
            assert 0 < searches <= 4  # at the reload, once it is watched, and after the first event
            log = lake / "b" / "_delta_log"
            log.mkdir(parents=True)
            (log / f"{0:020d}.json").touch()
            while names(daemon.status) != ["a", "b"]:
                daemon.clock.advance(0.1)
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_entries_of_one_pattern_are_told_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a")
        for name in ("b1", "b2", "c1"):
            (tmp_path / name / "_delta_log").mkdir(parents=True)
            (tmp_path / name / "_delta_log" / f"{0:020d}.json").write_text("")
        b, c = ({"discover": f"{tmp_path}/*", "include": [f"{first}*"]} for first in "bc")

        def tables() -> dict[str, int]:
            return {name: each["tables"] for name, each in daemon.status.document()["discoveries"].items()}

        async with daemon.running(), background("searches", daemon.searching.run()):
            for entries, counts in ([b, c], {"": 2, " (2)": 1}), ([c], {"": 1}), ([c, b], {"": 1, " (2)": 2}):
                daemon.write(tables=[{"uri": "/a"}, *entries])
                await daemon.reloading.reload()
                expected = {f"{tmp_path}/*{number}": count for number, count in counts.items()}
                while tables() != expected:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [StorageError("busy", retriable=True), StorageError("denied")], ids=str)
def test_a_store_that_fails_while_a_pattern_is_searched_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: StorageError
) -> None:
    """The file is right, and stays as it is."""

    async def busy(self: Searching, discoveries: object) -> dict[Discovery, Folders]:
        raise error

    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a")
        async with daemon.running():
            daemon.write("/a", "/b")
            with monkeypatch.context() as patched:
                patched.setattr(Searching, "search", busy)
                assert not await daemon.reloading.reload()
            assert names(daemon.status) == ["a"]
            assert await daemon.reloading.reload()
            assert names(daemon.status) == ["a", "b"]
            daemon.path.write_text("tables: 1")
            assert await daemon.reloading.reload()  # only another file helps

    with caplog.at_level("WARNING", "cdfd.daemon"):
        asyncio.run(scenario())
    assert [record.levelname for record in caplog.records] == ["WARNING" if error.retriable else "ERROR", "ERROR"]


def test_a_sink_that_cannot_be_opened_keeps_no_change_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        path, clock, broken, open_sinks = tmp_path / "cdfd.yaml", ManualClock(), {"two"}, dict[str, list[str]]()

        def write(uri: str, *sinks: str) -> None:
            several = {name: {"kind": "files", "path": f"/{name}"} for name in sinks}
            path.write_text(json.dumps({"pipeline": "shop", "tables": [{"uri": uri}], "sinks": several}))

        @asynccontextmanager
        async def open_destination(config: Settings, status: Status) -> AsyncIterator[Searching]:
            if config.sink_name in broken:
                raise StorageError("no such server")
            members = Members(config, Supervisor(asyncio.Event(), clock), status, Daemon.open)  # type: ignore[arg-type]  # never runs
            await members.start()
            searching = Searching(members, status.searches, clock, FileEvents(), SharedSearches(clock))
            open_sinks[config.sink_name] = names(status)
            try:
                yield searching
            finally:
                del open_sinks[config.sink_name]

        write("/a", "old", "stays")
        status = Status(load(path), clock)
        destinations = Destinations(load(path), status, open_destination)
        reloading = Reloading(path, None, destinations, status.searches, clock, FileEvents(), asyncio.Event())
        async with asyncio.timeout(20), destinations.running():
            write("/b", "stays", "two", "three")
            await reloading.reload()
            assert str(status.document()["reload"]["error"]).startswith("sink two cannot be opened: no such server")
            assert list(open_sinks) == ["stays", "three"]
            changes = [record.getMessage().partition(": sink ")[2] for record in caplog.records]
            added = "stays: added: b; removed: a", "three: added"
            assert changes == ["old: removed", *added, "two cannot be opened: no such server"]
            assert names(status) == ["b", "b"]
            broken.clear()
            await reloading.reload()
            assert status.document()["reload"]["error"] is None
            assert list(open_sinks) == ["stays", "three", "two"]

    with caplog.at_level("INFO", "cdfd.daemon"):
        asyncio.run(scenario())


def test_tables_fit_the_settings_that_a_sink_keeps_after_several_reloads(tmp_path: Path) -> None:
    """The heartbeats still have the topic of the first file, whatever later files say."""

    async def scenario() -> None:
        path, clock = tmp_path / "cdfd.yaml", ManualClock()

        def write(heartbeats: str, *topics: str) -> None:
            several = {"events": {"kind": "kafka", "bootstrap_servers": "h:1"}}
            tables = [{"uri": f"/{topic}"} for topic in topics]
            beat = {"interval": "1s", "topic": heartbeats}
            path.write_text(json.dumps({"pipeline": "p", "tables": tables, "sinks": several, "heartbeat": beat}))

        @asynccontextmanager
        async def open_destination(config: Settings, status: Status) -> AsyncIterator[Searching]:
            members = Members(config, Supervisor(asyncio.Event(), clock), status, Daemon.open)  # type: ignore[arg-type]  # never runs
            await members.start()
            yield Searching(members, status.searches, clock, FileEvents(), SharedSearches(clock))

        write("beats", "a")
        status = Status(load(path), clock)
        destinations = Destinations(load(path), status, open_destination)
        reloading = Reloading(path, None, destinations, status.searches, clock, FileEvents(), asyncio.Event())
        async with asyncio.timeout(20), destinations.running():
            write("others", "a")
            await reloading.reload()
            assert status.document()["reload"]["needs_restart"] == ["heartbeat.topic"]
            write("others", "a", "beats")
            await reloading.reload()
            assert 'the topic "beats" is the daemon\'s own' in str(status.document()["reload"]["error"])
            assert names(status) == ["a"]
            write("others", "a", "b")
            await reloading.reload()
            assert names(status) == ["a", "b"]

    asyncio.run(scenario())


def test_queries_of_spark_read_their_configuration_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        daemon = Daemon(tmp_path, "/a", **SPARK)
        async with daemon.running():
            daemon.write("/a", "/b")
            await daemon.reloading.reload()
            assert names(daemon.status) == ["a"]
            assert "spark" in daemon.status.document()["reload"]["error"]

    asyncio.run(scenario())


def settings(folder: Path, **sections: Any) -> Settings:
    path = folder / "cdfd.yaml"
    path.write_text(json.dumps({"tables": [{"uri": "/a"}], **FILES, **sections}))
    return load(path)


def test_changed_settings_are_named_with_their_sections(tmp_path: Path) -> None:
    old = settings(tmp_path)
    assert changed_settings(old, settings(tmp_path)) == []
    assert changed_settings(old, settings(tmp_path, poll={"interval": "2s"})) == ["poll.interval"]
    assert changed_settings(old, settings(tmp_path, tables=[{"uri": "/b"}])) == ["tables"]
    kafka = settings(tmp_path, sink={"kind": "kafka", "bootstrap_servers": "h:1"})
    assert changed_settings(old, kafka) == ["sink.kind"]
