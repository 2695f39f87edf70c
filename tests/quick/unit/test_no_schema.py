"""A `metaData` without schemaString, as the first version of Delta Live Tables has: a version without columns, and then a table."""

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

import cdfd
from cdfd.cli import app
from cdfd.delta import commit as commits
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.shape import Shape
from cdfd.storage.local import LocalStorage
from tests.support.feeding import DeltaPlace, FilesPlace, MemoryPlace, feed, ids
from tests.support.lake import Lake, checkpoint, entry_path, manual_clock, rows, run, table
from tests.support.manual_time import ManualClock


async def without_schema_at_first(storage: Lake | LocalStorage, clock: ManualClock, missing: object) -> None:
    """Version 0 has no schema, 1 gives it, 2 has a row."""
    writer = await table(storage, 1, clock)
    actions = list(map(orjson.loads, (await storage.read(entry_path(0))).splitlines()))
    for action in actions:
        if "metaData" in action:
            del action["metaData"]["schemaString"]
            action["metaData"] |= {} if missing is None else {"schemaString": None}
    await storage.delete(entry_path(0))
    await storage.put_if_absent(entry_path(0), b"\n".join(map(orjson.dumps, actions)))
    await writer.commit("SET", [writer._metadata()])
    await writer.insert(rows(2))


@pytest.mark.parametrize("missing", [None, "null"])
def test_ranges_begin_where_the_table_has_a_schema(tmp_path: Path, missing: object) -> None:
    run(without_schema_at_first(LocalStorage(tmp_path), manual_clock(), missing))
    assert cdfd.changes(str(tmp_path), 0).read_all().column("id").to_pylist() == [2]
    assert cdfd.changes(str(tmp_path), 0, 0).read_all().num_rows == 0
    assert cdfd.snapshot(str(tmp_path), 0).read_all().num_rows == 0
    result = CliRunner().invoke(app, ["tail", str(tmp_path), "--from", "earliest", "--until", "now", "--key", "id"])
    assert len(result.stdout.splitlines()) == 1
    assert CliRunner().invoke(app, ["inspect", str(tmp_path)]).exit_code == 0


@pytest.mark.parametrize("place_type", [MemoryPlace, FilesPlace, DeltaPlace])
@pytest.mark.parametrize("start", ["earliest", "snapshot", 1])
async def test_daemon_delivers_what_follows_the_schema(
    tmp_path: Path,
    place_type: type[MemoryPlace | FilesPlace | DeltaPlace],
    start: str | int,
    clock: ManualClock,
    lake: Lake,
) -> None:
    await without_schema_at_first(lake, clock, None)
    place = place_type(tmp_path / "out")
    options = {"key": ("id",), "headers": ("v",), "shape": Shape(where=parse_filter("id > 0"))}
    await feed(lake, place, clock, 2, start=start, max_bytes=1, **options)
    assert ids(place) == [("insert", 2, 2)]


async def test_checkpoint_of_such_a_version(clock: ManualClock, lake: Lake) -> None:
    await without_schema_at_first(lake, clock, None)
    assert commits.parse(0, lake.bytes_of(entry_path(0))).metadata is not None
    await checkpoint(lake, 0)
    lake.forget(entry_path(0))
    place = MemoryPlace()
    await feed(lake, place, clock, 2, start=1)
    assert ids(place) == [("insert", 2, 2)]
