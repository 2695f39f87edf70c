import json
from decimal import Decimal as Number

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta.statistics import FileStatistics, counts_only, parse, record_counts, typed_scalar
from cdfd.delta.types.schema import (
    ArrayType,
    ColumnMappingMode,
    Decimal,
    Primitive,
    StructField,
    StructType,
    TableSchema,
)


def mapped(name: str, physical: str) -> StructField:
    return StructField(name, Primitive("long"), metadata={"delta.columnMapping.physicalName": physical})


COLUMNS = StructType(
    (
        StructField("id", Primitive("long")),
        StructField("name", Primitive("string")),
        StructField("price", Decimal(30, 10)),
        StructField("ratio", Primitive("double")),
        StructField("day", Primitive("date")),
        StructField("at", Primitive("timestamp")),
        StructField("flag", Primitive("boolean")),
        StructField("list", ArrayType(Primitive("long"))),
        StructField("a", StructType((StructField("b", StructType((mapped("c", "col-c"),))),))),
    )
)
SCHEMA = TableSchema(COLUMNS)


def stats(schema: TableSchema = SCHEMA, **more: object) -> FileStatistics:
    return parse(json.dumps({"numRecords": 10, **more}), schema)


def test_the_example_of_the_specification() -> None:
    nested = {"a": {"b": {"c": 7}}}
    actual = stats(tightBounds=True, minValues=nested, maxValues=nested, nullCount={"a": {"b": {"c": 2}}})
    assert actual.num_records == 10
    assert actual.min(("a", "b", "c")) == pa.scalar(7)
    assert actual.max(("a", "b", "c")) == pa.scalar(7)
    assert actual.null_count(("a", "b", "c")) == 2
    assert actual.bounds(("a", "b", "c")) == (7, 7)


def test_entries_go_by_physical_names() -> None:
    schema = TableSchema(COLUMNS, (), ColumnMappingMode.NAME)
    actual = stats(schema, minValues={"a": {"b": {"col-c": 1, "c": 2}}})
    assert actual.min(("a", "b", "c")) == pa.scalar(1)


@pytest.mark.parametrize(
    ("column", "written", "read"),
    [
        ("id", 9223372036854775807, 9223372036854775807),
        ("name", "", ""),
        ("name", "x", "x"),
        ("flag", True, True),
        ("ratio", 1, 1.0),
        ("ratio", "Infinity", float("inf")),
    ],
)
def test_bound_is_read_in_the_type_of_its_column(column: str, written: object, read: object) -> None:
    scalar = stats(minValues={column: written}).min((column,))
    assert scalar is not None
    assert scalar.as_py() == read


@pytest.mark.parametrize("written", [None, [], {}, ["x"]])
def test_bound_that_is_no_scalar_is_none_of_any_type(written: object) -> None:
    for name in ("binary", "string", "long", "date"):
        assert typed_scalar(written, Primitive(name)) is None


def test_a_decimal_keeps_its_digits() -> None:
    actual = parse('{"minValues":{"price":12345678901234567890.0123456789}}', SCHEMA)
    assert str(actual.min(("price",))) == "12345678901234567890.0123456789"


def test_dates_and_timestamps() -> None:
    actual = stats(minValues={"day": "2000-01-01", "at": "2000-01-01T00:00:00.000-08:00"})
    assert str(actual.min(("day",))) == "2000-01-01"
    assert actual.min(("at",)) == pa.scalar(946713600000000, pa.int64()).cast(pa.timestamp("us", "UTC"))


def bounds(column: str, low: str | Number, high: str | Number, schema: TableSchema = SCHEMA) -> tuple[str, str]:
    """The bounds of a column, as text, from what is written: a string, or a number with all its digits."""
    texts = [json.dumps(each) if isinstance(each, str) else str(each) for each in (low, high)]
    document = f'{{"minValues":{{"{column}":{texts[0]}}},"maxValues":{{"{column}":{texts[1]}}}}}'
    low_bound, high_bound = parse(document, schema).bounds((column,))
    return str(low_bound), str(high_bound)


def test_bounds_of_timestamps_are_a_millisecond_wider() -> None:
    at = "2000-01-01T00:00:00.123Z"
    assert bounds("at", at, at) == ("2000-01-01 00:00:00.122001+00:00", "2000-01-01 00:00:00.123999+00:00")
    assert bounds("at", "+10000-01-02T00:00:00Z", "+294247-01-10T04:00:54.775807Z") == ("None", "None")


