"""The commands and the daemon on tables that a catalog names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.catalogs.memory import NAME, ManagedTable, MemoryCatalog
from tests.support.catalogs.unity_server import Fault, UnityServer, unity_server
from tests.support.commands import CDFD, WITHIN, cdfd, started

TOKEN = "dapi-0123456789-secret"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UnityServer]:
    with unity_server(tmp_path) as server:
        server.token = TOKEN
        yield server


class Lake:
    """Two managed tables, one of them named in the configuration and one found."""

    def __init__(self, server: UnityServer, folder: Path) -> None:
        self.server = server
        self.out = folder / "out"
        (folder / "token").write_text(TOKEN)
        self.tables = {}
        catalog = MemoryCatalog()
        for name in ("orders", "items"):
            table = ManagedTable(folder / name, catalog, f"main.sales.{name}")
            server.add_table(table.name, table.folder.as_uri())
            self.tables[table.name] = table
        self.config = folder / "cdfd.yaml"
        self.config.write_text(f"""
pipeline: p
tables:
  - {{uri: 'uc://{NAME}', start: earliest}}
  - {{discover: 'uc://main.sales.*', name: '{{parent}}.{{table}}', start: earliest}}
sink: {{kind: files, path: {self.out}}}
catalogs: {{uc: {{endpoint: '{server.url}', token_file: token, deadline: 1s, timeout: 1s}}}}
poll: {{interval: 50ms, max_interval: 50ms}}
http: {{listen: 127.0.0.1:0}}
""")

    def commit(self, name: str = NAME) -> int:
        made = self.tables[name].commit()
        assert made.file_name is not None
        self.server.ratify(name, made.version, made.file_name, size=made.size, modified_ms=made.modified_ms)
        return made.version

    def publish(self, version: int, name: str = NAME) -> None:
        self.tables[name].publish(version, clean=True)
        with self.server.lock:
            self.server.tables[name].commits.pop(version)

    def delivered(self, name: str = NAME) -> list[int]:
        lines = (line for path in sorted((self.out / name).glob("*.jsonl")) for line in path.read_text().splitlines())
        return [json.loads(line)["id"] for line in lines]

    def wait_for(self, ids: list[int], name: str = NAME) -> None:
        deadline = time.monotonic() + WITHIN
        while self.delivered(name) != ids:
            assert time.monotonic() < deadline, self.delivered(name)
            time.sleep(0.02)


@pytest.fixture
def lake(server: UnityServer, tmp_path: Path) -> Lake:
    return Lake(server, tmp_path)


def test_daemon_delivers_each_version_once_while_commits_are_published(lake: Lake) -> None:
    lake.commit()
    with started("run", "-c", lake.config) as daemon:
        lake.wait_for([1])
        lake.commit()
        lake.publish(1)
        lake.wait_for([1, 2])
        lake.commit("main.sales.items")
        lake.wait_for([1], "main.sales.items")
        daemon.end(signal.SIGTERM)
    # Another process continues, although the entry of its position is another file now.
    lake.publish(2)
    lake.commit()
    with started("run", "-c", lake.config) as daemon:
        lake.wait_for([1, 2, 3])
        ended = daemon.end(signal.SIGTERM)
    assert ended.code == 0
    for path in [*lake.out.rglob("*"), lake.config]:
        assert path.is_dir() or TOKEN not in path.read_text()
    assert TOKEN not in ended.err


def test_catalog_that_is_down_is_an_error_of_its_tables_until_it_is_up(lake: Lake) -> None:
    lake.commit()
    with started("run", "-c", lake.config) as daemon:
        lake.wait_for([1])
        faults = [Fault("tables/orders$", status=503)] * 10_000
        with lake.server.lock:
            lake.server.faults += faults
        line = daemon.log_line("503")
        assert f"uc://{NAME}" in line
        assert TOKEN not in line
        with lake.server.lock:
            lake.server.faults.clear()
        lake.commit()
        lake.wait_for([1, 2])
        assert daemon.end(signal.SIGTERM).code == 0


def test_tables_exchanged_by_rename_are_noticed(lake: Lake) -> None:
    lake.commit()
    lake.commit("main.sales.items")
    with started("run", "-c", lake.config) as daemon:
        lake.wait_for([1])
        lake.wait_for([1], "main.sales.items")
        with lake.server.lock:
            lake.server.rename(NAME, "main.sales.x")
            lake.server.rename("main.sales.items", NAME)
            lake.server.rename("main.sales.x", "main.sales.items")
        assert "has another table of that name now" in daemon.log_line("another table")
        daemon.end(signal.SIGTERM)
    assert lake.delivered() == [1]


def test_commands(lake: Lake) -> None:
    lake.commit()
    checked = cdfd("check", "-c", lake.config)
    assert checked.code == 0, checked.err
    assert f"uc://{NAME}" in checked.out or NAME in checked.out
    options = [
        "--catalog-option",
        f"endpoint={lake.server.url}",
        "--catalog-option",
        f"token_file={lake.config.parent}/token",
    ]
    inspected = json.loads(cdfd("inspect", f"uc://{NAME}", "--json", *options).out)
    assert (inspected["table"], inspected["version"], inspected["stopped_by"]) == (f"uc://{NAME}", 1, None)
    assert {"name": "catalogManaged", "kind": "reader", "status": "supported", "enabled": None} in inspected["features"]
    tailed = cdfd("tail", f"uc://{NAME}", "--from", "earliest", "--until", "now", *options)
    assert [json.loads(line)["id"] for line in tailed.lines()] == [1]
    compared = cdfd("diff", f"uc://{NAME}", "--from", "0", "--summary", *options)
    assert json.loads(compared.out)["insert"] == 1
    refused = cdfd("tail", f"uc://{NAME}", "--catalog-option", f"token={TOKEN}")
    assert refused.code == 2
    assert TOKEN not in refused.err
    folder = cdfd("inspect", lake.tables[NAME].folder, "--json")
    assert "uc://catalog.schema.table" in json.loads(folder.out)["stopped_by"]


def test_options_come_from_the_environment(lake: Lake) -> None:
    lake.commit()
    environment = {**os.environ, "UC_ENDPOINT": lake.server.url, "UC_TOKEN": TOKEN}
    command = [*CDFD, "tail", f"uc://{NAME}", "--from", "earliest", "--until", "now"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, env=environment)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1], done.stderr


@pytest.mark.parametrize("target", ["source", "delta"])
def test_cdfd_writes_into_no_table_of_a_catalog(lake: Lake, target: str) -> None:
    """The ledger in the source, and a Delta sink whose target is a table of a catalog by its folder: refused before the first row."""
    lake.commit()
    text = lake.config.read_text()
    if target == "source":
        text += "progress: {ledger: source}\n"
        expected = "the writer feature catalogManaged"
    else:
        lake.tables["main.sales.items"].folder.rename(lake.out.with_name("items_"))
        (lake.out / "t").parent.mkdir(parents=True, exist_ok=True)
        lake.out.with_name("items_").rename(lake.out / NAME)
        text = text.replace("kind: files", "kind: delta")
        expected = "rows cannot be appended to the table: it has the feature catalogManaged"
        lake.server.tables.pop("main.sales.items")
    lake.config.write_text(text)
    before = sorted(path for path in lake.config.parent.rglob("*.json"))
    with started("run", "-c", lake.config) as daemon:
        assert expected in daemon.log_line("catalogManaged")
        daemon.end(signal.SIGTERM)
    assert sorted(path for path in lake.config.parent.rglob("*.json") if "_delta_log" in str(path)) == [
        path for path in before if "_delta_log" in str(path)
    ]
