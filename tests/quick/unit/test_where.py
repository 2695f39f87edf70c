"""Conditions of operators on files: what is read, what is refused, and which files may have such rows."""

import contextlib
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta.actions import Add
from cdfd.delta.files import PackedFiles, pack
from cdfd.delta.types.datatypes import Decimal, Primitive, StructField, StructType
from cdfd.delta.types.schema import TableSchema
from cdfd.errors import ConfigError
from cdfd.model.plan import LiveScans
from cdfd.plan.where import MOST_CHARACTERS, Term, check_where, parse_where, select_files

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
    ("text", "terms"),
    [
        ("id = 1", [Term("id", "=", (("1", False),))]),
        (" id>=-1.5e3 ", [Term("id", ">=", (("-1.5e3", False),))]),
        ("`odd``name` < 1 and Name in ('a', 'b''c')", None),
        ("day is null AND id IS NOT NULL", [Term("day", "null"), Term("id", "not null")]),
        ("ok = true", [Term("ok", "=", (("true", False),))]),
        ("größe = 1", [Term("größe", "=", (("1", False),))]),
    ],
)
def test_conditions_are_parsed_into_terms(text: str, terms: list[Term] | None) -> None:
    found = parse_where(text)
    expected = [Term("odd`name", "<", (("1", False),)), Term("Name", "=", (("a", True), ("b'c", True)))]
    assert list(found) == (expected if terms is None else terms)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id",
        "id =",
        "id = 1 OR id = 2",
        "id = 1; DROP",
        "id != 1",
        "id = other",
        "id in ()",
        "id in (1",
        "(id = 1)",
        "id = 'open",
        "id is 1",
        "1 = id",
        "id = 1 AND",
        "id in (" + ",".join(["1"] * 257) + ")",
        "x" * (MOST_CHARACTERS + 1),
        "id = '\x00' \x00",
    ],
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_where(text)


@given(st.text(max_size=80))
def test_any_text_is_a_condition_or_an_error_of_ours(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_where(text)


@pytest.mark.parametrize(
    "text",
    [
        "nope = 1",
        "id = 'x'",
        "day > 'soon'",
        "nested is null",
        "Name = 7",
        "id = 1.5",
        "price = true",
        "price = 'x'",
        "ratio > 'a'",
    ],
)
def test_terms_that_do_not_fit_the_table(text: str) -> None:
    with pytest.raises(ConfigError):
        check_where(parse_where(text), SCHEMA)


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
    ],
)
def test_files_that_may_have_such_rows(text: str, kept: list[bool]) -> None:
    files = [file("2026-01-01", 1, 9), file("2026-01-02", 10, 19), file(None, 20, 29)]
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack(files)])))
    assert select_files(parse_where(text), scans, SCHEMA).tolist() == kept


def test_a_file_without_statistics_is_kept() -> None:
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack([file("2026-01-01", 1, 9, stats=None)])])))
    assert select_files(parse_where("id = 100"), scans, SCHEMA).tolist() == [True]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("price = 1234567890123456789012345678901.23", True),
        ("price = 1234567890123456789012345678901.22", False),
        ("price > 1234567890123456789012345678901.2299", True),
        ("price > '1.23456789012345678901234567890123e30'", False),
        ("price < 1e999", True),
        # 0.1 as a float is above 0.1, and no float is between.
        ("ratio > 0.1", True),
        ("ratio = 0.1", True),
        ("ratio < 0.10000000149011613", True),
        ("ratio < 0.1", False),
    ],
)
def test_numbers_are_compared_with_all_their_digits(text: str, kept: bool) -> None:
    bounds = '{"price":1234567890123456789012345678901.23,"ratio":0.1}'
    add = Add("f", {"day": None}, 1, 0, True, f'{{"numRecords":1,"minValues":{bounds},"maxValues":{bounds}}}')
    scans = LiveScans(PackedFiles(Add, pa.Table.from_batches([pack([add])])))
    assert select_files(parse_where(text), scans, SCHEMA).tolist() == [kept]
