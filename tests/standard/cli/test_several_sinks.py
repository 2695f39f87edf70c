"""A daemon with `sinks`: each sink gets every change once, whatever becomes of the others."""

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import cdfd as package
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.commands import cdfd, one_line
from tests.support.kafka.daemon_process import Daemon, until
from tests.support.lake import SCHEMA, rows
from tests.support.sampling import ALL

KILLS = 8 if ALL else 2


class Pipeline:
    """A table and a configuration with the sinks `lines`, which has JSON lines, and `copy`, a Delta mirror."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "cdfd.yaml"
        self.uri = folder / "lake" / "orders"
        self.writer = TableWriter(LocalStorage(self.uri, sync=False), SCHEMA)
        self.sinks: dict[str, dict[str, Any]] = {
            "lines": {"kind": "files", "path": str(folder / "lines"), "format": "jsonl"},
            "copy": {"kind": "delta", "path": str(folder / "copies"), "mode": "mirror"},
        }
        self.configure()

    def configure(self, **sections: Any) -> None:
        document = {
            "pipeline": "shop",
            "tables": [{"uri": str(self.uri), "start": "earliest", "key": ["id"]}],
            "sinks": self.sinks,
            "poll": {"interval": "50ms", "max_interval": "100ms"},
            "http": {"listen": None},
            "controls": {"socket": str(self.folder / "ctl.sock")},
        }
        self.config.write_text(json.dumps(document | sections))

    async def start(self) -> None:
        await self.writer.create()
        await self.writer.insert(rows(*range(100)))

    def lines(self, sink: str = "lines") -> list[dict[str, Any]]:
        files = sorted((self.folder / sink / "orders").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def at(self, sink: str = "lines") -> int:
        """The version after those that a sink of files has."""
        try:
            version: int = json.loads((self.folder / sink / "orders" / "_position.json").read_text())["version"]
        except FileNotFoundError:
            return -1
        return version

    def copied(self) -> int:
        """The version that the mirror has."""
        target = self.folder / "copies" / "orders"
        if not DeltaTable.is_deltatable(str(target)):
            return -1
        try:
            version = DeltaTable(target).transaction_version("cdfd/shop/orders")
        except DeltaError:  # it has no columns before its first rows
            return -1
        return -1 if version is None else version

    def check_lines(self, sink: str = "lines") -> None:
        until(lambda: self.at(sink) > self.writer.version)
        changes = package.changes(self.uri, 0).read_all().to_pylist()
        names = ("_commit_version", "_change_ordinal", "_change_type", "id", "v")
        expected = [[row[name] for name in names] for row in changes]
        assert [[row[name] for name in names] for row in self.lines(sink)] == expected

    def check_copy(self) -> None:
        until(lambda: self.copied() == self.writer.version)
        copy = package.snapshot(self.folder / "copies" / "orders").read_all().select(["id", "v"])
        assert copy.sort_by("id").to_pylist() == self.writer.rows().select(["id", "v"]).sort_by("id").to_pylist()


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline(tmp_path)
    asyncio.run(pipeline.start())
    return pipeline


async def change(writer: TableWriter, random: Random) -> None:
    """One commit of any kind."""
    some = pc.field("id").isin(random.sample(range(100), 10))
    match random.randrange(3):
        case 0:
            await writer.update(some, {"v": pc.scalar(f"u{writer.version}")})
        case 1:
            await writer.merge(rows(*random.sample(range(120), 5), v=f"m{writer.version}"), "id")
        case _:
            await writer.insert(rows(*range(1000 + 3 * writer.version, 1003 + 3 * writer.version)))


def test_killed_daemons_deliver_every_change_once_into_each_sink(pipeline: Pipeline) -> None:
    random = Random(3)
    for _ in range(KILLS):
        with Daemon(pipeline.config) as daemon:
            daemon.wait_for("at version")
            asyncio.run(change(pipeline.writer, random))
            asyncio.run(change(pipeline.writer, random))
            time.sleep(random.uniform(0, 0.3))  # a random moment is what is tested
            daemon.kill()
    with Daemon(pipeline.config) as daemon:
        daemon.wait_for("at version")  # before it has begun, SIGTERM ends it as any process
        pipeline.check_lines()
        pipeline.check_copy()
        daemon.stop()


def test_a_sink_that_fails_does_not_stop_the_other_one(pipeline: Pipeline) -> None:
    (pipeline.folder / "copies").write_text("a file where the folder of the mirror should be")
    pipeline.configure(http={"listen": "127.0.0.1:0"})
    with Daemon(pipeline.config) as daemon:
        failed = daemon.wait_for(lambda line: line["level"] == "error")
        assert failed["sink"] == "copy"
        assert failed["table"] == "orders@copy"
        for _ in range(5):
            asyncio.run(pipeline.writer.insert(rows(1)))
            until(lambda: pipeline.at() > pipeline.writer.version)
        address = daemon.wait_for("metrics, health and status at")["message"].rsplit(" ", 1)[-1]

        def tables() -> dict[str, Any]:
            status = json.loads(urllib.request.urlopen(f"{address.rstrip('/')}/status", timeout=10).read())
            return dict(status["tables"])

        until(lambda: tables()["orders@lines"]["state"] == "at_tip")  # a moment after its file is there
        assert tables()["orders@copy"]["sink"] == "copy"
        assert tables()["orders@copy"]["last_error"] is not None
        metrics = urllib.request.urlopen(f"{address.rstrip('/')}/metrics", timeout=10).read().decode()
        assert 'cdfd_commits_total{sink="lines",table="orders"} 7.0' in metrics
        assert 'cdfd_paused{sink="lines",table="orders"} 0.0' in metrics
        assert 'cdfd_paused{sink="copy",table="orders"} 1.0' in metrics
        (pipeline.folder / "copies").unlink()
        assert cdfd("ctl", "resume", "orders", "--sink", "copy", "-c", pipeline.config).out  # ends the wait for a retry
        pipeline.check_copy()
        daemon.stop()
    pipeline.check_lines()


def test_a_sink_is_added_and_removed_while_the_daemon_runs(pipeline: Pipeline) -> None:
    both = pipeline.sinks
    pipeline.sinks = {"lines": both["lines"]}
    pipeline.configure()
    with Daemon(pipeline.config) as daemon:
        until(lambda: pipeline.at() > pipeline.writer.version)
        pipeline.sinks = both | {"more": {"kind": "files", "path": str(pipeline.folder / "more"), "format": "jsonl"}}
        pipeline.configure()
        daemon.wait_for("sink more: added")
        asyncio.run(pipeline.writer.update(pc.field("id") < 9, {"v": pc.scalar("new")}))
        pipeline.check_copy()
        pipeline.check_lines("more")
        pipeline.sinks = {name: sink for name, sink in both.items() if name == "copy"}
        pipeline.configure()
        daemon.wait_for("sink lines: removed")
        left = pipeline.at()
        asyncio.run(pipeline.writer.insert(rows(1000)))
        pipeline.check_copy()
        assert pipeline.at() == left
        # It goes on where it ended.
        pipeline.sinks = both
        pipeline.configure()
        pipeline.check_lines()
        daemon.stop()
    assert not [line for line in daemon.lines if line["level"] == "error"]


def test_a_daemon_that_is_fenced_in_its_only_sink_ends(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.sinks = {"lines": pipeline.sinks["lines"]}
    pipeline.configure()
    with Daemon(pipeline.config) as daemon:
        until(lambda: pipeline.at() > pipeline.writer.version)
        other = tmp_path / "other.yaml"
        other.write_text(json.dumps(json.loads(pipeline.config.read_text()) | {"controls": {}}))
        assert cdfd("run", "-c", other).code == 3
        daemon.stop()


def test_commands_name_a_sink(pipeline: Pipeline) -> None:
    with Daemon(pipeline.config) as daemon:
        pipeline.check_lines()
        pipeline.check_copy()
        said = cdfd("ctl", "pause", "orders", "-c", pipeline.config)
        assert said.code == 1
        assert "there is no table 'orders'; the tables are orders@copy, orders@lines" in said.out
        assert "PAUSED" in cdfd("ctl", "pause", "orders", "--sink", "lines", "-c", pipeline.config).out
        version = pipeline.writer.version
        asyncio.run(pipeline.writer.insert(rows(7)))
        pipeline.check_copy()
        assert pipeline.at() == version + 1
        daemon.stop()
    shown = cdfd("progress", "show", "-c", pipeline.config)
    assert [line.split()[:2] for line in shown.lines()[1:]] == [
        ["orders@lines", str(version)],
        ["orders@copy", str(version + 1)],
    ]
    documents = json.loads(cdfd("progress", "show", "--json", "--sink", "copy", "-c", pipeline.config).out)["tables"]
    assert [(each["table"], each["sink"], each["lag_versions"]) for each in documents] == [("orders", "copy", 0)]
    checked = cdfd("check", "-c", pipeline.config)
    assert checked.code == 0, checked
    assert [line.split()[0] for line in checked.lines()[1:3]] == ["orders@lines", "orders@copy"]
    for command in (("progress", "set", "orders", "1"), ("sample", "orders"), ("backfill", "orders", "--snapshot")):
        error = one_line(cdfd(*command, "-c", pipeline.config), 2)
        assert "the pipeline has several sinks. Choose one with --sink: lines, copy" in error
    assert 'there is no sink "line"' in one_line(cdfd("check", "--sink", "line", "-c", pipeline.config), 2)


def test_a_file_with_one_sink_becomes_one_with_several(pipeline: Pipeline) -> None:
    pipeline.configure(sinks=None, sink=pipeline.sinks["lines"])
    with Daemon(pipeline.config) as daemon:
        pipeline.check_lines()
        daemon.stop()
    asyncio.run(pipeline.writer.insert(rows(1000)))
    pipeline.configure()
    with Daemon(pipeline.config) as daemon:
        pipeline.check_copy()
        pipeline.check_lines()
        daemon.stop()