def test_bounds_of_timestamps_before_zones_are_a_day_wider() -> None:
    """1880-01-01 in Los Angeles, 7:52:58 behind, as Spark writes it."""
    at = "1880-01-01T00:00:00.000-07:52"
    assert bounds("at", at, at) == ("1879-12-31 07:51:59.999001+00:00", "1880-01-02 07:52:00.000999+00:00")


def test_dates_before_the_gregorian_calendar_are_no_bounds() -> None:
    assert bounds("day", "1582-10-14", "1582-10-15") == ("None", "1582-10-15")
    assert bounds("day", "1582-10-15", "1582-10-14") == ("1582-10-15", "None")
    assert bounds("at", "1500-01-01T00:00:00Z", "1582-10-15T00:00:00Z") == ("None", "None")


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("b" * 31, True),
        ("b" * 32, False),
        ("b\ufffd", False),  # what was cut may be above U+FFFD
        ("b\U0010ffff", True),
    ],
)
def test_a_maximum_of_strings_that_may_be_cut_is_unknown(text: str, known: bool) -> None:
    assert bounds("name", "a" * 40, text) == ("a" * 40, text if known else "None")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        # Too many digits for a double: exact.
        (
            "12345678901234567890.0123456789",
            "12345678901234567890.0123456789",
            ("12345678901234567890.0123456789",) * 2,
        ),
        ("-1.5", "1.5", ("-1.500000000000015", "1.500000000000015")),
        ("1e19", "-1e19", ("9999999999999900000", "-9999999999999900000")),
        # A double that is written as a long, and a number that no double is.
        ("1234567890123456768", "1234567890123456769", ("1234567890123444422.32109876543232", "1234567890123456769")),
    ],
)
def test_bounds_of_decimals_that_may_be_rounded_are_wider(low: str, high: str, expected: tuple[str, str]) -> None:
    actual = bounds("price", Number(low), Number(high))
    assert list(map(Number, actual)) == list(map(Number, expected))


def test_the_ends_of_a_long_are_no_bounds_of_decimals() -> None:
    assert bounds("price", Number(-(2**63)), Number(2**63 - 1)) == ("None", "None")


def test_bounds_of_decimals_that_a_double_can_hold_are_exact() -> None:
    schema = TableSchema(StructType((StructField("price", Decimal(15, 2)),)))
    assert bounds("price", Number("-1234567890123.45"), Number("1.5"), schema) == ("-1234567890123.45", "1.50")


def test_bounds_of_a_double_that_was_a_float() -> None:
    """Text has the digits that tell a float from others, and not all that it has as a double."""
    change = {"fromType": "float", "toType": "double"}
    for metadata, expected in (({}, ("0.1", "0.3")), ({"delta.typeChanges": [change]}, ("0.1", "0.30000001192092896"))):
        field = StructField("ratio", Primitive("double"), True, metadata)
        assert bounds("ratio", Number("0.1"), Number("0.3"), TableSchema(StructType((field,)))) == expected


def test_binary_has_no_bounds() -> None:
    schema = TableSchema(StructType((StructField("x", Primitive("binary")),)))
    assert bounds("x", "\\n", "\\n", schema) == ("None", "None")


def test_wide_bounds_leave_only_certain_counts_of_nulls() -> None:
    written = {"id": 1}
    wide = stats(tightBounds=False, minValues=written, maxValues=written, nullCount={"id": 4})
    assert not wide.tight_bounds
    assert wide.bounds(("id",)) == (1, 1)
    assert wide.null_count(("id",)) is None
    assert stats(tightBounds=False, nullCount={"id": 10}).null_count(("id",)) == 10
    assert stats(tightBounds=False, nullCount={"id": 0}).null_count(("id",)) == 0


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "1", "null", "[" * 100_000, '{"numRecords":"5"}', '{"numRecords":-1}', '{"numRecords":1.5}',
     '{"numRecords":1e400}', '{"numRecords":true}', '{"numRecords":NaN}', '{"minValues":[1]}', '{"maxValues":5}'],
    ids=lambda text: str(text)[:20],
)  # fmt: skip
def test_broken_statistics_say_nothing(text: str | None) -> None:
    actual = parse(text, SCHEMA)
    assert actual.num_records is None
    assert actual.tight_bounds
    assert actual.min(("id",)) is None
    assert actual.bounds(("id",))[1] is None


