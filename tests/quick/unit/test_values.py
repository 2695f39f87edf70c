from __future__ import annotations

import datetime
import decimal
import math
import struct
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta.types.arrow_types import arrow_type
from cdfd.delta.types.datatypes import DataType, PrimitiveName
from cdfd.delta.types.schema import (
    ArrayType,
    ColumnMappingMode,
    Decimal,
    Primitive,
    StructField,
    StructType,
    TableSchema,
)
from cdfd.delta.types.values import format_date, parse, parse_partition, parse_timestamp, serialize
from cdfd.errors import CdfdError, LogError

UTC = datetime.UTC
NAMES = [
    "string", "long", "integer", "short", "byte", "float", "double",
    "boolean", "binary", "date", "timestamp", "timestamp_ntz",
]  # fmt: skip
KINDS: list[DataType] = [*(Primitive(name) for name in NAMES), Decimal(10, 2)]


def value(text: str, name: Any) -> Any:
    scalar = parse(text, Primitive(name))
    assert scalar.type == arrow_type(Primitive(name))
    return scalar.as_py()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("text", [None, ""])
def test_no_text_is_null(text: str | None, kind: DataType) -> None:
    scalar = parse(text, kind)
    assert not scalar.is_valid
    assert scalar.type == arrow_type(kind)
    assert serialize(scalar) is None


def instant(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


READ = [
    # The formats of the specification.
    ("a=b/c d", "string", "a=b/c d"),
    (" ", "string", " "),
    ("1970-01-01", "date", datetime.date(1970, 1, 1)),
    ("1970-01-01 00:00:00", "timestamp", instant("1970-01-01T00:00:00")),
    ("true", "boolean", True),
    ("false", "boolean", False),
    ("\u0001\u0002\u0003", "binary", b"\x01\x02\x03"),
    # Spellings of deployed writers.
    ("\\u0001\\u0002\\u00fF", "binary", b"\x01\x02\xff"),
    ("\\u0001x", "binary", b"\\u0001x"),
    ("\u00ff\u0100", "binary", "\u00ff\u0100".encode()),
    ("TRUE", "boolean", True),
    ("False", "boolean", False),
    ("-9223372036854775808", "long", -(2**63)),
    ("+7", "byte", 7),
    ("007", "short", 7),
    (" 7", "integer", 7),
    ("1.0E10", "double", 1e10),
    ("1.0E-5", "float", struct.unpack("f", struct.pack("f", 1e-5))[0]),
    ("4.9E-324", "double", 5e-324),
    ("-0.0", "double", -0.0),
    ("Infinity", "double", math.inf),
    ("-Infinity", "float", -math.inf),
    ("inf", "float", math.inf),
    ("1e39", "float", math.inf),
    # Next to the middle between two floats, where the nearest double is.
    ("1.00000017881393432617187499", "float", 1.00000011920928955078125),
    ("1.00000017881393432617187501", "float", 1.0000002384185791015625),
    ("1.000000178813934326171875", "float", 1.0000002384185791015625),
    ("1.0000000596046449752", "float", 1.00000011920928955078125),
    ("2021-9-8", "date", datetime.date(2021, 9, 8)),
    ("0001-01-01", "date", datetime.date(1, 1, 1)),
    ("2021-09-08 00:00:00", "date", datetime.date(2021, 9, 8)),
    ("2021-09-08", "timestamp", instant("2021-09-08T00:00:00")),
    ("2021-09-08 11:11", "timestamp", instant("2021-09-08T11:11:00")),
    ("2013-07-05 17:01:00.123456", "timestamp", instant("2013-07-05T17:01:00.123456")),
    ("2013-07-05 17:01:00.1", "timestamp", instant("2013-07-05T17:01:00.1")),
    ("2013-07-05 17:01:00.123456789", "timestamp", instant("2013-07-05T17:01:00.123456")),
    ("2013-07-05T17:01:00.123456Z", "timestamp", instant("2013-07-05T17:01:00.123456")),
    ("2013-07-05T17:01:00.000+02:00", "timestamp", instant("2013-07-05T15:01:00")),
    ("2013-07-05 17:01:00-0330", "timestamp", instant("2013-07-05T20:31:00")),
    ("2013-07-05 17:01:00 UTC", "timestamp", instant("2013-07-05T17:01:00")),
    ("1969-12-31 23:59:59.999999", "timestamp", instant("1969-12-31T23:59:59.999999")),
    ("2021-11-18 02:30:00.123456", "timestamp_ntz", datetime.datetime.fromisoformat("2021-11-18T02:30:00.123456")),
    ("2021-11-18T02:30:00Z", "timestamp_ntz", datetime.datetime.fromisoformat("2021-11-18T02:30:00")),
]


@pytest.mark.parametrize(("text", "name", "expected"), READ)
def test_text_is_read_in_each_type(text: str, name: str, expected: object) -> None:
    read = value(text, name)
    assert read == expected
    assert math.copysign(1, read) == math.copysign(1, expected) if isinstance(expected, float) else True


def test_not_a_number() -> None:
    assert math.isnan(value("NaN", "double"))
    assert math.isnan(value("nan", "float"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", "1.00"),
        ("-1.5", "-1.50"),
        ("1.500", "1.50"),
        ("12345678.12", "12345678.12"),
        ("1.0E3", "1000.00"),
        ("0E-30", "0.00"),
    ],
)
def test_decimals_get_the_scale_of_the_column(text: str, expected: str) -> None:
    assert str(parse(text, Decimal(10, 2)).as_py()) == expected


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("+10000-01-01", 2932897),
        ("10000-01-01", 2932897),
        ("-0001-01-01", -719893),
        ("0000-02-29", -719469),
        ("9999-12-31", 2932896),
    ],
)
def test_dates_of_any_year(text: str, days: int) -> None:
    assert parse(text, Primitive("date")).cast(pa.int32()).as_py() == days


