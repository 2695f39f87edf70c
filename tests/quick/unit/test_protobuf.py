"""Records in Protobuf, read by Google's library with the schema compiled by protoc."""

import datetime as dt
import re
import struct
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import text_encoding
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import types

from cdfd.encode.formats import EncoderOptions, FormatChoice, keys_of
from cdfd.encode.kinds import Modes
from cdfd.encode.protobuf.schema import field_name, fields_of
from cdfd.encode.records import Origin
from cdfd.errors import DataError, UnsupportedError
from cdfd.model.columns import CHANGE_NAMES
from tests.support.protobuf import message_type, parse
from tests.support.schemas import PROTOBUF, BatchEncoder, Catalog
from tests.support.typed_values import arrays

pytestmark = pytest.mark.usefixtures("kernels")

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - Arrow's type without zone


def numbers_of(schema: str) -> dict[str, dict[str, int]]:
    return {
        message: {column: number for column, (number, _) in fields.items()}
        for message, fields in fields_of(schema).items()
    }


def encoder_of(batch: pa.RecordBatch, **options: Any) -> BatchEncoder:
    return BatchEncoder(lambda shape: PROTOBUF(shape, **options), batch.schema)


def read(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    encoder = encoder_of(batch)
    values = encoder.rows(batch)
    values.validate(full=True)
    messages = (parse(encoder.schema, value) for value in values.to_pylist())
    fields = {field.name: field.type for field in batch.schema}
    return [
        {field.json_name: value_of(message, field, fields[field.json_name]) for field in message.DESCRIPTOR.fields}
        for message in messages
    ]


def value_of(message: Any, field: FieldDescriptor, kind: pa.DataType) -> Any:
    """The value of a field as `expected` has it."""
    if types.is_dictionary(kind):
        return value_of(message, field, kind.value_type)
    if types.is_map(kind):
        content = getattr(message, field.name)
        if field.message_type.GetOptions().map_entry:
            element = field.message_type.fields_by_name["value"].message_type.fields_by_name["value"]
            return {key: value_of(item, element, kind.item_type) for key, item in content.items()}
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return [(value_of(item, key, kind.key_type), value_of(item, value, kind.item_type)) for item in content]
    if types.is_nested(kind) and not types.is_struct(kind):
        element = field.message_type.fields_by_name["value"]
        return [value_of(item, element, kind.value_type) for item in getattr(message, field.name)]
    if not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if types.is_struct(kind):
        inner = {each.json_name: each for each in value.DESCRIPTOR.fields}
        return {each.name: value_of(value, inner[each.name], each.type) for each in kind}
    if types.is_timestamp(kind):
        assert 0 <= value.nanos < 10**9
        return value.seconds * 10**6 + value.nanos // 1_000
    return comparable(value)


def comparable(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value


def expected(value: Any, kind: pa.DataType) -> Any:
    if types.is_dictionary(kind):
        return expected(value, kind.value_type)
    if types.is_map(kind):
        pairs = [(expected(key, kind.key_type), expected(item, kind.item_type)) for key, item in value or ()]
        return (
            dict(pairs)
            if types.is_string(kind.key_type) or types.is_integer(kind.key_type) or types.is_decimal(kind.key_type)
            else pairs
        )
    if types.is_nested(kind) and not types.is_struct(kind):
        # Null and empty are the same.
        return [expected(item, kind.value_type) for item in value or ()]
    if value is None:
        return None
    if types.is_struct(kind):
        return {field.name: expected(value[field.name], field.type) for field in kind}
    if types.is_date(kind):
        return (value - dt.date(1970, 1, 1)).days
    if types.is_timestamp(kind):
        return (value.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)
    return f"{value:f}" if types.is_decimal(kind) else comparable(value)


@settings(max_examples=100, deadline=None)
@given(st.lists(arrays().filter(lambda array: not has_void(array.type)), min_size=1, max_size=3))
def test_google_reads_every_row(columns: list[pa.Array]) -> None:
    count = min(len(column) for column in columns)
    names = [f"c{number}" for number in range(len(columns))]
    batch = pa.record_batch([column.slice(0, count) for column in columns], names=names)
    listed = {name: batch.column(name).to_pylist() for name in names}
    assert read(batch) == [
        {name: expected(listed[name][row], batch.schema.field(name).type) for name in names} for row in range(count)
    ]


def has_void(kind: pa.DataType) -> bool:
    if types.is_map(kind):
        return has_void(kind.key_type) or has_void(kind.item_type)
    return types.is_null(kind) or any(has_void(kind.field(number).type) for number in range(kind.num_fields))


def test_years_beyond_those_of_a_calendar_are_seconds_as_they_are() -> None:
    array = pa.array([2**62, -(2**62)], pa.timestamp("us", "UTC"))
    assert [row["t"] for row in read(pa.record_batch({"t": array}))] == [2**62, -(2**62)]


@pytest.mark.parametrize("topic", ["shop.google.orders", "shop.google", "google.orders"])
def test_topic_may_have_the_name_of_a_package_of_protobuf(topic: str) -> None:
    batch = pa.record_batch([pa.array([1, None], pa.timestamp("us", "UTC"))], names=["at"])
    encoder = BatchEncoder(PROTOBUF, batch.schema, f"{topic}.Value")
    first, second = (parse(encoder.schema, value) for value in encoder.rows(batch).to_pylist())
    assert first.at.nanos == 1_000
    assert not second.HasField("at")
    assert numbers_of(encoder.schema) == {"Value": {"at": 1}}


def test_numbers_stay_where_columns_come_and_go() -> None:
    first = encoder_of(pa.record_batch({"a": pa.array([1]), "b": pa.array([{"x": 1, "y": 2}]), "c": pa.array(["z"])}))
    batch = pa.record_batch({"new": pa.array([True]), "c": pa.array(["z"]), "b": pa.array([{"w": 3, "y": 2}])})
    second = encoder_of(batch, earlier=[first.schema])
    assert numbers_of(first.schema) == {"Value": {"a": 1, "b": 2, "c": 3}, "Value.B": {"x": 1, "y": 2}}
    assert numbers_of(second.schema) == {"Value": {"new": 4, "c": 3, "b": 2}, "Value.B": {"w": 3, "y": 2}}
    third = encoder_of(pa.record_batch({"x": pa.array([1]), "a": pa.array([1])}), earlier=[first.schema, second.schema])
    assert numbers_of(third.schema) == {"Value": {"x": 5, "a": 1}}
    (value,) = second.rows(batch).to_pylist()
    old = parse(first.schema, value)
    assert (old.c, old.b.y, old.HasField("a"), old.b.HasField("x")) == ("z", 2, False, False)


def test_a_column_that_comes_again_with_another_type_has_another_number() -> None:
    """A consumer with the newest schema would read the values of the dropped column as those of the new one."""

    def schemas(*columns: list[pa.Array]) -> list[str]:
        texts: list[str] = []
        for fields in columns:
            names = [each.type.field(0).name for each in fields]
            batch = pa.record_batch([each.field(0) for each in fields], names=names)
            texts.append(encoder_of(batch, earlier=list(texts)).schema)
        return texts

    def one(name: str, value: Any) -> pa.Array:
        return pa.array([{name: value}])

    a, number, truth = one("a", 1), one("x", 7), one("x", True)
    texts = schemas([a, number], [a], [a, truth], [a, number], [a], [a, truth])
    assert [numbers_of(text)["Value"].get("x") for text in texts] == [2, None, 3, 2, None, 3]
    assert (texts[3], texts[5]) == (texts[0], texts[2])
    (old,) = encoder_of(pa.record_batch({"a": [1], "x": [7]})).rows(pa.record_batch({"a": [1], "x": [7]})).to_pylist()
    message = message_type(texts[2])()
    message.ParseFromString(old)
    assert not message.HasField("x")
    nested = [numbers_of(text) for text in schemas([a, one("x", {"b": 1})], [a], [a, one("x", {"b": "t"})])]
    assert nested[2] == {"Value": {"a": 1, "x": 2}, "Value.X": {"b": 2}}
    small = pa.array([{"x": 1}], pa.struct([("x", pa.int32())]))
    assert [numbers_of(text)["Value"]["x"] for text in schemas([small], [number])] == [1, 1]


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [
        (pa.array([7], pa.int32()), pa.array([7]), 1),
        (pa.array([7]), pa.array([7], pa.int32()), 1),
        (pa.array([7]), pa.array([True]), 2),
        (pa.array(["seven"]), pa.array([b"\xff"]), 2),
        (pa.array([7], pa.int32()), pa.array(["7"]), 1),
        (pa.array([7], pa.float32()), pa.array([7.0]), 1),
        (pa.array([{"a": 1}]), pa.array([[{"a": 1}]]), 1),
        (
            pa.array([[(1, 7)]], pa.map_(pa.int64(), pa.int64())),
            pa.array([[(True, 7)]], pa.map_(pa.bool_(), pa.int64())),
            2,
        ),
        (pa.array([{"a": 1}]), pa.array([{"a": 1, "b": 2}]), 1),
    ],
)
def test_types_that_registries_take_for_each_other_have_other_numbers(
    old: pa.Array, new: pa.Array, number: int
) -> None:
    """A consumer with the older schema would read `true` as 1. A registry refuses the other types, so that delivery ends."""
    first = encoder_of(pa.record_batch({"x": old}))
    batch = pa.record_batch({"x": new})
    second = encoder_of(batch, earlier=[first.schema])
    assert numbers_of(second.schema)["Value"] == {"x": number}
    if number == 2:
        (value,) = second.rows(batch).to_pylist()
        assert not parse(first.schema, value).ListFields()


def test_registry_may_write_types_with_their_packages() -> None:
    at, struct = pa.array([0], pa.timestamp("us")), pa.array([{"y": 1}])
    entries = pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64()))
    batch = pa.record_batch({"at": at, "b": struct, "m": entries, "l": [[1]]})
    own = encoder_of(batch).schema
    written = own.replace("google.protobuf.Timestamp at", ".google.protobuf.Timestamp at")
    written = written.replace("  B b", "  .shop.orders.Value.B b").replace(
        "repeated LElement", "repeated Value.LElement"
    )
    written = written.replace("map<int64, MItem>", "map<int64,.shop.orders.Value.MItem>")
    assert sum(a != b for a, b in zip(own.splitlines(), written.splitlines(), strict=True)) == 4
    assert encoder_of(batch, earlier=[written]).schema == own


