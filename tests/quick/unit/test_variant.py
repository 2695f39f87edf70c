"""Variants: every type of the encoding, whole and shredded, and bytes that are no variant."""

import base64
import decimal
import io
import json
import struct
import tracemalloc
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdfd.errors import DataError
from cdfd.scan import variant, variant_text
from cdfd.scan.variant import to_json

# A writer of the encoding, as small as it can be; widths can be made larger than they have to be.


def metadata(names: Sequence[str | bytes] = (), width: int = 1, version: int = 1) -> bytes:
    encoded = [name.encode() if isinstance(name, str) else name for name in names]
    offsets = [sum(map(len, encoded[:end])) for end in range(len(encoded) + 1)]
    numbers = b"".join(number.to_bytes(width, "little") for number in (len(encoded), *offsets))
    return bytes([version | (width - 1) << 6]) + numbers + b"".join(encoded)


def primitive(kind: int, content: bytes = b"") -> bytes:
    return bytes([kind << 2]) + content


def short(text: str) -> bytes:
    return bytes([len(text.encode()) << 2 | 1]) + text.encode()


def long(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return primitive(16, struct.pack("<I", len(encoded)) + encoded)


def array(values: Sequence[bytes], width: int = 1, large: bool = False) -> bytes:
    offsets = [sum(map(len, values[:end])) for end in range(len(values) + 1)]
    header = bytes([(large << 2 | (width - 1)) << 2 | 3]) + len(values).to_bytes(4 if large else 1, "little")
    return header + b"".join(offset.to_bytes(width, "little") for offset in offsets) + b"".join(values)


def obj(
    fields: Sequence[tuple[int, bytes]], width: int = 1, id_width: int = 1, large: bool = False, backwards: bool = False
) -> bytes:
    stored = list(reversed(fields)) if backwards else list(fields)
    place, places = 0, {}
    for number, value in stored:
        places[number] = place
        place += len(value)
    header = bytes([(large << 4 | (id_width - 1) << 2 | (width - 1)) << 2 | 2])
    header += len(fields).to_bytes(4 if large else 1, "little")
    ids = b"".join(number.to_bytes(id_width, "little") for number, _ in fields)
    offsets = b"".join(offset.to_bytes(width, "little") for offset in (*(places[n] for n, _ in fields), place))
    return header + ids + offsets + b"".join(value for _, value in stored)


def encode(value: Any) -> tuple[bytes, bytes]:
    """Metadata and value of what `json.loads` gives."""
    names: set[str] = set()

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            names.update(part)
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            collect(inner)

    collect(value)
    ids = {name: number for number, name in enumerate(sorted(names))}

    def write(part: Any) -> bytes:
        if isinstance(part, dict):
            fields = sorted((ids[name], write(inner)) for name, inner in part.items())
            return obj(fields, width=4, id_width=2, large=True, backwards=True)
        if isinstance(part, list):
            return array([write(inner) for inner in part], width=4, large=True)
        if part is None or isinstance(part, bool):
            return primitive({None: 0, True: 1, False: 2}[part])
        if isinstance(part, int):
            return primitive(6, struct.pack("<q", part))
        if isinstance(part, float):
            return primitive(7, struct.pack("<d", part))
        return long(part)

    return metadata(sorted(names), width=3), write(value)


def text(value: bytes, names: bytes | None = None) -> str:
    rows = [{"metadata": metadata() if names is None else names, "value": value}]
    result = to_json(pa.array(rows, pa.struct([("metadata", pa.binary()), ("value", pa.binary())])))
    assert result.type == pa.string()
    return str(result[0].as_py())


NULL, TRUE, FALSE = primitive(0), primitive(1), primitive(2)
TIME = '"2024-10-24T18:21:54.114937Z"'
TICKS = 1729794114114937


# Every type


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NULL, "null"),
        (TRUE, "true"),
        (FALSE, "false"),
        (primitive(3, struct.pack("<b", -128)), "-128"),
        (primitive(4, struct.pack("<h", -32768)), "-32768"),
        (primitive(5, struct.pack("<i", 2**31 - 1)), "2147483647"),
        (primitive(6, struct.pack("<q", -(2**63))), "-9223372036854775808"),
        (primitive(7, struct.pack("<d", 0.1)), "0.1"),
        (primitive(7, struct.pack("<d", 1e300)), "1e+300"),
        (primitive(7, struct.pack("<d", float("nan"))), '"NaN"'),
        (primitive(7, struct.pack("<d", float("inf"))), '"Infinity"'),
        (primitive(7, struct.pack("<d", float("-inf"))), '"-Infinity"'),
        (primitive(8, b"\x02" + struct.pack("<i", 1234)), "12.34"),
        (primitive(8, b"\x02" + struct.pack("<i", 1200)), "12"),
        (primitive(8, b"\x05" + struct.pack("<i", -120)), "-0.0012"),
        (primitive(8, b"\x00" + struct.pack("<i", 0)), "0"),
        (primitive(9, b"\x09" + struct.pack("<q", 10**17 + 1)), "100000000.000000001"),
        (primitive(10, b"\x26" + (-(10**38 - 1)).to_bytes(16, "little", signed=True)), "-0." + "9" * 38),
        (primitive(10, b"\x00" + (10**38 - 1).to_bytes(16, "little", signed=True)), "9" * 38),
        (primitive(11, struct.pack("<i", 0)), '"1970-01-01"'),
        (primitive(11, struct.pack("<i", -719468)), '"0000-03-01"'),
        (primitive(11, struct.pack("<i", -719529)), '"-000001-12-31"'),
        (primitive(11, struct.pack("<i", 2932897)), '"+010000-01-01"'),
        (primitive(11, struct.pack("<i", 11016)), '"2000-02-29"'),
        (primitive(11, struct.pack("<i", -(2**31))), '"-5877641-06-23"'),
        (primitive(12, struct.pack("<q", 1767225600123456)), '"2026-01-01T00:00:00.123456Z"'),
        (primitive(12, struct.pack("<q", -1)), '"1969-12-31T23:59:59.999999Z"'),
        (primitive(13, struct.pack("<q", 1767225600000000)), '"2026-01-01T00:00:00.000000"'),
        (primitive(13, struct.pack("<q", 2**63 - 1)), '"+294247-01-10T04:00:54.775807"'),
        (primitive(14, struct.pack("<f", 0.1)), "0.1"),
        (primitive(14, struct.pack("<f", float("-inf"))), '"-Infinity"'),
        (primitive(15, struct.pack("<I", 3) + b"\x00\xff\x10"), '"AP8Q"'),
        (primitive(16, struct.pack("<I", 4) + 'ö"'.encode() + b"\n"), '"ö\\"\\n"'),
        (primitive(17, struct.pack("<q", 45234123456)), '"12:33:54.123456"'),
        (primitive(18, struct.pack("<q", 1767225600123456789)), '"2026-01-01T00:00:00.123456789Z"'),
        (primitive(19, struct.pack("<q", -1)), '"1969-12-31T23:59:59.999999999"'),
        (primitive(20, uuid.UUID(int=1).bytes), '"00000000-0000-0000-0000-000000000001"'),
        (short(""), '""'),
        (short("x" * 63), f'"{"x" * 63}"'),
        (array([]), "[]"),
        (array([NULL, array([TRUE]), short("a")]), '[null,[true],"a"]'),
        (obj([]), "{}"),
    ],
)
def test_each_type_has_its_json(value: bytes, expected: str) -> None:
    assert text(value) == expected
    json.loads(expected)
    assert text(value + b"behind it") == expected


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("large", [False, True])
def test_offsets_of_each_width_are_read(width: int, large: bool) -> None:
    names = metadata(["a", "ö", "zz"], width=width)
    value = obj([(0, TRUE), (1, array([NULL] * 3, width, large)), (2, short("x"))], width, width, large)
    assert text(value, names) == '{"a":true,"ö":[null,null,null],"zz":"x"}'


