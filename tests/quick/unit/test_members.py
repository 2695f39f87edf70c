"""`cdfd.daemon.membership.members`: tables that come and go leave nothing in memory."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cdfd.config.parser import parse
from cdfd.config.settings import Settings
from cdfd.daemon.http.status import Status
from cdfd.daemon.membership.members import Members
from cdfd.daemon.supervision.supervisor import Supervisor
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


def test_table_that_left_is_collected_once_others_are_open(thawed: None) -> None:
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
        supervisor = Supervisor(stop, clock)
        members = Members(of("a"), supervisor, Status(of("a"), clock, None), open_loop)
        await members.start()
        running = asyncio.create_task(supervisor.run())
        await until(1)
        assert loops[0]() is not None
        await members.configure(of("b"), {})
        await until(2)
        assert loops[0]() is None
        assert loops[1]() is not None
        stop.set()
        await running

    run(scenario())