def test_a_timestamp_of_the_far_future() -> None:
    scalar = parse("+294247-01-10T04:00:54.775807Z", Primitive("timestamp"))
    assert scalar.cast(pa.int64()).as_py() == 2**63 - 1
    assert serialize(scalar) == "+294247-01-10T04:00:54.775807Z"


def test_offsets_of_eighteen_hours_are_the_largest() -> None:
    for text, day in (
        ("2021-01-01 00:00:00+18:00", "2020-12-31T06"),
        ("2021-01-01 00:00:00-18:00", "2021-01-01T18"),
        ("2021-01-01 00:00:00-05:59", "2021-01-01T05:59"),
    ):
        actual = parse(text, Primitive("timestamp")).as_py()
        assert actual.isoformat().startswith(day)


BROKEN = [
    ("abc", "long"), ("1.0", "long"), ("9223372036854775808", "long"), ("128", "byte"), ("1_0", "integer"),
    ("0x10", "long"),
    ("٣", "integer"), ("9" * 5000, "long"), ("-", "short"),
    ("0x1p3", "double"), ("1_0.0", "double"), ("1.0f", "float"), (".", "double"), ("1e", "double"),
    ("yes", "boolean"), ("1", "boolean"),
    ("2021-02-29", "date"), ("2021-13-01", "date"), ("20210101", "date"), ("2021-01-01 10:00:00", "date"),
    ("9999999-01-01", "date"), ("today", "date"),
    ("2021-01-01 24:00:00", "timestamp"), ("2021-01-01 00:00:60", "timestamp"),
    ("2021-01-01 00:60:00", "timestamp"), ("2021-01-01 10", "timestamp"),
    ("2021-01-01 00:00:00 Europe/Paris", "timestamp"), ("1627776000", "timestamp"),
    ("2021-01-01 00:00:00+19:00", "timestamp"), ("2021-01-01 00:00:00+01:60", "timestamp"),
    ("9999999-01-01 00:00:00", "timestamp"), ("2021-01-01T00:00:00+02:00", "timestamp_ntz"),
    ("\ud800", "string"), ("\ud800", "binary"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name"), BROKEN)
def test_a_broken_value_is_an_error_of_the_log(text: str, name: Any) -> None:
    with pytest.raises(LogError, match=f"column 'region': .* is not a value of type {name}") as broken:
        parse(text, Primitive(name), "region")
    assert len(str(broken.value)) < 500


@pytest.mark.parametrize("text", ["1.555", "123456789", "NaN", "1e999999999", "1e-999999999", "1,5", "9" * 5000])
def test_a_decimal_that_does_not_fit_is_an_error(text: str) -> None:
    with pytest.raises(LogError, match=r"decimal\(10,2\)"):
        parse(text, Decimal(10, 2))


@pytest.mark.parametrize("kind", [Primitive("double"), Decimal(10, 2)], ids=str)
def test_a_million_digits_before_a_letter_are_refused_in_linear_time(kind: DataType) -> None:
    with pytest.raises(LogError, match="is not a value of type"):
        parse("1" * 1_000_000 + "x", kind)


def test_a_nested_type_has_no_partition_values() -> None:
    with pytest.raises(LogError):
        parse("[]", ArrayType(Primitive("long")))
    with pytest.raises(LogError):
        serialize(pa.scalar([1], pa.list_(pa.int64())))


WIDE = decimal.Context(prec=76)
MICROSECONDS = st.integers(-(2**63), 2**63 - 1)
SCALARS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda text: (Primitive("string"), text)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: (Primitive("long"), number)),
    st.integers(-128, 127).map(lambda number: (Primitive("byte"), number)),
    st.floats(allow_nan=False).map(lambda number: (Primitive("double"), number)),
    st.floats(allow_nan=False, width=32).map(lambda number: (Primitive("float"), number)),
    st.booleans().map(lambda flag: (Primitive("boolean"), flag)),
    st.binary(min_size=1).map(lambda data: (Primitive("binary"), data)),
    st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: (Decimal(38, 7), Number(number).scaleb(-7, WIDE))),
    st.integers(-(2**31), 2**31 - 1).map(lambda days: (Primitive("date"), pa.scalar(days, pa.int32()))),
    MICROSECONDS.map(lambda number: (Primitive("timestamp"), pa.scalar(number, pa.int64()))),
    MICROSECONDS.map(lambda number: (Primitive("timestamp_ntz"), pa.scalar(number, pa.int64()))),
)


