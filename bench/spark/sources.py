"""The tables and batches of the measurements on Spark that no other benchmark has. Seeded, written once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench.table_set import BenchTable, write_files, write_on_spark
from bench.tables import NO_SETTINGS, SEED, cached, orders, write_changes

SMALL_VERSIONS = BenchTable("versions-300", "300 versions of 100 rows", lambda path: write_files(path, 300, 1, 100))
EVEN_FILES = BenchTable(
    "even-large-files", "8 versions of 4 files of 500,000 rows", lambda path: write_files(path, 8, 4, 500_000)
)
NO_FEED = BenchTable(
    "no-feed", "eight versions without a change feed", lambda path: write_changes(path, 125_000, NO_SETTINGS)
)
TRACKED = BenchTable(
    "row-tracking",
    "an update of one row in a hundred, in all of ten files (delta-spark)",
    lambda path: write_on_spark(
        path,
        orders(0, 2_000_000),
        10,
        {"enableRowTracking": "true", "enableDeletionVectors": "false"},
        ["UPDATE {table} SET amount = amount + 1 WHERE id % 100 = 7"],
    ),
    spark=True,
)

COPIED_ROWS = 1_000_000
UPDATED, TWICE, DELETED, INSERTED, REPEATED = 150_000, 30_000, 30_000, 20_000, 40_000
BATCHES = 12

Numbers = npt.NDArray[np.int64]


def batches() -> str:
    """The folder of `0.parquet`, which has the first rows of a copy, and of later batches of changes, `1.parquet` and so on.

    A batch has 200,000 keys, in any order: of 150,000 the old and new images of an update, of 30,000 of these another one, 30,000 deletes and
    20,000 inserts. 40,000 changes come twice, and 30,000 are late: a later change of the key was in the batch before.
    """
    return cached("spark-batches", _write_batches)


def _write_batches(folder: Path) -> None:
    rng = np.random.default_rng(SEED)
    live, late = np.arange(COPIED_ROWS), _changes(np.arange(TWICE), "insert", 0)
    pq.write_table(_changes(live, "insert", 1), folder / "0.parquet", row_group_size=1 << 16)
    for number in range(1, BATCHES + 1):
        version, keys = 10 * number, rng.permutation(live)
        updated, deleted = keys[:UPDATED], keys[UPDATED : UPDATED + DELETED]
        inserted = np.arange(COPIED_ROWS + (number - 1) * INSERTED, COPIED_ROWS + number * INSERTED)
        early = _changes(updated[:TWICE], "update_postimage", version + 1)
        rows = pa.concat_tables(
            [
                _changes(updated, "update_preimage", version),
                _changes(updated, "update_postimage", version),
                _changes(updated[:TWICE], "update_preimage", version + 2),
                _changes(updated[:TWICE], "update_postimage", version + 2),
                _changes(deleted, "delete", version + 3),
                _changes(inserted, "insert", version + 4),
            ]
        )
        repeated = rows.take(pa.array(rng.choice(rows.num_rows, REPEATED, replace=False)))
        rows = pa.concat_tables([rows, repeated, late])
        pq.write_table(rows, folder / f"{number}.parquet", row_group_size=1 << 16)
        late = early
        live = np.concatenate([keys[:UPDATED], keys[UPDATED + DELETED :], inserted])


def _changes(ids: Numbers, kind: str, version: int) -> pa.Table:
    """Change rows of these keys."""
    count = len(ids)
    rows = orders(version * COPIED_ROWS, count)
    is_new = kind == "update_postimage"
    added: Sequence[tuple[str, Any]] = (
        ("_change_type", pa.repeat(kind, count)),
        ("_commit_version", pa.repeat(version, count)),
        ("_commit_timestamp", pa.repeat(version * 1_000_000, count).cast(pa.timestamp("us", "UTC"))),
        ("_change_ordinal", pa.array(np.arange(count) * 2 + is_new)),
    )
    rows = rows.set_column(0, "id", pa.array(ids))
    for name, column in added:
        rows = rows.append_column(name, column)
    return rows
