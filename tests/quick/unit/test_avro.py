import datetime as dt
import io
import json
import re
import struct
from decimal import Decimal, localcontext
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import types

from cdfd.encode.avro.format import avro_format
from cdfd.encode.cells.binary import varints
from cdfd.encode.cells.pieces import Form, join
from cdfd.encode.encoding import EncodedRows
from cdfd.encode.formats import EncoderOptions, FormatChoice, encoding_of, keys_of
from cdfd.encode.kinds import Modes
from cdfd.encode.records import Origin
from cdfd.errors import DataError, UnsupportedError
from cdfd.model.columns import CHANGE_COLUMNS, constant_type
from tests.support.schemas import AVRO, BatchEncoder, Catalog
from tests.support.typed_values import arrays, comparable, integers, values

ORIGIN = Origin("shop", "orders", "table-id", "shop")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def read(encoder: BatchEncoder, batch: pa.RecordBatch) -> list[Any]:
    """The values that fastavro decodes. It must consume every byte of each row."""
    schema = fastavro.parse_schema(json.loads(encoder.schema))
    values = encoder.rows(batch)
    values.validate(full=True)
    assert len(values) == batch.num_rows
    parsed = []
    for value in values.to_pylist():
        stream = io.BytesIO(value)
        parsed.append(fastavro.schemaless_reader(stream, schema))
        assert stream.tell() == len(value)
    return parsed


def encoder_of(batch: pa.RecordBatch) -> BatchEncoder:
    return BatchEncoder(AVRO, batch.schema)


def column(array: pa.Array) -> list[Any]:
    """The values of one column, there and back."""
    batch = pa.record_batch([array], names=["v"])
    return [row["v"] for row in read(encoder_of(batch), batch)]


# The oracle: what fastavro has for a value of Python's, as Arrow gives it


def expected(value: Any, kind: pa.DataType) -> Any:
    if types.is_dictionary(kind):
        return expected(value, kind.value_type)
    if value is None:
        return None
    if types.is_floating(kind):
        return struct.pack("<d", value)
    if types.is_struct(kind):
        return {field.name: expected(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        pairs = [(expected(key, kind.key_type), expected(item, kind.item_type)) for key, item in value]
        if any(is_text(kind.key_type) for is_text in (types.is_string, types.is_large_string)):
            return dict(pairs)
        return [{"key": key, "value": item} for key, item in pairs]
    if types.is_nested(kind):
        return [expected(item, kind.value_type) for item in value]
    return value


@settings(max_examples=200, deadline=None)
@given(st.lists(arrays(), min_size=1, max_size=3))
def test_fastavro_reads_every_row(columns: list[pa.Array]) -> None:
    count = min(len(column) for column in columns)
    names = [f"c{number}" for number in range(len(columns))]
    batch = pa.record_batch([column.slice(0, count) for column in columns], names=names)
    actual = read(encoder_of(batch), batch)
    listed = {name: batch.column(name).to_pylist() for name in names}
    assert [comparable(row) for row in actual] == [
        {name: expected(listed[name][row], batch.schema.field(name).type) for name in names} for row in range(count)
    ]


@settings(deadline=None)
@given(st.data(), st.sampled_from([pa.int64(), pa.string(), pa.list_(pa.int32()), pa.map_(pa.string(), pa.date32())]))
def test_bytes_are_those_that_fastavro_writes(data: st.DataObject, kind: pa.DataType) -> None:
    batch = pa.record_batch({"v": pa.array(data.draw(st.lists(values(kind), min_size=1)), kind)})
    encoder = encoder_of(batch)
    schema = fastavro.parse_schema(json.loads(encoder.schema))
    for value, row in zip(encoder.rows(batch).to_pylist(), batch.to_pylist(), strict=True):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"v": expected(row["v"], kind)})
        assert value == out.getvalue()