def test_a_number_stays_with_its_column_if_the_field_gets_another_name() -> None:
    first = encoder_of(pa.record_batch({"a b": pa.array([1]), "2": pa.array([1])}))
    batch = pa.record_batch({"a_b": pa.array([5]), "2": pa.array([6]), "a b": pa.array([7])})
    second = encoder_of(batch, earlier=[first.schema])
    (value,) = second.rows(batch).to_pylist()
    assert {field.json_name: number for field, number in parse(first.schema, value).ListFields()} == {"a b": 7, "2": 6}
    assert {field.json_name: field.number for field in message_type(second.schema).DESCRIPTOR.fields} == {
        "a b": 1,
        "2": 2,
        "a_b": 3,
    }


STRUCT = pa.struct([("x", pa.int64())])


@pytest.mark.parametrize(
    "columns",
    [
        {"aB": STRUCT, "a_b": pa.struct([("y", pa.int64())])},
        {"a-b": STRUCT, "a_b": pa.struct([("y", pa.int64())])},
        {"a b": pa.list_(STRUCT), "a-b": pa.list_(pa.int64())},
        {"a b": pa.map_(STRUCT, STRUCT), "aB": pa.map_(STRUCT, pa.int64())},
        {"x_element": STRUCT, "x": pa.list_(pa.struct([("y", pa.int64())]))},
    ],
)
def test_messages_stay_with_their_columns(columns: dict[str, pa.DataType]) -> None:
    """A consumer with an older schema would find nothing in a struct whose message has become that of another column."""
    earlier: list[str] = []
    first, second = columns
    messages = []
    for names in ((first, second), (second, first), (second,), (first,), (first, second)):
        schema = pa.schema([(name, columns[name]) for name in names])
        encoder = BatchEncoder(partial(PROTOBUF, earlier=tuple(earlier)), schema)
        earlier.append(encoder.schema)
        fields = message_type(encoder.schema).DESCRIPTOR.fields
        messages.append({field.json_name: field.message_type.name for field in fields})
    for names in messages:
        assert names == {name: messages[0][name] for name in names}


