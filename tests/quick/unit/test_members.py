"""`cdfd.daemon.membership.members`: tables that come and go leave nothing in memory."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.daemon import assembly
from cdfd.daemon.http.status import Status
from cdfd.daemon.membership.discovery import Folders
from cdfd.daemon.membership.members import Members
from cdfd.daemon.supervision.supervisor import Supervisor
from cdfd.runtime.clock import SystemClock
from tests.support.lake import run
from tests.support.manual_time import ManualClock


class Cycle:
    """A loop that only the garbage collector can collect."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.own = self
        self._stop = stop

    async def run(self) -> None:
        await self._stop.wait()


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def of(*names: str) -> Settings:
    tables = ", ".join(f"{{uri: /lake/{name}}}" for name in names)
    return parse(f"pipeline: p\ntables: [{tables}]\nsink: {{kind: files, path: /out}}", {})


@pytest.mark.parametrize(("tables", "left"), [(1, 1), (10, 1), (11, 2), (30, 3)])
def test_tables_that_left_are_collected_once_they_are_a_tenth(thawed: None, tables: int, left: int) -> None:
    """All objects of the process are looked at then, while no table is delivered."""
    loops = list[weakref.ref[Cycle]]()
    all_open = asyncio.Event()

    @asynccontextmanager
    async def open_loop(_: Any, stop: asyncio.Event, __: Any) -> AsyncIterator[Cycle]:
        loop = Cycle(stop)
        loops.append(weakref.ref(loop))
        all_open.set()
        yield loop

    async def until(count: int) -> None:
        while len(loops) < count or not gc.get_freeze_count():
            await asyncio.wait_for(all_open.wait(), 10)
            all_open.clear()
            await asyncio.sleep(0.05)

    async def scenario() -> None:
        stop, clock = asyncio.Event(), ManualClock()
        supervisor, names = Supervisor(stop, clock), [f"t{number}" for number in range(tables)]
        members = Members(of(*names), supervisor, Status(of(*names), clock, None), open_loop)
        await members.start()
        running = asyncio.create_task(supervisor.run())
        await until(tables)
        for number in range(1, left + 1):
            assert None not in [loop() for loop in loops]
            names = [*names[1:], f"joins{number}"]
            await members.configure(of(*names), {})
            await until(tables + number)
        assert [loop() is None for loop in loops] == [True] * left + [False] * tables
        stop.set()
        await running

    run(scenario())


async def test_what_the_loops_of_a_table_keep_goes_with_the_table(thawed: None, tmp_path: Path) -> None:
    def configure(*names: str) -> Settings:
        tables = ", ".join(f"{{uri: {tmp_path / name}}}" for name in names)
        sink = f"sink: {{kind: files, path: {tmp_path / 'out'}}}"
        return parse(f"pipeline: p\ntables: [{tables}]\n{sink}\nprogress: {{ledger: source}}", {})

    clock, stop = SystemClock(), asyncio.Event()
    config = configure("a", "b")
    async with asyncio.timeout(20), assembly.shared(config, clock) as shared:
        supervisor = Supervisor(stop, clock)
        members = Members(config, supervisor, Status(config, clock, None), partial(assembly.feed, shared))
        await members.start()
        running = asyncio.create_task(supervisor.run())
        while len(shared.kept) < 2:
            await asyncio.sleep(0.01)
        assert len(shared.ledger_warnings) == 2
        await members.configure(configure("b"), {})
        gc.unfreeze()
        gc.collect()
        assert len(shared.kept) == len(shared.ledger_warnings) == 1
        stop.set()
        await running


KAFKA = """
pipeline: p
tables: [{discover: '/lake/*', sinks: [k1]}, {discover: '/lake/*', topic: '{table}', sinks: [k2]}, {uri: /other/b, sinks: [k1]}]
sinks:
  k1: {kind: kafka, bootstrap_servers: 'a:1'}
  k2: {kind: kafka, bootstrap_servers: 'a:1', pipeline: q}
"""
FILES = KAFKA.replace("kafka, bootstrap_servers: 'a:1'", "files, path: /out")


@pytest.mark.parametrize(
    ("text", "place"), [(KAFKA, 'topic "a"'), (FILES, 'place "/out/a"')], ids=["topics", "folders"]
)
async def test_found_table_has_no_place_of_a_table_that_another_sink_found(thawed: None, text: str, place: str) -> None:
    """The rows of both would be in one topic, or the second sink would wait forever for the folder of the first one."""
    config, clock, stop = parse(text, {}), ManualClock(), asyncio.Event()
    status, supervisor = Status(config, clock), Supervisor(stop, clock)

    @asynccontextmanager
    async def open_loop(_: Any, stop: asyncio.Event, __: Any) -> AsyncIterator[Cycle]:
        yield Cycle(stop)

    async def find(name: str, *folders: str) -> list[str]:
        each = sinks[name]
        await each.note_folders({each.config.discoveries[0]: Folders([(folder,) for folder in folders])})
        return [table.table.name for table in each.status.tables()]

    sinks = {name: Members(each, supervisor, status.of_sink(each), open_loop) for name, each in config.by_sink.items()}
    both = await asyncio.gather(find("k1", "a"), find("k2", "a", "c"))  # at once, as at a start
    assert sorted([*both[0], *both[1]]) == ["a", "b", "c"]
    first, later = ("k1", "k2") if "a" in both[0] else ("k2", "k1")
    [refused] = sinks[later].status.searches.refused
    assert f"the {place} is also one of sinks.{first}" in refused
    await find(first)
    assert "a" in await find(later, "a", "c")
    assert not sinks[later].status.searches.refused
