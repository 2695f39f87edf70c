"""Tables to begin with: small, of every layout there is. Path of a file -> its bytes."""

import asyncio
import datetime as dt
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdfd.delta import deletion_vector, last_checkpoint, paths, roaring
from cdfd.delta.deletion_vector import RowSet
from cdfd.delta.types import schema as schemas
from cdfd.sinks.ledger import table_ledger, txn_state
from cdfd.sinks.ledger.txn_log import TxnLog
from tests.support.checkpoint_layout import multi_part, single, v2
from tests.support.lake import Lake, manual_clock, rows, table

Files = dict[str, bytes]
GOLDEN = os.environ.get("CDFD_GOLDEN")
"""A folder of tables of real writers. Without them the mutants are the same ones everywhere."""
MOST = 120_000
"""Bytes of a golden table, at most."""
CDF = {"delta.enableChangeDataFeed": "true"}


def parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def entry(*actions: Mapping[str, Any]) -> bytes:
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)


def commit(version: int) -> str:
    return f"{paths.LOG}/{paths.commit_name(version)}"


def protocol(*features: str) -> dict[str, Any]:
    if not features:
        return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    both = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **both}}


def metadata(schema: pa.Schema | str, partitions: Sequence[str] = (), **settings: str) -> dict[str, Any]:
    text = schema if isinstance(schema, str) else schemas.serialize(schemas.from_arrow(schema))
    return {
        "metaData": {
            "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": text,
            "partitionColumns": list(partitions),
            "configuration": settings,
            "createdTime": 1,
        }
    }


def file(kind: str, path: str, data: bytes, **more: Any) -> dict[str, Any]:
    fields = {"path": path, "partitionValues": {}, "size": len(data), "modificationTime": 1, "dataChange": True}
    if kind == "add":
        fields["stats"] = json.dumps(
            {"numRecords": pq.read_metadata(io.BytesIO(data)).num_rows, "minValues": {"id": 0}}
        )
    return {kind: fields | more}


def info(time: int, **more: Any) -> dict[str, Any]:
    return {"commitInfo": {"timestamp": time, "operation": "WRITE", **more}}


def written() -> Files:
    """By the demo's writer: change data files, deletion vectors, OPTIMIZE, a column more."""

    async def history() -> Lake:
        lake = Lake(manual_clock())
        writer = await table(lake, 3, manual_clock())
        await writer.insert(rows(7, 8, 9, v="x"))
        await writer.update(pc.field("id") == 1, {"v": pc.scalar("b")})
        await writer.delete(pc.field("id") == 8)
        await writer.optimize()
        await writer.add_column(pa.field("n", pa.float64()))
        await writer.merge(pa.table({"id": [9, 10], "v": ["m", "n"], "n": [1.5, None]}), "id")
        return lake

    lake = asyncio.run(history())
    return {path: lake.bytes_of(path) for path in sorted(lake._objects)}


def partitioned() -> Files:
    """Partition values of several types, removes that do not repeat them, in-commit timestamps, no change data."""
    kinds = {
        "i": pa.int32(),
        "d": pa.date32(),
        "t": pa.timestamp("us", "UTC"),
        "s": pa.string(),
        "x": pa.decimal128(5, 2),
    }
    schema = pa.schema({"id": pa.int64(), **kinds})
    settings = {"delta.enableInCommitTimestamps": "true"}
    files: Files = {}
    partitions = [
        {"i": "1", "d": "2020-02-29", "t": "2020-01-01 00:00:00.5", "s": "a b", "x": "1.50"},
        {"i": None, "d": None, "t": "2021-06-01T12:00:00.000Z", "s": "", "x": "-0.01"},
        {"i": "-7", "d": "1582-10-15", "t": None, "s": "é/%", "x": None},
    ]
    adds = []
    for number, partition in enumerate(partitions):
        path = f"s=a%20b/part-{number}.parquet"
        files[paths.decode(path)] = data = parquet(pa.table({"id": pa.array([number * 10, number * 10 + 1])}))
        adds.append(file("add", path, data, partitionValues=partition))
    writers = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}
    start = {"protocol": writers}, metadata(schema, [*kinds], **settings)
    files[commit(0)] = entry(info(1, inCommitTimestamp=1000), *start)
    for version, add in enumerate(adds, 1):
        files[commit(version)] = entry(info(1, inCommitTimestamp=1000 + version), add)
    removed = {"remove": {"path": adds[1]["add"]["path"], "deletionTimestamp": 5, "dataChange": True}}
    files[commit(4)] = entry(info(1, inCommitTimestamp=2000), removed)
    again = adds[1]["add"] | {"modificationTime": 2}
    files[commit(5)] = entry(info(1, inCommitTimestamp=2001), {"add": again}, {"txn": {"appId": "a", "version": 3}})
    return files