def schemas(*columns: str, earlier: list[str]) -> list[str]:
    """Earlier schemas, and that of a batch with columns."""
    batch = pa.record_batch({column: pa.array([1]) for column in columns})
    return [*earlier, encoder_of(batch, earlier=earlier).schema]


def test_column_gets_no_number_of_another_one_that_has_become_the_same_field() -> None:
    texts = schemas("a b", "c", earlier=schemas("a_b", "c", earlier=[]))
    assert numbers_of(texts[-1]) == {"Value": {"a b": 3, "c": 2}}
    assert numbers_of(schemas("2", earlier=schemas("_2", earlier=[]))[-1]) == {"Value": {"2": 2}}
    texts = schemas("a b", "a_b", earlier=texts)
    assert numbers_of(texts[-1]) == {"Value": {"a b": 3, "a_b": 1}}


def test_number_that_two_columns_have_had_is_that_of_the_newer_one() -> None:
    (first,) = schemas("a_b", "c", earlier=[])
    (second,) = schemas("a b", "c", earlier=[])
    assert numbers_of(schemas("a_b", "c", "a b", earlier=[first, second])[-1]) == {
        "Value": {"a_b": 3, "c": 2, "a b": 1}
    }


@pytest.mark.parametrize("name", ["a\u2028b", "a\x85b", "a\x1cb", "größe", "it's", 'a"\\303', "\t?"])
def test_names_of_columns_are_read_back(name: str) -> None:
    (text,) = schemas(name, "c", earlier=[])
    assert numbers_of(text) == {"Value": {name: 1, "c": 2}}
    # As Protobuf's own libraries print the descriptor of a schema.
    printed = text_encoding.CEscape(name.encode(), as_utf8=False)
    own = re.sub(r'json_name = ".*"', lambda _: f'json_name = "{printed}"', text)
    assert numbers_of(own) == {"Value": {name: 1, "c": 2}}