def test_values_of_an_object_may_be_stored_in_any_order() -> None:
    value = obj([(0, short("first")), (1, short("second"))], backwards=True)
    assert text(value, metadata(["a", "b"])) == '{"a":"first","b":"second"}'


def test_a_hole_between_values() -> None:
    value = bytes([2, 1, 0, 3, 4]) + b"\xff\xff\xff" + NULL
    assert text(value, metadata(["a"])) == '{"a":null}'


def test_names_are_escaped() -> None:
    assert text(obj([(0, NULL)]), metadata(['"\n\x00'])) == '{"\\"\\n\\u0000":null}'


def test_as_deep_as_allowed() -> None:
    value = NULL
    for _ in range(variant_text.MAX_DEPTH):
        value = array([value], width=4)
    assert json.loads(text(value))
    with pytest.raises(DataError, match="nested deeper"):
        text(array([value], width=4))


def test_a_column_read_from_parquet() -> None:
    kind = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    names, value = encode({"a": [1, 2.5, None]})
    stream = io.BytesIO()
    pq.write_table(pa.table({"v": pa.array([{"metadata": names, "value": value}, None], kind)}), stream)
    column = pq.read_table(stream)["v"].combine_chunks()
    assert to_json(column).to_pylist() == ['{"a":[1,2.5,null]}', None]