def mapped(mode: str = "name") -> Files:
    """Column mapping, a rename and a drop; nested columns; vectors inline and in a file."""

    def field(name: str, kind: Any, number: int, physical: str) -> dict[str, Any]:
        known = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
        return {"name": name, "type": kind, "nullable": True, "metadata": known}

    inner = {"type": "struct", "fields": [field("a", "integer", 4, "c4"), field("b", "string", 5, "c5")]}
    array = {"type": "array", "elementType": inner, "containsNull": True}
    before = [field("id", "long", 1, "c1"), field("name", "string", 2, "c2"), field("items", array, 3, "c3")]
    after = [field("id", "long", 1, "c1"), field("title", "string", 2, "c2"), field("n", "double", 6, "c6")]
    ids = {"c1": 1, "c2": 2, "c3": 3}
    struct = pa.struct([pa.field("c4", pa.int32(), metadata={"PARQUET:field_id": "4"}), pa.field("c5", pa.string())])
    kinds = {"c1": pa.int64(), "c2": pa.string(), "c3": pa.list_(struct)}
    schema = pa.schema([pa.field(n, k, metadata={"PARQUET:field_id": str(ids[n])}) for n, k in kinds.items()])
    lines = [{"c1": n, "c2": f"n{n}", "c3": [{"c4": n, "c5": None}] * (n % 3) or None} for n in range(40)]
    data = parquet(pa.Table.from_pylist(lines, schema), row_group_size=16, data_page_size=64)
    files = {"a.parquet": data}
    settings = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "6"}
    text = [json.dumps({"type": "struct", "fields": fields}) for fields in (before, after)]
    files[commit(0)] = entry(protocol("columnMapping", "deletionVectors"), metadata(text[0], **settings))
    files[commit(1)] = entry(file("add", "a.parquet", data))
    few, many = RowSet.of([1, 5]), RowSet.of([1, 5, *range(20, 36)])
    blob, [(offset, size)] = deletion_vector.store([many])
    stored = deletion_vector.describe(UUID(int=9), "", offset, size, len(many))
    files[str(deletion_vector.path_of(stored))] = blob
    vectors = [
        {"storageType": d.storage_type, "pathOrInlineDv": d.path_or_inline, "sizeInBytes": d.size_in_bytes}
        | {"cardinality": d.cardinality, **({} if d.offset is None else {"offset": d.offset})}
        for d in (deletion_vector.inline(few), stored)
    ]
    files[commit(2)] = entry(
        file("remove", "a.parquet", data), file("add", "a.parquet", data, deletionVector=vectors[0])
    )
    files[commit(3)] = entry(metadata(text[1], **settings))
    files[commit(4)] = entry(
        file("remove", "a.parquet", data, deletionVector=vectors[0]),
        file("add", "a.parquet", data, deletionVector=vectors[1]),
    )
    return files


