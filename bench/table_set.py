"""The set of tables on which reading is measured: each has another writer, layout or shape. Seeded, written once.

`python -m bench.table_set` writes them all. It takes about three minutes and 1.5 GB below `.cache/bench-tables`.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.tables import CHANGE_DATA_FEED, SEED, add_file, create, orders, write_commit

DATA = Path(__file__).parents[1] / ".cache" / "bench-tables"
"""Not below `bench/data`: delta-spark takes a while to write its tables."""

Write = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class BenchTable:
    """A table of the set.

    Attributes:
        name: of its folder.
        about: the layout that it stands for.
        write: writes it into an empty folder.
        columns: those to read; None for all.
        spark: whether delta-spark writes it, which needs Java and the jars.
    """

    name: str
    about: str
    write: Write
    columns: tuple[str, ...] | None = None
    spark: bool = False

    def path(self) -> str:
        """The path of the table, which is written first if it is not there."""
        table = DATA / self.name
        if not table.exists():
            print(f"writing {table.name} ...", flush=True)
            unfinished = DATA / f"{self.name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            self.write(unfinished)
            unfinished.rename(table)
        return str(table)


# --- rows ---


def long_notes(first: int, count: int, characters: int = 46) -> pa.Table:
    """Orders whose notes have so many characters, all distinct."""
    rng = np.random.default_rng(SEED + first)
    letters = rng.integers(ord("a"), ord("z") + 1, count * characters, dtype=np.uint8)
    offsets = pa.array(np.arange(0, (count + 1) * characters, characters, dtype=np.int32))
    notes = pa.StringArray.from_buffers(count, offsets.buffers()[1], pa.py_buffer(letters.tobytes()))
    rows = orders(first, count)
    return rows.set_column(rows.schema.get_field_index("note"), "note", notes)


def wide(first: int, count: int) -> pa.Table:
    """Two hundred columns: longs, doubles, and strings of a few values."""
    rng = np.random.default_rng(SEED + first)
    columns: dict[str, Any] = {"id": np.arange(first, first + count)}
    words = pa.array([f"word {number}" for number in range(500)])
    for number in range(1, 200):
        if number % 3 == 0:
            columns[f"c{number:03}"] = words.take(pa.array(rng.integers(0, 500, count)))
        elif number % 3 == 1:
            columns[f"c{number:03}"] = rng.integers(0, 1_000_000, count)
        else:
            columns[f"c{number:03}"] = rng.random(count)
    return pa.table(columns)


def nested(first: int, count: int) -> pa.Table:
    """Lists of longs, lists of structs, and structs of structs."""
    rng = np.random.default_rng(SEED + first)
    rows = orders(first, count)

    def lists(values: pa.Array) -> pa.Array:
        ends = np.arange(0, 3 * count + 1, 3, dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), values)

    items = pa.StructArray.from_arrays(
        [pa.array(rng.integers(0, 10_000, 3 * count)), pa.array(rng.random(3 * count)).cast(pa.string())],
        names=["sku", "label"],
    )
    place = pa.StructArray.from_arrays([pa.array(rng.random(count)), pa.array(rng.random(count))], names=["lat", "lon"])
    address = pa.StructArray.from_arrays([rows["status"].combine_chunks(), place], names=["city", "place"])
    return pa.table(
        {
            "id": rows["id"],
            "tags": lists(pa.array(rng.integers(0, 1_000, 3 * count))),
            "items": lists(items),
            "address": address,
        }
    )


def regions(first: int, count: int) -> pa.Table:
    """Orders with one of fifty regions."""
    names = pa.array([f"region {number:02}" for number in range(50)])
    rows = orders(first, count)
    return rows.append_column(
        "region", names.take(pc.bit_wise_and(rows["account"], 63).cast(pa.int64()).combine_chunks().to_numpy() % 50)
    )


# --- written by delta-rs ---


def _append(path: Path, rows: pa.Table, **options: Any) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(path), rows, mode="append", configuration=CHANGE_DATA_FEED, **options)


def _large_file(path: Path) -> None:
    from deltalake import DeltaTable, WriterProperties

    def table() -> Any:
        return DeltaTable(str(path))

    properties = WriterProperties(compression="SNAPPY", max_row_group_size=1 << 20)
    _append(path, long_notes(0, 2_000_000), target_file_size=1 << 30, writer_properties=properties)
    for share in range(3):
        table().update(updates={"amount": "amount + 1"}, predicate=f"id % 20 = {share}")
    table().delete("id % 20 = 7")
    merge = table().merge(long_notes(1_950_000, 100_000), "s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _delta_rs_updates(path: Path) -> None:
    from deltalake import DeltaTable

    for part in range(4):
        _append(path, orders(part * 125_000, 125_000))
    for share in range(4):
        DeltaTable(str(path)).update(updates={"status": "'audited'"}, predicate=f"id % 4 = {share}")


def _partitioned(path: Path) -> None:
    from deltalake import DeltaTable

    for part in range(4):
        _append(path, regions(part * 250_000, 250_000), partition_by=["region"])
    DeltaTable(str(path)).update(updates={"status": "'audited'"}, predicate="id % 4 = 1")


def _with_update(path: Path, rows: Callable[[int, int], pa.Table], count: int, column: str) -> None:
    from deltalake import DeltaTable

    for part in range(2):
        _append(path, rows(part * count, count))
    DeltaTable(str(path)).update(updates={column: column}, predicate="id % 4 = 1")


def _zstd(path: Path) -> None:
    from deltalake import DeltaTable, WriterProperties

    properties = WriterProperties(compression="ZSTD")
    for part in range(4):
        _append(path, orders(part * 250_000, 250_000), writer_properties=properties)
    DeltaTable(str(path)).update(
        updates={"quantity": "quantity + 1"}, predicate="id % 4 = 1", writer_properties=properties
    )


# --- written here, by pyarrow ---


def write_files(path: Path, versions: int, files: int, rows: int) -> None:
    """So many versions of so many files of so many rows."""
    create(path, CHANGE_DATA_FEED)
    rows_of_table = orders(0, versions * files * rows)
    for version in range(versions):
        starts = range(version * files * rows, (version + 1) * files * rows, rows)
        write_commit(path, version + 1, [add_file(path, rows_of_table.slice(start, rows)) for start in starts])


def _encoded(path: Path, **options: Any) -> None:
    """Four files with these options of pyarrow's writer."""
    create(path, CHANGE_DATA_FEED)
    for version in range(4):
        name = f"part-{uuid.UUID(int=version)}.parquet"
        pq.write_table(orders(version * 500_000, 500_000), path / name, **options)
        size = (path / name).stat().st_size
        add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
        stats = json.dumps({"numRecords": 500_000})
        write_commit(path, version + 1, [{"add": {**add, "stats": stats}}])


