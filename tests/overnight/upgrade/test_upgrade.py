"""A daemon of another commit is replaced by today's and back while a writer commits: every change is there exactly once, and in order.

The older daemon continues at the position that the newer one has written, or it refuses that position by name and delivers nothing.

`make overnight ONLY=upgrade` upgrades `CDFD_UPGRADES` pipelines (8) of each kind. `CDFD_UPGRADE_FROM` names the commit; by default it is the
one that wrote the golden copies.
"""

import asyncio
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdfd.config.parser import load
from cdfd.model.position import Position
from cdfd.sinks.base import connector
from tests.support.fold import SIGN
from tests.support.kafka import history
from tests.support.kafka.daemon_process import Daemon, until
from tests.support.kafka.history import Change, Location, Place, Writing
from tests.support.kafka.shared import SharedBroker
from tests.support.lake import rows
from tests.support.upgrade import release
from tests.support.upgrade.pipelines import SINKS, TABLE, configure, deliver

UPGRADES = int(os.environ.get("CDFD_UPGRADES", "2"))
FILES = 300
"""Of the version in the middle of which daemons are ended. Each file is a delivery."""
End = Literal["stopped", "killed"]
REFUSAL = re.compile(r"newer version of cdfd|format \d+|does not know")
"""How a daemon names a position that a newer one has written."""


@pytest.fixture(scope="session")
def older() -> list[str]:
    """The command of the other commit."""
    command = release.command()
    shown = subprocess.run([*command, "inspect", "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert "Usage" in shown.stdout
    return command


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_kafka(end: End, older: list[str], broker: SharedBroker, name: str, tmp_path: Path) -> None:
    for number in range(UPGRADES):
        pipeline, topic, place = f"{name}-{number}", f"{name}-{number}.orders", tmp_path / str(number)
        sink = {"kind": "kafka", "bootstrap_servers": broker.bootstrap_servers, "topics": {"partitions": 3}}
        table = upgraded(place, sink, end, number, older, pipeline=pipeline, topic=topic)
        expected = history.history(table)
        history.check(table, history.await_records(broker.bootstrap_servers, topic, len(expected)), expected)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_files(end: End, older: list[str], tmp_path: Path) -> None:
    for number in range(UPGRADES):
        place = tmp_path / str(number)
        table = upgraded(place, {"kind": "files", "path": str(place / "out")}, end, number, older)
        files = sorted((place / "out" / TABLE).glob("*.jsonl"))
        actual = (json.loads(line) for file in files for line in file.read_text().splitlines())
        assert places(actual) == sorted(history.history(table).items())


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_changelog(end: End, older: list[str], tmp_path: Path) -> None:
    for number in range(UPGRADES):
        place = tmp_path / str(number)
        table = upgraded(place, {"kind": "delta", "path": str(place / "out")}, end, number, older)
        actual = pa.table(DeltaTable(place / "out" / TABLE).scan()).to_pylist()
        assert sorted(places(actual)) == sorted(history.history(table).items())


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_mirror(end: End, older: list[str], tmp_path: Path) -> None:
    for number in range(UPGRADES):
        place = tmp_path / str(number)
        table = upgraded(place, {**SINKS["mirror"], "path": str(place / "out")}, end, number, older)
        both = [pa.table(each.scan()) for each in (DeltaTable(place / "out" / TABLE), table.delta())]
        mirror, source = (sorted(zip(each["id"].to_pylist(), each["v"].to_pylist(), strict=True)) for each in both)
        assert mirror == source


def upgraded(folder: Path, sink: Mapping[str, Any], end: End, seed: int, older: list[str], **names: str) -> Location:
    """Let a daemon of the other commit deliver, end it, and let one of today deliver all the rest; the table."""
    table, random = Location(str(folder / "lake" / "orders")), Random(seed)
    folder.mkdir()
    config = configure(folder, sink, uri=table.uri, start="earliest", **names)
    within = seed % 2 == 0 and sink["kind"] != "delta"  # which delivers whole versions
    with WideFirst(table, seed, burst=500) as writer:
        with Daemon(config, command=older) as daemon:
            until(
                lambda: (
                    (position := stored(config)) is not None and (position.part > 0 if within else position.version > 1)
                )
            )
            time.sleep(0 if within else random.uniform(0, 1.5))
            assert daemon.running, daemon.log()
            daemon.kill() if end == "killed" else daemon.stop()
        begun = stored(config)
        assert begun is not None
        assert begun.part > 0 or not within
        for turn in range(3):
            with Daemon(config) as daemon:
                assert daemon.wait_for("at version")["message"].startswith(f"resuming at version {begun.version}")
                time.sleep(random.uniform(0.2, 1.0))
                assert daemon.running, daemon.log()
                daemon.kill() if end == "killed" and turn == 1 else daemon.stop()
            back, begun = goes_back(config, older, end), stored(config)
            assert begun is not None
    print(f"{sink['kind']}, {end}: the older daemon {back}")
    deliver(config, writer.table.version)
    print(f"\n{sink['kind']}, {end}: at version {begun.version}, file {begun.part}, of {writer.table.version} versions")
    return table


def goes_back(config: Path, older: list[str], end: End) -> str:
    """Let the other commit go on after today's daemon; what it did."""
    before = stored(config)
    assert before is not None
    with Daemon(config, command=older) as daemon:
        until(lambda: not daemon.running or daemon.has_said("at version"))
        if not daemon.running:
            assert daemon.ended() in (1, 2)
            assert REFUSAL.search(daemon.error), daemon.log()
            assert stored(config) == before
            return f"refused: {daemon.error}"
        assert daemon.has_said(f"resuming at version {before.version}"), daemon.log()
        until(lambda: (now := stored(config)) is not None and now.version > before.version)
        daemon.kill() if end == "killed" else daemon.stop()
    return "continued"


class WideFirst(Writing):
    """The first version with rows has many files, so that a daemon can be ended in the middle of it."""

    async def _step(self) -> None:
        if self.table.version > 0:
            return await super()._step()
        parts = [rows(*self._fresh(2)) for _ in range(FILES)]
        await self.table.commit("WRITE", [await self.table._add(part) for part in parts])
        return None


def stored(config: Path) -> Position | None:
    """The position of a pipeline's only table."""
    settings = load(config)
    return asyncio.run(connector(settings).position(settings.listed[0]))


def places(delivered: Iterable[Mapping[str, Any]]) -> list[tuple[Place, Change]]:
    """Change rows, in their order."""
    return [
        (
            Place(row["_commit_version"], row["_change_ordinal"]),
            Change(SIGN[row["_change_type"]], row["id"], row["v"]),
        )
        for row in delivered
    ]