@given(SCALARS)
def test_values_round_trip(case: tuple[DataType, Any]) -> None:
    kind, content = case
    arrow = arrow_type(kind)
    scalar = content.cast(arrow) if isinstance(content, pa.Scalar) else pa.scalar(content, arrow)
    again = parse(serialize(scalar), kind)
    assert again.equals(scalar)


def test_bytes_that_look_like_escapes_round_trip() -> None:
    scalar = pa.scalar(b"\\u0041", pa.binary())
    assert parse(serialize(scalar), Primitive("binary")).equals(scalar)


@pytest.mark.parametrize(
    ("scalar", "text"),
    [
        (pa.scalar(1e10), "10000000000.0"),
        (pa.scalar(1e20), "1.0E20"),
        (pa.scalar(0.1, pa.float32()), "0.1"),
        (pa.scalar(math.nan), "NaN"),
        (pa.scalar(-math.inf), "-Infinity"),
        (pa.scalar("a=b/c d"), "a=b/c d"),
        (pa.scalar(-7, pa.int16()), "-7"),
        (pa.scalar(True), "true"),
        (pa.scalar(False), "false"),
        (pa.scalar(b"\x01\xff"), "\\u0001\\u00ff"),
        (pa.scalar("\u00fc".encode()), "\u00fc"),
        (pa.scalar(Number("1E-10"), pa.decimal128(38, 20)), "0.00000000010000000000"),
        (pa.scalar(datetime.date(2020, 2, 3)), "2020-02-03"),
        (pa.scalar(datetime.datetime.fromisoformat("2020-02-03T04:05:06")), "2020-02-03 04:05:06"),
        (pa.scalar(datetime.datetime(2020, 2, 3, 4, 5, 6, 7, UTC)), "2020-02-03T04:05:06.000007Z"),
        (pa.scalar(""), None),
        (pa.scalar(b""), None),
    ],
)
def test_value_is_written_as_its_text(scalar: pa.Scalar[Any], text: str | None) -> None:
    assert serialize(scalar) == text