# Columns


WHOLE = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])


def whole(values: Sequence[Any]) -> pa.Array:
    rows = [None if value is ... else dict(zip(("metadata", "value"), encode(value), strict=True)) for value in values]
    return pa.array(rows, WHOLE)


def test_null_and_the_variant_null() -> None:
    column = pa.array([None, {"metadata": metadata(), "value": NULL}, {"metadata": metadata(), "value": None}], WHOLE)
    assert to_json(column).to_pylist() == [None, "null", "null"]


def test_empty_slices_and_repetitions() -> None:
    column = whole([{"a": 1}, ..., {"b": [1]}, {"a": 1}, {"a": 2}, ...])
    expected = ['{"a":1}', None, '{"b":[1]}', '{"a":1}', '{"a":2}', None]
    for start in range(len(expected) + 1):
        for end in range(start, len(expected) + 1):
            assert to_json(column.slice(start, end - start)).to_pylist() == expected[start:end]


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view()])
def test_other_binary_types(kind: pa.DataType) -> None:
    target = pa.struct([("metadata", kind), ("value", kind)])
    rows = [{"metadata": metadata(), "value": TRUE}]
    assert to_json(pa.array(rows, target)).to_pylist() == ["true"]


def test_dictionary_columns_are_read() -> None:
    column = pa.StructArray.from_arrays(
        [pa.array([metadata()] * 3).dictionary_encode(), pa.array([TRUE, FALSE, TRUE]).dictionary_encode()],
        names=["metadata", "value"],
    )
    assert to_json(column).to_pylist() == ["true", "false", "true"]
    whole = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), column)
    assert to_json(whole).to_pylist() == ["false", None, "true"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"x"]),
        pa.array([{"value": TRUE}]),
        pa.array([{"metadata": metadata()}]),
        pa.array([{"metadata": None, "value": TRUE}], WHOLE),
        pa.array([{"metadata": "text", "value": TRUE}]),
        pa.array([{"metadata": metadata(), "value": 1}]),
        pa.StructArray.from_arrays([pa.array([b""])] * 2, names=["metadata", "metadata"]),
    ],
)
def test_columns_that_are_no_variants(column: pa.Array) -> None:
    with pytest.raises(DataError, match="malformed variant"):
        to_json(column)


# Shredded


def shredded(rows: Sequence[dict[str, Any] | None], typed: pa.DataType, names: Sequence[str] = ()) -> list[str | None]:
    kind = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", typed)])
    full = [None if row is None else {"metadata": metadata(names)} | row for row in rows]
    # Between two others and through a slice: offsets of every level have to be respected.
    column = pa.array([None, *full, {"metadata": metadata(), "value": NULL}], kind).slice(1, len(full))
    texts = list(to_json(column).to_pylist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variant, "_WINDOW_ROWS", 1)
        assert to_json(column).to_pylist() == texts
    return texts


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.bool_(), True, "true"),
        (pa.int8(), -1, "-1"),
        (pa.int16(), 300, "300"),
        (pa.int32(), 70000, "70000"),
        (pa.int64(), 2**62, "4611686018427387904"),
        (pa.float32(), 0.1, "0.1"),
        (pa.float64(), float("nan"), '"NaN"'),
        (pa.decimal128(9, 4), decimal.Decimal("-0.0100"), "-0.01"),
        (pa.decimal128(38, 9), decimal.Decimal("9876543210.123456789"), "9876543210.123456789"),
        (pa.decimal32(5, 0), decimal.Decimal(100), "100"),
        (pa.date32(), 20454, '"2026-01-01"'),
        (pa.time64("us"), 1, '"00:00:00.000001"'),
        (pa.timestamp("us", "UTC"), TICKS, TIME),
        (pa.timestamp("us"), 0, '"1970-01-01T00:00:00.000000"'),
        (pa.timestamp("ns", "UTC"), 1, '"1970-01-01T00:00:00.000000001Z"'),
        (pa.timestamp("ns"), -1, '"1969-12-31T23:59:59.999999999"'),
        (pa.binary(), b"\x00", '"AA=="'),
        (pa.large_binary(), b"\x00", '"AA=="'),
        (pa.string(), 'a"', '"a\\""'),
        (pa.large_string(), "a", '"a"'),
        (pa.binary(16), bytes(16), '"00000000-0000-0000-0000-000000000000"'),
    ],
    ids=str,
)
def test_shredded_primitive_has_its_json(kind: pa.DataType, value: Any, expected: str) -> None:
    rows = [{"typed_value": value}, {"value": short("n/a")}, {}, {"value": NULL}, None]
    assert shredded(rows, kind) == [expected, '"n/a"', "null", "null", None]


