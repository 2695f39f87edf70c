"""Ranges of a table to which a writer commits while their bounds are found."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cdfd
from cdfd import api
from cdfd.cli import app
from cdfd.delta.header import Header
from cdfd.log.bounds import Start
from cdfd.log.log import DeltaLog
from cdfd.log.start import start_version
from cdfd.runtime.clock import SystemClock
from cdfd.storage.base import Stat
from cdfd.storage.local import LocalStorage
from tests.support.lake import entry_path, run, table

VERSIONS = 3


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    run(table(LocalStorage(tmp_path / "orders"), VERSIONS, SystemClock()))
    return tmp_path / "orders"


def commit(orders: Path, version: int) -> None:
    """The rows of the newest version once more."""
    shutil.copy(orders / entry_path(VERSIONS - 1), orders / entry_path(version))


@pytest.fixture
def busy(orders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A writer commits before each listing of the log."""
    versions = count(VERSIONS)
    listing = LocalStorage.list

    async def list_later(storage: LocalStorage, prefix: str, start_after: str = "") -> AsyncGenerator[Stat, None]:
        if storage.root == str(orders) and prefix == "_delta_log/":
            commit(orders, next(versions))
        async for stat in listing(storage, prefix, start_after):
            yield stat

    monkeypatch.setattr(LocalStorage, "list", list_later)
    return orders


@pytest.mark.parametrize("start", ["latest", "-1", "1 second ago"])
def test_tail_until_now(start: str, busy: Path) -> None:
    result = CliRunner().invoke(app, ["tail", str(busy), "--from", start, "--until", "now"])
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("options", [["--from", "1"], ["--from", "-1"], ["--from", "latest"], ["--snapshot"]])
def test_backfill_until_now(options: list[str], busy: Path, tmp_path: Path) -> None:
    config = tmp_path / "cdfd.yaml"
    sink = {"kind": "delta", "path": str(tmp_path / "out")}
    config.write_text(json.dumps({"pipeline": "p", "tables": [{"uri": str(busy)}], "sink": sink}))
    result = CliRunner().invoke(app, ["backfill", "-c", str(config), "orders", *options])
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(("start", "expected"), [("latest", []), (-1, [4]), (-2, [3, 4]), ({"after": -1}, [])])
def test_changes_until_the_newest_version(
    start: Start, expected: list[int], orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, is_read = DeltaLog.header, asyncio.Event()

    async def read_header(log: DeltaLog, version: int | None = None) -> Header:
        read = await header(log, version)
        is_read.set()
        return read

    async def start_later(log: DeltaLog, start: Start) -> int:
        await is_read.wait()
        commit(orders, VERSIONS)
        commit(orders, VERSIONS + 1)
        return await start_version(log, start)

    monkeypatch.setattr(DeltaLog, "header", read_header)
    monkeypatch.setattr(api, "start_version", start_later)
    rows = cdfd.changes(orders, start).read_all()
    assert sorted(set(rows["_commit_version"].to_pylist())) == expected
