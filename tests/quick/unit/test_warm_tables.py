"""The tables of a standby: prepared within bounds, and quietly."""

import asyncio
import gc
import logging
import shutil
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cdfd.config.parser import parse
from cdfd.config.settings import Settings, Table
from cdfd.daemon.election import warm_tables
from cdfd.daemon.election.warm_tables import WarmTables
from cdfd.daemon.sources import Sources
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError, SinkError
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.base import Connector
from cdfd.storage.local import LocalStorage
from tests.support.lake import SCHEMA, rows


def configure(folder: Path, *tables: Path, patterns: str = "") -> Settings:
    listed = "".join(f"  - uri: {table}\n" for table in tables)
    return parse(f"pipeline: shop\nsink: {{kind: files, path: {folder / 'out'}}}\ntables:\n{listed}{patterns}", {})


async def write(folder: Path) -> TableWriter:
    writer = TableWriter(LocalStorage(str(folder)), SCHEMA)
    await writer.create()
    await writer.insert(rows(1))
    return writer


@asynccontextmanager
async def standby(config: Settings, expected: asyncio.Event | None = None) -> AsyncIterator[WarmTables]:
    warm = WarmTables(config, SystemClock(), expected or asyncio.Event())
    async with warm.followed():
        yield warm


async def prepared(warm: WarmTables, count: int) -> list[str]:
    """The keys of the tables that are prepared, once there are so many."""
    async with asyncio.timeout(30):
        while len(warm.sources._prepared) < count or not all(
            table.log.kept for table in warm.sources._prepared.values()
        ):
            await asyncio.sleep(0.01)
    return list(warm.sources._prepared)


async def test_leader_reads_on_from_what_the_standby_kept(tmp_path: Path) -> None:
    writer = await write(tmp_path / "orders")
    config = configure(tmp_path, tmp_path / "orders")
    async with standby(config) as warm:
        await prepared(warm, 1)
        warm.stop()
        await writer.insert(rows(2))
        with warm.sources.table(config, config.listed[0]) as (table, _, _):
            assert [state.entry.version for state in table.log.kept] == [1]
            assert (await table.log.header()).version == 2
        with warm.sources.table(config, config.listed[0]) as (again, _, _):
            assert not again.log.kept, "a table that is opened again is read anew"


async def test_leader_drops_the_log_of_the_standby(tmp_path: Path) -> None:
    """A leader delivers for weeks, and the standby's log has read entries and checkpoints."""
    await write(tmp_path / "orders")
    config = configure(tmp_path, tmp_path / "orders")
    async with standby(config) as warm:
        (key,) = await prepared(warm, 1)
        warm.stop()
        log = weakref.ref(warm.sources._prepared[key].log)
        with warm.sources.table(config, config.listed[0]):
            gc.collect()
            assert log() is None


async def test_a_table_that_cannot_be_read_is_forgotten_for_two_sinks(tmp_path: Path) -> None:
    """Both prepare it at the same time. An error of a standby other than that of the table would be a line that wakes a person."""
    config = configure(tmp_path, tmp_path / "missing")
    sources = Sources(SystemClock())
    preparing = [sources.prepare(config, config.listed[0], 1 << 20) for _ in range(2)]
    errors = await asyncio.gather(*preparing, return_exceptions=True)
    assert [isinstance(error, CdfdError) for error in errors] == [True, True]


async def test_tables_of_patterns_are_prepared(tmp_path: Path) -> None:
    await write(tmp_path / "lake" / "orders")
    config = configure(tmp_path, patterns=f"  - discover: {tmp_path / 'lake'}/*\n")
    async with standby(config) as warm:
        assert len(await prepared(warm, 1)) == 1


async def test_number_of_tables_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / f"t{number}" for number in range(4)]
    for folder in folders:
        await write(folder)
    monkeypatch.setattr(warm_tables, "MOST_TABLES", 2)
    monkeypatch.setattr(warm_tables, "SOON_SECONDS", 0.0)
    monkeypatch.setattr(warm_tables, "PASS_SECONDS", 0.01)
    async with standby(configure(tmp_path, *folders)) as warm:
        await prepared(warm, 2)
        await asyncio.sleep(0.1)
        assert len(warm.sources._prepared) == 2


async def test_what_is_prepared_goes_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby runs for weeks, while tables come and go."""
    for name in ("stays", "vanishes"):
        await write(tmp_path / "lake" / name)
    retained = list[list[str]]()

    async def note(connector: Connector, tables: Sequence[Table]) -> None:
        retained.append(sorted(table.name for table in tables))

    monkeypatch.setattr(Connector, "retain", note)
    for name in ("SOON_SECONDS", "STORE_SECONDS"):
        monkeypatch.setattr(warm_tables, name, 0.0)
    monkeypatch.setattr(warm_tables, "PASS_SECONDS", 0.01)
    async with standby(configure(tmp_path, patterns=f"  - discover: {tmp_path / 'lake'}/*\n")) as warm:
        await prepared(warm, 2)
        shutil.rmtree(tmp_path / "lake" / "vanishes")
        async with asyncio.timeout(30):
            while len(warm.sources._prepared) > 1 or retained[-1] != ["stays"]:
                await asyncio.sleep(0.01)
        assert len(warm._read) == 1


async def test_errors_are_quiet_and_the_next_pass_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(warm_tables, "SOON_SECONDS", 0.0)
    monkeypatch.setattr(warm_tables, "PASS_SECONDS", 0.01)
    attempts = 0

    async def refuse(connector: Connector, table: Table) -> None:
        nonlocal attempts
        attempts += 1
        raise SinkError("the broker is away", retriable=True)

    monkeypatch.setattr(Connector, "prepare", refuse)
    async with standby(configure(tmp_path, tmp_path / "later", tmp_path / "missing")) as warm:
        await write(tmp_path / "later")
        await prepared(warm, 1)
        async with asyncio.timeout(30):
            while attempts < 3:
                await asyncio.sleep(0.01)
    assert caplog.messages == []


async def test_pass_begins_at_once_if_a_takeover_is_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_tables, "SOON_SECONDS", 0.0)
    writer = await write(tmp_path / "orders")
    expected = asyncio.Event()
    async with standby(configure(tmp_path, tmp_path / "orders"), expected) as warm:
        await prepared(warm, 1)
        await writer.insert(rows(2))
        (table,) = warm.sources._prepared.values()
        expected.set()
        async with asyncio.timeout(10):
            while table.log.kept[-1].entry.version < 2:
                await asyncio.sleep(0.01)
