import datetime as dt
import json
import math
import struct
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cdfd.encode.encoding import EncodedRows
from cdfd.encode.json import JsonEncoding, LineEncoder
from cdfd.encode.values import Rules
from cdfd.errors import DataError, UnsupportedError
from cdfd.runtime import native
from tests.support.row_json import json_text, parsed, row_texts
from tests.support.sampling import stride

pytestmark = pytest.mark.usefixtures("kernels")

Y1, Y9999 = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - Arrow's types without zone
STEPS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def rows(batch: pa.RecordBatch, *, longs_as_strings: bool = False) -> Any:
    return EncodedRows(JsonEncoding(Rules(longs_as_strings)), "Value")(batch)


def texts(array: pa.Array) -> list[str]:
    """The values alone, taken out of rows that have nothing else."""
    actual = [row.as_py().decode() for row in rows(pa.record_batch([array], names=["v"]))]
    assert all(text.startswith('{"v":') and text.endswith("}") for text in actual)
    return [text[5:-1] for text in actual]


def moments(unit: str, zone: str | None) -> st.SearchStrategy[dt.datetime]:
    low, high = (dt.datetime(1700, 1, 1), dt.datetime(2250, 1, 1)) if unit == "ns" else (Y1, Y9999)  # noqa: DTZ001
    step = STEPS[unit]
    return st.datetimes(low, high).map(
        lambda moment: moment.replace(microsecond=moment.microsecond // step * step, tzinfo=dt.UTC if zone else None)
    )


def decimals(kind: pa.DataType) -> st.SearchStrategy[Decimal]:
    def scaled(number: int) -> Decimal:
        with localcontext(prec=100):
            return Decimal(number).scaleb(-kind.scale)

    limit = 10**kind.precision - 1
    return st.one_of(st.integers(-limit, limit), st.integers(-min(limit, 999), min(limit, 999))).map(scaled)


TEXT = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from('\0\x01\b\t\n\f\r\x1f\x7f"\\/\u2028\u2029😀\ufffe'))
)
SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{
        kind: st.one_of(st.integers(low, high), st.integers(0, 9))
        for kind, low, high in [
            *((getattr(pa, f"int{bits}")(), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)),
            *((getattr(pa, f"uint{bits}")(), 0, 2**bits - 1) for bits in (8, 16, 32, 64)),
        ]
    },
    pa.float64(): st.one_of(st.floats(), st.integers(-(10**9), 10**9).map(lambda n: n / 100)),
    pa.float32(): st.one_of(st.floats(width=32), st.sampled_from([float(np.float32(n / 100)) for n in range(500)])),
    **{
        kind: decimals(kind)
        for kind in (
            *(
                pa.decimal128(*sizes)
                for sizes in ((1, 0), (5, 2), (18, 18), (19, 4), (38, 0), (38, 10), (38, 38), (6, -3))
            ),
            *(pa.decimal256(*sizes) for sizes in ((40, 2), (76, 76))),
            *(pa.decimal32(7, 2), pa.decimal64(18, 3)),
        )
    },
    **{pa.timestamp(unit, zone): moments(unit, zone) for unit in STEPS for zone in (None, "UTC")},
    pa.date32(): st.one_of(st.dates(), st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 9))),
    pa.date64(): st.dates(),
    pa.time64("us"): st.times(),
    pa.bool_(): st.booleans(),
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), TEXT),
    **{kind: st.binary(max_size=20) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.null(): st.none(),
}
# How a float is written is compared for values, not in names.
NAMING_FLOATS = st.sampled_from([0.0, -0.0, 1.5, 0.001, 123.25, math.nan, math.inf, -math.inf])


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(TEXT, max_size=3, unique=True)
    keys = st.one_of(inner.filter(lambda kind: not pa.types.is_null(kind)), st.sampled_from([pa.string(), pa.int64()]))
    return st.one_of(
        st.tuples(st.sampled_from([pa.list_, pa.large_list, pa.list_view, pa.large_list_view]), inner).map(
            lambda pair: pair[0](pair[1])
        ),
        st.tuples(inner, st.integers(0, 3)).map(lambda pair: pa.list_(pair[0], pair[1])),
        st.tuples(names, st.lists(inner, min_size=3, max_size=3)).map(
            lambda pair: pa.struct([pa.field(name, kind) for name, kind in zip(pair[0], pair[1], strict=False)])
        ),
        st.tuples(keys, inner).map(lambda pair: pa.map_(*pair)),
    )


