"""Conditions of operators on files: what is refused, and which files may have such rows."""

import json

import pyarrow as pa
import pytest

from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles, pack
from cdfd.delta.types.datatypes import Decimal, Primitive, StructField, StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import ConfigError
from cdfd.model.plan import LiveScans
from cdfd.plan.shape.parser import parse_filter
from cdfd.plan.shape.pruning import compile_pruning, select_files
from cdfd.plan.shape.ranges import Range

SCHEMA = TableSchema(
    StructType(
        (
            StructField("id", Primitive("long"), True),
            StructField("day", Primitive("date"), True),
            StructField("Name", Primitive("string"), True),
            StructField("odd`name", Primitive("double"), True),
            StructField("at", Primitive("timestamp"), True),
            StructField("nested", StructType(()), True),
            StructField("price", Decimal(38, 2), True),
            StructField("ratio", Primitive("float"), True),
        )
    ),
    ("day",),
)


@pytest.mark.parametrize(
    "text",
    [
        "nope = 1",
        "id = 'x'",
        "day > 'soon'",
        "nested = 1",
        "Name = 7",
        "price = true",
        "ratio > 'a'",
        "ratio = true",
        "ratio = X'00'",
    ],
)
def test_a_condition_that_does_not_fit_the_table_is_refused(text: str) -> None:
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack([file("2026-01-01", 1, 9)])])))
    with pytest.raises(ConfigError):
        select_files(parse_filter(text), scans, SCHEMA)


def file(day: str | None, low: int, high: int, **more: object) -> Add:
    stats = {"numRecords": 2, "minValues": {"id": low}, "maxValues": {"id": high}, "nullCount": {"id": 0}}
    text = json.dumps(more.get("stats", stats)) if "stats" not in more or more["stats"] is not None else None
    return Add(f"{day}-{low}", {"day": day}, 1, 0, True, text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("day = '2026-01-01'", [True, False, False]),
        ("DAY >= '2026-01-01'", [True, True, False]),
        ("day is null", [False, False, True]),
        ("id = 5", [True, False, False]),
        ("id in (5, 25)", [True, False, True]),
        ("id > 9 and day is not null", [False, True, False]),
        ("Name = 'a'", [True, True, True]),
        ("id is null", [False, False, False]),
        ("id = '5' or not day < '2026-01-02'", [True, True, False]),
    ],
)
def test_files_that_may_have_such_rows(text: str, kept: list[bool]) -> None:
    files = [file("2026-01-01", 1, 9), file("2026-01-02", 10, 19), file(None, 20, 29)]
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack(files)])))
    assert select_files(parse_filter(text), scans, SCHEMA).tolist() == kept


def test_a_file_without_statistics_is_kept() -> None:
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack([file("2026-01-01", 1, 9, stats=None)])])))
    assert select_files(parse_filter("id = 100"), scans, SCHEMA).tolist() == [True]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("price = 1234567890123456789012345678901.23", True),
        ("price = 1234567890123456789012345678901.22", False),
        ("price > 1234567890123456789012345678901.2299", True),
        ("price > '1.23456789012345678901234567890123e30'", False),
        ("price < 1e999", True),
        # 0.1 as a float is above 0.1.
        ("ratio > 0.1", True),
        ("ratio = 0.1", False),
        ("ratio < 0.1000000014901162", True),
        ("ratio < 0.1", False),
    ],
)
def test_numbers_are_compared_with_all_their_digits(text: str, kept: bool) -> None:
    bounds = '{"price":1234567890123456789012345678901.23,"ratio":0.1}'
    add = Add("f", {"day": None}, 1, 0, True, f'{{"numRecords":1,"minValues":{bounds},"maxValues":{bounds}}}')
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack([add])])))
    assert select_files(parse_filter(text), scans, SCHEMA).tolist() == [kept]


def test_values_of_a_list_are_compared_with_one_range() -> None:
    ranges = {"id": Range(1, 9)}
    # Each range is parsed from text: of a file, once.
    may_have_rows = compile_pruning(parse_filter("id IN (10, 11, 12) OR ID > 20 OR id BETWEEN 3 AND 4"), SCHEMA)
    assert may_have_rows(ranges.pop)