# --- written by delta-spark ---


def write_on_spark(
    path: Path, rows: pa.Table, files: int, properties: Mapping[str, str], statements: Sequence[str]
) -> None:
    from tests.support.spark.session import session

    staged = path.with_suffix(".parquet")
    pq.write_table(rows, staged)
    try:
        with session() as spark:
            for name, value in properties.items():
                spark.conf.set(f"spark.databricks.delta.properties.defaults.{name}", value)
            rows_of_table = spark.read.parquet(str(staged)).repartitionByRange(files, "id")
            rows_of_table.write.format("delta").mode("append").save(str(path))
            for statement in statements:
                spark.sql(statement.format(table=f"delta.`{path}`"))
    finally:
        staged.unlink()


def _spark_updates(path: Path) -> None:
    updates = [f"UPDATE {{table}} SET status = 'audited' WHERE id % 4 = {share}" for share in range(4)]
    write_on_spark(path, orders(0, 600_000), 40, {"enableChangeDataFeed": "true"}, updates)


def _deletion_vectors(path: Path) -> None:
    deletes = [f"DELETE FROM {{table}} WHERE id % 20 = {share}" for share in range(4)]
    write_on_spark(path, orders(0, 1_000_000), 8, {"enableDeletionVectors": "true"}, deletes)


def _column_mapping(path: Path) -> None:
    properties = {
        "enableChangeDataFeed": "true",
        "columnMapping.mode": "name",
        "minReaderVersion": "2",
        "minWriterVersion": "5",
    }
    statements = [
        "UPDATE {table} SET status = 'audited' WHERE id % 4 = 1",
        "ALTER TABLE {table} RENAME COLUMN note TO remark",
        "UPDATE {table} SET status = 'audited' WHERE id % 4 = 2",
    ]
    write_on_spark(path, orders(0, 1_000_000), 8, properties, statements)


TWENTY = ("id", *(f"c{number:03}" for number in range(5, 195, 10)))

TABLES: Mapping[str, BenchTable] = {
    table.name: table
    for table in (
        BenchTable(
            "large-file", "one file of 2 M rows in two row groups; updates, delete, merge (delta-rs)", _large_file
        ),
        BenchTable("rs-updates", "updates with blocks of images (delta-rs)", _delta_rs_updates),
        BenchTable(
            "spark-updates", "updates with images in turn, 40 files each (delta-spark)", _spark_updates, None, True
        ),
        BenchTable("files-10k", "200 files of 10,000 rows", lambda path: write_files(path, 10, 20, 10_000)),
        BenchTable("files-100", "5,000 files of 100 rows", lambda path: write_files(path, 50, 100, 100)),
        BenchTable(
            "wide", "200 columns, of which 20 are read", lambda path: _with_update(path, wide, 150_000, "c001"), TWENTY
        ),
        BenchTable(
            "long-strings",
            "strings of 2,000 characters",
            lambda path: _with_update(path, lambda first, count: long_notes(first, count, 2_000), 50_000, "status"),
        ),
        BenchTable(
            "nested", "lists, lists of structs, structs", lambda path: _with_update(path, nested, 200_000, "address")
        ),
        BenchTable("partitioned", "50 partitions, with an update", _partitioned),
        BenchTable("deletion-vectors", "deletes by deletion vectors (delta-spark)", _deletion_vectors, None, True),
        BenchTable("column-mapping", "mapped columns, one renamed (delta-spark)", _column_mapping, None, True),
        BenchTable("zstd", "zstd (delta-rs)", _zstd),
        BenchTable("snappy", "snappy, dictionaries (pyarrow)", lambda path: _encoded(path, compression="snappy")),
        BenchTable(
            "no-dictionary",
            "snappy, no dictionaries (pyarrow)",
            lambda path: _encoded(path, compression="snappy", use_dictionary=False),
        ),
    )
}


def write_all() -> None:
    """Write the tables that are not there."""
    for table in TABLES.values():
        table.path()


if __name__ == "__main__":
    write_all()
