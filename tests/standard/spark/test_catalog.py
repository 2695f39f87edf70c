"""Spark reads tables that a catalog names: the driver gets their commits, and executors get their files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdfd.spark import register
from tests.support.catalogs.memory import NAME, ManagedTable, MemoryCatalog
from tests.support.catalogs.unity_server import UnityServer, unity_server

TOKEN = "dapi-0123456789-secret"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UnityServer]:
    with unity_server(tmp_path) as server:
        server.token = TOKEN
        yield server


@pytest.fixture
def table(server: UnityServer, tmp_path: Path) -> ManagedTable:
    table = ManagedTable(tmp_path / "orders", MemoryCatalog())
    server.add_table(NAME, table.folder.as_uri())
    for _ in range(3):
        commit(server, table)
    return table


def commit(server: UnityServer, table: ManagedTable) -> None:
    made = table.commit()
    assert made.file_name is not None
    server.ratify(NAME, made.version, made.file_name, size=made.size, modified_ms=made.modified_ms)


def options(server: UnityServer) -> dict[str, str]:
    return {"table": NAME, "storage.endpoint": server.url, "storage.token": TOKEN, "startingVersion": "0"}


def test_batch(spark: SparkSession, server: UnityServer, table: ManagedTable) -> None:
    register(spark)
    frame = spark.read.format("cdfd").options(**options(server)).load()
    assert sorted(row.id for row in frame.collect()) == [1, 2, 3]
    plan = frame._jdf.queryExecution().toString()
    assert TOKEN not in plan


def test_stream_continues_while_commits_are_published(
    spark: SparkSession, server: UnityServer, table: ManagedTable, tmp_path: Path
) -> None:
    register(spark)

    def run() -> list[int]:
        frame = spark.readStream.format("cdfd").options(**options(server)).load()
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(120)
        return sorted(row.id for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    assert run() == [1, 2, 3]
    for version in (1, 2, 3):
        table.publish(version, forget=True, clean=True)
        server.tables[NAME].commits.pop(version)
    commit(server, table)
    assert run() == [1, 2, 3, 4]
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes()
