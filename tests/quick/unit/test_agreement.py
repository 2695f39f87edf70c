"""`check` and `progress show` predict how `run` handles a table."""

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdfd.cli.commands import check as checking
from cdfd.cli.commands import progress as progress_command
from cdfd.config.parser import load
from cdfd.config.settings import Settings
from cdfd.daemon import assembly
from cdfd.daemon.http.status import Status
from cdfd.daemon.supervision.preflight import preflight
from cdfd.daemon.supervision.supervisor import Supervisor
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError, GapError
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.sinks.base import connector
from cdfd.sinks.kafka.progress import positions
from cdfd.sinks.kafka.progress.topic_admin import TopicAdmin
from cdfd.storage.local import LocalStorage
from tests.support.lake import BEGINNING, checkpoint, entry_path, manual_clock, rows, run, table
from tests.support.statuses import table_monitor

VERSIONS = 6  # 0 to 5


@dataclass
class Shop:
    """A table `orders` with versions 0 to 5, which inserts a row with `id` and `v` in each but the first, and a configuration."""

    folder: Path
    table: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer: TableWriter = run(table(LocalStorage(self.orders, sync=False), VERSIONS, manual_clock()))

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def path(self) -> Path:
        path = self.folder / "shop.yaml"
        document = {
            "pipeline": "shop",
            "tables": [{"uri": "orders", **self.table}],
            "sink": {"kind": "files", "path": "out", "fsync": False},
            "http": {"listen": None},
            **self.sections,
        }
        path.write_text(json.dumps(document))
        return path

    def entry(self, version: int) -> Path:
        return self.orders / entry_path(version)

    def clean_up(self, before: int) -> None:
        """Clean the log up: write a checkpoint, and remove the entries before it."""
        run(checkpoint(LocalStorage(self.orders), before))
        for version in range(before):
            self.entry(version).unlink()

    def deliver(self, to: int, position: Position | None = None) -> None:
        """Make the sink stand after version `to`."""

        async def move() -> None:
            config = load(self.path)
            async with connector(config).open(config.tables[0]) as sink:
                following = position or Position("T", to + 1)
                delivery = await sink.begin(following)
                await delivery.commit(following)

        run(move())

    def metadata(self, *, without: str | None = None, **properties: str) -> tuple[str, dict[str, Any]]:
        """An action that drops a column, or sets properties."""
        first = self.entry(0).read_text().splitlines()
        metadata = next(action["metaData"] for line in first if "metaData" in (action := json.loads(line)))
        schema = json.loads(metadata["schemaString"])
        schema["fields"] = [each for each in schema["fields"] if each["name"] != without]
        configuration = metadata["configuration"] | {f"delta.{name}": text for name, text in properties.items()}
        return "metaData", metadata | {"schemaString": json.dumps(schema), "configuration": configuration}

    def commit(self, *actions: tuple[str, dict[str, Any]]) -> None:
        run(self.writer.commit("SET", actions))


Prepare = Callable[[Shop], object]


def nothing(shop: Shop) -> None:
    """As it is."""


def replaced(shop: Shop) -> None:
    shop.deliver(2)
    shutil.rmtree(shop.orders)
    run(table(LocalStorage(shop.orders, sync=False), VERSIONS, manual_clock(), table_id="U"))


def deleted(shop: Shop) -> None:
    shop.deliver(2)
    shutil.rmtree(shop.orders)


def restored(shop: Shop) -> None:
    """An older backup of the table."""
    shop.deliver(5)
    for version in (3, 4, 5):
        shop.entry(version).unlink()


def cleaned_up(shop: Shop) -> None:
    shop.deliver(1)
    shop.clean_up(4)


def snapshot_cleaned_up(shop: Shop) -> None:
    shop.deliver(1, Position("T", 1, phase="snapshot"))
    shop.clean_up(4)


def drop(column: str, *, delivered: int | None = None) -> Prepare:
    def prepare(shop: Shop) -> None:
        shop.commit(shop.metadata(without=column))
        run(shop.writer.insert(rows(9)))
        if delivered is not None:
            shop.deliver(delivered)

    return prepare


def gap(shop: Shop) -> None:
    shop.deliver(2)
    shop.entry(3).unlink()


def damaged(version: int) -> Prepare:
    def prepare(shop: Shop) -> None:
        shop.deliver(version - 1)
        shop.entry(version).write_text("{")

    return prepare


def new_protocol(shop: Shop) -> None:
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["sorcery"],
        "writerFeatures": ["sorcery"],
    }
    shop.commit(("protocol", protocol))


def new_protocol_later(shop: Shop) -> None:
    new_protocol(shop)
    shop.deliver(4)


def no_feed(shop: Shop) -> None:
    shop.commit(shop.metadata(enableChangeDataFeed="false"))


def delivered(version: int) -> Prepare:
    return lambda shop: shop.deliver(version)


def no_feed_delivered(shop: Shop) -> None:
    no_feed(shop)
    shop.deliver(VERSIONS)


def file_at(name: str) -> Prepare:
    return lambda shop: (shop.folder / name).write_text("a file")


