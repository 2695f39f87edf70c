"""Checkpoints that cdfd writes, as its own reader and delta-rs read them."""

import json
import uuid
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from cdfd.delta import last_checkpoint, paths, statistics
from cdfd.delta.actions import (
    Add,
    DeletionVectorDescriptor,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Txn,
)
from cdfd.delta.commit import Commit
from cdfd.delta.snapshot import Snapshot, first
from cdfd.delta.types.schema import TableSchema
from cdfd.delta.write.checkpoint_structs import documents
from cdfd.delta.write.checkpoint_writing import can_checkpoint, checkpoint
from cdfd.log.log import DeltaLog
from cdfd.log.log_files import log_path
from cdfd.storage.local import LocalStorage

WEEK = 7 * 24 * 3_600_000


async def write_checkpoint(folder: Path, *, keep_log: bool = False) -> None:
    storage = LocalStorage(folder)
    state = await DeltaLog(storage).snapshot(with_stats=True, with_tombstones=True, all_fields=True)
    assert can_checkpoint(state.protocol)
    data, hint = checkpoint(state)
    await storage.put(log_path(paths.checkpoint_name(state.version)), data)
    await storage.put(log_path(paths.LAST_CHECKPOINT), last_checkpoint.serialize(hint))
    if not keep_log:
        # delta-rs needs the entry of the checkpoint's version.
        for version in range(state.version):
            await storage.delete(log_path(paths.commit_name(version)))


async def test_the_state_is_what_the_log_says(tmp_path: Path) -> None:
    for number in range(5):
        rows = pa.table({"n": [number, number + 10], "day": ["a=b/c d%ü", None], "s": ["x", "y"]})
        write_deltalake(tmp_path, rows, mode="append", partition_by=["day"])
    DeltaTable(tmp_path).delete("n = 3")
    DeltaTable(tmp_path).update({"s": "'z'"}, predicate="n = 14")
    log = DeltaLog(LocalStorage(tmp_path))
    before = await log.snapshot(with_stats=True, with_tombstones=True)
    rows = DeltaTable(tmp_path).to_pyarrow_table().sort_by("n")
    await write_checkpoint(tmp_path)
    after = await DeltaLog(LocalStorage(tmp_path)).snapshot(with_stats=True, with_tombstones=True)

    assert {each.path: each for each in after.live()} == {each.path: each for each in before.live()}
    assert {each.path for each in after.tombstones()} == {each.path for each in before.tombstones()} != set()
    assert (after.header, after.txns, after.domains) == (before.header, before.txns, before.domains)
    assert DeltaTable(tmp_path).to_pyarrow_table().sort_by("n") == rows


def everything() -> Snapshot:
    """A state that has some of all that a state can have."""
    vector = DeletionVectorDescriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, 40, 6)
    schema = '{"type":"struct","fields":[{"name":"p","type":"string","nullable":true,"metadata":{}}]}'
    tags = {"k": "v", "none": None}
    return first(
        Commit(
            0,
            adds=(
                Add("p=1/a b", {"p": "1"}, 10, 5, True, '{"numRecords":7}', vector, 7, 3, "liquid", tags),
                Add("c", {"p": None}, 11, 6, False),
            ),
            removes=(
                Remove("p=1/a b", 1_000, True, {"p": "1"}, 10, tags={"k": "v"}),
                Remove("gone", 2_000, False, {"p": None}, 12, vector, 8, 4, {}),
            ),
            protocol=Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors", "domainMetadata"})),
            metadata=Metadata("i", schema, ("p",), {"k": "v"}, Format("parquet", {"o": "p"}), "name", "text", 9),
            txns=(Txn("a", 5, 77), Txn("b", 1 << 40)),
            domains=(DomainMetadata("delta.clustering", "{}"), DomainMetadata("theirs", "x")),
        ),
        all_fields=True,
    )