@pytest.mark.parametrize(
    ("column", "entry"),
    [("id", "x"), ("id", 1.5), ("id", 2**63), ("id", True), ("id", {}), ("name", 5), ("name", "\ud800"), ("day", 5),
     ("price", 1e30), ("ratio", "NaN"), ("ratio", ""), ("list", [1]), ("list", "1"), ("a", 1), ("a", {"b": 1}),
     ("id", None)],
)  # fmt: skip
def test_a_broken_entry_says_nothing_of_its_column(column: str, entry: object) -> None:
    actual = stats(minValues={column: entry, "flag": False}, nullCount={column: entry})
    assert actual.min((column,)) is None
    assert actual.min(("flag",)) == pa.scalar(False)


def test_columns_that_are_not_there() -> None:
    actual = stats(minValues={"z": 1, "a": {"b": 1}})
    assert actual.min(("z",)) is None
    assert actual.min(("a", "b", "c")) is None
    assert actual.null_count(("a", "z")) is None
    assert actual.bounds(("z",)) == (None, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c", "id", "at", "name"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["numRecords", "tightBounds", "minValues", "maxValues", "nullCount"]), JSON))
def test_random_statistics_never_raise(document: dict[str, object]) -> None:
    actual = parse(json.dumps(document), SCHEMA)
    for path in (("id",), ("name",), ("at",), ("a",), ("a", "b", "c")):
        actual.bounds(path)
        actual.null_count(path)


DOCUMENTS = {
    '{"numRecords":5,"minValues":{"numRecords":9}}': 5,
    '{"minValues":{"a":"\\n"},\n\r  "numRecords":7}': 7,
    "{}": None,
    " ": None,
    '{"numRecords":-1}': None,
    '{"numRecords":null}': None,
}
BROKEN = {
    "not json": None,
    "": None,
    "null": None,
    "5": None,
    '"{}"': None,
    "{": None,
    '{"numRecords":1}{"numRecords":2}': None,
    '{"numRecords":1},{"numRecords":2}': None,
    '{"numRecords":18446744073709551616}': None,
    '{"numRecords":9223372036854775807}': None,
    '{"numRecords":999999999999999999}': None,
    '{"numRecords":1099511627776}': 2**40,
    '{"numRecords":0000000000000000000000001}': None,
    '{"numRecords":[1]}': None,
    '{"numRecords":1,"numRecords":2}': 2,
    '{"a":"\\ud800","numRecords":1}': None,
    "[" * 100_000: None,
    '{"a":' * 100_000: None,
    "\0": None,
    '{"numRecords":"3"}': None,
    "[1]": None,
    '{"numRecords":1e3}': None,
    '{"numRecords":true}': None,
}


@given(st.lists(st.sampled_from([*DOCUMENTS, None]) | st.sampled_from([*DOCUMENTS, *BROKEN]), max_size=6))
def test_how_many_rows_many_files_have(texts: list[str | None]) -> None:
    expected = [None if text is None else (DOCUMENTS | BROKEN)[text] for text in texts]
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(["x", *texts], kind)[1:]
        assert record_counts(column).to_pylist() == expected
        assert record_counts(counts_only(column)).to_pylist() == expected


@given(st.lists(JSON.map(json.dumps) | st.text(max_size=8), max_size=6))
def test_no_document_ends_the_process(texts: list[str]) -> None:
    """As `null` did."""
    counts = record_counts(pa.array(texts, pa.large_string()))
    assert len(counts) == len(texts)
    assert counts.null_count == len(texts)


def test_a_document_that_is_longer_than_a_block() -> None:
    long = '{"numRecords":2,"minValues":{"a":"' + "x" * (3 << 20) + '"}}'
    assert record_counts(pa.array([long, '{"numRecords":1}'])).to_pylist() == [2, 1]


def test_counts_that_no_file_has_are_unknown() -> None:
    assert parse('{"numRecords": 9223372036854775807}', SCHEMA).num_records == 2**63 - 1
    assert parse('{"numRecords": 9223372036854775808}', SCHEMA).num_records is None
    assert parse('{"numRecords": -1}', SCHEMA).num_records is None
