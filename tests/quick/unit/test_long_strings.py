"""Long strings, of which only the first are in a dictionary, are read in batches of the same size from any store."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.scan.parquet.reader import open_parquet

ROWS, LENGTH = 4_000, 2_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    texts = [f"{number:08}" * (LENGTH // 8) for number in range(ROWS)]
    path = tmp_path / "f.parquet"
    # A dictionary of 1 MiB is full after 500 rows.
    pq.write_table(pa.table({"id": range(ROWS), "note": texts}), path)
    return path


def rows_of_batches(source: pa.NativeFile) -> list[int]:
    with open_parquet(source) as file:
        return [batch.num_rows for batch in file.batches(["id", "note"], rows=65_536)]


def test_a_file_that_is_not_local_has_batches_of_the_size_of_a_local_ones(file: Path) -> None:
    local = rows_of_batches(pa.OSFile(str(file)))
    with file.open("rb") as source:
        remote = rows_of_batches(pa.PythonFile(source, "r"))
    assert sum(local) == sum(remote) == ROWS
    # Pages are not all seen before the first batch, so that batches are smaller by a quarter at first.
    assert len(local) <= len(remote) <= 2 * len(local)