KINDS = st.recursive(st.sampled_from(sorted(SCALARS, key=str)), nested, max_leaves=4)


def values(kind: pa.DataType, *, nulls: bool = True, name: bool = False) -> st.SearchStrategy[Any]:
    if pa.types.is_floating(kind) and name:
        strategy: st.SearchStrategy[Any] = NAMING_FLOATS
    elif kind in SCALARS:
        strategy = SCALARS[kind]
    elif pa.types.is_struct(kind):
        strategy = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_map(kind):
        strategy = st.lists(
            st.tuples(values(kind.key_type, nulls=False, name=True), values(kind.item_type)), max_size=3
        )
    elif pa.types.is_fixed_size_list(kind):
        strategy = st.lists(values(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    else:
        strategy = st.lists(values(kind.value_type), max_size=4)
    return st.one_of(strategy, st.none()) if nulls else strategy


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    kind = draw(KINDS)
    listed = draw(st.lists(values(kind), max_size=12))
    repeats = draw(st.sampled_from([1, 1, 1, 30]))
    array = pa.array(listed * repeats, kind)
    start = draw(st.integers(0, len(array)))
    return array.slice(start, draw(st.integers(0, len(array) - start)))


@settings(max_examples=400 // stride(4), deadline=None)
@given(st.lists(arrays(), min_size=1, max_size=3), st.booleans())
def test_the_kernel_and_arrow_give_the_same_bytes(columns: list[pa.Array], longs_as_strings: bool) -> None:
    if native.missing:
        pytest.skip("there is nothing to compare without cdfd-native")
    count = min(len(column) for column in columns)
    batch = pa.record_batch([column.slice(0, count) for column in columns], names=["a", "b", "c"][: len(columns)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "built", True)
        actual = rows(batch, longs_as_strings=longs_as_strings)
        patch.setattr(native, "built", False)
        expected = rows(batch, longs_as_strings=longs_as_strings)
    assert actual.to_pylist() == expected.to_pylist()


@settings(max_examples=400 // stride(4), deadline=None)
@given(st.lists(arrays(), min_size=1, max_size=3), st.lists(TEXT, min_size=3, max_size=3))
def test_every_row_is_what_the_oracle_says(columns: list[pa.Array], names: list[str]) -> None:
    count = min(len(column) for column in columns)
    batch = pa.record_batch([column.slice(0, count) for column in columns], names=names[: len(columns)])
    actual = [row.as_py().decode() for row in rows(batch)]
    expected = row_texts(batch)
    assert [parsed(text) for text in actual] == [parsed(text) for text in expected]
    if not any("float" in str(column.type) or "double" in str(column.type) for column in columns):
        assert actual == expected
    assert LineEncoder()(batch).to_pybytes().decode() == "".join(text + "\n" for text in actual)


@given(st.lists(st.one_of(TEXT, st.none()), min_size=1), st.integers(0, 3))
def test_strings_are_escaped_as_json_dumps_does(listed: list[str | None], start: int) -> None:
    array = pa.array(listed * 2, pa.string()).slice(start)
    assert texts(array) == [json.dumps(value, ensure_ascii=False) for value in array.to_pylist()]


def test_all_control_characters_and_their_neighbours() -> None:
    every = ["".join(map(chr, range(256))), *map(chr, range(256)), "\ud7ff\ue000\U0010ffff"]
    assert texts(pa.array(every)) == [json.dumps(value, ensure_ascii=False) for value in every]


def test_many_escapes_in_one_batch() -> None:
    many = [f'"{number}"\n' * (number % 4) for number in range(3_000)]
    assert texts(pa.array(many)) == [json.dumps(value) for value in many]
    assert texts(pa.array(many).slice(7, 100)) == [json.dumps(value) for value in many[7:107]]


def test_invalid_utf8_is_an_error_that_names_the_column() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"a\xff\xfe")]
    )
    batch = pa.record_batch([broken], names=["note"])
    with pytest.raises(DataError, match="column note: a string is not valid UTF-8"):
        rows(batch)
    assert rows(batch.slice(0, 1)).to_pylist() == [b'{"note":"a"}']
    with pytest.raises(DataError, match="not valid UTF-8"):
        rows(
            pa.record_batch([pa.array([["x"], None]), pa.StructArray.from_arrays([broken], ["note"])], names=["l", "s"])
        )


@example(0.1)
@example(-0.0)
@example(5e-324)
@example(1e15)
@example(999999999999.999)
@example(2.0**53)
@given(
    st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**16), 10**16).map(lambda n: n / 1000))
)
def test_doubles_are_the_shortest_text_that_reads_back(number: float) -> None:
    (text,) = texts(pa.array([number]))
    assert struct.pack("<d", float(text)) == struct.pack("<d", number)
    assert set(text) & set(".e")
    assert Decimal(text).normalize() == Decimal(repr(number)).normalize()


