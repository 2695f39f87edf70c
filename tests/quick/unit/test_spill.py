"""Buckets of rows: the same rows in the same order, in memory and on disk; and what is said where the disk is too small."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdfd.errors import ConfigError, StorageError
from cdfd.scan.updates import spill
from cdfd.scan.updates.spill import Buckets, SpillSpace

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def batch(start: int, count: int) -> pa.RecordBatch:
    ids = list(range(start, start + count))
    return pa.record_batch([pa.array(ids), pa.array([f"v{number}" for number in ids])], schema=SCHEMA)


@pytest.fixture(autouse=True)
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "MEMORY_BYTES", 0)


@pytest.mark.parametrize("memory", [0, 1 << 10, 1 << 30])
def test_each_bucket_has_its_rows_in_order(tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SpillSpace(str(tmp_path))
    monkeypatch.setattr(spill, "MEMORY_BYTES", memory)
    buckets = Buckets(space, 3, SCHEMA)
    for start in range(0, 1000, 100):
        rows = batch(start, 100)
        buckets.add(rows, rows.column("id").to_numpy() % 3)
    for number in range(3):
        assert buckets.rows(number)["id"].to_pylist() == list(range(number, 1000, 3))
        assert buckets.rows(number)["v"][0].as_py() == f"v{number}"
    assert (space.used > 0) == (memory < 1 << 30)
    assert list(tmp_path.iterdir()) == []
    buckets.close()
    assert space.used == 0


def test_rows_are_read_in_parts_if_the_system_reads_less_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reads 2 GiB at once, at most."""
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: pread(file, min(size, 100), start))
    buckets = Buckets(SpillSpace(), 1, SCHEMA)
    buckets.add(batch(0, 1000))
    assert buckets.rows(0)["id"].to_pylist() == list(range(1000))


def test_a_full_disk_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    space = SpillSpace()
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr(SpillSpace, "open", lambda _: full)
        with pytest.raises(StorageError, match="rows cannot be spilled: No space left on device"):
            Buckets(space, 1, SCHEMA).add(batch(0, 1000))


def test_without_numbers_all_rows_are_of_the_first_bucket() -> None:
    buckets = Buckets(SpillSpace(), 2, SCHEMA)
    buckets.add(batch(0, 3))
    buckets.add(batch(3, 0), np.zeros(0, np.int64))
    assert buckets.rows(0)["id"].to_pylist() == [0, 1, 2]
    assert buckets.rows(1).num_rows == 0


def test_the_limit_of_disk_space_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    space = SpillSpace(str(tmp_path), 100)
    buckets = Buckets(space, 1, SCHEMA)
    with pytest.raises(StorageError, match=r"more than 100 bytes of local disk.*spill\.max_bytes"):
        buckets.add(batch(0, 1000))
    buckets.close()
    assert space.used == 0


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    buckets = Buckets(SpillSpace(str(tmp_path / "none")), 1, SCHEMA)
    with pytest.raises(ConfigError, match=r"cannot be spilled to .*No such file or directory.*spill\.path"):
        buckets.add(batch(0, 10))