def bag(files: Iterable[Add] | Iterable[Remove]) -> list[str]:
    """Files, comparable. `dataChange` means nothing in a checkpoint."""
    return sorted(repr(replace(file, data_change=True)) for file in files)


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("folded", [False, True])
async def test_nothing_of_the_state_is_lost(tmp_path: Path, v2: bool, folded: bool) -> None:
    state = everything().compact() if folded else everything()
    storage = LocalStorage(tmp_path)
    name = f"{0:020}.checkpoint.{uuid.UUID(int=1)}.parquet" if v2 else paths.checkpoint_name(0)
    data, hint = checkpoint(state, 1, v2_name=name if v2 else None)
    await storage.put(log_path(name), data)
    await storage.put(log_path(paths.LAST_CHECKPOINT), last_checkpoint.serialize(hint))
    after = await DeltaLog(storage).snapshot(with_stats=True, with_tombstones=True, all_fields=True)
    assert (after.version, after.protocol, after.metadata) == (0, state.protocol, state.metadata)
    assert (after.txns, after.domains) == (state.txns, state.domains)
    assert bag(after.live()) == bag(state.live())
    assert bag(after.tombstones()) == bag(state.tombstones())
    assert (len(after.live()), len(after.tombstones()), len(after.txns), len(after.domains)) == (2, 2, 2, 2)
    assert hint.num_of_add_files == 2


@pytest.mark.parametrize(("now", "kept"), [(0, 2), (WEEK + 999, 2), (WEEK + 1_000, 1), (WEEK + 2_000, 0)])
async def test_only_tombstones_that_have_expired_are_left_out(tmp_path: Path, now: int, kept: int) -> None:
    storage = LocalStorage(tmp_path)
    await storage.put(log_path(paths.checkpoint_name(0)), checkpoint(everything(), now)[0])
    after = await DeltaLog(storage).snapshot(with_tombstones=True)
    assert len(after.tombstones()) == kept
    assert len(after.live()) == 2


async def test_an_empty_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": pa.array([], pa.int64())}))
    await write_checkpoint(tmp_path)
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 0
    write_deltalake(tmp_path, pa.table({"n": [1]}), mode="append")
    assert DeltaTable(tmp_path).to_pyarrow_table()["n"].to_pylist() == [1]


async def test_a_tombstone_says_what_is_known_of_its_file(tmp_path: Path) -> None:
    """`extendedFileMetadata` promises the partition values, the size and the tags."""
    state = everything()
    removes = (
        Remove("tagged", 1_000, True, {"p": "1"}, 10, tags={"k": "v"}),
        Remove("plain", 1_000, True, {"p": "1"}, 10),
        Remove("short", 1_000, True),
    )
    state = state.apply(Commit(1, removes=removes))
    storage = LocalStorage(tmp_path)
    for _ in range(2):
        await storage.put(log_path(paths.checkpoint_name(1)), checkpoint(state)[0])
        state = await DeltaLog(storage).snapshot(with_stats=True, with_tombstones=True, all_fields=True)
    rows = pq.read_table(tmp_path / log_path(paths.checkpoint_name(1)), columns=["remove"])["remove"].to_pylist()
    actual = {row["path"]: row for row in rows if row is not None and row["path"] is not None}
    wanted = ("extendedFileMetadata", "partitionValues", "size", "tags")
    assert {path: [actual[path][name] for name in wanted] for path in ("tagged", "plain", "short")} == {
        "tagged": [True, [("p", "1")], 10, [("k", "v")]],
        "plain": [True, [("p", "1")], 10, []],
        "short": [False, None, None, []],
    }