def typed() -> Files:
    """A column of every type, with a widening and change data of several partitions."""
    kinds: dict[str, pa.DataType] = {
        "id": pa.int64(),
        "b": pa.bool_(),
        "y": pa.int8(),
        "h": pa.int16(),
        "i": pa.int32(),
        "f": pa.float32(),
        "g": pa.float64(),
        "s": pa.string(),
        "z": pa.binary(),
        "d": pa.date32(),
        "t": pa.timestamp("us", "UTC"),
        "w": pa.timestamp("us"),
        "x": pa.decimal128(38, 10),
        "l": pa.list_(pa.string()),
        "m": pa.map_(pa.string(), pa.int32()),
        "u": pa.struct([("p", pa.int32()), ("q", pa.list_(pa.int64()))]),
    }
    now = dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.UTC)
    line = {
        "id": 1,
        "b": True,
        "y": -1,
        "h": 300,
        "i": 70_000,
        "f": 1.5,
        "g": float("nan"),
        "s": "té\n",
        "z": b"\0\xff",
    }
    line |= {"d": now.date(), "t": now, "w": now.replace(tzinfo=None), "x": Decimal("-1.5"), "l": ["a", None]}
    line |= {"m": [("k", 1)], "u": {"p": None, "q": [1, 2]}}
    lines = [line, {"id": 2}, line | {"id": 3, "s": ""}]
    schema = pa.schema(kinds)
    data = parquet(pa.Table.from_pylist(lines, schema), compression="zstd", use_dictionary=False)
    wide = pa.schema({**kinds, "y": pa.int32(), "f": pa.float64()})
    later = parquet(pa.Table.from_pylist([line | {"id": 4, "y": 70_000}], wide), data_page_version="2.0")
    images = [{**line, "_change_type": kind, "id": 5} for kind in ("update_preimage", "update_postimage")]
    feed = parquet(pa.Table.from_pylist(images, wide.append(pa.field("_change_type", pa.string()))))
    other = parquet(
        pa.Table.from_pylist(
            [images[0] | {"_change_type": "delete", "id": 3}], wide.append(pa.field("_change_type", pa.string()))
        )
    )
    widening = {"delta.enableTypeWidening": "true", **CDF}
    features = protocol("timestampNtz", "typeWidening")
    return {
        "a.parquet": data,
        "b.parquet": later,
        "_change_data/c1.parquet": feed,
        "_change_data/c2.parquet": other,
        commit(0): entry(features, metadata(schema, **widening), file("add", "a.parquet", data)),
        commit(1): entry(metadata(wide, **widening), file("add", "b.parquet", later)),
        commit(2): entry(
            file("remove", "b.parquet", later),
            *(file("cdc", f"_change_data/c{n}.parquet", d, dataChange=False) for n, d in ((1, feed), (2, other))),
        ),
    }


def simple(versions: int = 6, prefix: str = "part") -> tuple[Files, list[dict[str, Any]]]:
    """A file a version, and the actions of the newest state."""
    schema = pa.schema({"id": pa.int64(), "v": pa.string()})
    state = [protocol("v2Checkpoint", "deletionVectors"), metadata(schema)]
    files = {commit(0): entry(*state)}
    for version in range(1, versions):
        path = f"{prefix}-{version}.parquet"
        files[path] = data = parquet(pa.table({"id": [version, version + 100], "v": [f"v{version}", None]}, schema))
        add = file("add", path, data)
        state.append(add)
        files[commit(version)] = entry(info(version), add)
    return files, state


def checkpointed(make: Any, hint: bool, keep: int = 3) -> Files:
    """A log whose beginning is gone, with a checkpoint at version 4."""
    files, state = simple()
    made = make(4, state[:-1])
    log_files = {f"{paths.LOG}/{name}": data for name, data in made.items()}
    log = {path: data for path, data in files.items() if path not in {commit(n) for n in range(keep)}}
    if hint:
        text = last_checkpoint.serialize(last_checkpoint.LastCheckpoint(4, len(state) - 1))
        log_files[f"{paths.LOG}/_last_checkpoint"] = text
    return log | log_files