def test_a_schema_of_another_topic_is_refused() -> None:
    with pytest.raises(DataError, match="no message"):
        encoder_of(pa.record_batch({"a": pa.array([1])}), earlier=['{"type":"record"}'])


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5).filter(
            lambda name: not (name.startswith("[") and name.endswith("]"))
        ),
        min_size=1,
        max_size=6,
        unique=True,
    )
)
@example(["", "_"])
@example(["[", "]", "[a]b", "a[b]"])
@example(["a b", "a_b"])
@example(["a_b", "a b", "a-b"])
@settings(max_examples=50, deadline=None)
def test_any_names_make_a_schema_that_has_them(names: list[str]) -> None:
    kind = pa.struct([("value", pa.list_(pa.map_(pa.string(), pa.int32())))])
    schema = pa.schema([(name, kind) for name in names])
    text = BatchEncoder(PROTOBUF, schema).schema
    assert [field.json_name for field in message_type(text).DESCRIPTOR.fields] == names


def test_many_names_that_become_equal_are_not_compared_with_each_other() -> None:
    """1,000 columns with Chinese names of one length would take seconds, and four times as many half a minute."""
    tried = 0

    class Names(set[str]):
        def __contains__(self, name: object) -> bool:
            nonlocal tried
            tried += 1
            return super().__contains__(name)

    names = [chr(0x4E00 + number) for number in range(1000)]
    taken, following = Names(), dict[str, int]()
    fields = [field_name(name, taken, set(names), following) for name in names]
    assert fields == ["_", *(f"__{number}" for number in range(2, 1001))]
    assert tried < 10 * len(names)


