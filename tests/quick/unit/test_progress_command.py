"""`cdfd progress`: the positions that it shows, and positions that it sets, from which a daemon resumes."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from cdfd.cli.commands import progress as progress_command
from cdfd.config import settings
from cdfd.config.parser import load
from cdfd.config.settings import Settings, SinkSettings
from cdfd.daemon import assembly
from cdfd.daemon.assembly import ledgers
from cdfd.deliver.monitor import Monitor
from cdfd.errors import ConfigError, FencedError, SinkError
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.runtime.registry import SINKS
from cdfd.sinks.base import Connector, Sink, StageTimer, connector, unmeasured
from cdfd.sinks.files.folder import read_position
from cdfd.sinks.ledger.ledger import LedgerEntry, app_id
from cdfd.storage.local import LocalStorage
from tests.support.lake import manual_clock, run, table

HEADER = ["table", "sink", "ledger", "newest", "lag", "next"]


class Shop:
    """A configuration of two tables, `orders` with versions 0 to 4 and `items`, which is not there."""

    def __init__(self, folder: Path, ledger: str = "ledger") -> None:
        self.folder = folder
        self.path = folder / "shop.yaml"
        self.path.write_text(
            f"""
            pipeline: shop
            tables:
              - {{uri: {folder}/orders, start: earliest}}
              - {{uri: {folder}/items}}
            sink: {{kind: files, path: {folder}/out, fsync: false}}
            progress: {{ledger: {folder / ledger if ledger == "ledger" else ledger}}}
            """
        )
        run(table(LocalStorage(folder / "orders", sync=False), 5, manual_clock()))

    @property
    def config(self) -> Settings:
        return load(self.path)

    @property
    def orders(self) -> settings.Table:
        actual = self.config.table("orders")
        assert actual is not None
        return actual

    def show(self) -> tuple[list[list[str]], int]:
        """Cells of each row; the last one is prose."""
        text, code = progress_command.show(self.path)
        return [line.split(maxsplit=5) for line in text.splitlines()], code

    def deliver(self) -> None:
        """Let a daemon deliver all there is."""

        async def scenario() -> None:
            stop = asyncio.Event()
            async with (
                assembly.shared(self.config, SystemClock()) as shared,
                assembly.feed(shared, self.orders, stop, Monitor()) as feed,
            ):
                running = asyncio.create_task(feed.run())
                while (
                    at := await asyncio.to_thread(read_position, str(self.folder / "out/orders"))
                ) is None or at.version < 5:
                    await asyncio.sleep(0.01)
                stop.set()
                await running

        run(scenario())

    def ledger(self) -> LedgerEntry | None:
        async def scenario() -> LedgerEntry | None:
            async with ledgers(self.config) as ledger_of:
                return await ledger_of(self.orders).position(app_id("shop", "orders"))

        return run(scenario())

    def delivered(self) -> list[str]:
        return sorted(path.name[:20].lstrip("0") or "0" for path in (self.folder / "out/orders").glob("*.jsonl"))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_before_the_first_start(shop: Shop) -> None:
    (header, orders, items), code = shop.show()
    assert header == HEADER
    assert orders == ["orders", "-", "-", "4", "-", "begins at earliest"]
    assert items[:5] == ["items", "-", "-", "-", "-"]
    assert "not a Delta table" in items[5]
    assert code == 1
    assert sorted(path.name for path in shop.folder.iterdir()) == ["orders", "shop.yaml"]


def test_delivered_version_and_ledger_are_shown(shop: Shop) -> None:
    shop.deliver()
    orders = shop.show()[0][1]
    assert orders[:5] == ["orders", "4", "4", "4", "0"]
    assert "resuming at version 5" in orders[5]


async def test_while_a_daemon_delivers(shop: Shop) -> None:
    async with connector(shop.config).open(shop.orders) as sink:
        delivery = await sink.begin(Position("T", 1, phase="snapshot"))
        await delivery.commit(Position("T", 1, 2, "snapshot", 20))
        text, _ = await asyncio.to_thread(progress_command.show, shop.path)
        assert "snapshot of 1, 2 files  -       4       4" in text
        delivery = await sink.begin(Position("T", 1, 2, "snapshot", 20))
        await delivery.commit(Position("T", 2))
        delivery = await sink.begin(Position("T", 2))
        await delivery.commit(Position("T", 2, 1, "stream", 5))
        text, _ = await asyncio.to_thread(progress_command.show, shop.path)
        assert "1, 1 files of 2  -       4       3" in text
        for call in (progress_command.set_position, progress_command.reset):
            arguments = (shop.path, "orders", 3)[: 3 if call is progress_command.set_position else 2]
            with pytest.raises(FencedError):
                await asyncio.to_thread(call, *arguments)
    assert await asyncio.to_thread(shop.ledger) is None


@pytest.mark.parametrize("ledger", ["ledger", "source", "none"])
def test_set_position_is_shown_and_in_the_ledger(tmp_path: Path, ledger: str) -> None:
    shop = Shop(tmp_path, ledger)
    told = progress_command.set_position(shop.path, "orders", 2)
    assert told == "orders: delivered up to version 2, resuming at version 3\n"
    orders = shop.show()[0][1]
    newest = "5" if ledger == "source" else "4"
    assert orders[:4] == ["orders", "2", "-" if ledger == "none" else "2", newest]
    assert "resuming at version 3" in orders[5]
    actual = shop.ledger()
    assert (None if actual is None else (actual.version, actual.table_id)) == {
        "ledger": (2, "T"),
        "source": (2, None),
        "none": None,
    }[ledger]
    shop.deliver()
    assert shop.delivered() == ["3", "4"]


def test_a_folder_cannot_go_back(shop: Shop) -> None:
    progress_command.set_position(shop.path, "orders", 2)
    for call in (
        lambda: progress_command.set_position(shop.path, "orders", 1),
        lambda: progress_command.reset(shop.path, "orders"),
    ):
        with pytest.raises(SinkError, match=r"cannot (go|be taken) back") as caught:
            call()
        assert "move all files out of the sink's folder" in (caught.value.hint or "")
    actual = shop.ledger()
    assert actual is not None
    assert actual.version == 2


def test_reset_table_is_delivered_again_from_its_start(shop: Shop) -> None:
    progress_command.set_position(shop.path, "orders", 2)
    (shop.folder / "out/orders").rename(shop.folder / "old")
    orders = shop.show()[0][1]
    assert orders[:5] == ["orders", "-", "2", "4", "2"]
    assert "--recover-from-ledger" in orders[5]
    told = progress_command.reset(shop.path, "orders")
    assert told == "orders: nothing is delivered, beginning at earliest\n"
    assert shop.show()[0][1] == ["orders", "-", "-", "4", "-", "begins at earliest"]
    assert progress_command.reset(shop.path, "orders") == told
    shop.deliver()
    assert shop.delivered() == ["1", "2", "3", "4"]


def test_a_table_that_was_created_anew(shop: Shop) -> None:
    progress_command.set_position(shop.path, "orders", 2)
    (shop.folder / "orders").rename(shop.folder / "old-orders")
    run(table(LocalStorage(shop.folder / "orders", sync=False), 2, manual_clock(), table_id="U"))
    (_, orders, _), code = shop.show()
    assert "deleted and created again" in orders[5]
    assert code == 1
    with pytest.raises(SinkError, match="cannot take rows of table U"):
        progress_command.set_position(shop.path, "orders", 1)
    (shop.folder / "out/orders").rename(shop.folder / "old")
    progress_command.set_position(shop.path, "orders", 1)
    actual = shop.ledger()
    assert actual is not None
    assert (actual.version, actual.table_id) == (1, "U")


@pytest.mark.parametrize("version", [5, 99])
def test_versions_that_are_not_there(shop: Shop, version: int) -> None:
    with pytest.raises(ConfigError, match=f"version {version} cannot have been delivered: the newest is 4"):
        progress_command.set_position(shop.path, "orders", version)
    assert not (shop.folder / "out").exists()


def test_tables_that_are_not_there(shop: Shop) -> None:
    for call in (
        lambda: progress_command.set_position(shop.path, "order", 1),
        lambda: progress_command.reset(shop.path, "order"),
    ):
        with pytest.raises(ConfigError, match="no table 'order'") as caught:
            call()
        assert caught.value.hint == "The tables are: orders, items"


def test_a_damaged_folder_is_shown(shop: Shop) -> None:
    shop.deliver()
    (shop.folder / "out/orders/_position.json").write_text("{")
    (_, orders, _), code = shop.show()
    assert "position of the sink cannot be read" in orders[5]
    assert code == 1


class Elsewhere(SinkSettings):
    kind: Literal["elsewhere"] = "elsewhere"
    keeps: bool = True

    @property
    def keeps_positions(self) -> bool:
        return self.keeps

    def connector(self, config: Settings) -> Connector:
        return ElsewhereConnector()


class ElsewhereConnector(Connector):
    place = "elsewhere"
    moved: ClassVar[list[Position | None]] = [None]

    def open(self, table: settings.Table, stage: StageTimer = unmeasured) -> AbstractAsyncContextManager[Sink]:
        raise NotImplementedError

    async def position(self, table: settings.Table) -> Position | None:
        return self.moved[-1] if table.name == "orders" else None

    async def move(self, table: settings.Table, to: Position | None) -> None:
        self.moved.append(to)


def test_sinks_of_other_kinds(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sink takes two calls. A sink without positions resumes at the ledger's."""
    monkeypatch.setitem(SINKS._loaded, "elsewhere", Elsewhere)
    text = shop.path.read_text()
    sink = f"kind: files, path: {shop.folder}/out, fsync: false"
    shop.path.write_text(text.replace(sink, "kind: elsewhere"))
    moved = ElsewhereConnector.moved
    progress_command.set_position(shop.path, "orders", 3)
    assert moved == [None, Position("T", 4)]
    line = progress_command.show(shop.path)[0].splitlines()[1]
    assert line.split(maxsplit=5)[:5] == ["orders", "3", "3", "4", "1"]
    assert "the position in elsewhere" in line
    moved.append(None)
    assert "elsewhere has no position" in progress_command.show(shop.path)[0]
    shop.path.write_text(text.replace(sink, "kind: elsewhere, keeps: false"))
    assert "resuming at version 4" in progress_command.show(shop.path)[0]
    progress_command.reset(shop.path, "orders")
    assert shop.ledger() is None


def test_a_ledger_in_a_table_that_cannot_be_written(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "source")
    log = tmp_path / "orders/_delta_log"
    (log / "00000000000000000005.json").write_text(
        '{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["sorcery"]}}\n'
    )
    (_, orders, _), code = shop.show()
    assert "progress cannot be written into the table" in orders[5]
    assert "progress.ledger" in orders[5]
    assert code == 1
