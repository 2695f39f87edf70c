"""`cdfd plan` on real tables: its rows and bytes are those that a daemon delivers."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import cdfd as api
from cdfd.demo.writer import TableWriter
from cdfd.storage.local import LocalStorage
from tests.support.commands import cdfd
from tests.support.kafka.pipeline import do
from tests.support.lake import SCHEMA, rows


def lake(folder: Path, *, feed: bool) -> TableWriter:
    """A table of inserts, an update, a delete by deletion vector, a merge and a compaction."""
    table = TableWriter(LocalStorage(folder / "orders", sync=False), SCHEMA, feed=feed)
    do(table.create())
    for first in range(0, 40, 10):
        do(table.insert(rows(*range(first, first + 10))))
    do(table.delete(pc.field("id") < 3))
    do(table.update(pc.field("id") == 15, {"v": pc.scalar("b")}))
    do(table.merge(rows(20, 50, v="c"), "id"))
    do(table.optimize())
    return table


def configure(folder: Path, *uris: str, **more: Any) -> Path:
    path = folder / "cdfd.yaml"
    document = {
        "pipeline": "shop",
        "tables": [{"uri": uri} for uri in uris],
        "sink": {"kind": "files", "path": str(folder / "out")},
        "progress": {"ledger": "none"},
    }
    path.write_text(json.dumps(document | more))
    return path


def report(path: Path, *options: str) -> dict[str, Any]:
    ended = cdfd("plan", "-c", path, "--json", *options)
    assert ended.code == 0, ended.err
    document: dict[str, Any] = json.loads(ended.out)
    return document


def test_rows_are_those_that_a_daemon_delivers(tmp_path: Path) -> None:
    table = lake(tmp_path, feed=False)
    delivered = sum(batch.num_rows for batch in api.changes(str(tmp_path / "orders"), 0, table.version))
    [orders] = report(configure(tmp_path, str(tmp_path / "orders")))["tables"]
    assert orders["mean"]["rows"] == pytest.approx(delivered, rel=0.1)
    assert orders["mean"]["versions"] == table.version + 1
    assert orders["peak"]["rows"] <= orders["mean"]["rows"]


def test_a_sink_with_topics_has_its_own_beside_those_of_tables(tmp_path: Path) -> None:
    """It is not connected to: there is none at this address."""
    lake(tmp_path, feed=True)
    sink = {"kind": "kafka", "bootstrap_servers": "127.0.0.1:1", "topics": {"partitions": 6, "replication_factor": 3}}
    actual = report(configure(tmp_path, str(tmp_path / "orders"), sink=sink))
    assert (actual["topics"], actual["partitions"]) == (3, 8)
    assert actual["assumptions"]["costs_of"] == "kafka/json"


def test_a_price_is_that_of_the_user(tmp_path: Path) -> None:
    lake(tmp_path, feed=True)
    path = configure(tmp_path, str(tmp_path / "orders"))
    ours, theirs = report(path), report(path, "--price", "gb_hour=1")
    assert theirs["money"]["memory"] == pytest.approx(theirs["memory"] / 1e9 * 730)
    assert theirs["money"]["memory"] > 100 * ours["money"]["memory"]
    for wrong in ("gb_hour", "gb_hour=x", "gbhour=1", "gb_hour=nan"):
        ended = cdfd("plan", "-c", path, "--price", wrong)
        assert (ended.code, "core_hour" in ended.err) == (2, True), ended.err


def test_a_table_that_cannot_be_read_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    lake(tmp_path, feed=True)
    (tmp_path / "empty").mkdir()
    ended = cdfd("plan", "-c", configure(tmp_path, str(tmp_path / "orders"), str(tmp_path / "empty")))
    assert ended.code == 1
    assert [line.split()[0] for line in ended.out.splitlines()[:3]] == ["table", "orders", "total"]
    assert "not read: " in ended.out
    assert "Prices: list prices of AWS" in ended.out


def test_only_commits_of_the_days_count(tmp_path: Path) -> None:
    """The log's times are those of its files."""
    lake(tmp_path, feed=True)
    entries = sorted((tmp_path / "orders" / "_delta_log").glob("*.json"))
    for entry in entries[:5]:
        os.utime(entry, (entry.stat().st_atime, entry.stat().st_mtime - 3 * 86_400))
    path = configure(tmp_path, str(tmp_path / "orders"))
    recent = report(path, "--days", "1")["tables"][0]["mean"]["versions"]
    everything = report(path, "--days", "7")["tables"][0]["mean"]["versions"]
    assert recent * 24 == pytest.approx(len(entries) - 5)
    assert everything * 72 == pytest.approx(len(entries), rel=0.1)