@pytest.mark.parametrize("v2", [False, True])
async def test_row_ids_clusters_and_tags_of_files(tmp_path: Path, v2: bool) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    log = tmp_path / "_delta_log"
    features = ["rowTracking", "clustering", "domainMetadata", "appendOnly", "invariants"]
    ids = {"baseRowId": 7, "defaultRowCommitVersion": 1}
    file = {"partitionValues": {}, "size": 3, "modificationTime": 5, "dataChange": True, **ids}
    domains = {"delta.clustering": '{"clusteringColumns":[["n"]]}', "delta.rowTracking": '{"rowIdHighWaterMark":9}'}
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}},
        {"add": {"path": "a", **file, "clusteringProvider": "liquid", "tags": {"ZCUBE_ID": "x", "none": None}}},
        {"add": {"path": "b", **file}},
        {"remove": {"path": "c", "deletionTimestamp": 1 << 50, "dataChange": True, **ids}},
    ]
    actions += [{"domainMetadata": {"domain": d, "configuration": c, "removed": False}} for d, c in domains.items()]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, actions)))
    storage = LocalStorage(tmp_path)
    before = await DeltaLog(storage).snapshot(with_stats=True, with_tombstones=True, all_fields=True)
    for again in range(2):
        assert can_checkpoint(before.protocol)
        name = f"{1:020}.checkpoint.{uuid.UUID(int=again)}.parquet" if v2 else paths.checkpoint_name(1)
        data, hint = checkpoint(before, v2_name=name if v2 else None)
        await storage.put(log_path(name), data)
        await storage.put(log_path(paths.LAST_CHECKPOINT), last_checkpoint.serialize(hint))
        (log / f"{again:020}.json").unlink()
        after = await DeltaLog(storage).snapshot(with_stats=True, with_tombstones=True, all_fields=True)
        actual = {each.path: each for each in after.live()}
        assert actual == {each.path: each for each in before.live()}
        assert {each.path: each.base_row_id for each in after.tombstones()} == {"c": 7}
        assert after.domains == before.domains
        before = after
    assert (actual["a"].clustering_provider, actual["a"].tags) == ("liquid", {"ZCUBE_ID": "x", "none": None})
    assert (actual["a"].base_row_id, actual["a"].default_row_commit_version) == (7, 1)
    assert actual["b"].clustering_provider is actual["b"].tags is None
    plain = await DeltaLog(storage).snapshot(with_stats=True)
    assert {each.path: each.tags for each in plain.live()}["a"] is None


STATISTICS = {
    "numRecords": 3,
    "tightBounds": False,
    "minValues": {
        "l": -(2**63),
        "f": -0.5,
        "d": "-Infinity",
        "day": "0001-01-01",
        "at": "1969-12-31T23:59:59.999Z",
        "wall": "+12026-01-01T00:00:00",
        "price": orjson.Fragment("-1234567890123456789012345678901234567"),
        "s": 'a"\u00fc',
        "in": {"a b": False},
    },
    "maxValues": {
        "l": 2**63 - 1,
        "f": 1e20,
        "d": 0.1,
        "day": "9999-12-31",
        "at": "2026-01-01T00:00:00.123456Z",
        "wall": "2026-01-01T00:00:00.5",
        "price": orjson.Fragment("0.5"),
        "s": "",
        "in": {"a b": True},
    },
    "nullCount": {"l": 0, "bytes": 2, "list": 1, "in": {"a b": 3}},
}


def typed_state(properties: dict[str, str], adds: tuple[Add, ...]) -> Snapshot:
    """A state of a table with columns of many types, which files have by other names."""
    kinds = {"l": "long", "f": "float", "d": "double", "day": "date", "at": "timestamp", "wall": "timestamp_ntz"}
    kinds |= {"price": "decimal(38,1)", "s": "string", "bytes": "binary", "kind": "integer", "since": "timestamp"}
    fields: list[tuple[str, object]] = [
        *kinds.items(),
        ("list", {"type": "array", "elementType": "string", "containsNull": True}),
        ("in", {"type": "struct", "fields": [described("a b", "boolean", 21)]}),
    ]
    columns = [described(name, kind, number) for number, (name, kind) in enumerate(fields, 1)]
    schema = json.dumps({"type": "struct", "fields": columns})
    partitions = ("logical kind", "logical since")
    metadata = Metadata("i", schema, partitions, {"delta.columnMapping.mode": "name", **properties})
    features = frozenset({"columnMapping", "timestampNtz"})
    return first(Commit(0, adds=adds, protocol=Protocol(3, 7, features, features), metadata=metadata), all_fields=True)


def described(name: str, kind: object, number: int) -> dict[str, object]:
    mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}
    return {"name": f"logical {name}".replace("a b", "c"), "type": kind, "nullable": True, "metadata": mapping}