@example(float(np.float32(16777216.0)))
@example(float(np.float32(3e9)))
@given(
    st.one_of(
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.integers(0, 10**7).map(lambda n: float(np.float32(n / 1000))),
    )
)
def test_singles_are_printed_as_the_double_that_they_equal(number: float) -> None:
    (text,) = texts(pa.array([number], pa.float32()))
    assert struct.pack("<d", float(text)) == struct.pack("<d", number)
    assert set(text) & set(".e")
    assert Decimal(text).normalize() == Decimal(repr(number)).normalize()


def test_numbers_that_json_does_not_have() -> None:
    special = [math.nan, math.inf, -math.inf, None, 1.5]
    for kind in (pa.float64(), pa.float32(), pa.float16()):
        assert texts(pa.array(special, kind)) == ['"NaN"', '"Infinity"', '"-Infinity"', "null", "1.5"]
        assert texts(pa.array(special[:3], kind)) == ['"NaN"', '"Infinity"', '"-Infinity"']


@pytest.mark.parametrize(
    ("number", "precision", "scale", "text"),
    [
        ("1.20", 10, 2, "1.20"),
        ("0", 38, 10, "0.0000000000"),
        ("1E-10", 38, 10, "0.0000000001"),
        ("-1E-38", 38, 38, "-0." + "0" * 37 + "1"),
        ("0", 38, 38, "0." + "0" * 38),
        ("-0.05", 4, 2, "-0.05"),
        ("-12.34", 38, 2, "-12.34"),
        ("9" * 38, 38, 0, "9" * 38),
        ("-" + "9" * 28 + "." + "9" * 10, 38, 10, "-" + "9" * 28 + "." + "9" * 10),
        ("1200", 6, -2, "1200"),
        ("0", 6, -2, "0"),
    ],
)
def test_decimals_are_plain(number: str, precision: int, scale: int, text: str) -> None:
    array = pa.array([Decimal(number), None], pa.decimal128(precision, scale))
    assert texts(array) == [f'"{text}"', "null"]


def test_times_of_any_year_are_iso_8601() -> None:
    """Years that four digits do not hold have a sign and more digits, which JavaScript and Java parse."""
    day = 86_400 * 10**6
    moments = [-62_135_596_800_000_001, 253_402_300_800_000_000, -719_529 * day, 2**63 - 1, -(2**63), 0]
    expected = [
        *("0000-12-31T23:59:59.999999", "+010000-01-01T00:00:00.000000", "-000001-12-31T00:00:00.000000"),
        *("+294247-01-10T04:00:54.775807", "-290308-12-21T19:59:05.224192", "1970-01-01T00:00:00.000000"),
    ]
    assert texts(pa.array(moments, pa.timestamp("us"))) == [f'"{text}"' for text in expected]
    assert texts(pa.array(moments, pa.timestamp("us", "UTC"))) == [f'"{text}Z"' for text in expected]
    days = pa.array([2**31 - 1, -(2**31), 0, None], pa.int32()).view(pa.date32())
    assert texts(days) == ['"+5881580-07-11"', '"-5877641-06-23"', '"1970-01-01"', "null"]


