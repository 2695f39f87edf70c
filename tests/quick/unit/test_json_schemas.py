"""Records in JSON with a schema: JSON Schema, and Kafka Connect's."""

import base64
import datetime as dt
import json
import math
import struct
from decimal import Decimal
from itertools import product
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import types

from cdfd.encode.connect_json import ConnectJsonEncoding
from cdfd.encode.json_schema import json_schema_format
from cdfd.encode.kinds import Modes
from cdfd.encode.records import Records
from cdfd.errors import UnsupportedError
from tests.support.sampling import stride
from tests.support.schemas import JSON_SCHEMA, BatchEncoder, payload_of
from tests.support.typed_values import arrays

pytestmark = pytest.mark.usefixtures("kernels")

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - Arrow's type without zone
MODES = [
    Modes(*modes)
    for modes in product(("precise", "string", "double"), ("connect", "iso", "micros"), ("base64", "hex", "bytes"))
]


def batch_of(columns: list[pa.Array]) -> pa.RecordBatch:
    count = min(len(column) for column in columns)
    names = [f"c{number}" for number in range(len(columns))]
    return pa.record_batch([column.slice(0, count) for column in columns], names=names)


def has_void(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return has_void(kind.key_type) or has_void(kind.item_type)
    return types.is_null(kind) or any(has_void(kind.field(number).type) for number in range(kind.num_fields))


COLUMNS = st.lists(arrays().filter(lambda array: not has_void(array.type)), min_size=1, max_size=3)


# As JsonConverter reads it: every value has the type that the schema says


def converted(schema: dict[str, Any], value: Any) -> Any:
    """The value of Connect's type. Fails where the JSON is not what the type has."""
    if value is None:
        assert schema["optional"]
        return None
    match schema["type"]:
        case "struct":
            names = [field["field"] for field in schema["fields"]]
            assert list(value) == names
            return {field["field"]: converted(field, value[field["field"]]) for field in schema["fields"]}
        case "array":
            return [converted(schema["items"], item) for item in value]
        case "map":
            keys, items = schema["keys"], schema["values"]
            if keys["type"] == "string":
                return {converted(keys, key): converted(items, item) for key, item in value.items()}
            return [(converted(keys, key), converted(items, item)) for key, item in value]
        case "boolean":
            assert isinstance(value, bool)
            return value
        case "int8" | "int16" | "int32" | "int64":
            bits = int(schema["type"][3:])
            assert type(value) is int
            assert -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
            return value
        case "float" | "double":
            assert isinstance(value, float)
            return struct.pack("<d", value)
        case "bytes":
            data = base64.b64decode(value, validate=True)
            if schema.get("name") == "org.apache.kafka.connect.data.Decimal":
                # Exact, whatever the context: `scaleb` rounds to 28 digits.
                return Decimal(f"{int.from_bytes(data, 'big', signed=True)}e-{schema['parameters']['scale']}")
            return data
    assert schema["type"] == "string"
    assert isinstance(value, str)
    return value


def expected(value: Any, kind: pa.DataType, modes: Modes) -> Any:
    """The value that Connect has."""
    if types.is_dictionary(kind):
        return expected(value, kind.value_type, modes)
    if value is None:
        return None
    if types.is_struct(kind):
        return {field.name: expected(value[field.name], field.type, modes) for field in kind}
    if types.is_map(kind):
        pairs = [(expected(key, kind.key_type, modes), expected(item, kind.item_type, modes)) for key, item in value]
        return dict(pairs) if is_text(kind.key_type, modes) else pairs
    if types.is_nested(kind):
        return [expected(item, kind.value_type, modes) for item in value]
    if types.is_floating(kind):
        return struct.pack("<d", value) if math.isfinite(value) else None
    if types.is_decimal(kind):
        if modes.decimal == "double":
            return struct.pack("<d", float(value))
        return value if modes.decimal == "precise" else f"{value:f}"
    if types.is_date(kind):
        return value.isoformat() if modes.time == "iso" else (value - dt.date(1970, 1, 1)).days
    if types.is_timestamp(kind):
        return moment(value, modes)
    if isinstance(value, bytes) and modes.binary != "bytes":
        return value.hex() if modes.binary == "hex" else base64.b64encode(value).decode()
    return value


def moment(value: dt.datetime, modes: Modes) -> Any:
    naive = value.replace(tzinfo=None)
    if modes.time == "iso":
        return f"{naive.isoformat(timespec='microseconds')}{'Z' if value.tzinfo else ''}"
    unit = dt.timedelta(milliseconds=1) if modes.time == "connect" else dt.timedelta(microseconds=1)
    return (naive - EPOCH) // unit


def is_text(kind: pa.DataType, modes: Modes) -> bool:
    if types.is_decimal(kind):
        return modes.decimal == "string"
    if types.is_temporal(kind):
        return modes.time == "iso"
    return modes.binary != "bytes" if types.is_binary(kind) else types.is_string(kind)


def connect_documents(batch: pa.RecordBatch, modes: Modes) -> list[Any]:
    encoding = ConnectJsonEncoding(modes)
    values = encoding.values(payload_of(batch))
    values.validate(full=True)
    return [json.loads(value) for value in Records(None, values, value_wrapping=encoding.wrapping).whole_values]


@settings(max_examples=150 // stride(4), deadline=None)
@given(COLUMNS, st.sampled_from(MODES))
def test_kafka_connect_has_every_value(columns: list[pa.Array], modes: Modes) -> None:
    batch = batch_of(columns)
    documents = connect_documents(batch, modes)
    listed = {field.name: batch.column(field.name).to_pylist() for field in batch.schema}
    assert [converted(each["schema"], each["payload"]) for each in documents] == [
        {field.name: expected(listed[field.name][row], field.type, modes) for field in batch.schema}
        for row in range(len(batch))
    ]
    assert {each["schema"]["name"] for each in documents} <= {"shop.orders.Value"}


@settings(max_examples=150 // stride(4), deadline=None)
@given(COLUMNS, st.sampled_from(MODES))
def test_json_schema_has_every_value(columns: list[pa.Array], modes: Modes) -> None:
    batch = batch_of(columns)
    encoder = BatchEncoder(lambda shape: json_schema_format(shape, modes), batch.schema)
    schema = json.loads(encoder.schema)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    for value in encoder.rows(batch).to_pylist():
        validator.validate(json.loads(value))


def test_a_type_that_connect_does_not_have_names_the_column() -> None:
    for kind in (pa.null(), pa.struct([("n", pa.null())]), pa.list_(pa.struct([("n", pa.null())]))):
        with pytest.raises(UnsupportedError, match="column s: a value of type void"):
            ConnectJsonEncoding(Modes()).values(payload_of(pa.record_batch({"s": pa.nulls(1, kind)})))


def test_json_schema_refuses_a_value_of_another_type() -> None:
    encoder = BatchEncoder(JSON_SCHEMA, pa.schema([("n", pa.int16()), ("at", pa.timestamp("us", "UTC"))]))
    validator = jsonschema.Draft7Validator(json.loads(encoder.schema))
    validator.validate({"n": 5, "at": "2026-01-01T00:00:00.000000Z"})
    for wrong in ({"n": "5"}, {"n": 2**15}, {"n": 1.5}, {"at": 5}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong)


# Keys of maps


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_keys_that_are_no_numbers_are_nulls_that_both_schemas_allow(kind: pa.DataType) -> None:
    pairs = [(math.nan, 1), (math.inf, 2), (0.5, 3)]
    batch = batch_of([pa.array([pairs], pa.map_(kind, pa.int64()))])
    (document,) = connect_documents(batch, Modes())
    keys = struct.pack("<d", 0.5)
    assert converted(document["schema"], document["payload"]) == {"c0": [(None, 1), (None, 2), (keys, 3)]}
    encoder = BatchEncoder(JSON_SCHEMA, batch.schema)
    (row,) = map(json.loads, encoder.rows(batch).to_pylist())
    jsonschema.Draft7Validator(json.loads(encoder.schema)).validate(row)
    assert [entry["key"] for entry in row["c0"]] == [None, None, 0.5]


def test_times_that_name_entries_are_properties_of_an_object() -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    batch = batch_of([pa.array([[(at, 1)]], pa.map_(pa.timestamp("us", "UTC"), pa.int64()))])
    encoder = BatchEncoder(JSON_SCHEMA, batch.schema)
    (row,) = map(json.loads, encoder.rows(batch).to_pylist())
    jsonschema.Draft7Validator(json.loads(encoder.schema)).validate(row)
    assert row == {"c0": {"2026-01-01T00:00:00.000000Z": 1}}