def sink_damaged(shop: Shop) -> None:
    shop.deliver(2)
    (shop.out / "orders" / "_position.json").write_text("{")


def ledger_knows(shop: Shop) -> None:
    """The ledger knows a position, and the sink has lost it."""
    progress_command.set_position(shop.path, "orders", 2)
    shutil.rmtree(shop.out)


def ledger_damaged(shop: Shop) -> None:
    progress_command.set_position(shop.path, "orders", 2)
    newest = max((shop.folder / "ledger/_delta_log").glob("*.json"))
    newest.write_text("{")


def ledger_is_a_table(shop: Shop) -> None:
    run(table(LocalStorage(shop.folder / "ledger", sync=False), 2, manual_clock(), table_id="L"))


def target_is_a_table(shop: Shop) -> None:
    run(table(LocalStorage(shop.out / "orders", sync=False), 2, manual_clock(), table_id="L"))


def in_the_way(shop: Shop) -> None:
    (shop.out / "orders").mkdir(parents=True)
    (shop.out / "orders" / f"{3:020d}.jsonl").write_text("")


LEDGER = {"progress": {"ledger": "ledger"}}
MOMENT = "2026-01-01T00:00:0{}Z"  # a version a second from then on
assert BEGINNING == 1_767_225_600_000

# name: settings of the table, sections of the configuration, what happens before, and whether a daemon delivers
SITUATIONS: dict[str, tuple[dict[str, Any], dict[str, Any], Prepare, bool]] = {
    "a snapshot": ({}, {}, nothing, True),
    "all there is": ({"start": "earliest"}, {}, nothing, True),
    "what comes": ({"start": "latest"}, {}, nothing, True),
    "a version": ({"start": 3}, {}, nothing, True),
    "the next version": ({"start": 6}, {}, nothing, True),
    "a version beyond the end": ({"start": 99}, {}, nothing, False),
    "a moment": ({"start": "2026-01-01T00:00:00Z"}, {}, nothing, True),
    "a moment to come": ({"start": "2999-01-01"}, {}, nothing, False),
    "a version that is cleaned up": ({"start": 1}, {}, lambda shop: shop.clean_up(4), False),
    "all that is left": ({"start": "earliest"}, {}, lambda shop: shop.clean_up(4), True),
    "no table yet": ({}, {}, lambda shop: shutil.rmtree(shop.orders), False),
    "a damaged table": ({}, {}, lambda shop: shop.entry(0).write_text("{"), False),
    "an unknown feature": ({}, {}, new_protocol, False),
    "an unknown feature later": ({}, {}, new_protocol_later, False),
    "a position": ({}, {}, delivered(2), True),
    "a position at the tip": ({}, {}, delivered(5), True),
    "a position in a snapshot": ({}, {}, lambda shop: shop.deliver(0, Position("T", 5, phase="snapshot")), True),
    "a position that is cleaned up": ({}, {}, cleaned_up, False),
    "a snapshot that is cleaned up": ({}, {}, snapshot_cleaned_up, False),
    "a position beyond the end": ({}, {}, delivered(50), False),
    "a table restored from a backup": ({}, {}, restored, False),
    "a table that was replaced": ({}, {}, replaced, False),
    "a table that was deleted": ({}, {}, deleted, False),
    "a gap": ({}, {}, gap, False),
    "a damaged entry next": ({}, {}, damaged(3), False),
    "a damaged entry at the end": ({}, {}, damaged(5), False),
    "no such columns": ({"columns": ["nope"]}, {}, nothing, False),
    "one such column": ({"columns": ["id", "nope"]}, {}, nothing, True),
    "no such key": ({"key": ["nope"]}, {}, nothing, False),
    "no such key from now on": ({"key": ["nope"], "start": "latest"}, {}, nothing, False),
    "no such key from the beginning": ({"key": ["nope"], "start": "earliest"}, {}, nothing, False),
    "columns in other case": ({"columns": ["ID"], "key": ["ID"]}, {}, nothing, True),
    "columns dropped": ({"columns": ["v"]}, {}, drop("v"), False),
    "columns dropped after the position": ({"columns": ["v"]}, {}, drop("v", delivered=2), False),
    "columns dropped before the position": ({"columns": ["v"]}, {}, drop("v", delivered=7), False),
    "a key dropped": ({"key": ["v"]}, {}, drop("v"), False),
    "no change data": ({"changes": "cdf"}, {}, no_feed, False),
    "no change data at the tip": ({"changes": "cdf"}, {}, no_feed_delivered, False),
    "change data": ({"changes": "cdf"}, {}, nothing, True),
    "a key without change data": ({"key": ["id"]}, {}, no_feed, True),
    "a file where the folder is to be": ({}, {}, file_at("out"), False),
    "a sink whose position is damaged": ({}, {}, sink_damaged, False),
    "deliveries without a position": ({}, {}, in_the_way, False),
    "a target that is another table": ({}, {"sink": {"kind": "delta", "path": "out"}}, target_is_a_table, False),
    "a target": ({}, {"sink": {"kind": "delta", "path": "out"}}, nothing, True),
    "a ledger": ({}, LEDGER, nothing, True),
    "a file where the ledger is to be": ({}, LEDGER, file_at("ledger"), True),
    "a table that is no ledger": ({}, LEDGER, ledger_is_a_table, False),
    "a position that only the ledger has": ({}, LEDGER, ledger_knows, False),
    "a ledger that is damaged": ({}, LEDGER, ledger_damaged, True),
}


