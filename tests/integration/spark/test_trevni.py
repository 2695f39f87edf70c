"""`format("cdfd")` of a table whose data files are Trevni: the rows that `cdfd.changes` gives, read on executors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import cdfd
from cdfd.storage.local import LocalStorage
from tests.support.trevni.lake import TrevniTableWriter

pytestmark = pytest.mark.usefixtures("registered")

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("tags", pa.list_(pa.string()))])


def rows(*ids: int) -> pa.Table:
    return pa.table([pa.array(ids, pa.int64()), [f"v{n}" for n in ids], [["a"][: n % 2] for n in ids]], schema=SCHEMA)


async def write(folder: Path) -> None:
    writer = TrevniTableWriter(LocalStorage(folder), SCHEMA)
    await writer.create()
    await writer.insert(rows(*range(50)))
    await writer.update(pc.field("id") < 5, {"v": pc.scalar("updated")})
    await writer.delete(pc.field("id") > 40)


def test_changes(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(write(tmp_path))
    frame = spark.read.format("cdfd").option("startingVersion", 0).load(str(tmp_path))
    names = ("_commit_version", "_change_type", "id", "v", "tags")
    actual = sorted(map(tuple, frame.select(*names).collect()))
    expected = cdfd.changes(str(tmp_path)).read_all().select(names).to_pylist()
    assert len(actual) == 50 + 10 + 9
    assert actual == sorted(tuple(row.values()) for row in expected)
