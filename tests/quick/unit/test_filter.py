"""Filters: what they mean, as SQL says; where they are wrong, and how the message says so."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.delta.types.schema import TableSchema, from_arrow
from cdfd.errors import ConfigError
from cdfd.plan.shape.compiler import check_filter, compile_filter
from cdfd.plan.shape.parser import DEEPEST, MOST_CHARACTERS, MOST_LITERALS, parse_filter
from tests.support.filters import NUMBERS, Values, texts

NAN = float("nan")
ROWS = pa.record_batch(
    {
        "i": pa.array([1, None, 300], pa.int32()),
        "b": pa.array([1, 2, None], pa.int8()),
        "f": pa.array([1.5, NAN, None], pa.float64()),
        "g": pa.array([0.1, NAN, None], pa.float32()),
        "s": pa.array(["a'b", "x%", None]),
        "d": pa.array([Decimal("1.50"), None, Decimal("-3.00")], pa.decimal128(38, 2)),
        "t": pa.array([0, None, 10**15], pa.timestamp("us", "UTC")),
        "n": pa.array([0, None, 10**15], pa.timestamp("us")),
        "day": pa.array([dt.date(2026, 1, 1), None, dt.date(2027, 1, 1)]),
        "x": pa.array([b"\n", None, b""], pa.binary()),
        "ok": pa.array([True, None, False]),
        "st": pa.array(
            [{"a": {"b": 1}}, None, {"a": None}], pa.struct([("a", pa.struct([("b", pa.int64()), ("c", pa.string())]))])
        ),
        "l": pa.array([[1], None, []], pa.list_(pa.int64())),
        "odd `name`": pa.array([1, 2, 3], pa.int64()),
    }
)
SCHEMA = TableSchema(from_arrow(ROWS.schema))


def kept(text: str, rows: pa.RecordBatch = ROWS, schema: TableSchema = SCHEMA) -> str:
    """For each row, whether it is kept."""
    return "".join("y" if each else "-" for each in compile_filter(parse_filter(text), schema)(rows))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("i = 1", "y--"),
        ("i == 1 ", "y--"),
        ("1 = i", "y--"),
        ("1 < i", "--y"),
        ("I = 1", "y--"),
        ("i <> 1", "--y"),
        ("i != 1 OR i IS NULL", "-yy"),
        ("NOT i = 1", "--y"),
        ("i > 1.5", "--y"),
        ("i < 1.5", "y--"),
        ("i = 1e0", "y--"),
        ("b < 1000", "yy-"),
        ("b = 99999999999999999999", "---"),
        ("i > -99999999999999999999.5", "y-y"),
        ("d > 1.4999", "y--"),
        ("d BETWEEN -3 AND 1.5", "y-y"),
        ("d NOT BETWEEN 0 AND 2", "--y"),
        ("d IN (1.5, 7)", "y--"),
        ("d < 1e100", "y-y"),
        ("d >= -1E+999", "y-y"),
        ("d <= -1e100", "---"),
        ("d <> 1e100", "y-y"),
        ("NOT d = 1e100", "y-y"),
        ("d = 1.500" + "0" * 300, "y--"),
        ("d = 1.500" + "0" * 300 + "1", "---"),
        ("d >= 1.500" + "0" * 300 + "1", "---"),
        ("d < 1.500" + "0" * 300 + "1", "y-y"),
        ("d IN (1.5, 1e100, 1.505)", "y--"),
        ("d NOT IN (1e100)", "y-y"),
        ("d NOT IN (1e100, NULL)", "---"),
        ("d IN (1.5, NULL)", "y--"),
        ("i > 0e999", "y-y"),
        ("i < 1e999", "y-y"),
        ("i IN (1.0, 2.5, 1e30)", "y--"),
        ("i = d", "---"),
        ("i < d", "y--"),
        ("i <= b", "y--"),
        ("f > 1", "yy-"),
        ("f < 2", "y--"),
        ("f = 'NaN'", "-y-"),
        ("f >= 'NaN'", "-y-"),
        ("NOT f = 'NaN'", "y--"),
        ("f <= g", "-y-"),
        ("g = 0.1", "---"),
        ("f IN (1.5, 'NaN')", "yy-"),
        ("i IN (1, NULL)", "y--"),
        ("i NOT IN (1)", "--y"),
        ("i NOT IN (1, NULL)", "---"),
        ("i NOT IN (NULL)", "---"),
        ("s = 'a''b'", "y--"),
        ("s >= 'b'", "-y-"),
        ("s LIKE 'x\\%'", "-y-"),
        ("s LIKE '%b'", "y--"),
        ("s LIKE '__'", "-y-"),
        ("s NOT LIKE '%b'", "-y-"),
        ("s IN ('x%', 'y')", "-y-"),
        ("t >= '1970-01-01'", "y-y"),
        ("t > TIMESTAMP '2000-01-01T00:00:00Z'", "--y"),
        ("t >= DATE '2000-01-01'", "--y"),
        ("t IN ('+10000-01-01T00:00:00Z', '1970-01-01T00:00:00Z')", "y--"),
        ("n < '1971-01-01 00:00:00'", "y--"),
        ("day < DATE '2026-06-01'", "y--"),
        ("day IN ('2027-01-01')", "--y"),
        ("x = X'0A'", "y--"),
        ("x = X''", "--y"),
        ("ok", "y--"),
        ("NOT ok", "--y"),
        ("ok = FALSE", "--y"),
        ("ok IS NULL", "-y-"),
        ("st.a.b = 1", "y--"),
        ("st.a.b IS NULL", "-yy"),
        ("st.a IS NULL", "-yy"),
        ("st IS NULL", "-y-"),
        ("l IS NOT NULL", "y-y"),
        ("`odd ``name``` > 1", "-yy"),
        ("NULL", "---"),
        ("TRUE", "yyy"),
        ("NULL OR i = 1", "y--"),
        ("NOT (NULL AND i = 1)", "--y"),
        ("i = 1 OR i = 300 AND FALSE", "y--"),
        ("(i = 1 OR i = 300) AND FALSE", "---"),
        ("i = 1 AND s = NULL", "---"),
        ("later = 1", "---"),
        ("later IS NULL", "yyy"),
        ("NOT later LIKE 'x'", "---"),
        ("later IN (1)", "---"),
        ("later", "---"),
        ("i < later", "---"),
        ("st.later IS NULL", "yyy"),
    ],
)
def test_rows_that_a_filter_keeps(text: str, wanted: str) -> None:
    assert kept(text) == wanted


@pytest.mark.parametrize(
    ("text", "example"), [("ok = 1", "TRUE or FALSE"), ("d = 'a'", "a number"), ("s = 1", "'text'")]
)
def test_errors_have_an_example_of_the_type(text: str, example: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_filter(parse_filter(text), SCHEMA)
    assert caught.value.hint is not None
    assert f"Write {example} to compare" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", 1, "a column or a literal is expected"),
        ("i = ", 5, "a column or a literal is expected"),
        ("i = 1 AND", 10, "a column or a literal is expected"),
        ("i = 1 i = 2", 7, "AND, OR or the end is expected"),
        ("(i = 1", 7, ") is expected"),
        ("i = 1)", 6, "AND, OR or the end is expected"),
        ("i ~ 3", 3, "not a name, number, text or sign"),
        ("i = 5x", 5, "not a name, number, text or sign"),
        ("s = 'abc", 5, "not a name, number, text or sign"),
        ("i NOT 3", 7, "IN, BETWEEN or LIKE is expected"),
        ("i IS 3", 6, "NULL is expected"),
        ("i IN ()", 7, "a literal is expected"),
        ("i IN (b)", 7, "a literal is expected"),
        ("i IN (DATE 5)", 7, "a literal is expected"),
        ("i = 1 `AND` i = 2", 7, "AND, OR or the end is expected"),
        ("i = 1 'AND' i = 2", 7, "AND, OR or the end is expected"),
        ("s LIKE '%\\b'", 8, "has a backslash that is not before"),
        ("s LIKE '%\\\\\\'", 8, "has a backslash that is not before"),
        ("s LIKE s", 8, "a pattern in '...' is expected"),
        ("1 = 1", 1, "a comparison needs a column"),
        ("'a' IS NULL", 1, "a column is expected"),
        ("3", 2, "a comparison is expected"),
        ("i", 1, "is of type integer, not boolean"),
        ("i = 'a'", 5, "not a value of type integer"),
        ("s > 3", 5, "not a value of type string"),
        ("day = '2026-13-01'", 7, "not a value of type date"),
        ("ok = 1", 6, "not a value of type boolean"),
        ("x = 'a'", 5, "not a value of type binary"),
        ("t = ''", 5, "not a value of type timestamp"),
        ("l = 1", 1, "whose values cannot be compared"),
        ("s = i", 5, "is compared with one of integer"),
        ("d LIKE 'x'", 1, "LIKE needs a string"),
        ("i.q = 1", 1, "which has no fields"),
        ("i = 1 OR later = 1", 10, "there is no column 'later'"),
        ("st.q = 1", 1, "there is no column 'st.q'"),
        ("NOT " * (DEEPEST + 1) + "ok", 4 * DEEPEST + 1, "nested deeper"),
    ],
)
def test_errors_say_where(text: str, place: int, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_filter(parse_filter(text), SCHEMA)
    assert what in caught.value.what
    assert f"(character {place}," in caught.value.what


def test_long_filters_are_refused() -> None:
    with pytest.raises(ConfigError, match="characters"):
        parse_filter("i = 1 OR " * MOST_CHARACTERS)
    with pytest.raises(ConfigError, match="more than 1000 literals"):
        parse_filter(f"i IN ({', '.join(map(str, range(MOST_LITERALS + 1)))})")


def test_many_terms_nest_no_deeper_than_their_logarithm() -> None:
    terms = " OR ".join(f"i = {number}" for number in range(1, MOST_LITERALS + 1))
    assert kept(terms) == "y-y"


@given(texts(), st.lists(st.fixed_dictionaries({name: st.none() | st.integers(-2, 2) for name in "ab"}), max_size=8))
def test_three_valued_logic(filter: tuple[str, Any], rows: list[Values]) -> None:
    text, truth = filter
    batch = pa.RecordBatch.from_pylist(rows, NUMBERS)
    actual = compile_filter(parse_filter(text), TableSchema(from_arrow(NUMBERS)))(batch)
    assert actual.tolist() == [truth(row) is True for row in rows]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("", [""]),
        (r"\\", ["\\"]),
        (r"a\\b", ["a\\b"]),
        (r"%\\b", ["a\\b"]),
        (r"%\\", ["\\", "a\\"]),
        (r"_\\%", ["a\\", "a\\b"]),
        (r"%\\%", ["\\", "a\\", "a\\b"]),
        (r"\%%", ["%", "%_"]),
        (r"%\_", ["%_"]),
        (r"%\%\_%", ["%_"]),
        ("a%b", ["ab", "a\\b", "a\nb"]),
        ("a_b", ["a\\b", "a\nb"]),
        ("a%", ["ab", "a\\", "a\\b", "a\n", "a\nb"]),
        ("%\n%", ["a\n", "a\nb"]),
        ("a_", ["ab", "a\\", "a\n"]),
        ("_", ["\\", "%", "\U0001f600"]),
    ],
)
def test_texts_that_a_pattern_matches(pattern: str, matches: list[str]) -> None:
    texts = ["", "ab", "\\", "a\\", "a\\b", "%", "%_", "a\n", "a\nb", "\U0001f600"]
    rows = pa.record_batch({"s": pa.array([*texts, None])})
    wanted = "".join("y" if text in matches else "-" for text in texts)
    assert kept(f"s LIKE '{pattern}'", rows, TableSchema(from_arrow(rows.schema))) == wanted + "-"


def test_other_characters_of_a_pattern_match_themselves() -> None:
    characters = [chr(code) for code in range(256) if chr(code) not in "%_\\"]
    rows = pa.record_batch({"s": pa.array(characters)})
    schema = TableSchema(from_arrow(rows.schema))
    for place, character in enumerate(characters):
        quoted = character.replace("'", "''")
        assert kept(f"s LIKE '{quoted}'", rows, schema).find("y") == place
        assert kept(f"s LIKE '%{quoted}%'", rows, schema).count("y") == 1


def test_whole_numbers_beyond_those_of_a_double_are_rounded_where_floats_are_compared() -> None:
    rows = pa.record_batch({"i": pa.array([2**53 + 1, 1]), "f": pa.array([float(2**53), 1.5])})
    schema = TableSchema(from_arrow(rows.schema))
    assert kept("i = f", rows, schema) == "y-"
    assert kept("i < f", rows, schema) == "-y"


@pytest.mark.parametrize("digits", [(10, 2), (38, 2), (38, 30)])
def test_decimals_are_compared_with_floats_as_the_nearest_doubles(digits: tuple[int, int]) -> None:
    """57 times 0.01 is 0.5700000000000001."""
    numbers = [*(Decimal(number) / 100 for number in range(-1000, 1001)), None]
    doubles = [None if number is None else float(number) for number in numbers]
    rows = pa.record_batch({"d": pa.array(numbers, pa.decimal128(*digits)), "f": pa.array(doubles)})
    schema = TableSchema(from_arrow(rows.schema))
    assert kept("d = f", rows, schema) == "y" * 2001 + "-"
    assert kept("f <> d OR f < d", rows, schema) == "-" * 2002