@pytest.mark.parametrize(
    "kind", [pa.uint32(), pa.binary(4), pa.float16(), pa.time32("ms"), pa.timestamp("s"), pa.date64()]
)
def test_shredded_into_types_that_no_variant_has(kind: pa.DataType) -> None:
    with pytest.raises(DataError, match="which no variant is"):
        shredded([{}], kind)


def test_shredded_uuids_of_the_extension_type() -> None:
    stored = pa.array([None, bytes(16)], pa.binary(16))
    columns = [pa.array([metadata()] * 2), pa.nulls(2, pa.binary()), pa.ExtensionArray.from_storage(pa.uuid(), stored)]
    column = pa.StructArray.from_arrays(
        columns, names=["metadata", "value", "typed_value"], mask=pa.array([True, False])
    )
    assert to_json(column).to_pylist() == [None, '"00000000-0000-0000-0000-000000000000"']


def test_shredded_array_has_its_json() -> None:
    kind = pa.list_(pa.struct([("value", pa.binary()), ("typed_value", pa.string())]))
    rows = [
        {"typed_value": [{"typed_value": "comedy"}, {"typed_value": "drama"}]},
        {"typed_value": [{"typed_value": "horror"}, {"value": NULL}, {}]},
        {"typed_value": []},
        {"value": NULL},
        None,
        {"value": array([TRUE])},
    ]
    expected = ['["comedy","drama"]', '["horror",null,null]', "[]", "null", None, "[true]"]
    assert shredded(rows, kind) == expected
    assert shredded(rows, pa.large_list(kind.value_type)) == expected


EVENT = pa.struct(
    [
        ("event_type", pa.struct([("value", pa.binary()), ("typed_value", pa.string())])),
        ("event_ts", pa.struct([("value", pa.binary()), ("typed_value", pa.timestamp("us", "UTC"))])),
    ]
)
NAMES = ["click", "email", "event_ts", "event_type"]


def test_shredded_object_has_its_json() -> None:
    """The table of "Objects" in VariantShredding.md."""
    noop, ticks, nothing = {"typed_value": "noop"}, {"typed_value": TICKS}, {"value": None}
    rows = [
        {"typed_value": {"event_type": noop, "event_ts": ticks}},
        {"value": obj([(1, short("u@e"))]), "typed_value": {"event_type": noop, "event_ts": ticks}},
        {"value": obj([(0, TRUE)]), "typed_value": {"event_type": nothing, "event_ts": nothing}},
        {"value": short("malformed: not an object")},
        {"value": obj([(0, TRUE)]), "typed_value": {"event_type": nothing, "event_ts": ticks}},
        {"typed_value": {"event_type": {"value": NULL}, "event_ts": ticks}},
        {"typed_value": {"event_type": noop, "event_ts": {"value": short("2024")}}},
        {"typed_value": {"event_type": nothing, "event_ts": nothing}},
        {"value": NULL},
        {},
        {"typed_value": {"event_type": None, "event_ts": ticks}},
    ]
    assert shredded(rows, EVENT, NAMES) == [
        f'{{"event_ts":{TIME},"event_type":"noop"}}',
        f'{{"email":"u@e","event_ts":{TIME},"event_type":"noop"}}',
        '{"click":true}',
        '"malformed: not an object"',
        f'{{"click":true,"event_ts":{TIME}}}',
        f'{{"event_ts":{TIME},"event_type":null}}',
        '{"event_ts":"2024","event_type":"noop"}',
        "{}",
        "null",
        "null",
        f'{{"event_ts":{TIME}}}',
    ]