@given(st.lists(integers(64), min_size=1, max_size=50), st.sampled_from([np.int64, np.int32]))
def test_varints_are_zigzag_and_base_128(numbers: list[int], dtype: type) -> None:
    array = np.array(numbers, np.int64).astype(dtype)
    texts = join([b"", b""], [varints(array, Form.ZIGZAG)], len(array)).to_pylist()
    for number, actual in zip(array.tolist(), texts, strict=True):
        left, text = (number << 1) ^ (number >> 63), bytearray()
        while left > 0x7F:
            text.append(left & 0x7F | 0x80)
            left >>= 7
        assert actual == bytes([*text, left])


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1))
def test_decimals_have_as_few_bytes_as_java_gives_them(numbers: list[int]) -> None:
    with localcontext(prec=60):
        array = pa.array([Decimal(number) for number in numbers], pa.decimal128(38, 0))
    batch = pa.record_batch([array], names=["v"])
    for number, value in zip(numbers, encoder_of(batch).rows(batch).to_pylist(), strict=True):
        # `BigInteger.toByteArray`: the sign needs a bit of its own.
        bits = (number if number >= 0 else ~number).bit_length() + 1
        text = number.to_bytes(-(-bits // 8), "big", signed=True)
        assert value == b"\x02" + bytes([2 * len(text)]) + text


def test_many_rows_are_as_few() -> None:
    numbers = [None if n % 7 == 0 else n for n in range(40_000)]
    batch = pa.record_batch({"n": pa.array(numbers), "t": pa.array([None if n is None else str(n) for n in numbers])})
    assert read(encoder_of(batch), batch.slice(3)) == batch.slice(3).to_pylist()


def test_table_of_a_thousand_columns_is_encoded() -> None:
    batch = pa.record_batch({f"c{number}": pa.array(range(500)) for number in range(1000)})
    assert read(encoder_of(batch), batch.slice(200, 3)) == batch.slice(200, 3).to_pylist()


def test_run_end_encoded_columns() -> None:
    array = pa.RunEndEncodedArray.from_arrays([2, 5, 6], pa.array(["a", None, "c"]))
    assert column(array) == ["a", "a", None, None, None, "c"]
    assert column(array.slice(1, 3)) == ["a", None, None]


def test_json_is_text() -> None:
    documents = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a":1}', None, "[]"]))
    assert column(documents) == ['{"a":1}', None, "[]"]
    assert column(pa.ListArray.from_arrays([0, 2, 3], documents)) == [['{"a":1}', None], ["[]"]]


def test_dictionaries_with_nulls_of_both_kinds() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0] * 3), pa.array(["a", None]))
    assert column(array) == ["a", None, None, "a"] * 3
    long = pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), pa.array(["x" * 100, "y"]))
    assert column(long) == ["y", None, "x" * 100]


def test_what_lies_beneath_a_null_is_not_told() -> None:
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array(["a", "secret", "c"]).buffers())
    masked = pa.StructArray.from_arrays([texts], ["s"], mask=pa.array([False, True, False]))
    validity = pa.py_buffer(b"\x05")
    beneath = pa.Array.from_buffers(pa.string(), 3, [validity, *texts.buffers()[1:]])
    assert column(masked) == [{"s": "a"}, None, {"s": "c"}]
    assert column(beneath) == ["a", None, "c"]


def test_times_beyond_what_a_datetime_holds() -> None:
    array = pa.array([2**63 - 1, -(2**63)], pa.timestamp("us", "UTC"))
    batch = pa.record_batch([array], names=["v"])
    assert [value[1:] for value in encoder_of(batch).rows(batch).to_pylist()] == [
        b"\xfe" + b"\xff" * 8 + b"\x01",
        b"\xff" * 9 + b"\x01",
    ]
    assert column(pa.array([1_999, -1], pa.timestamp("ns", "UTC"))) == [
        EPOCH + dt.timedelta(microseconds=1),
        EPOCH - dt.timedelta(microseconds=1),
    ]
    with pytest.raises(DataError, match="column v: a time is out of range"):
        column(pa.array([2**62], pa.timestamp("s")))


def test_times_as_text() -> None:
    times = pa.array([0, None, 1_999], pa.timestamp("us"))
    batch = pa.record_batch(
        [times, times.cast(pa.timestamp("us", "UTC")), times.cast(pa.date32(), safe=False)], names=["n", "z", "d"]
    )
    encoder = BatchEncoder(lambda shape: avro_format(shape, Modes(time="iso")), batch.schema)
    assert read(encoder, batch) == [
        {"n": "1970-01-01T00:00:00.000000", "z": "1970-01-01T00:00:00.000000Z", "d": "1970-01-01"},
        {"n": None, "z": None, "d": None},
        {"n": "1970-01-01T00:00:00.001999", "z": "1970-01-01T00:00:00.001999Z", "d": "1970-01-01"},
    ]


def test_decimals_as_doubles_are_the_nearest_ones() -> None:
    """57 times 0.01 is 0.5700000000000001."""
    texts = ["0.57", "-0.07", "1.10", "99999999.99", None]
    decimals = [None if text is None else Decimal(text) for text in texts]
    batch = pa.record_batch([pa.array(decimals, pa.decimal128(10, 2))], names=["v"])
    encoder = BatchEncoder(lambda shape: avro_format(shape, Modes(decimal="double")), batch.schema)
    assert [row["v"] for row in read(encoder, batch)] == [None if text is None else float(text) for text in texts]


