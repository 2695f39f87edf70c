"""A process that delivers, and the file of its configuration."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cdfd.config.parser import load
from cdfd.config.settings import Settings
from cdfd.daemon.controls.controller import Controller
from cdfd.daemon.election.warm_tables import WarmTables
from cdfd.daemon.http.status import Status
from cdfd.daemon.membership.reloading import file_content
from cdfd.daemon.supervision.process import _Process
from cdfd.demo.writer import TableWriter
from cdfd.runtime.clock import SystemClock
from cdfd.storage.local import LocalStorage
from tests.support.lake import SCHEMA, rows


def write(path: Path, *tables: str) -> Settings:
    sink = f"{{kind: files, path: {path.parent / 'out'}}}"
    entries = "\n".join(f"  - {{{table}}}" for table in tables)
    path.write_text(f"pipeline: shop\nsink: {sink}\nprogress: {{ledger: none}}\ntables:\n{entries}\n")
    return load(path)


class Stopping:
    """A stop without signals and without a limit of time."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def limit_end(self, _: object = None) -> None:
        pass


def names(status: Status) -> list[str]:
    return [monitor.table.name for monitor in status.tables()]


@asynccontextmanager
async def delivering(
    path: Path, config: Settings, loaded: bytes | None, *, elected: bool = False
) -> AsyncIterator[tuple[Status, asyncio.Task[None]]]:
    """A process with these settings, once it has opened its tables."""
    clock, stopping = SystemClock(), Stopping()
    status, controller = Status(config, clock, standby=elected), Controller("shop", clock)
    process = _Process(config, path, loaded, clock, status, controller, asyncio.Event(), stopping, None, False)  # type: ignore[arg-type]
    warm = WarmTables(config, clock, asyncio.Event()) if elected else None
    status.has_begun = False
    task = asyncio.create_task(process.deliver(stopping.event, warm))
    try:
        async with asyncio.timeout(20):
            while not status.has_begun:
                assert not task.done()
                await asyncio.sleep(0)
            yield status, task
    finally:
        stopping.event.set()
        await asyncio.gather(task, return_exceptions=True)


async def test_leader_begins_with_the_tables_that_the_file_has_by_then(tmp_path: Path) -> None:
    """Those of its start could be delivered to another topic than the leader before has delivered them to, or without a mask."""
    path = tmp_path / "cdfd.yaml"
    config, loaded = write(path, "uri: orders", "uri: users"), file_content(path)
    write(path, "uri: users", "uri: items")
    async with delivering(path, config, loaded, elected=True) as (status, _):
        assert names(status) == ["users", "items"]
        assert [table.name for table in status.config.listed] == ["users", "items"]


async def test_leader_begins_with_the_tables_of_its_start_if_the_file_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "cdfd.yaml"
    config, loaded = write(path, "uri: orders", "uri: users"), file_content(path)
    path.write_text("tables: []")
    async with delivering(path, config, loaded, elected=True) as (status, _):
        assert names(status) == ["orders", "users"]


async def test_pattern_that_a_reload_adds_keeps_the_process_running(tmp_path: Path) -> None:
    path, writer = tmp_path / "cdfd.yaml", TableWriter(LocalStorage(str(tmp_path / "orders")), SCHEMA)
    await writer.create()
    await writer.insert(rows(1))
    config, loaded = write(path, f"uri: {tmp_path / 'orders'}"), file_content(path)
    async with delivering(path, config, loaded) as (status, task):
        (tmp_path / "lake").mkdir()
        write(path, f"uri: {tmp_path / 'orders'}, key: [nothing]", f"discover: {tmp_path / 'lake'}/*")
        while not task.done() and not any(table.last_error for table in status.tables()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not task.done(), task.exception()
