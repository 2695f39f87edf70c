"""Optional parts of a table. If one is wrong, the rows are the same, or an error names the file."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cdfd
from cdfd.delta import last_checkpoint, paths
from cdfd.delta.last_checkpoint import LastCheckpoint
from cdfd.demo.writer import TableWriter
from cdfd.errors import DataError
from cdfd.log.log import DeltaLog
from cdfd.storage.local import LocalStorage
from tests.support import checkpoint_layout as layout
from tests.support.checkpoint_layout import v2_name
from tests.support.lake import SCHEMA, rows
from tests.support.sampling import sample

Fields = dict[str, Any]
Spoil = Callable[[Path], None]
NAME = str(UUID(int=7))
LAST = 8


async def _write(folder: Path) -> None:
    """Columns that change, updates, deletion vectors, checkpoints in the middle: a reader needs all of the log to read it right."""
    storage = LocalStorage(folder, sync=False)
    writer = TableWriter(storage, SCHEMA)
    await writer.create()
    await writer.insert(rows(1, 2, 3))
    await writer.insert(rows(4, 5))
    await writer.add_column(pa.field("w", pa.int64()))
    await writer.insert(pa.table({"id": [6], "v": ["b"], "w": [60]}))
    await writer.update(pc.field("id") == 2, {"v": pc.scalar("changed")})
    await writer.delete(pc.field("id") == 4)
    writer.feed = False
    await writer.delete(pc.field("id") == 1)
    assert await writer.insert(pa.table({"id": [7], "v": ["c"], "w": [70]})) == LAST


def actions(folder: Path, version: int) -> list[Fields]:
    return [orjson.loads(line) for line in (folder / paths.LOG / paths.commit_name(version)).read_bytes().splitlines()]


def checkpoint(folder: Path, version: int, kind: str = "single") -> None:
    """Write the checkpoint of a version as delta-spark does."""
    newest: dict[Any, Fields] = {}
    for number in range(version + 1):
        for action in actions(folder, number):
            ((name, fields),) = action.items()
            if name in ("protocol", "metaData"):
                newest[name] = action
            elif name in ("add", "remove"):
                newest[fields["path"], json.dumps(fields.get("deletionVector"))] = action
    # The action of a path that came last counts, whatever its vector: no file is removed and added again here but by its vector.
    files = list(newest.values())
    made = layout.single(version, files) if kind == "single" else layout.v2(version, files, 2, kind)
    for name, data in made.items():
        path = folder / paths.LOG / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "t"
    asyncio.run(_write(folder))
    for version, kind in ((3, "single"), (6, "json")):
        checkpoint(folder, version, kind)
    (folder / paths.LOG / paths.LAST_CHECKPOINT).write_bytes(last_checkpoint.serialize(LastCheckpoint(6, 9)))
    return folder


@pytest.fixture
def table(original: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "t"
    shutil.copytree(original, folder)
    return folder


Read = tuple[list[Fields], ...]


def read(folder: Path) -> Read:
    """All that can be asked for: changes from each version on, and the snapshot of each version."""
    tables = [cdfd.changes(str(folder), start).read_all() for start in range(LAST + 1)]
    tables += [cdfd.snapshot(str(folder), version).read_all() for version in range(LAST + 1)]
    return tuple(each.to_pylist() for each in tables)


@pytest.fixture(scope="module")
def expected(original: Path) -> Read:
    actual = read(original)
    assert [row["id"] for row in actual[1]] == [1, 2, 3, 4, 5, 6, 2, 2, 4, 1, 7]
    assert sorted(row["id"] for row in actual[-1]) == [2, 3, 5, 6, 7]
    return actual


# --- files beside the log ---------------------------------------------------------------------------------------------


def log_file(name: str, content: bytes | Fields | list[Fields]) -> Spoil:
    def spoil(folder: Path) -> None:
        lines = content if isinstance(content, list) else [content]
        data = b"\n".join(line if isinstance(line, bytes) else orjson.dumps(line) for line in lines)
        path = folder / paths.LOG / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    return spoil


OTHER_SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "renamed", "type": "long", "nullable": True, "metadata": {}}]}
)
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
METADATA = {"id": "T", "format": {"provider": "parquet"}, "schemaString": OTHER_SCHEMA, "partitionColumns": []}
GHOST = {"add": {"path": "ghost.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}}


def checksums(folder: Path) -> None:
    """Each with the protocol and metadata of a table whose columns have other names."""
    for version in range(LAST + 1):
        content = {
            "tableSizeBytes": 1,
            "numFiles": 1,
            "protocol": PROTOCOL,
            "metadata": METADATA | {"configuration": {}},
        }
        log_file(f"{version:020d}.crc", content)(folder)


def shifted_checksums(folder: Path) -> None:
    """Each with what was in force at version 0."""
    by_name = {name: fields for action in actions(folder, 0) for name, fields in action.items()}
    for version in range(1, LAST + 1):
        log_file(f"{version:020d}.crc", {"protocol": by_name["protocol"], "metadata": by_name["metaData"]})(folder)


def compactions(*content: Fields) -> Spoil:
    """Of every range of versions."""

    def spoil(folder: Path) -> None:
        for first in range(LAST):
            for last in range(first + 1, LAST + 1):
                log_file(f"{first:020d}.{last:020d}.compacted.json", [*content])(folder)

    return spoil


def staged(folder: Path) -> None:
    for version in (LAST, LAST + 1):
        log_file(f"_staged_commits/{version:020d}.{NAME}.json", [GHOST])(folder)
        log_file(f"{version:020d}.{NAME}.json", [GHOST])(folder)


def hint(version: int, **fields: Any) -> Spoil:
    content = {"version": version, "size": 9, **fields}
    return log_file(paths.LAST_CHECKPOINT, content | {"checksum": last_checkpoint.checksum(content)})


BESIDE: Mapping[str, Spoil] = {
    "checksums of another table": checksums,
    "checksums of version 0": shifted_checksums,
    "compactions without anything": compactions(),
    "compactions of another table": compactions({"protocol": PROTOCOL}, {"metaData": METADATA}, GHOST),
    "commits that are staged": staged,
    "a hint at an older checkpoint": hint(3),
    "a hint at no checkpoint": hint(5),
    "a hint at a commit": hint(LAST),
    "a hint beyond the end": hint(10**18),
    "a hint with parts": hint(6, parts=2**31 - 1),
    "a hint with sizes": hint(6, sizeInBytes=2**63 - 1, numOfAddFiles=2**63 - 1),
    "a hint with a schema": hint(6, checkpointSchema=json.loads(OTHER_SCHEMA)),
    "a hint with another name": hint(
        6, v2Checkpoint={"path": v2_name(6, str(UUID(int=9)), "parquet"), "sizeInBytes": 1}
    ),
    "a hint with a text": log_file(paths.LAST_CHECKPOINT, b'{"version":"3","size":1}'),
}


@pytest.mark.parametrize("name", sample(BESIDE, 4))
def test_wrong_file_beside_the_log_changes_no_row(name: str, table: Path, expected: Read) -> None:
    BESIDE[name](table)
    assert read(table) == expected


@given(version=st.integers(0, LAST + 2) | st.integers(0, 2**63 - 1), wanted=st.none() | st.integers(0, LAST))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_hint_changes_what_is_read(version: int, wanted: int | None, table: Path) -> None:
    hint(version)(table)
    log = DeltaLog(LocalStorage(table))

    async def scenario() -> None:
        assert await log.segment(wanted) == (await log._fold(wanted, log.list_names())).finish()

    asyncio.run(scenario())


# --- what actions say beside what decides rows ------------------------------------------------------------------------


def said(folder: Path, change: Callable[[str, Fields], None]) -> None:
    """Have every entry, and the checkpoints, say something else."""
    for version in range(LAST + 1):
        lines = actions(folder, version)
        for action in lines:
            for name, fields in action.items():
                change(name, fields)
        entry = folder / paths.LOG / paths.commit_name(version)
        written = entry.stat().st_mtime_ns
        entry.write_bytes(b"\n".join(map(orjson.dumps, lines)))
        os.utime(entry, ns=(written, written))
    checkpoint(folder, 3)
    checkpoint(folder, 6, "json")
    # Actions that only the manifest contains.
    manifest = folder / paths.LOG / v2_name(6, NAME, "json")
    lines = [orjson.loads(line) for line in manifest.read_bytes().splitlines()]
    for action in lines:
        for name, fields in action.items():
            change(name, fields)
    manifest.write_bytes(b"\n".join(map(orjson.dumps, lines)))


def setting(names: tuple[str, ...], **values: Any) -> Callable[[str, Fields], None]:
    def change(name: str, fields: Fields) -> None:
        if name in names:
            fields.update(values)

    return change


FILES = ("add", "remove", "cdc")
PROPERTIES = (
    "delta.checkpointInterval",
    "delta.columnMapping.maxColumnId",
    "delta.dataSkippingNumIndexedCols",
    "delta.deletedFileRetentionDuration",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.inCommitTimestampEnablementVersion",
    "delta.logRetentionDuration",
    "delta.setTransactionRetentionDuration",
)
DEEP = "[" * 900 + "]" * 900
LIES: Mapping[str, Callable[[str, Fields], None]] = {
    **{f"size {size}": setting(FILES, size=size) for size in (0, 1, 5 << 20, 2**63 - 1)},
    **{
        f"stats {stats[:40]}": setting(("add",), stats=stats)
        for stats in (
            "null",
            "",
            "{",
            DEEP,
            '{"numRecords":-1}',
            '{"numRecords":9223372036854775807}',
            '{"numRecords":1e400}',
            '{"minValues":{"id":1000,"v":"z"},"maxValues":{"id":-1000,"v":""},"nullCount":{"id":2,"v":2}}',
            '{"minValues":' + DEEP + "}",
            "\x00",
        )
    },
    "times": setting((*FILES, "sidecar"), modificationTime=-(2**63), deletionTimestamp=2**63 - 1),
    "tags and row ids": setting(FILES, tags={"a": "b"}, baseRowId=-1, defaultRowCommitVersion=2**63 - 1),
    "commit infos": setting(
        ("commitInfo",),
        timestamp=-1,
        inCommitTimestamp=2**63,
        operation="MERGE",
        operationMetrics={"numTargetRowsInserted": [[]], "numTargetRowsUpdated": "0" * 5_000},
        version=99,
        readVersion=-7,
    ),
    "checkpoint metadata": setting(("checkpointMetadata",), version=3, tags={"a": "b"}),
    "sidecar sizes": setting(("sidecar",), sizeInBytes=2**63 - 1),
    "no sidecar sizes": setting(("sidecar",), sizeInBytes=0),
    "properties": setting(
        ("metaData",),
        createdTime=-(2**63),
        name="\x1b[31m",
        configuration=dict.fromkeys(PROPERTIES, "9" * 5_000),
    ),
}


@pytest.mark.parametrize("name", sample(LIES, 5))
def test_wrong_fields_of_actions_change_no_row(name: str, table: Path, expected: Read) -> None:
    said(table, LIES[name])
    assert read(table) == expected


@pytest.mark.parametrize("stats", ['{"numRecords":0}', '{"numRecords":2,"minValues":' + DEEP + "}"])
def test_a_row_count_that_is_wrong_is_an_error(stats: str, table: Path) -> None:
    said(table, setting(("add",), stats=stats))
    with pytest.raises(DataError, match="and the log says"):
        read(table)