# Errors


def test_invalid_utf8_is_an_error_that_names_the_column() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"a\xff\xfe")]
    )
    with pytest.raises(DataError, match="column v: a string is not valid UTF-8"):
        column(broken)
    assert column(broken.slice(0, 1)) == ["a"]


@pytest.mark.parametrize("kind", [pa.uint64(), pa.time64("us"), pa.duration("s"), pa.decimal128(5, -2)])
def test_types_that_avro_does_not_have(kind: pa.DataType) -> None:
    for outer in (kind, pa.list_(kind), pa.struct([("x", kind)]), pa.map_(pa.int32(), kind)):
        with pytest.raises(UnsupportedError, match=r"column v: values of the type .* have no form"):
            BatchEncoder(AVRO, pa.schema([("v", outer)]), "shop.Value")


def test_a_null_in_a_change_column() -> None:
    columns = [constant_type("insert", 1), pa.array([None], pa.int64()), pa.array([0], pa.timestamp("ms", "UTC"))]
    batch = pa.record_batch([*columns, pa.array([0])], names=[field.name for field in CHANGE_COLUMNS])
    with pytest.raises(DataError, match="column _commit_version: it has a null"):
        encoder_of(batch).rows(batch)


# Schemas


def test_schema_of_each_type_is_that_of_avro() -> None:
    address = pa.struct([("city", pa.string()), ("at", pa.struct([("lat", pa.float64())]))])
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("amount", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("read", pa.timestamp("us")),
            ("address", address),
            ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
            ("counts", pa.map_(pa.string(), pa.int32())),
            ("by_day", pa.map_(pa.date32(), pa.int16())),
            *CHANGE_COLUMNS,
        ]
    )
    date = {"type": "int", "logicalType": "date"}
    micros = {"connect.name": "io.debezium.time.MicroTimestamp"}
    moment = {"type": "long", "logicalType": "timestamp-micros", **micros}
    where = record("Value_address_at", lat=["null", "double"])
    types_of = {
        "id": ["null", "long"],
        "amount": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
        "day": ["null", date],
        "at": ["null", moment],
        "read": ["null", {"type": "long", "logicalType": "local-timestamp-micros", **micros}],
        "address": ["null", record("Value_address", city=["null", "string"], at=["null", where])],
        "lines": ["null", {"type": "array", "items": ["null", record("Value_lines_element", sku=["null", "string"])]}],
        "counts": ["null", {"type": "map", "values": ["null", "int"]}],
        "by_day": [
            "null",
            {"type": "array", "items": record("Value_by_day_entry", key=date, value=["null", "int"])},
        ],
        "_change_type": "string",
        "_commit_version": "long",
        "_commit_timestamp": moment,
        "_change_ordinal": "long",
    }
    encoder = BatchEncoder(AVRO, schema, "shop.order-lines.Value")
    assert json.loads(encoder.schema) == record("Value", **types_of) | {
        "namespace": "shop.order_lines",
        "connect.name": "shop.order-lines.Value",
    }
    assert BatchEncoder(AVRO, schema, "shop.order-lines.Value").schema == encoder.schema


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
            for field, kind in fields.items()
        ],
    }


def test_names_that_avro_does_not_allow() -> None:
    inner = pa.struct([("x y", pa.int32())])
    names = ["größe", "gr__e", "2x", "", "a b", "a-b", "ok", "a_b"]
    batch = pa.record_batch([pa.array([{"x y": number}], inner) for number in range(len(names))], names=names)
    encoder = BatchEncoder(AVRO, batch.schema, "1.shop.a-b.Value")
    document = json.loads(encoder.schema)
    fields = document["fields"]
    assert document["namespace"] == "_1.shop.a_b"
    assert [field["name"] for field in fields] == ["gr__e", "gr__e_2", "_2x", "_", "a_b", "a_b_2", "ok", "a_b_3"]
    assert [field.get("doc", field["name"]) for field in fields] == names
    (row,) = read(encoder, batch)
    assert list(row.values()) == [{"x_y": number} for number in range(len(names))]


