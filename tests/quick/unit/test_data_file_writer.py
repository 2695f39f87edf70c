"""Columns whose values repeat have dictionaries in the data files of a target, and others have none."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdfd.scan.parquet.writer import DataFileWriter

ROWS = 70_000


def encodings(rows: pa.Table, groups: int = 1) -> dict[str, bool]:
    """Whether each column of a file has a dictionary, by path."""
    writer = DataFileWriter(rows.schema, "snappy")
    for _ in range(groups):
        writer.write(rows)
    file = writer.finish()
    assert pq.read_table(pa.BufferReader(file.data)).cast(rows.schema).equals(pa.concat_tables([rows] * groups))
    group = pq.read_metadata(pa.BufferReader(file.data)).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: column.has_dictionary_page for column in columns}


def test_numbers_that_differ_have_no_dictionary() -> None:
    numbers = np.arange(ROWS)
    rows = pa.table(
        {
            "differ": numbers,
            "many": numbers % 40_000,
            "few": numbers % 10,
            "text": pa.array(numbers).cast(pa.string()),
            "kind": pa.array(["insert"] * ROWS).dictionary_encode(),
            "a.b": numbers % 7,
        }
    )
    assert encodings(rows, groups=2) == {
        "differ": False,
        "many": True,
        "few": True,
        "text": False,
        "kind": True,
        "a.b": True,
    }


@pytest.mark.parametrize(
    ("kind", "value", "paths"),
    [
        (pa.struct({"x": pa.string(), "y": pa.list_(pa.int64())}), {"x": "a", "y": [1]}, ["n.x", "n.y.list.element"]),
        (pa.map_(pa.string(), pa.string()), [("a", "b")], ["n.key_value.key", "n.key_value.value"]),
        (
            pa.list_(pa.struct({"z": pa.string()})),
            [{"z": "a"}],
            ["n.list.element.z"],
        ),
    ],
)
def test_nested_columns_have_dictionaries(kind: pa.DataType, value: object, paths: list[str]) -> None:
    rows = pa.table({"n": pa.array([value] * ROWS, kind)})
    assert encodings(rows) == dict.fromkeys(paths, True)


def test_few_rows_have_dictionaries() -> None:
    assert encodings(pa.table({"differ": np.arange(100)})) == {"differ": True}


def test_a_file_without_rows() -> None:
    file = DataFileWriter(pa.schema([("n", pa.int64())]), "zstd").finish()
    assert (file.rows, pq.read_table(pa.BufferReader(file.data)).num_rows) == (0, 0)


def test_statistics_of_a_file() -> None:
    """Of columns at the top only. A column of nulls has no bounds, and a list neither bounds nor a count."""
    rows = pa.table({"n": [7, -1, None], "none": pa.array([None] * 3, pa.int32()), "many": [[1], [2], [3]]})
    writer = DataFileWriter(rows.schema, "snappy")
    writer.write(rows.slice(0, 1))
    writer.write(rows.slice(1))
    assert json.loads(writer.finish().stats) == {
        "numRecords": 3,
        "minValues": {"n": -1},
        "maxValues": {"n": 7},
        "nullCount": {"n": 1, "none": 3},
    }


def test_bounds_of_strings_that_are_cut() -> None:
    """A maximum gets the last character of all. If the string goes on with that one, one more of it."""
    last = "\U0010ffff"
    for text, upper in (
        ("a" * 32, "a" * 32),
        ("a" * 33, "a" * 32 + last),
        ("a" * 32 + last, "a" * 32 + last),
        ("a" * 32 + last + "b", "a" * 32 + last + last),
    ):
        writer = DataFileWriter(pa.schema([("s", pa.string())]), "none")
        writer.write(pa.table({"s": [text]}))
        stats = json.loads(writer.finish().stats)
        assert stats["minValues"]["s"] == text[:32]
        assert stats["maxValues"]["s"] == upper
        assert upper >= text
