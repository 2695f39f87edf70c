"""Data files of a target with column mapping contain the ids of their columns, whichever writer wrote them."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd import snapshot
from cdfd.model.columns import VersionColumns, change_schema, constant_type
from cdfd.model.position import Position
from cdfd.runtime.clock import SystemClock
from cdfd.scan.updates.spill import SpillSpace
from cdfd.sinks.base import Sink
from cdfd.sinks.delta.compactor import Compaction
from cdfd.sinks.delta.data_files import DataFiles
from cdfd.sinks.delta.log_actions import CHANGELOG_MODE, mirror_mode
from cdfd.sinks.delta.mirror.sink import MirrorSink
from cdfd.sinks.delta.mirror.state import MirrorOptions
from cdfd.sinks.delta.sink import DeltaSink
from cdfd.sinks.delta.target import Layout, Target
from cdfd.sinks.ledger.ledger import app_id
from cdfd.storage.local import LocalStorage

APP = app_id("shop", "orders")
ADDRESS = pa.struct({"city": pa.string(), "past": pa.list_(pa.struct({"year": pa.int32()}))})
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "day": pa.string(),
        "address": ADDRESS,
        "tags": pa.map_(pa.string(), pa.struct({"n": pa.int8()})),
    }
)


def change(version: int, kind: str, *ids: int) -> pa.RecordBatch:
    values = {"city": "Bern", "past": [{"year": 1}]}
    columns = [
        pa.array([value] * len(ids), field.type)
        for value, field in zip(("x", values, [("a", {"n": 1})]), list(SCHEMA)[1:], strict=True)
    ]
    schema = pa.schema([*SCHEMA, change_schema(SCHEMA)[len(SCHEMA)]])
    typed = pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), *columns, constant_type(kind, len(ids))], schema=schema
    )
    return VersionColumns(version, 0).complete(typed, 0)


async def open_sink(folder: Path, *, mirrored: bool) -> Sink:
    mode = mirror_mode(change_feed=True) if mirrored else CHANGELOG_MODE
    compaction = Compaction("snappy", 1 << 20)
    layout = Layout(("day",), "follow", mode, checkpoint_interval=10, compaction=compaction)
    target = Target(LocalStorage(folder, sync=False), APP, layout, SystemClock(), owner=7)
    files = partial(DataFiles, compression="snappy", file_bytes=1 << 20)
    if mirrored:
        return await MirrorSink.open(target, files, MirrorOptions(("id",), True, SpillSpace()))
    return await DeltaSink.open(target, files)


async def deliver(sink: Sink, version: int, *batches: pa.RecordBatch) -> None:
    delivery = await sink.begin(Position("T", version))
    for batch in batches:
        await delivery.write(batch)
    await delivery.commit(Position("T", version + 1))


def actions(folder: Path) -> list[dict[str, Any]]:
    log = sorted((folder / "_delta_log").glob("*.json"))
    return [json.loads(line) for path in log for line in path.read_text().splitlines()]


def ids_of_table(folder: Path) -> dict[str, int]:
    """Of columns and nested fields that are in files, by their physical path."""
    metadata = [each["metaData"] for each in actions(folder) if "metaData" in each][-1]

    def walk(kind: Any, path: str) -> Iterator[tuple[str, int]]:
        if isinstance(kind, str):
            return
        for child in kind.get("fields", ()):
            name = f"{path}.{child['metadata']['delta.columnMapping.physicalName']}"
            yield name, child["metadata"]["delta.columnMapping.id"]
            yield from walk(child["type"], name)
        for key in ("elementType", "keyType", "valueType"):
            yield from walk(kind.get(key, ""), f"{path}[]")

    schema = json.loads(metadata["schemaString"])
    schema["fields"] = [each for each in schema["fields"] if each["name"] not in metadata["partitionColumns"]]
    return dict(walk(schema, ""))


def ids_of_file(path: Path) -> dict[str, int | None]:
    """Of columns and nested fields, by their path; None: no id."""

    def walk(fields: Sequence[Any], path: str) -> Iterator[tuple[str, int | None]]:
        for field in fields:
            id = (field.metadata or {}).get(b"PARQUET:field_id")
            yield f"{path}.{field.name}", None if id is None else int(id)
            yield from of_type(field.type, f"{path}.{field.name}")

    def of_type(kind: pa.DataType, path: str) -> Iterator[tuple[str, int | None]]:
        if isinstance(kind, pa.StructType):
            yield from walk(list(kind), path)
        elif isinstance(kind, pa.ListType):
            yield from of_type(kind.value_type, f"{path}[]")
        elif isinstance(kind, pa.MapType):
            yield from of_type(kind.key_type, f"{path}[]")
            yield from of_type(kind.item_type, f"{path}[]")

    return dict(walk(list(pq.read_schema(path)), ""))


@pytest.mark.parametrize("mapping", ["name", "id"])
@pytest.mark.parametrize("mirrored", [False, True], ids=["changelog", "mirror"])
async def test_each_column_of_a_file_has_its_id(tmp_path: Path, mirrored: bool, mapping: str) -> None:
    sink = await open_sink(tmp_path, mirrored=mirrored)
    await deliver(sink, 0, change(0, "insert", *range(100, 110)))
    first = tmp_path / "_delta_log" / f"{0:020}.json"
    first.write_text(
        first.read_text().replace('"delta.columnMapping.mode":"name"', f'"delta.columnMapping.mode":"{mapping}"')
    )
    assert f'"delta.columnMapping.mode":"{mapping}"' in first.read_text()
    sink = await open_sink(tmp_path, mirrored=mirrored)
    for version in range(1, 12):
        await deliver(sink, version, change(version, "insert", version))
        if mirrored and version == 5:
            await sink.close()
            sink = await open_sink(tmp_path, mirrored=True)
    if mirrored:
        await deliver(
            sink, 12, change(12, "delete", 3), change(12, "update_preimage", 4), change(12, "update_postimage", 4)
        )
    await sink.close()
    log = actions(tmp_path)
    files = [(kind, each[kind]["path"]) for each in log for kind in ("add", "cdc") if kind in each]
    assert any(kind == "cdc" for kind, _ in files) is mirrored
    # Files of a table that finds its columns by ids are not compacted.
    assert any(each.get("commitInfo", {}).get("operation") == "OPTIMIZE" for each in log) is (mapping == "name")
    table = ids_of_table(tmp_path)
    assert sum("[]." in name for name in table) == 2
    for kind, path in files:
        assert ids_of_file(tmp_path / path) == table | ({"._change_type": None} if kind == "cdc" else {})
    assert len(snapshot(tmp_path, columns=["id"]).read_all()) == (20 if mirrored else 21)
