"""The contract of every data file format.

To add one, add a function to `FORMATS`. It takes a folder and tables of rows, writes a file with a row group for each table,
and returns its path.
Trevni files have no row groups. Parts of the rows stand for them: each table has two rows, and so does each part.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cdfd.trevni as trevni_files
from cdfd.errors import DataError
from cdfd.scan.data_files import DataFile, open_data_file

Write = Callable[[Path, Sequence[pa.Table]], Path]


def parquet(folder: Path, groups: Sequence[pa.Table]) -> Path:
    path = folder / "rows.parquet"
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    return path


def parquet_without_an_ending(folder: Path, groups: Sequence[pa.Table]) -> Path:
    return parquet(folder, groups).rename(folder / "part-0.c000")


def trevni(folder: Path, groups: Sequence[pa.Table]) -> Path:
    path = folder / "rows.trv"
    trevni_files.write_table(pa.concat_tables(groups), path)
    return path


def trevni_without_an_ending(folder: Path, groups: Sequence[pa.Table]) -> Path:
    return trevni(folder, groups).rename(folder / "part-0.c000")


FORMATS = [parquet, parquet_without_an_ending, trevni, trevni_without_an_ending]


@pytest.fixture(autouse=True)
def groups_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdfd.trevni.files.data_file.GROUP_ROWS", 2)


@pytest.fixture(params=FORMATS, ids=lambda write: write.__name__)
def write(request: pytest.FixtureRequest) -> Write:
    function: Write = request.param
    return function


def rows(*n: int) -> pa.Table:
    return pa.table({"n": pa.array(n, pa.int64()), "s": [{"a": str(each), "b": [each]} for each in n]})


GROUPS = [rows(1, 2), rows(3, 4), rows(5)]


def n_of(file: DataFile, groups: Sequence[int] | None = None, most: int = 100) -> list[list[int]]:
    return [batch["n"].to_pylist() for batch in file.batches(["n"], groups, rows=most)]


def test_rows_of_all_groups_in_order(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path, GROUPS)
    with pa.OSFile(str(path)) as source, open_data_file(path.name, source) as file:
        assert file.schema_arrow.names == ["n", "s"]
        assert list(chain.from_iterable(n_of(file))) == [1, 2, 3, 4, 5]
        assert all(len(batch) <= 2 for batch in n_of(file, most=2))


def test_the_footer_counts_the_rows_of_each_group(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path, GROUPS)
    with pa.OSFile(str(path)) as source, open_data_file(path.name, source) as file:
        footer = file.metadata
        counts = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
        assert (footer.num_rows, counts) == (5, [2, 2, 1])
        assert all(footer.row_group(number).total_byte_size > 0 for number in range(3))


@pytest.mark.parametrize(("groups", "expected"), [([1], [3, 4]), ([0, 2], [1, 2, 5]), ([], [])])
def test_chosen_row_groups_are_read_in_order(
    write: Write, tmp_path: Path, groups: list[int], expected: list[int]
) -> None:
    path = write(tmp_path, GROUPS)
    with pa.OSFile(str(path)) as source, open_data_file(path.name, source) as file:
        assert list(chain.from_iterable(n_of(file, groups))) == expected


def test_columns_in_columns(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path, GROUPS)
    with pa.OSFile(str(path)) as source, open_data_file(path.name, source) as file:
        [batch] = file.batches(["s.a"], [1], rows=9)
        assert batch.to_pylist() == [{"s": {"a": "3"}}, {"s": {"a": "4"}}]


@pytest.mark.parametrize("left", [0, 3, 0.5, -1])
def test_a_truncated_file_is_an_error(write: Write, tmp_path: Path, left: float) -> None:
    path = write(tmp_path, GROUPS)
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data)) if left == 0.5 else int(left)])
    with (
        pa.OSFile(str(path)) as source,
        pytest.raises((DataError, pa.ArrowException, OSError, ValueError)),
        open_data_file(path.name, source) as file,
    ):
        list(file.batches(["n", "s"], rows=100))


def test_columns_as_dictionaries(write: Write, tmp_path: Path) -> None:
    path = write(tmp_path, [pa.table({"t": ["insert", "delete"]})])
    with pa.OSFile(str(path)) as source, open_data_file(path.name, source, ["t"]) as file:
        [batch] = file.batches(["t"], rows=9)
        assert pa.types.is_dictionary(batch.schema.field("t").type)
        assert batch["t"].to_pylist() == ["insert", "delete"]