@given(st.text(), st.sampled_from(KINDS))
def test_a_random_text_raises_nothing_but_our_errors(text: str, kind: DataType) -> None:
    try:
        scalar = parse(text, kind)
    except CdfdError:
        return
    assert scalar.type == arrow_type(kind)


@pytest.mark.parametrize("text", ["9999-12-31", "+10000-01-01", "+12345-06-07", "0000-01-01", "-0001-12-31"])
def test_years_of_five_digits_and_before_0_have_a_sign(text: str) -> None:
    assert serialize(parse(text, Primitive("date"))) == text


@given(st.dates())
def test_dates_agree_with_the_standard_library(day: datetime.date) -> None:
    days = day.toordinal() - datetime.date(1970, 1, 1).toordinal()
    assert format_date(days) == day.isoformat()
    assert parse(day.isoformat(), Primitive("date")).cast(pa.int32()).as_py() == days


@given(st.datetimes(timezones=st.sampled_from([UTC, datetime.timezone(datetime.timedelta(hours=-5, minutes=-30))])))
def test_timestamps_agree_with_the_standard_library(moment: datetime.datetime) -> None:
    elapsed = moment - datetime.datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_timestamp(moment.isoformat()) == elapsed // datetime.timedelta(microseconds=1)


REGION = StructField("region", Primitive("string"), metadata={"delta.columnMapping.physicalName": "col-1"})
DAY = StructField("day", Primitive("date"))
COLUMNS = StructType((REGION, DAY, StructField("x", Primitive("long"))))


def test_the_partition_values_of_a_file() -> None:
    schema = TableSchema(COLUMNS, ("day", "region"), ColumnMappingMode.NAME)
    actual = parse_partition({"col-1": "EU", "day": None, "left": "over"}, schema)
    assert actual == {"day": pa.scalar(None, pa.date32()), "region": pa.scalar("EU")}


def test_a_missing_partition_value_is_left_out() -> None:
    schema = TableSchema(COLUMNS, ("day", "region"))
    assert parse_partition({"REGION": "EU"}, schema) == {"region": pa.scalar("EU")}
    assert parse_partition({}, schema) == {}


@pytest.mark.parametrize(("kind", "empty"), [("string", ""), ("binary", b"")])
def test_empty_text_in_a_column_that_cannot_be_null(kind: PrimitiveName, empty: str | bytes) -> None:
    """It is null by the specification, which cannot be here: it is the empty string, as in delta-spark."""
    for nullable, expected in ((False, empty), (True, None)):
        columns = StructType((StructField("p", Primitive(kind), nullable=nullable),))
        actual = parse_partition({"p": ""}, TableSchema(columns, ("p",)))["p"]
        assert actual.as_py() == expected
        assert parse_partition({"p": None}, TableSchema(columns, ("p",)))["p"].as_py() is None
    required = StructType((StructField("p", Primitive("long"), nullable=False),))
    assert parse_partition({"p": ""}, TableSchema(required, ("p",)))["p"].as_py() is None


def test_a_partition_value_that_fits_two_keys() -> None:
    schema = TableSchema(COLUMNS, ("region",))
    with pytest.raises(LogError, match="both fit"):
        parse_partition({"Region": "EU", "REGION": "US"}, schema)