def test_words_of_the_language_are_names() -> None:
    words = [
        "message",
        "option",
        "optional",
        "repeated",
        "reserved",
        "map",
        "group",
        "oneof",
        "string",
        "import",
        "rpc",
        "true",
    ]
    words += ["inf", "syntax", "package", "extensions", "to", "max", "value", "key", "google", "Value"]
    for kind in (pa.int64(), pa.struct([("option", pa.list_(pa.string()))]), pa.timestamp("us", "UTC")):
        schema = pa.schema([(word, kind) for word in words])
        text = BatchEncoder(PROTOBUF, schema, "shop.message.Value").schema
        assert [field.json_name for field in message_type(text).DESCRIPTOR.fields] == words


@pytest.mark.parametrize("name", ["1st", "_", "é"])
def test_maps_whose_name_begins_without_a_letter(name: str) -> None:
    """protoc names an entry after its field, and Google's library refuses `1stEntry`."""
    array = pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64()))
    assert [row[name] for row in read(pa.record_batch({name: array}))] == [[("a", 1), ("b", None)], [], []]


def test_times_as_text() -> None:
    batch = pa.record_batch({"n": pa.array([0, None], pa.timestamp("us"))})
    encoder = encoder_of(batch, modes=Modes(time="iso"))
    messages = [parse(encoder.schema, value) for value in encoder.rows(batch).to_pylist()]
    assert [message.n if message.HasField("n") else None for message in messages] == [
        "1970-01-01T00:00:00.000000",
        None,
    ]


NULL_LISTS = [
    pa.array([[], None], pa.list_(pa.int64())),
    pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    pa.array([[[]], [None]], pa.list_(pa.list_(pa.int64()))),
    pa.array([[(1, [2])], [(1, None)]], pa.map_(pa.int64(), pa.list_(pa.int64()))),
    pa.array([{"l": []}, {"l": None}], pa.struct([("l", pa.list_(pa.int64()))])),
]
LISTS = [
    pa.array([[], [None], [1]], pa.list_(pa.int64())),
    pa.array([None, {"l": []}, {"l": [1]}], pa.struct([("l", pa.list_(pa.int64()))])),
    pa.array([None, 1], pa.int64()),
]


@pytest.mark.parametrize("array", [*NULL_LISTS, *LISTS], ids=lambda array: str(array.type))
def test_a_key_has_no_null_list(array: pa.Array) -> None:
    """A compacted topic would keep one row of the two."""
    batch = pa.record_batch([array, *(pa.array([0] * len(array)) for _ in CHANGE_NAMES)], names=["k", *CHANGE_NAMES])
    options = EncoderOptions(Origin("p", "t", "id", "t"), ("k",), registration=Catalog().registration)
    keys = keys_of(FormatChoice("flat", "protobuf"), options)
    assert keys is not None
    if any(array is each for each in NULL_LISTS):
        with pytest.raises(DataError, match="column k: a key has a null array or map"):
            keys(batch)
        assert len(keys(batch.slice(0, 1))) == 1
    else:
        assert len(set(keys(batch).to_pylist())) == len(array)


def test_types_and_names_that_protobuf_does_not_have() -> None:
    with pytest.raises(UnsupportedError, match="Protobuf has no name with a zero byte"):
        encoder_of(pa.record_batch({"a\0b": pa.array([1])}))
    with pytest.raises(UnsupportedError, match=r"column \[x\]: Protobuf has no name between \[ and \]"):
        encoder_of(pa.record_batch({"[x]": pa.array([1])}))
    with pytest.raises(UnsupportedError, match="column d: Protobuf has no decimals"):
        encoder_of(pa.record_batch({"d": pa.array([1]).cast(pa.decimal128(19))}), modes=Modes("precise"))
    # `columns` takes names of columns, not those of fields.
    for kind in (pa.struct([("n", pa.null())]), pa.list_(pa.null()), pa.map_(pa.string(), pa.null())):
        with pytest.raises(UnsupportedError, match="column s: a column of type void"):
            encoder_of(pa.record_batch({"s": pa.nulls(1, kind)}))