@pytest.mark.parametrize("as_json", [None, "true", "false"])
@pytest.mark.parametrize("as_struct", [None, "true", "false"])
@pytest.mark.parametrize("v2", [False, True])
async def test_statistics_in_the_forms_that_the_table_wants(
    tmp_path: Path, as_json: str | None, as_struct: str | None, v2: bool
) -> None:
    switches = {"delta.checkpoint.writeStatsAsJson": as_json, "delta.checkpoint.writeStatsAsStruct": as_struct}
    properties = {name: value for name, value in switches.items() if value is not None}
    text = orjson.dumps(STATISTICS).decode()
    known = {"kind": "7", "since": "2026-01-01T00:00:00.5Z"}
    adds = (
        Add("a", known, 1, 2, True, text),
        Add("b", {"kind": None, "since": None}, 1, 2, True),
        Add("c", {"kind": "-1"}, 1, 2, True, '{"numRecords":1,"minValues":{"l":"x","day":7}}'),
    )
    state = typed_state(properties, adds)
    storage = LocalStorage(tmp_path)
    for again in range(2):
        name = f"{0:020}.checkpoint.{uuid.UUID(int=again)}.parquet" if v2 else paths.checkpoint_name(0)
        data, hint = checkpoint(state, v2_name=name if v2 else None)
        await storage.put(log_path(name), data)
        await storage.put(log_path(paths.LAST_CHECKPOINT), last_checkpoint.serialize(hint))
        # A writer of the next checkpoint loses nothing.
        state = await DeltaLog(storage).snapshot(with_stats=True, with_tombstones=True, all_fields=True)
        stats = {each.path: each.stats for each in state.live()}
        if as_json == "false" and as_struct != "true":
            assert stats == {"a": None, "b": None, "c": None}
        else:
            assert stats["b"] is None
            assert meant(stats["a"], state.header.schema) == meant(text, state.header.schema)
            assert json.loads(stats["c"] or "")["numRecords"] == 1
        rows = pq.read_table(tmp_path / log_path(name), columns=["add"])["add"]
        assert (rows.type.get_field_index("stats") < 0) == (as_json == "false")
        assert (rows.type.get_field_index("stats_parsed") < 0) == (as_struct != "true")
        assert (rows.type.get_field_index("partitionValues_parsed") < 0) == (as_struct != "true")
    if as_struct == "true":
        added = pa.table(rows.combine_chunks().flatten(), [each.name for each in rows.type])
        added = added.filter(added["path"].is_valid()).sort_by("path")
        at = datetime(2026, 1, 1, 0, 0, 0, 500_000, UTC)
        assert added["partitionValues_parsed"].to_pylist() == [
            {"kind": 7, "since": at},
            {"kind": None, "since": None},
            {"kind": -1, "since": None},
        ]
        assert added["stats_parsed"].is_valid().to_pylist() == [True, False, True]
        wrong = added["stats_parsed"][2]
        assert (wrong["numRecords"].as_py(), wrong["minValues"].as_py(), wrong["nullCount"].as_py()) == (1, None, None)


def test_statistics_that_say_nothing_are_none() -> None:
    parsed = [
        {"numRecords": None, "minValues": {"a": None}},
        {"numRecords": 1, "minValues": {"a": None}},
        {"numRecords": None, "minValues": {"a": 2}},
        None,
    ]
    assert documents(pa.array(parsed)).to_pylist() == [None, '{"numRecords":1}', '{"minValues":{"a":2}}', None]


def meant(stats: str | None, schema: TableSchema) -> list[object]:
    """The parsed values of statistics, which do not depend on the JSON's spelling."""
    known = statistics.parse(stats, schema)
    columns = [[field.name] for field in schema.struct if field.name != "logical in"] + [["logical in", "logical c"]]
    bounds = [(known.min(path), known.max(path)) for path in columns]
    return [known.num_records, known.tight_bounds, known.null_counts, *bounds]


@pytest.mark.parametrize("feature", ["of the future"])
async def test_not_where_a_feature_has_state_of_its_own(tmp_path: Path, feature: str) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    entry = tmp_path / "_delta_log" / f"{0:020}.json"
    protocol = f'{{"protocol":{{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["{feature}"]}}}}'
    lines = [line for line in entry.read_text().splitlines() if '"protocol"' not in line]
    entry.write_text("\n".join([protocol, *lines]))
    assert not can_checkpoint((await DeltaLog(LocalStorage(tmp_path)).snapshot()).protocol)
