"""Many tables in one daemon: a large table that catches up does not delay a small one."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from tests.support.kafka.daemon_process import Daemon, configure, until
from tests.support.kafka.shared import SharedBroker

VERSIONS, ROWS = 10, 100_000
WITHIN = 60


def write(uri: Path, first: int, rows: int) -> None:
    ids = pa.array(range(first, first + rows), pa.int64())
    table = pa.table({"id": ids, "text": pa.array([f"text of row {number}" for number in range(rows)])})
    deltalake.write_deltalake(str(uri), table, mode="append")


def status(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/status", timeout=10) as answer:
        tables: dict[str, Any] = json.load(answer)["tables"]
        return tables


def test_a_small_table_is_delivered_while_a_large_one_catches_up(
    broker: SharedBroker, tmp_path: Path, name: str
) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    for version in range(VERSIONS):
        write(large, version * ROWS, ROWS)
    write(small, 0, 1)
    tables = [{"uri": str(uri), "start": "earliest", "key": ["id"]} for uri in (large, small)]
    config = configure(tmp_path, name, broker.bootstrap_servers, tables, http={"listen": "127.0.0.1:0"})
    with Daemon(config) as daemon:
        address = daemon.wait_for("metrics, health and status at")["message"].rpartition(" ")[2]
        until(lambda: status(address)["large"]["rows"]["insert"] > 0, WITHIN)
        for version in range(1, 4):
            write(small, version, 1)
            until(lambda version=version: status(address)["small"]["delivered_version"] == version, WITHIN)
        told = status(address)
        assert told["large"]["delivered_version"] < VERSIONS - 1
        assert told["small"]["lag_versions"] == 0
        until(lambda: status(address)["large"]["delivered_version"] == VERSIONS - 1, WITHIN)
        assert status(address)["large"]["rows"]["insert"] == VERSIONS * ROWS
        daemon.stop()
