"""The tables that are measured: seeded, written once, kept under `bench/data` (not in the repository).

`python -m bench.tables` writes them all; it takes a minute and half a gigabyte.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).parent / "data"
SEED = 20260101
MILLIONS_OF_FILES = 1_000_000
FEW_FILES = 1_000
ROW_GROUP = 250_000
BIG_COMMIT_ROWS = 5_000_000
SMALL_COMMITS = 10_000
STATUS = pa.array(["new", "paid", "packed", "shipped", "delivered", "returned", "cancelled"])
NO_PARTITION: Mapping[str, str] = {}
NO_SETTINGS: Mapping[str, str] = {}
CHANGE_DATA_FEED = {"delta.enableChangeDataFeed": "true"}
DAY_MS = 86_400_000

# The same columns everywhere, in Delta's words.
SCHEMA = {
    "id": "long",
    "account": "long",
    "amount": "double",
    "status": "string",
    "note": "string",
    "at": "timestamp",
    "day": "date",
    "quantity": "integer",
}


def cached(name: str, build: Callable[[Path], None]) -> str:
    """Path of a table, built if it is not there; a build that was interrupted leaves nothing behind that counts."""
    table = DATA / name
    if not table.exists():
        print(f"writing {table.relative_to(DATA.parent.parent)} ...", flush=True)
        unfinished = DATA / f"{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        build(unfinished)
        unfinished.rename(table)
    return str(table)


def orders(first: int, count: int) -> pa.Table:
    """`count` rows with ids from `first` on; what they hold depends on `first` only."""
    rng = np.random.default_rng(SEED + first)
    ids = np.arange(first, first + count)
    at = 1_700_000_000_000_000 + ids * 37_000 + rng.integers(0, 1_000_000, count)
    pieces = pa.array(rng.integers(0, 16**6, count)).cast(pa.string())
    notes = pa.compute.binary_join_element_wise(pa.scalar("order"), pieces, pa.scalar("left at the door"), " ")
    return pa.table(
        {
            "id": ids,
            "account": rng.integers(0, 50_000, count),
            "amount": np.round(rng.gamma(2.0, 40.0, count), 2),
            "status": STATUS.take(pa.array(rng.integers(0, len(STATUS), count))),
            "note": notes,
            "at": pa.array(at, pa.timestamp("us", "UTC")),
            "day": pa.array(at // (1000 * DAY_MS), pa.int32()).cast(pa.date32()),
            "quantity": pa.array(rng.integers(1, 9, count), pa.int32()),
        }
    )


def changes_table() -> str:
    """More than three million change rows in eight versions, change data feed on, written by delta-rs."""
    return cached("changes", lambda path: write_changes(path, 250_000, CHANGE_DATA_FEED))


def write_changes(path: Path, size: int, configuration: Mapping[str, str]) -> None:
    """Eight versions: four appends of so many rows, an update, a delete, a merge, and an append."""
    from deltalake import DeltaTable, write_deltalake

    def table() -> DeltaTable:
        return DeltaTable(str(path))

    def append(first: int, count: int) -> None:
        write_deltalake(str(path), orders(first, count), mode="append", configuration=dict(configuration))

    for quarter in range(4):
        append(quarter * size, size)
    table().update(updates={"status": "'audited'", "amount": "amount * 1.01"}, predicate="id % 5 < 2")
    table().delete("id % 20 = 7")
    source = orders(size * 14 // 5, size * 2)
    merge = table().merge(source, "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    append(size * 24 // 5, size * 12 // 5)


def many_files(count: int) -> str:
    """A table of `count` live files of which only the log and the newest file exist: a checkpoint and three commits."""
    return cached(f"files-{count}", lambda path: _write_many_files(path, count))


def _write_many_files(path: Path, count: int) -> None:
    log = path / "_delta_log"
    log.mkdir()
    version = 10
    checkpoint = log / f"{version:020}.checkpoint.parquet"
    with pq.ParquetWriter(checkpoint, CHECKPOINT, compression="snappy") as writer:
        before = [_header_rows()]  # in one row group with files, as writers leave it
        for first in range(0, count, ROW_GROUP):
            files = _add_rows(first, min(ROW_GROUP, count - first))
            writer.write_table(pa.concat_tables([*before, files]), row_group_size=ROW_GROUP + 2)
            before = []
    hint = {"version": version, "size": count + 2, "numOfAddFiles": count}
    (log / "_last_checkpoint").write_text(json.dumps(hint))
    write_commit(path, version, [])
    for after in (1, 2):
        first = count + after * 10
        actions: list[dict[str, object]] = [{"add": add} for add in adds(first, 5)]
        write_commit(path, version + after, [{"commitInfo": {"operation": "WRITE"}}, *actions])
    write_commit(path, version + 3, [add_file(path, orders(0, 1_000).drop_columns("day"), {"day": "2024-01-01"})])


def adds(first: int, count: int) -> Iterator[dict[str, object]]:
    """Add actions as Spark writes them, of files that do not exist."""
    rng = np.random.default_rng(SEED + first)
    words = rng.integers(0, 2**32, (count, 4), dtype=np.uint64)
    for number, row in enumerate(words, first):
        day = f"2024-{1 + number % 12:02}-{1 + number % 28:02}"
        name = uuid.UUID(int=int(row[0]) << 96 | int(row[1]) << 64 | int(row[2]) << 32 | int(row[3]))
        low = number * 1000
        stats = {
            "numRecords": 1000,
            "minValues": {"id": low, "account": int(row[0]) % 500, "amount": 0.17, "status": "cancelled"},
            "maxValues": {"id": low + 999, "account": 49_999, "amount": 512.25, "status": "shipped"},
            "nullCount": {"id": 0, "account": 0, "amount": 3, "status": 0},
        }
        yield {
            "path": f"day={day}/part-{number % 200:05}-{name}.c000.snappy.parquet",
            "partitionValues": {"day": day},
            "size": 20_000 + int(row[1]) % 9_000,
            "modificationTime": 1_700_000_000_000 + number,
            "dataChange": True,
            "stats": json.dumps(stats, separators=(",", ":")),
        }


MAP = pa.map_(pa.string(), pa.string())
CHECKPOINT = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": MAP,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "tags": MAP,
                "stats": pa.string(),
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": MAP,
                "size": pa.int64(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": MAP}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": MAP,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    }
)  # the columns of a checkpoint by delta-spark, JSON statistics only


def metadata(partition: str | None = None, configuration: Mapping[str, str] = NO_SETTINGS) -> dict[str, object]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in SCHEMA.items()]
    return {
        "id": "6f1a2c58-7f0e-4a0e-9d5b-6a3f3f0c8d11",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [partition] if partition else [],
        "configuration": dict(configuration),
        "createdTime": 1_700_000_000_000,
    }


def _header_rows() -> pa.Table:
    rows = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata("day")}]
    return pa.Table.from_pylist(rows, CHECKPOINT)


def _add_rows(first: int, count: int) -> pa.Table:
    rows = [{"add": {**add, "dataChange": False}} for add in adds(first, count)]
    return pa.Table.from_pylist(rows, CHECKPOINT)


def big_commit(files: int) -> str:
    """A table whose version 1 adds five million rows in that many files."""
    return cached(f"commit-{files}-files", lambda path: _write_big_commit(path, files))


def _write_big_commit(path: Path, files: int) -> None:
    create(path)
    actions = []
    each = BIG_COMMIT_ROWS // files
    for number in range(files):
        actions.append(add_file(path, orders(number * each, each)))
    write_commit(path, 1, actions)


def long_strings() -> str:
    """A table whose version 1 adds a file of a million rows. Each has one of four strings of 1 MB, which the file holds as a dictionary."""
    return cached("long-strings", _write_long_strings)


def _write_long_strings(path: Path) -> None:
    create(path)
    rows = orders(0, 1_000_000)
    strings = pa.DictionaryArray.from_arrays(
        pa.array(range(1_000_000)).to_numpy() % 4, [each * 10**6 for each in "abcd"]
    )
    rows = rows.set_column(rows.schema.get_field_index("status"), "status", strings)
    write_commit(path, 1, [add_file(path, rows)])


def small_commits(count: int) -> str:
    """A table whose versions 1 to `count` add a file of one row each; no checkpoints."""
    return cached(f"small-commits-{count}", lambda path: _write_small_commits(path, count))


def _write_small_commits(path: Path, count: int) -> None:
    create(path)
    rows = orders(0, count)
    for version in range(1, count + 1):
        write_commit(path, version, [add_file(path, rows.slice(version - 1, 1))])


def create(path: Path, configuration: Mapping[str, str] = NO_SETTINGS) -> None:
    """Version 0 of an unpartitioned table without rows."""
    (path / "_delta_log").mkdir(parents=True)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 4 if configuration else 2}
    write_commit(path, 0, [{"protocol": protocol}, {"metaData": metadata(configuration=configuration)}])


def add_file(path: Path, rows: pa.Table, partition: Mapping[str, str] = NO_PARTITION) -> dict[str, object]:
    """Writes a data file; the action that adds it."""
    name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
    pq.write_table(rows, path / name, compression="snappy")
    size = (path / name).stat().st_size
    stats = json.dumps({"numRecords": rows.num_rows})
    add = {"path": name, "partitionValues": dict(partition), "size": size, "modificationTime": 0, "dataChange": True}
    return {"add": {**add, "stats": stats}}


def write_commit(path: Path, version: int, actions: list[dict[str, object]]) -> None:
    """A log entry that appears whole, and only if there is none of that version."""
    log = path / "_delta_log"
    staged = log / f".{version:020}.staged"
    staged.write_text("".join(json.dumps(action) + "\n" for action in actions))
    os.link(staged, log / f"{version:020}.json")
    staged.unlink()


def write_all() -> None:
    changes_table()
    many_files(MILLIONS_OF_FILES)
    many_files(FEW_FILES)
    big_commit(20)
    big_commit(1)
    small_commits(SMALL_COMMITS)


if __name__ == "__main__":
    write_all()