async def delivers(config: Settings, log: pytest.LogCaptureFixture) -> CdfdError | bool:
    """Run a daemon's loops until the table is at its tip (True), is waited for (False), or has failed for good (the error)."""
    stop, status = asyncio.Event(), Status(config)
    try:
        preflight(config)
        async with assembly.shared(config, SystemClock()) as shared:
            supervisor = Supervisor(stop, SystemClock())
            for each in config.tables:
                monitor = table_monitor(status, each.name)
                supervisor.add(each.name, partial(assembly.feed, shared, each, monitor=monitor), monitor)
            running = asyncio.create_task(supervisor.run())
            try:
                while not running.done() and table_monitor(status, "orders").reading().state != "at_tip":
                    if "waiting for the table to appear" in log.messages:
                        return False
                    await asyncio.sleep(0.005)
            finally:
                stop.set()
                await running
    except CdfdError as error:
        return error
    return True


@pytest.mark.parametrize("situation", SITUATIONS)
def test_commands_say_what_the_daemon_does(situation: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings, sections, prepare, expected = SITUATIONS[situation]
    shop = Shop(tmp_path, settings, sections)
    prepare(shop)
    before = sorted(tmp_path.rglob("*"))
    text, code = checking.run(shop.path, as_json=True)
    [checked] = json.loads(text)["tables"]
    try:
        shown, shown_code = progress_command.show(shop.path, as_json=True)
        [position] = json.loads(shown)["tables"]
    except CdfdError as error:
        position, shown_code = {"usable": False, "error": str(error), "warnings": []}, error.exit_code
    assert sorted(tmp_path.rglob("*")) == sorted({*before, shop.path})
    with caplog.at_level(logging.INFO):
        done = run(delivers(load(shop.path), caplog))
    assert (done is True) == expected, done
    assert (checked["usable"], code) == (expected, 0 if expected else 1), checked
    # Only `check` inspects the sink's folder.
    if "folder" not in situation:
        assert (position["usable"], shown_code) == (expected, 0 if expected else 1), position
    if isinstance(done, CdfdError):
        assert done.exit_code == 1
        assert done.family in ("log", "gap", "table_changed", "schema_changed", "unsupported", "sink", "config")
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for warning in checked["warnings"]:
        told = warning.split(" (")[0].split(":")[0]
        assert any(told in each or "ledger" in each for each in warned), (warning, warned)


def test_a_start_that_is_impossible_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(tmp_path, {"start": 99})
    assert isinstance(run(delivers(load(shop.path), caplog)), CdfdError)
    text, _ = progress_command.show(shop.path)
    assert text.splitlines()[1].split()[:5] == ["orders", "-", "-", "5", "-"]
    shop.table = {"start": "latest"}
    assert run(delivers(load(shop.path), caplog)) is True


def test_a_position_that_is_cleaned_up_is_not_set(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.clean_up(4)
    with pytest.raises(GapError):
        progress_command.set_position(shop.path, "orders", 1)
    assert not shop.out.exists()
    assert progress_command.set_position(shop.path, "orders", 4)


@pytest.mark.parametrize("prepare", [cleaned_up, replaced])
def test_what_the_hint_says_works(prepare: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(tmp_path)
    prepare(shop)
    failed = run(delivers(load(shop.path), caplog))
    assert isinstance(failed, CdfdError)
    said = progress_command.show(shop.path)[0]
    for hint in (failed.hint or "", said):
        assert "move all files out of the sink's folder, then run `cdfd progress reset`" in hint
    with pytest.raises(CdfdError, match="cannot be taken back"):
        progress_command.reset(shop.path, "orders")
    shutil.rmtree(shop.out)
    progress_command.reset(shop.path, "orders")
    assert run(delivers(load(shop.path), caplog)) is True


def test_a_broker_that_cannot_be_reached_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "CONNECT_SECONDS", 0.3)
    connections = []
    monkeypatch.setattr(
        positions,
        "TopicAdmin",
        lambda *arguments, **options: connections.append(arguments) or TopicAdmin(*arguments, **options),
    )
    config = tmp_path / "shop.yaml"
    tables = ", ".join(f"{{uri: {tmp_path}/t{number}}}" for number in range(3))
    sink = "{kind: kafka, bootstrap_servers: '127.0.0.1:1'}"
    config.write_text(
        f"pipeline: shop\ntables: [{tables}]\nsink: {sink}\nheartbeat: {{interval: 1s}}\nprogress: {{ledger: none}}\n"
    )
    text, code = checking.run(config)
    assert code == 1
    assert text.count("cannot connect to Kafka at 127.0.0.1:1: connection refused") == 3
    assert len(connections) == 1