def test_a_shredded_field_that_is_in_the_value_too_is_read_from_its_column() -> None:
    row = {"value": obj([(0, TRUE), (3, short("value"))]), "typed_value": {"event_type": {"typed_value": "column"}}}
    assert shredded([row], EVENT, NAMES) == ['{"click":true,"event_type":"column"}']


def test_shredded_in_several_levels() -> None:
    point = pa.struct([("x", pa.struct([("typed_value", pa.float64())])), ("y", pa.struct([("value", pa.binary())]))])
    kind = pa.struct([("points", pa.struct([("typed_value", pa.list_(pa.struct([("typed_value", point)])))]))])
    points = [{"typed_value": {"x": {"typed_value": 1.5}, "y": {"value": array([NULL])}}}, {"typed_value": {"x": {}}}]
    rows = [{"typed_value": {"points": {"typed_value": points}}}, {"typed_value": {"points": {}}}]
    assert shredded(rows, kind) == ['{"points":[{"x":1.5,"y":[null]},{}]}', "{}"]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"value": TRUE, "typed_value": 1}, pa.int32()),
        ({"value": TRUE, "typed_value": []}, pa.list_(pa.struct([("value", pa.binary())]))),
        ({"value": TRUE, "typed_value": {}}, EVENT),
        ({"value": b"", "typed_value": {}}, EVENT),
        ({"typed_value": [1]}, pa.list_(pa.int32())),
        ({"typed_value": {"a": 1}}, pa.struct([("a", pa.int32())])),
    ],
)
def test_shredded_values_that_contradict_each_other(row: dict[str, Any], kind: pa.DataType) -> None:
    with pytest.raises(DataError, match="malformed variant"):
        shredded([row], kind)


# Bytes that are no variant


@pytest.mark.parametrize(
    ("value", "names", "expected"),
    [
        (b"", metadata(), "an empty value"),
        (NULL, b"", "empty metadata"),
        (NULL, metadata(version=2), "version 2"),
        (NULL, b"\x01", "1 bytes where 0 are left"),
        (NULL, b"\xc1\xff\xff\xff\xff", "ends before its 4294967295 names"),
        (primitive(21), metadata(), "unknown type 21"),
        (primitive(5, b"\x00\x00"), metadata(), "4 bytes where 2 are left"),
        (primitive(16, b"\xff\xff\xff\xff"), metadata(), "4294967295 bytes where 0 are left"),
        (primitive(16, b"\x00"), metadata(), "4 bytes where 1 are left"),
        (long(b"\xff"), metadata(), "not UTF-8"),
        (bytes([1 | 5 << 2]) + b"abc", metadata(), "5 bytes where 3 are left"),
        (primitive(8, b"\x27" + bytes(4)), metadata(), "scale 39"),
        (primitive(17, struct.pack("<q", 86_400_000_000)), metadata(), "beyond the day"),
        (primitive(17, struct.pack("<q", -1)), metadata(), "beyond the day"),
        (bytes([3 | 4 << 2]) + b"\xff\xff\xff\xff", metadata(), "ends before its 4294967295 elements"),
        (bytes([2 | 16 << 2]) + b"\xff\xff\xff\xff", metadata(), "ends before its 4294967295 fields"),
        (bytes([3]), metadata(), "1 bytes where 0 are left"),
        (bytes([3, 1, 0, 9]) + NULL, metadata(), "leads out"),
        (bytes([3, 2, 0, 0, 1]) + NULL, metadata(), "overlap"),
        (bytes([3, 2, 1, 0, 2]) + NULL * 2, metadata(), "overlap"),
        (bytes([2, 2, 0, 1, 0, 0, 1]) + NULL, metadata(["a", "b"]), "overlap"),
        (bytes([2, 1, 0, 1, 1]) + NULL, metadata(["a"]), "overlap"),
        (obj([(1, NULL)]), metadata(["a"]), "name 1 of 1"),
        (obj([(0, NULL), (1, NULL)]), metadata(["a", "a"]), "two fields of one name"),
        (obj([(0, NULL)]), metadata([b"\xff"]), "not UTF-8"),
        (obj([(0, NULL)]), b"\x01\x01\x00\x09a", "name leads out"),
        (obj([(0, NULL)]), b"\x01\x01\x01\x00a", "name leads out"),
    ],
)
def test_malformed_variant_is_refused(value: bytes, names: bytes, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        text(value, names)


def test_few_bytes_cannot_stand_for_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant_text, "MAX_NAME_BYTES", 10_000)
    names, field = metadata(["x" * 100]), obj([(0, NULL)])
    assert len(text(array([field] * 90, width=2), names)) > 9_000
    with pytest.raises(DataError, match="bytes of names"):
        text(array([field] * 100, width=2), names)


