"""A table of a dozen small files with a checkpoint of any layout, and versions after it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdfd.delta import paths
from cdfd.delta.actions import Add
from cdfd.delta.types.schema import from_arrow, serialize
from cdfd.demo.writer import TableWriter
from cdfd.log.log import DeltaLog
from cdfd.storage.local import LocalStorage
from tests.support import checkpoint_layout, lake

FILES = 12
CHECKPOINT = FILES + 1

Layout = Callable[[int, Sequence[Any]], Mapping[str, bytes]]
LAYOUTS: dict[str, Layout] = {
    "one file": checkpoint_layout.single,
    "three parts": lambda version, actions: checkpoint_layout.multi_part(version, actions, 3),
    "sidecars of Parquet": lambda version, actions: checkpoint_layout.v2(version, actions, 3, "parquet"),
    "sidecars of JSON": lambda version, actions: checkpoint_layout.v2(version, actions, 3, "json"),
    "no sidecars": lambda version, actions: checkpoint_layout.v2(version, actions, 0, "parquet"),
    "no sidecars, JSON": lambda version, actions: checkpoint_layout.v2(version, actions, 0, "json"),
}
STATS: dict[str, Callable[[int], bool]] = {
    "all": lambda number: True,
    "some": lambda number: number % 3 > 0,
    "none": lambda number: False,
}


def writer(folder: Path) -> TableWriter:
    return TableWriter(LocalStorage(str(folder)), lake.SCHEMA, clock=lake.manual_clock(), table_id="T")


async def filled(table: TableWriter) -> None:
    """Files of one to three rows. Then a version hides rows of some of them."""
    await table.create()
    for number in range(FILES):
        first = 10 * number
        await table.insert(lake.rows(*range(first, first + 1 + number % 3)))
    await table.delete(pc.is_in(pc.field("id"), pa.array([11, 40, 50, 110])))


async def changed(table: TableWriter) -> None:
    """Versions after the checkpoint: other deletion vectors, files that go, files that come."""
    await table.delete(pc.is_in(pc.field("id"), pa.array([10, 51, 81])))
    await table.update(pc.field("id") == 70, {"v": pc.scalar("b")})
    await table.insert(lake.rows(1000, 1001))


def described(add: Add, with_stats: bool) -> dict[str, Any]:
    vector = add.deletion_vector
    fields: dict[str, Any] = {
        "path": add.path,
        "partitionValues": {},
        "size": add.size,
        "modificationTime": add.modification_time,
        "dataChange": False,
    }
    if with_stats:
        fields["stats"] = add.stats
    if vector is not None:
        fields["deletionVector"] = {
            "storageType": vector.storage_type,
            "pathOrInlineDv": vector.path_or_inline,
            "offset": vector.offset,
            "sizeInBytes": vector.size_in_bytes,
            "cardinality": vector.cardinality,
        }
    return fields


async def checkpoint(storage: LocalStorage, version: int, layout: Layout, has_stats: Callable[[int], bool]) -> None:
    state = await DeltaLog(storage).snapshot(version, with_stats=True)
    schema = serialize(from_arrow(lake.SCHEMA))
    metadata = {"id": "T", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    features = sorted(state.protocol.reader_features or ())
    actions: list[Any] = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {"metaData": metadata | {"partitionColumns": [], "configuration": {"delta.enableDeletionVectors": "true"}}},
    ]
    for number, add in enumerate(state.live()):
        actions.append({"add": described(add, has_stats(number))})
        gone = {"path": f"gone-{number}.parquet", "dataChange": True, "size": 1, "deletionTimestamp": 1}
        actions.append({"remove": gone})
    for name, data in layout(version, actions).items():
        await storage.put(f"{paths.LOG}/{name}", data)