def hinted() -> Files:
    """A log with all optional files that readers may use: a checkpoint, compactions, checksums."""
    files, state = simple(8)
    for version in range(8):
        sums = {"protocol": state[0]["protocol"], "metadata": state[1]["metaData"], "numFiles": version}
        files[f"{paths.LOG}/{version:020d}.crc"] = json.dumps(sums).encode()
    files |= {f"{paths.LOG}/{name}": data for name, data in single(3, state[:5]).items()}
    files[f"{paths.LOG}/_last_checkpoint"] = last_checkpoint.serialize(last_checkpoint.LastCheckpoint(3, 5))
    for first, last in ((1, 2), (4, 6)):
        merged = b"".join(files[commit(version)] for version in range(first, last + 1))
        files[f"{paths.LOG}/{first:020d}.{last:020d}.compacted.json"] = merged
    return files


def variants() -> Files:
    """A column of variants, whole and shredded."""
    texts = pa.array([b"\x01\x01\x00\x01a"] * 3, pa.binary())
    whole = pa.array([b"\x0c\x05", b"\x02\x01\x00\x00\x02\x0c\x07", None], pa.binary())
    plain = pa.StructArray.from_arrays(
        [texts, pa.array([b"\x0c\x05", b"\x00", b"\x05a"], pa.binary())], ["metadata", "value"]
    )
    items = pa.StructArray.from_arrays(
        [pa.nulls(3, pa.binary()), pa.array([7, None, 9], pa.int64())], ["value", "typed_value"]
    )
    typed = pa.StructArray.from_arrays([items], ["a"])
    shredded = pa.StructArray.from_arrays([texts, whole, typed], ["metadata", "value", "typed_value"])
    files = {
        f"{n}.parquet": parquet(pa.table({"id": [1, 2, 3], "v": column})) for n, column in enumerate((plain, shredded))
    }
    columns = [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in (("id", "long"), ("v", "variant"))]
    schema = json.dumps({"type": "struct", "fields": columns})
    adds = [file("add", path, data) for path, data in files.items()]
    return files | {commit(0): entry(protocol("variantType"), metadata(schema)), commit(1): entry(*adds)}


def ledger() -> Files:
    """A table of positions, as cdfd writes it."""

    async def history() -> Lake:
        lake = Lake(manual_clock())
        log = TxnLog(lake, manual_clock())
        await log.create(table_ledger.creation("5fba94ed-9794-4965-ba6e-6ee3c0d22af9", 1))
        for number in range(12):
            version = await log.append(lambda state, n=number: [txn_state.txn(f"cdfd/p/{n % 3}", n, 1)])
            if version == 9:
                await table_ledger.clean_up(log.log, 9)
        return lake

    lake = asyncio.run(history())
    return {path: lake.bytes_of(path) for path in sorted(lake._objects)}


def golden() -> Iterable[tuple[str, Files]]:
    """Tables of real writers, where some are given, and small."""
    for log in sorted(Path(GOLDEN).glob("**/_delta_log")) if GOLDEN else ():
        log_files = [path for path in log.parent.rglob("*") if path.is_file()]
        if sum(path.stat().st_size for path in log_files) <= MOST and len(log_files) <= 40:
            name = "/".join(log.parent.relative_to(Path(GOLDEN or "")).parts)
            yield name, {str(path.relative_to(log.parent)): path.read_bytes() for path in sorted(log_files)}


def tables() -> dict[str, Files]:
    """All of them by name."""
    made = {"written": written(), "partitioned": partitioned(), "typed": typed(), "hinted": hinted()}
    made |= {"variants": variants(), "ledger": ledger()}
    made |= {f"mapped-{mode}": mapped(mode) for mode in ("name", "id")}
    for hint in (True, False):
        made[f"single-{hint}"] = checkpointed(single, hint)
        made[f"parts-{hint}"] = checkpointed(lambda v, s: multi_part(v, s, 3), hint)
        for kind in ("json", "parquet"):
            made[f"v2-{kind}-{hint}"] = checkpointed(lambda v, s, k=kind: v2(v, s, 2, k), hint)
    return made


def vectors() -> list[bytes]:
    """Deletion vectors from their magic number on."""
    sets = [
        [],
        [0],
        range(100_000),
        [2**31, 2**40],
        [n * 7 for n in range(5000)],
        [2**33 + n for n in range(0, 9000, 2)],
    ]
    return [roaring.encode(RowSet.of(rows)) for rows in sets]