def test_the_calendar_beyond_arrow_agrees_with_the_one_within() -> None:
    days = np.arange(-719_528, 2_932_896, 97, dtype=np.int32)
    outlier = np.int32(2**31 - 1)
    within = texts(pa.array(days).view(pa.date32()))
    assert texts(pa.array(np.append(days, outlier)).view(pa.date32()))[:-1] == within


def test_zones_are_for_display_only_and_nanoseconds_are_cut_off() -> None:
    moment = pa.array([-1, 1_767_225_600_123_456_789], pa.timestamp("ns", "America/New_York"))
    assert texts(moment) == ['"1969-12-31T23:59:59.999999Z"', '"2026-01-01T00:00:00.123456Z"']


def test_a_time_out_of_range_is_an_error() -> None:
    with pytest.raises(DataError, match="column v: a time is out of range"):
        texts(pa.array([2**62], pa.timestamp("ms")))


def test_constant_columns_in_every_form() -> None:
    forms = {
        "version": pa.array([7] * 5),
        "at": pa.array([1_767_225_600_001] * 5, pa.timestamp("ms", "UTC")),
        "kind": pa.DictionaryArray.from_arrays(pa.array([1] * 5, pa.int8()), pa.array(["a", 'b"'])),
        "part": pa.array(['x"y'] * 5),
        "runs": pc.run_end_encode(pa.array([1.5] * 5)),
        "nothing": pa.nulls(5, pa.int32()),
        "none": pa.DictionaryArray.from_arrays(pa.array([0] * 5, pa.int8()), pa.array([None], pa.string())),
        "price": pa.array([Decimal("1.20")] * 5, pa.decimal128(9, 2)),
        "changing": pa.array([1, 2, 3, 4, 10**6]),
    }
    batch = pa.record_batch(forms)
    assert [row.as_py().decode() for row in rows(batch)] == row_texts(batch)
    same = batch.slice(0, 1)
    assert [row.as_py().decode() for row in rows(same)] == row_texts(same)
    fixed = batch.select(batch.schema.names[:-1])
    assert [row.as_py().decode() for row in rows(fixed)] == row_texts(fixed)


