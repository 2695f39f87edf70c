"""Files of a table that are larger than what they can hold: not read to their ends, and named in an error where they count."""

import asyncio
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.compute as pc
import pytest

import cdfd
from cdfd.delta import commit, last_checkpoint, paths
from cdfd.demo.writer import TableWriter
from cdfd.errors import CdfdError, LogError, StorageError
from cdfd.log.entry import entry_size, parse_and_digest
from cdfd.log.listing import list_live
from cdfd.log.log import DeltaLog
from cdfd.storage.local import LocalStorage
from tests.support import checkpoint_layout as layout
from tests.support.lake import SCHEMA, rows

LARGE = 1 << 40
"""Bytes of a file of zeros that takes no room."""
MEMORY = 400 << 20
"""Bytes by which reading one may let the process grow, at most."""
LAST = 4


async def _write(folder: Path) -> None:
    writer = TableWriter(LocalStorage(folder, sync=False), SCHEMA)
    await writer.create()
    for version in range(1, LAST):
        await writer.insert(rows(10 * version, 10 * version + 1))
    assert await writer.delete(pc.field("id") == 10) == LAST


def actions(folder: Path, *versions: int) -> list[dict[str, Any]]:
    entries = (folder / paths.LOG / paths.commit_name(version) for version in versions)
    return [orjson.loads(line) for entry in entries for line in entry.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "t"
    asyncio.run(_write(folder))
    return folder


@pytest.fixture
def table(original: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "t"
    shutil.copytree(original, folder)
    return folder


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / paths.LOG / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    before = _peak()
    yield
    assert _peak() - before < MEMORY


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def zeros(path: Path) -> None:
    """Replace the content by zeros."""
    path.write_bytes(b"")
    os.truncate(path, LARGE)


def extended(path: Path) -> None:
    """Append zeros to the original content."""
    os.truncate(path, LARGE)


def a_long_line(path: Path) -> None:
    """Replace the content by one action whose line never ends."""
    path.write_bytes(b'{"add":{"path":"x')
    os.truncate(path, LARGE)


Spoil = Callable[[Path], None]


def read(folder: Path) -> list[int]:
    return sorted(row["id"] for row in cdfd.snapshot(str(folder)).read_all().to_pylist())


@pytest.mark.parametrize("spoil", [zeros, extended])
@pytest.mark.parametrize("name", [paths.LAST_CHECKPOINT, f"{2:020d}.crc", f"{0:020d}.{2:020d}.compacted.json", "x"])
def test_a_hint_counts_for_nothing(name: str, spoil: Spoil, table: Path) -> None:
    write(table, {name: b'{"version":2,"size":3}'})
    spoil(table / paths.LOG / name)
    assert read(table) == [11, 20, 21, 30, 31]
    assert [row["id"] for row in cdfd.changes(str(table), 2).read_all().to_pylist()] == [20, 21, 30, 31, 10]


@pytest.mark.parametrize("spoil", [zeros, extended, a_long_line])
@pytest.mark.parametrize("version", [2, LAST])
def test_log_entry_that_is_too_large_is_refused(version: int, spoil: Spoil, table: Path) -> None:
    path = f"{paths.LOG}/{paths.commit_name(version)}"
    spoil(table / path)
    os.utime(
        table / path, (1_700_000_000, 1_700_000_000)
    )  # one of now might still be written to, and would be waited for
    for reading in (lambda: read(table), lambda: cdfd.changes(str(table), 1).read_all()):
        with pytest.raises(LogError, match="longer than 128 MiB") as caught:
            reading()
        assert (caught.value.table, caught.value.version, caught.value.path) == (str(table), version, path)


@pytest.mark.parametrize("line_bytes", [None, 1 << 20])
def test_long_line_is_read_if_it_is_ignored_or_within_the_limit(line_bytes: int | None, table: Path) -> None:
    """21 MiB in `commitInfo` are read; so are actions that are ignored, whatever their length. A limit holds for the others."""
    path = table / paths.LOG / paths.commit_name(LAST)
    ignored = b'{"note":{"text":"' + b"x" * (3 << 20) + b'"}}\n'
    path.write_bytes(ignored + path.read_bytes())
    log = DeltaLog(LocalStorage(table), line_bytes)
    assert asyncio.run(log.entry(LAST)).commit.size == path.stat().st_size
    path.write_bytes(b'{"commitInfo":{"predicate":"' + b"x" * (21 << 20) + b'"}}\n' + path.read_bytes())
    if line_bytes is None:
        assert asyncio.run(log.entry(LAST)).commit.size == path.stat().st_size
        assert len(asyncio.run(log.snapshot()).live()) == LAST - 1
        return
    for read_entry in (log.entry, log.fingerprint, log.header):
        with pytest.raises(LogError, match=r"line 1 is longer than 1 MiB.*max_log_line"):
            asyncio.run(read_entry(LAST))


def test_limit_of_a_line_holds_in_a_checkpoint_of_json(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It bounds the lines of a manifest in each way to read one, and a larger limit lets them be read."""
    state = [action for action in actions(table, 0, 1, 2) if "commitInfo" not in action]
    state.append({"txn": {"appId": "x" * (3 << 20), "version": 1}})
    write(table, layout.v2(2, state, 0, "json"))
    for version in range(3):
        (table / paths.LOG / paths.commit_name(version)).unlink()
    monkeypatch.setattr(commit, "LINE_BYTES", 2 << 20)
    log = DeltaLog(LocalStorage(table), 4 << 20)
    assert asyncio.run(log.header()).version == LAST
    assert len(asyncio.run(log.snapshot()).live()) == LAST - 1
    live = asyncio.run(list_live(log))
    assert live is not None
    assert sum(map(len, live.paths(log.storage))) == LAST - 1
    narrow = DeltaLog(LocalStorage(table), 1 << 20)
    for read_log in (narrow.header, narrow.snapshot, lambda: list_live(narrow)):
        with pytest.raises(LogError, match=r"is longer than 1 MiB.*max_log_line"):
            asyncio.run(read_log())


def test_a_log_entry_that_is_only_hashed() -> None:
    short = [b"{}\n" + bytes(commit.LINE_BYTES // 2)] * 4
    assert parse_and_digest(entry_size, iter(short))[0] == sum(map(len, short))
    with pytest.raises(LogError, match="longer than 128 MiB"):
        parse_and_digest(entry_size, iter([b"{}\n", *[bytes(commit.LINE_BYTES // 2)] * 4]))


@pytest.mark.parametrize("spoil", [zeros, extended])
@pytest.mark.parametrize("kind", ["single", "json", "parquet", "sidecar"])
def test_checkpoint_that_is_too_large_is_left_out_while_commits_are_there(kind: str, spoil: Spoil, table: Path) -> None:
    state = [action for action in actions(table, 0, 1, 2) if "commitInfo" not in action]
    files = layout.single(2, state) if kind == "single" else layout.v2(2, state, 1, kind.replace("sidecar", "parquet"))
    write(table, files)
    assert read(table) == [11, 20, 21, 30, 31]
    path = next(name for name in files if ("_sidecars" in name) == (kind == "sidecar"))
    spoil(table / paths.LOG / path)
    assert read(table) == [11, 20, 21, 30, 31]
    for version in range(2):
        (table / paths.LOG / paths.commit_name(version)).unlink()
    with pytest.raises(LogError) as caught:
        read(table)
    assert (caught.value.table, caught.value.version, caught.value.path) == (str(table), 2, f"{paths.LOG}/{path}")


@pytest.mark.parametrize("spoil", [zeros, extended])
@pytest.mark.parametrize(
    "claim", [{}, {"sizeInBytes": 2**31 - 1}, {"cardinality": 2**40, "sizeInBytes": 2**31 - 1}, {"offset": 2**31 - 1}]
)
def test_deletion_vector_that_claims_too_much_is_refused(claim: dict[str, int], spoil: Spoil, table: Path) -> None:
    entry = table / paths.LOG / paths.commit_name(LAST)
    actual = actions(table, LAST)
    for action in actual:
        if "add" in action:
            action["add"]["deletionVector"] |= claim
    entry.write_bytes(b"\n".join(map(orjson.dumps, actual)))
    spoil(next(table.glob("deletion_vector_*")))
    if spoil is extended and not claim:
        assert read(table) == [11, 20, 21, 30, 31]
        return
    with pytest.raises(CdfdError, match="deletion vector") as caught:
        read(table)
    assert (caught.value.table, caught.value.version) == (str(table), LAST)
    assert caught.value.path is not None


def test_nothing_of_a_table_is_read_whole(original: Path) -> None:
    """Every read states the most bytes that it takes."""
    lengths = list[int | None]()

    class Asked(LocalStorage):
        async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
            lengths.append(length)
            return await super().read(path, start, length)

    (original / paths.LOG / paths.LAST_CHECKPOINT).write_bytes(b'{"version":2,"size":3}')
    log = DeltaLog(Asked(original))
    asyncio.run(log.snapshot())
    asyncio.run(log.header(1))
    asyncio.run(log.newest_checkpoint(1))
    (original / paths.LOG / paths.LAST_CHECKPOINT).unlink()
    assert lengths
    assert max(-1 if length is None else length for length in lengths) <= (16 << 20) + 1
    assert None not in lengths


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_a_hint_that_is_no_file(kind: str, table: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = table / paths.LOG / paths.LAST_CHECKPOINT
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
    assert read(table) == [11, 20, 21, 30, 31]
    assert ("_last_checkpoint cannot be used" in caplog.text) == (kind != "folder")


def test_a_hint_that_cannot_be_read_now(original: Path) -> None:
    class Away(LocalStorage):
        async def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
            if path.endswith(paths.LAST_CHECKPOINT):
                raise StorageError("the network is down", retriable=True)
            return await super().read(path, start, length)

    with pytest.raises(StorageError) as caught:
        asyncio.run(DeltaLog(Away(original)).segment())
    assert (caught.value.table, caught.value.path) == (str(original), f"{paths.LOG}/{paths.LAST_CHECKPOINT}")


@pytest.mark.parametrize("size", [0, 1])
def test_the_largest_hint(size: int) -> None:
    data = b'{"version":2,"size":3}'.ljust(last_checkpoint.MOST_BYTES + size)
    if not size:
        assert last_checkpoint.parse(data).version == 2
        return
    with pytest.raises(LogError, match="larger than 1 MiB"):
        last_checkpoint.parse(data)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("chunk", [1000, 1 << 20, 3 << 20, 1 << 25])
def test_the_largest_line(size: int, chunk: int) -> None:
    line = b'{"commitInfo":{}}'
    data = b"\n".join([line, line.ljust(commit.LINE_BYTES + size), line])
    chunks = (data[start : start + chunk] for start in range(0, len(data), chunk))
    if not size:
        assert [len(line) for line in commit.lines(chunks)] == [17, commit.LINE_BYTES, 17]
        return
    with pytest.raises(LogError, match="line 2 is longer than 128 MiB"):
        commit.parse(1, chunks)


def test_a_schema_of_fifty_thousand_columns_fits() -> None:
    fields = [
        {
            "name": f"a_column_with_some_name_{number}",
            "type": "decimal(38,18)",
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": "col-12345678-1234-1234-1234-123456789abc",
            },
        }
        for number in range(50_000)
    ]
    metadata = {"id": "T", "format": {}, "partitionColumns": [], "configuration": {}}
    metadata["schemaString"] = orjson.dumps({"type": "struct", "fields": fields}).decode()
    actual = commit.parse(0, orjson.dumps({"metaData": metadata})).metadata
    assert actual is not None
    assert len(actual.schema_string) > 10_000_000