@given(st.lists(st.text(max_size=5), min_size=1, max_size=6))
def test_any_names_make_a_schema(names: list[str]) -> None:
    schema = pa.schema([(name, pa.struct([(name, pa.struct([("x", pa.int32())]))])) for name in names])
    document = json.loads(BatchEncoder(AVRO, schema, f"{names[0]}.Value").schema)
    fastavro.parse_schema(document)
    assert all(re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", field["name"]) for field in document["fields"])


def test_old_and_new_schemas_read_each_other() -> None:
    old = pa.record_batch({"id": pa.array([1, 2], pa.int32()), "gone": pa.array(["a", None])})
    new = pa.record_batch({"id": pa.array([3], pa.int64()), "more": pa.array([[1.5, None]])})
    documents = [fastavro.parse_schema(json.loads(encoder_of(batch).schema)) for batch in (old, new)]
    (first, _), (second,) = (encoder_of(batch).rows(batch).to_pylist() for batch in (old, new))
    assert fastavro.schemaless_reader(io.BytesIO(first), *documents) == {"id": 1, "more": None}
    narrowed = encoder_of(new.set_column(0, "id", pa.array([3], pa.int32())))
    writer = fastavro.parse_schema(json.loads(narrowed.schema))
    assert fastavro.schemaless_reader(io.BytesIO(second), writer, documents[0]) == {"id": 3, "gone": None}


def test_names_that_become_equal_stay_with_their_columns() -> None:
    """A consumer that reads the field `a_b` would get the values of another column."""
    known = Catalog()
    options = EncoderOptions(ORIGIN, registration=known.registration)

    def register(*columns: str) -> dict[str, tuple[str, str]]:
        schema = pa.schema([(name, pa.struct([(name, pa.int32())])) for name in columns])
        rows = EncodedRows(encoding_of(FormatChoice("flat", "avro"), options, "value"), "shop.Value")
        (text,) = rows(pa.RecordBatch.from_pylist([{}], schema)).to_pylist()
        document = json.loads(known.schema(int.from_bytes(text[1:5], "big")))
        fastavro.parse_schema(document)
        return {each.get("doc", each["name"]): (each["name"], each["type"][1]["name"]) for each in document["fields"]}

    dashed, plain, spaced = ("a_b", "Value_a_b"), ("a_b_2", "Value_a_b_2"), ("a_b_3", "Value_a_b_3")
    assert register("a-b", "a_b") == {"a-b": dashed, "a_b": plain}
    assert register("a_b", "a-b") == {"a_b": plain, "a-b": dashed}
    assert register("a b", "a-b") == {"a b": spaced, "a-b": dashed}
    assert register("a b") == {"a b": spaced}
    assert register("a-b") == {"a-b": dashed}


@pytest.mark.parametrize(
    "earlier",
    [
        "no JSON",
        "3",
        "[" * 100_000,
        '{"type":"array","items":' * 700 + "3" + "}" * 700,
        '{"type":"record","fields":[3,{"name":"v"}]}',
        '["null",{"type":{}}]',
    ],
)
def test_earlier_schemas_of_others_have_no_names(earlier: str) -> None:
    schema = pa.schema([("größe", pa.int64())])
    expected = BatchEncoder(AVRO, schema).schema
    assert BatchEncoder(lambda shape: AVRO(shape, earlier=[earlier]), schema).schema == expected


def test_a_description_of_a_field_is_no_name() -> None:
    schema = pa.schema([("größe", pa.int64()), ("id", pa.int64())])
    own = BatchEncoder(AVRO, schema).schema
    described = own.replace('"name":"id",', '"name":"id","doc":"Number of the order",')
    assert described != own
    assert BatchEncoder(lambda shape: AVRO(shape, earlier=[described]), schema).schema == own


# Framing


def test_values_and_keys_are_framed_with_the_ids_of_their_schemas() -> None:
    known = Catalog(first=0x01020304)
    batch = pa.record_batch(
        [pa.array([5]), pa.array(["a"]), constant_type("insert", 1), *(pa.array([0]) for _ in range(3))],
        schema=pa.schema([("id", pa.int64()), ("note", pa.string()), *CHANGE_COLUMNS[:1], *_longs(CHANGE_COLUMNS[1:])]),
    )
    choice, options = FormatChoice("flat", "avro"), EncoderOptions(ORIGIN, ("note",), registration=known.registration)
    value = EncodedRows(encoding_of(choice, options, "value"), "shop.Value")(batch)
    keys = keys_of(choice, options)
    assert keys is not None
    assert value.to_pylist() == [b"\0\1\2\3\4\2\x0a\2\2a\x0cinsert\0\0\0"]
    assert keys(batch).to_pylist() == [b"\0\1\2\3\5\2\2a"]
    (subject, _), (key_subject, key) = known.subjects
    assert (subject, key_subject) == ("shop-value", "shop-key")
    assert [field["name"] for field in json.loads(key)["fields"]] == ["note"]
    assert json.loads(key)["name"] == "Key"


def _longs(fields: Any) -> list[pa.Field]:
    return [pa.field(field.name, pa.int64(), nullable=False) for field in fields]
