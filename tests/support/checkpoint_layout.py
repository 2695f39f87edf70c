"""Checkpoints as Spark lays them out, from actions as they are in log entries: single, multi-part and V2."""

import io
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from cdfd.delta import paths

Action = Mapping[str, Any]
"""`{"add": {...}}` and so on."""

PAIRS = pa.map_(pa.string(), pa.string())
VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
        ("maxRowIndex", pa.int64()),
    ]
)
COLUMNS: dict[str, pa.DataType] = {
    "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
    "add": pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", PAIRS),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("tags", PAIRS),
            ("deletionVector", VECTOR),
            ("baseRowId", pa.int64()),
            ("defaultRowCommitVersion", pa.int64()),
            ("clusteringProvider", pa.string()),
            ("stats", pa.string()),
            ("stats_parsed", pa.struct([("numRecords", pa.int64())])),
        ]
    ),
    "remove": pa.struct(
        [
            ("path", pa.string()),
            ("deletionTimestamp", pa.int64()),
            ("dataChange", pa.bool_()),
            ("extendedFileMetadata", pa.bool_()),
            ("partitionValues", PAIRS),
            ("size", pa.int64()),
            ("deletionVector", VECTOR),
            ("baseRowId", pa.int64()),
            ("defaultRowCommitVersion", pa.int64()),
        ]
    ),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("description", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", PAIRS)])),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", PAIRS),
            ("createdTime", pa.int64()),
        ]
    ),
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", pa.list_(pa.string())),
            ("writerFeatures", pa.list_(pa.string())),
        ]
    ),
    "domainMetadata": pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
    "checkpointMetadata": pa.struct([("version", pa.int64()), ("tags", PAIRS)]),
    "sidecar": pa.struct(
        [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64()), ("tags", PAIRS)]
    ),
}
CLASSIC = ("txn", "add", "remove", "metaData", "protocol", "domainMetadata")
FILES = ("add", "remove")
NAME = UUID(int=7)


def part_name(version: int, part: int, parts: int) -> str:
    """The name of one of several files; parts count from 1."""
    return f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet"


def v2_name(version: int, uuid: str, kind: str = "parquet") -> str:
    return f"{version:020d}.checkpoint.{uuid}.{kind}"


def table(actions: Iterable[Action], columns: Sequence[str] = CLASSIC) -> pa.Table:
    """One row per action, one column per kind, null where the row is of another kind."""
    schema = pa.schema([(name, COLUMNS[name]) for name in columns])
    return pa.Table.from_pylist([dict(action) for action in actions], schema)


def parquet(rows: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, **options)
    return buffer.getvalue()


def single(version: int, actions: Iterable[Action]) -> dict[str, bytes]:
    """Name in the log -> bytes."""
    return {paths.checkpoint_name(version): parquet(table(actions))}


def multi_part(version: int, actions: Sequence[Action], parts: int) -> dict[str, bytes]:
    """Clustered by the hash of the path (specification, "Requirements for Writers")."""
    return {
        part_name(version, part + 1, parts): parquet(
            table(action for action in actions if zlib.crc32(_path(action)) % parts == part)
        )
        for part in range(parts)
    }


def v2(version: int, actions: Sequence[Action], sidecars: int, kind: str) -> dict[str, bytes]:
    """A manifest, `json` or `parquet`, with its file actions in so many sidecars; without sidecars they are in itself."""
    files = [action for action in actions if _path(action)]
    main: list[Action] = [{"checkpointMetadata": {"version": version}}]
    main += [action for action in actions if not _path(action) or not sidecars]
    made = {}
    for number in range(sidecars):
        data = parquet(table(files[number::sidecars], FILES))
        name = f"{version:020}.checkpoint.{number:010}.{UUID(int=number)}.parquet"
        made[f"{paths.SIDECARS}/{name}"] = data
        main.append({"sidecar": {"path": name, "sizeInBytes": len(data), "modificationTime": 1}})
    manifest = (
        b"".join(orjson.dumps(action) + b"\n" for action in main)
        if kind == "json"
        else parquet(table(main, [*COLUMNS]))
    )
    return made | {v2_name(version, str(NAME), kind): manifest}


def _path(action: Action) -> bytes:
    """Of a file action; empty of others."""
    return b"".join(str(action[kind]["path"]).encode() for kind in FILES if kind in action)