@given(st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", '"'])), min_size=1, max_size=20), st.data())
def test_encoded_columns_are_their_values(listed: list[str | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(listed) - 1))
    expected = [json.dumps(value) for value in listed[start:]]
    plain = pa.array(listed, pa.string())
    with_null_value = pa.DictionaryArray.from_arrays(
        pa.array([["a", "b", '"', None].index(value) for value in listed]), pa.array(["a", "b", '"', None])
    )
    for array in (plain.dictionary_encode(), pc.run_end_encode(plain), with_null_value):
        assert texts(array.slice(start)) == expected


def test_maps_are_objects_where_keys_have_a_text() -> None:
    def text(key: pa.DataType, *keys: Any) -> str:
        return texts(pa.array([[(key, 1) for key in keys]], pa.map_(key, pa.int64())))[0]

    assert text(pa.int32(), 1, -2) == '{"1":1,"-2":1}'
    assert text(pa.float64(), 0.0, math.nan) == '{"0.0":1,"NaN":1}'
    assert text(pa.bool_(), True) == '{"true":1}'
    assert text(pa.string(), 'a"\n') == '{"a\\"\\n":1}'
    assert text(pa.decimal128(5, 2), Decimal("1.2")) == '{"1.20":1}'
    assert text(pa.date32(), dt.date(2026, 1, 1)) == '{"2026-01-01":1}'
    assert text(pa.binary(), b"\xff") == '[["/w==",1]]'
    assert text(pa.list_(pa.int8()), [1, 2]) == "[[[1,2],1]]"
    assert text(pa.dictionary(pa.int8(), pa.string()), "k") == '{"k":1}'


def test_longs_as_strings() -> None:
    big = 2**63 - 1
    batch = pa.record_batch(
        {"a": [big, None], "b": pa.array([1, 2], pa.int32()), "c": [[big], []], "d": pa.array([7, 7], pa.uint64())}
    )
    actual = rows(batch, longs_as_strings=True).to_pylist()
    assert actual == [
        b'{"a":"9223372036854775807","b":1,"c":["9223372036854775807"],"d":"7"}',
        b'{"a":null,"b":2,"c":[],"d":"7"}',
    ]


def test_json_documents_go_through_but_for_line_breaks() -> None:
    array = pa.array(['{"a":\n1}', None, '["\\n"]', "\r\n2"], pa.json_())
    assert texts(array) == ['{"a": 1}', "null", '["\\n"]', "  2"]
    assert texts(array.slice(2)) == ['["\\n"]', "  2"]
    assert texts(pa.array([b"0123456789abcdef"], pa.uuid())) == ['"MDEyMzQ1Njc4OWFiY2RlZg=="']


def test_what_lies_beneath_nulls_does_not_show() -> None:
    hidden = pa.array([1, 2, 3])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), hidden, mask=pa.array([False, True, False]))
    assert texts(lists) == ["[1]", "null", "[3]"]
    structs = pa.StructArray.from_arrays([hidden], ["x"], mask=pa.array([True, False, False]))
    assert texts(structs) == ["null", '{"x":2}', '{"x":3}']
    fixed = pa.FixedSizeListArray.from_arrays(hidden, 1, mask=pa.array([False, True, False]))
    assert texts(fixed) == ["[1]", "null", "[3]"]
    maps = pa.MapArray.from_arrays(pa.array([0, 1, None, 3], pa.int32()), pa.array(["a", "b", "c"]), hidden)
    assert texts(maps) == [json_text(value, maps.type) for value in maps.to_pylist()]


def test_shapes_without_rows_or_columns() -> None:
    empty = pa.record_batch({"a": pa.array([], pa.string()), "b": pa.array([], pa.list_(pa.int8()))})
    assert rows(empty).to_pylist() == []
    assert rows(empty).type == pa.large_binary()
    assert LineEncoder()(empty).to_pybytes() == b""
    bare = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert rows(bare).to_pylist() == [b"{}", b"{}"]
    assert LineEncoder()(bare).to_pybytes() == b"{}\n{}\n"


def test_a_batch_of_many_rows_is_put_together_in_order() -> None:
    count = 3 * 65_536 + 5
    batch = pa.record_batch({"n": pa.array(np.arange(count)), "s": pa.array(np.arange(count)).cast(pa.string())}).slice(
        2
    )
    expected = [f'{{"n":{n},"s":"{n}"}}' for n in range(2, count)]
    assert LineEncoder()(batch).to_pybytes().decode().splitlines() == expected
    assert rows(batch).cast(pa.large_string()).to_pylist() == expected


@pytest.mark.parametrize("kind", [pa.duration("s"), pa.list_(pa.duration("s")), pa.map_(pa.string(), pa.duration("s"))])
def test_types_without_a_form_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedError, match=r"column span: values of the type duration\[s\] have no JSON form"):
        LineEncoder()(pa.record_batch([pa.nulls(1, kind)], names=["span"]))


@pytest.mark.parametrize("codes", [[0, 1], [1, 1]])
def test_null_keys_are_an_error(codes: list[int]) -> None:
    # Arrow itself refuses them, but does not look into dictionaries.
    keys = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(["a", None]))
    with pytest.raises(DataError, match="column v: a map has a null key"):
        texts(pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), keys, pa.array([1, 2])))