def peak_of(column: pa.Array) -> int:
    """Bytes of Python objects while a column is decoded, at most."""
    tracemalloc.start()
    try:
        to_json(column)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


COUNT = 1 << 15


def test_values_of_an_array_are_not_objects_of_python() -> None:
    numbers = primitive(3, b"\x64") * COUNT
    value = b"\x1f" + struct.pack(f"<{COUNT + 2}I", COUNT, *range(0, 2 * COUNT + 1, 2)) + numbers
    column = pa.array([{"metadata": metadata(), "value": value}], WHOLE)
    assert len(text(value)) == 4 * COUNT + 1
    assert peak_of(column) < 3 * len(value)


def test_names_that_are_not_used_are_not_objects_of_python() -> None:
    names = bytes([1 | 3 << 6]) + struct.pack("<I", COUNT) + bytes(4 * COUNT + 4)
    assert peak_of(pa.array([{"metadata": names, "value": NULL}], WHOLE)) < 3 * len(names)


def test_shredded_values_are_a_few_objects_of_python() -> None:
    element = pa.StructArray.from_arrays([pa.array([100] * COUNT, pa.int8())], ["typed_value"])
    items = pa.ListArray.from_arrays(pa.array([0, COUNT], pa.int32()), element)
    columns = [pa.array([metadata()]), pa.nulls(1, pa.binary()), items]
    column = pa.StructArray.from_arrays(columns, names=["metadata", "value", "typed_value"])
    assert peak_of(column) < 2 * len(str(to_json(column)[0]))


def test_objects_of_too_many_fields_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant_text, "MAX_OPEN_FIELDS", 3)
    names, inner = metadata(["a", "b"]), obj([(0, NULL)])
    assert text(array([obj([(0, inner), (1, inner)])] * 5), names)
    with pytest.raises(DataError, match="more than 3 fields"):
        text(obj([(0, NULL), (1, obj([(0, NULL), (1, NULL)]))]), names)


def test_names_are_read_again_where_too_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant_text, "_FIELDS_KEPT", 1)
    value = array([obj([(0, NULL), (1, TRUE)]), obj([(1, NULL)]), obj([(0, NULL), (1, TRUE)])])
    assert text(value, metadata(["a", "b"])) == '[{"a":null,"b":true},{"b":null},{"a":null,"b":true}]'


def test_a_batch_whose_text_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "_MAX_TEXT_BYTES", 100)
    assert len(to_json(whole(["x" * 48, "y" * 48]))) == 2
    for values in (["x" * 49, "y" * 48], ["x" * 40] * 3):
        with pytest.raises(DataError, match="take more than 100 bytes"):
            to_json(whole(values))


# Anything at all


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=80),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(st.lists(json_values, max_size=5))
def test_what_was_encoded_comes_back(values: list[Any]) -> None:
    assert [json.loads(line) for line in to_json(whole(values)).to_pylist()] == values


@given(json_values, st.data())
def test_damaged_variants_are_errors_or_json(value: Any, data: st.DataObject) -> None:
    names, encoded = (bytearray(part) for part in encode(value))
    for part in (names, encoded):
        for _ in range(data.draw(st.integers(0, 3))):
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
        del part[data.draw(st.integers(1, len(part))) :]
    try:
        actual = text(bytes(encoded), bytes(names))
    except DataError:
        return
    json.loads(actual)


@given(st.binary(max_size=40), st.binary(max_size=60))
def test_random_bytes_are_errors_or_json(names: bytes, value: bytes) -> None:
    for head in (names, metadata(["a", "b"])):
        try:
            json.loads(text(value, head))
        except DataError:
            continue


@given(st.binary(max_size=30))
def test_binary_is_base64(content: bytes) -> None:
    actual = text(primitive(15, struct.pack("<I", len(content)) + content))
    assert base64.b64decode(json.loads(actual)) == content
