import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from cdfd.delta.actions import Metadata
from cdfd.delta.types.datatypes import VOID, DataType, without_void
from cdfd.delta.types.schema import (
    ArrayType,
    ColumnMappingMode,
    Decimal,
    MapType,
    Primitive,
    StructField,
    StructType,
    TableSchema,
    column_id,
    from_arrow,
    mapping_mode,
    parse,
    physical_name,
    serialize,
    to_arrow,
)
from cdfd.delta.types.schema_string import MAX_DEPTH
from cdfd.errors import CdfdError, ConfigError, LogError, MissingColumnError, UnsupportedError

LONG, STRING, INTEGER = Primitive("long"), Primitive("string"), Primitive("integer")

# The specification's example in its appendix, "Schema Serialization Format".
EXAMPLE = """
{
  "type" : "struct",
  "fields" : [ {
    "name" : "a",
    "type" : "integer",
    "nullable" : false,
    "metadata" : { }
  }, {
    "name" : "b",
    "type" : {
      "type" : "struct",
      "fields" : [ {
        "name" : "d",
        "type" : "integer",
        "nullable" : false,
        "metadata" : { }
      } ]
    },
    "nullable" : true,
    "metadata" : { }
  }, {
    "name" : "c",
    "type" : {
      "type" : "array",
      "elementType" : "integer",
      "containsNull" : false
    },
    "nullable" : true,
    "metadata" : { }
  }, {
    "name" : "e",
    "type" : {
      "type" : "array",
      "elementType" : {
        "type" : "struct",
        "fields" : [ {
          "name" : "d",
          "type" : "integer",
          "nullable" : false,
          "metadata" : { }
        } ]
      },
      "containsNull" : true
    },
    "nullable" : true,
    "metadata" : { }
  }, {
    "name" : "f",
    "type" : {
      "type" : "map",
      "keyType" : "string",
      "valueType" : "string",
      "valueContainsNull" : true
    },
    "nullable" : true,
    "metadata" : { }
  } ]
}
"""
EXAMPLE_TYPE = StructType(
    (
        StructField("a", INTEGER, nullable=False),
        StructField("b", StructType((StructField("d", INTEGER, nullable=False),))),
        StructField("c", ArrayType(INTEGER, contains_null=False)),
        StructField("e", ArrayType(StructType((StructField("d", INTEGER, nullable=False),)))),
        StructField("f", MapType(STRING, STRING)),
    )
)

# The specification's example of column mapping, with the column's own definition completed to a schema.
MAPPED = """
{ "type": "struct", "fields": [ {
  "name" : "e",
  "type" : {
    "type" : "array",
    "elementType" : {
      "type" : "struct",
      "fields" : [ {
        "name" : "d",
        "type" : "integer",
        "nullable" : false,
        "metadata" : {
          "delta.columnMapping.id": 5,
          "delta.columnMapping.physicalName": "col-a7f4159c-53be-4cb0-b81a-f7e5240cfc49"
        }
      } ]
    },
    "containsNull" : true
  },
  "nullable" : true,
  "metadata" : {
    "delta.columnMapping.id": 4,
    "delta.columnMapping.physicalName": "col-5f422f40-de70-45b2-88ab-1d5c90e94db1"
  }
} ] }
"""


def field_json(kind: object, **more: object) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "x", "type": kind, **more}]})


def names() -> SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


PRIMITIVES = [
    "string", "long", "integer", "short", "byte", "float", "double",
    "boolean", "binary", "date", "timestamp", "timestamp_ntz", "variant",
]  # fmt: skip
DECIMALS = st.integers(1, 38).flatmap(lambda precision: st.integers(0, precision).map(lambda s: Decimal(precision, s)))
LEAVES = st.sampled_from(PRIMITIVES).map(Primitive) | DECIMALS
METADATA = st.dictionaries(names(), st.none() | st.booleans() | st.integers(-(2**53), 2**53) | names(), max_size=2)


def structs(kinds: SearchStrategy[DataType]) -> SearchStrategy[StructType]:
    fields = st.builds(StructField, names(), kinds, st.booleans(), METADATA)
    return st.lists(fields, max_size=4, unique_by=lambda child: child.name.lower()).map(
        lambda children: StructType(tuple(children))
    )


TYPES = st.recursive(
    LEAVES,
    lambda kinds: (
        structs(kinds) | st.builds(ArrayType, kinds, st.booleans()) | st.builds(MapType, kinds, kinds, st.booleans())
    ),
    max_leaves=8,
)


def without_metadata(kind: DataType) -> DataType:
    match kind:
        case StructType(fields):
            return StructType(tuple(StructField(f.name, without_metadata(f.type), f.nullable) for f in fields))
        case ArrayType(element, contains_null):
            return ArrayType(without_metadata(element), contains_null)
        case MapType(key, value, contains_null):
            return MapType(without_metadata(key), without_metadata(value), contains_null)
    return kind


def nested(levels: int) -> str:
    kind: object = "long"
    for _ in range(levels):
        kind = {"type": "struct", "fields": [{"name": "x", "type": kind, "nullable": True, "metadata": {}}]}
    return json.dumps(kind)


def test_the_examples_of_the_specification() -> None:
    assert parse(EXAMPLE) == EXAMPLE_TYPE
    assert json.loads(serialize(EXAMPLE_TYPE)) == json.loads(EXAMPLE)
    (mapped,) = parse(MAPPED)
    assert column_id(mapped) == 4
    assert physical_name(mapped, ColumnMappingMode.ID) == "col-5f422f40-de70-45b2-88ab-1d5c90e94db1"
    assert physical_name(mapped, ColumnMappingMode.NONE) == "e"
    assert json.loads(serialize(parse(MAPPED))) == json.loads(MAPPED)


def test_invariants_are_kept_as_metadata() -> None:
    metadata = {"delta.invariants": '{"expression": { "expression": "x > 3"} }'}
    (x,) = parse(field_json("integer", nullable=True, metadata=metadata))
    assert x.metadata == metadata


@given(structs(TYPES))
def test_schema_strings_round_trip(struct: StructType) -> None:
    assert parse(serialize(struct)) == struct


@given(structs(TYPES))
def test_arrow_schemas_round_trip(struct: StructType) -> None:
    assert from_arrow(to_arrow(struct)) == without_metadata(struct)


@pytest.mark.parametrize("name", [*PRIMITIVES, "void", "decimal(38,38)", "decimal(1,0)"])
def test_a_type_name_is_written_as_it_is_read(name: str) -> None:
    (x,) = parse(field_json(name))
    assert str(x.type) == name


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [
        ("null", VOID),
        ("timestamp_ltz", Primitive("timestamp")),
        ("decimal", Decimal(10, 0)),
        ("decimal( 5, 2 )", Decimal(5, 2)),
        ("varchar(20)", STRING),
        ("char(1)", STRING),
        ({"type": "udt", "class": "org.X", "pyClass": None, "sqlType": "long"}, LONG),
    ],
)
def test_spellings_of_deployed_writers(spelling: object, kind: DataType) -> None:
    (x,) = parse(field_json(spelling))
    assert x == StructField("x", kind, nullable=True, metadata={})


@pytest.mark.parametrize(
    ("name", "arrow"),
    [
        ("interval year to month", pa.int32()),
        ("interval day to second", pa.int64()),
        ("geometry(OGC:CRS84)", pa.binary()),
        ("geography", pa.binary()),
        ("timestamp_nanos", pa.timestamp("ns", "UTC")),
    ],
)
def test_types_of_some_writers(name: str, arrow: pa.DataType) -> None:
    struct = parse(field_json(name))
    assert TableSchema(struct).arrow.types == [arrow]
    assert parse(serialize(struct)) == struct


@pytest.mark.parametrize("name", ["interval", "CalendarIntervalType", "time(6)", "object"])
def test_types_that_cannot_be_read_are_refused_where_they_are_read(name: str) -> None:
    struct = parse(field_json(name))
    schema = TableSchema(StructType((*struct, StructField("y", LONG))))
    assert schema.select(["y"]).arrow == pa.schema([("y", pa.int64())])
    with pytest.raises(UnsupportedError, match="column 'x'") as refused:
        _ = schema.arrow
    assert name in str(refused.value)


BROKEN = {
    "empty": "",
    "not JSON": "{",
    "a number": "1",
    "null": "null",
    "a primitive": '"long"',
    "an array": '{"type":"array","elementType":"long","containsNull":true}',
    "no type": "{}",
    "no fields": '{"type":"struct"}',
    "fields are an object": '{"type":"struct","fields":{}}',
    "a field is a string": '{"type":"struct","fields":["a"]}',
    "no name": '{"type":"struct","fields":[{"type":"long"}]}',
    "name is a number": '{"type":"struct","fields":[{"name":1,"type":"long"}]}',
    "field without type": '{"type":"struct","fields":[{"name":"x"}]}',
    "type is null": field_json(None),
    "type is a list": field_json(["long"]),
    "unknown type": field_json("int128"),
    "unknown nested type": field_json({"type": "set", "elementType": "long"}),
    "nested type is a list": field_json({"type": ["array"]}),
    "array without element": field_json({"type": "array", "containsNull": True}),
    "map without value": field_json({"type": "map", "keyType": "long"}),
    "udt without storage": field_json({"type": "udt"}),
    "containsNull is a string": field_json({"type": "array", "elementType": "long", "containsNull": "yes"}),
    "nullable is a number": field_json("long", nullable=1),
    "metadata is a list": field_json("long", metadata=[]),
    "decimal of 39 digits": field_json("decimal(39,0)"),
    "decimal of no digits": field_json("decimal(0,0)"),
    "scale above precision": field_json("decimal(5,6)"),
    "negative scale": field_json("decimal(5,-1)"),
    "decimal of many digits": field_json(f"decimal({'9' * 5000},1)"),
    "upper case": field_json("LONG"),
    "names that differ in case": '{"type":"struct","fields":[{"name":"a","type":"long"},{"name":"A","type":"long"}]}',
    "one name twice": '{"type":"struct","fields":[{"name":"a","type":"long"},{"name":"a","type":"long"}]}',
    "too deep for JSON": "[" * 5000,
    "a lone surrogate": '{"type":"struct","fields":[{"name":"\\ud800","type":"long"}]}',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_schema_is_an_error_of_the_log(text: str) -> None:
    with pytest.raises(LogError) as broken:
        parse(text)
    assert len(str(broken.value)) < 800


def test_a_schema_that_is_too_deep_is_not_supported() -> None:
    with pytest.raises(UnsupportedError, match="the schema is nested deeper than 63 levels"):
        parse(nested(MAX_DEPTH + 1))


def test_the_deepest_schema_can_be_used() -> None:
    struct = parse(nested(MAX_DEPTH))
    schema = TableSchema(struct)
    assert parse(serialize(struct)) == struct
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert hash(schema) == hash(TableSchema(struct))
    assert "x" in repr(schema)


def test_metadata_too_deep_to_be_written_is_an_error_of_the_log() -> None:
    struct = StructType((StructField("x", LONG, metadata={"k": json.loads(DEEP)}),))
    with pytest.raises(LogError):
        serialize(struct)


DEEP = "[" * 900 + "]" * 900


@pytest.mark.parametrize(
    "document",
    [
        DEEP,
        '{"type":%s}',
        '{"type":"struct","fields":%s}',
        '{"type":"struct","fields":[%s]}',
        '{"type":"struct","fields":[{"name":%s}]}',
        '{"type":"struct","fields":[{"name":"x","type":%s}]}',
        '{"type":"struct","fields":[{"name":"x","type":{"type":%s}}]}',
        '{"type":"struct","fields":[{"name":"x","type":"long","nullable":%s}]}',
        '{"type":"struct","fields":[{"name":"x","type":"long","metadata":%s}]}',
        '{"type":"struct","fields":[{"name":"x","type":"long","metadata":{"delta.columnMapping.id":%s}}]}',
        '{"type":"struct","fields":[{"name":"x","type":"long","metadata":{"delta.columnMapping.nested.ids":%s}}]}',
        '{"type":"array","elementType":%s}',
        '{"type":"map","keyType":%s,"valueType":%s}',
    ],
)
def test_no_place_of_a_schema_is_so_deep_that_the_stack_ends(document: str) -> None:
    with pytest.raises(LogError):
        parse(document.replace("%s", DEEP))


@given(st.data())
def test_a_mutated_schema_raises_nothing_but_our_errors(data: st.DataObject) -> None:
    text = json.dumps(json.loads(data.draw(st.sampled_from([EXAMPLE, MAPPED]))))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    middle = data.draw(
        st.text(max_size=20) | st.sampled_from(['"void"', "null", "[]", "{}", '"decimal(9,2)"', "1e999"])
    )
    try:
        schema = TableSchema(parse(text[:start] + middle + text[end:]))
    except CdfdError:
        return
    assert parse(serialize(schema.struct)) == schema.struct


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_a_random_schema_raises_nothing_but_our_errors(text: str) -> None:
    with pytest.raises(CdfdError):
        parse(text)


def test_each_type_of_delta_has_its_type_of_arrow() -> None:
    kinds = {
        "string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "short": pa.int16(), "byte": pa.int8(),
        "float": pa.float32(), "double": pa.float64(), "decimal(10,2)": pa.decimal128(10, 2), "boolean": pa.bool_(),
        "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"), "variant": pa.json_(),
    }  # fmt: skip
    for name, arrow in kinds.items():
        assert to_arrow(parse(field_json(name))) == pa.schema([("x", arrow)])


def test_void_columns_are_nulls() -> None:
    inner = StructType((StructField("v", VOID), StructField("y", LONG)))
    struct = StructType((StructField("v", VOID), StructField("s", inner), StructField("a", ArrayType(VOID))))
    nothing = pa.list_(pa.field("element", pa.null()))
    wanted = pa.schema([("v", pa.null()), ("s", pa.struct([("v", pa.null()), ("y", pa.int64())])), ("a", nothing)])
    assert TableSchema(struct).arrow == wanted
    assert parse(serialize(struct)) == struct


def test_void_columns_and_structs_of_nothing_else_are_left_out() -> None:
    mixed, kept = StructType((StructField("v", VOID), StructField("y", LONG))), StructType((StructField("y", LONG),))
    hollow, empty = StructType((StructField("v", VOID),)), StructType(())
    columns: dict[str, DataType] = {
        "v": VOID,
        "h": hollow,
        "e": empty,
        "s": mixed,
        "a": ArrayType(mixed),
        "m": MapType(STRING, mixed),
    }
    expected: dict[str, DataType] = {"e": empty, "s": kept, "a": ArrayType(kept), "m": MapType(STRING, kept)}
    struct = StructType(tuple(StructField(name, kind) for name, kind in columns.items()))
    assert without_void(struct) == StructType(tuple(StructField(name, kind) for name, kind in expected.items()))


@pytest.mark.parametrize(
    ("arrow", "kind"),
    [
        (pa.large_string(), STRING),
        (pa.string_view(), STRING),
        (pa.dictionary(pa.int32(), pa.string()), STRING),
        (pa.binary(16), Primitive("binary")),
        (pa.timestamp("ns"), Primitive("timestamp_ntz")),
        (pa.timestamp("ms", "Europe/Paris"), Primitive("timestamp")),
        (pa.large_list(pa.int32()), ArrayType(INTEGER)),
        (pa.decimal256(38, 2), Decimal(38, 2)),
        (pa.null(), VOID),
    ],
)
def test_arrow_types_that_are_stored_as_others(arrow: pa.DataType, kind: DataType) -> None:
    assert from_arrow(pa.schema([("x", arrow)])) == StructType((StructField("x", kind),))


@pytest.mark.parametrize("arrow", [pa.uint8(), pa.time32("s"), pa.duration("s"), pa.decimal256(39, 2), pa.float16()])
def test_arrow_types_that_delta_does_not_have(arrow: pa.DataType) -> None:
    with pytest.raises(UnsupportedError, match="x"):
        from_arrow(pa.schema([("x", arrow)]))


def metadata(schema: str, partitions: tuple[str, ...] = (), **configuration: str) -> Metadata:
    return Metadata("id", schema, partitions, {key.replace("_", "."): value for key, value in configuration.items()})


def test_the_schema_of_a_table() -> None:
    schema = TableSchema.of(metadata(EXAMPLE, ("A",), delta_columnMapping_mode="name"))
    assert schema.mapping is ColumnMappingMode.NAME
    assert schema.partition_columns == ("a",)
    assert [child.name for child in schema.partition_fields] == ["a"]
    assert [child.name for child in schema.data_fields] == ["b", "c", "e", "f"]
    assert schema.arrow == to_arrow(EXAMPLE_TYPE)
    assert schema.names == ("a", "b", "c", "e", "f")
    assert schema.find(("b", "D")) == StructField("d", INTEGER, nullable=False)
    assert schema.find(("b", "x")) is None
    assert schema.find(("a", "x")) is None


def test_a_table_schema_is_a_value() -> None:
    schema = TableSchema.of(metadata(MAPPED, delta_columnMapping_mode="id"))
    copy = pickle.loads(pickle.dumps(schema))
    assert copy == schema
    assert hash(copy) == hash(schema)
    assert copy.arrow == schema.arrow
    assert schema != TableSchema.of(metadata(MAPPED))


@pytest.mark.parametrize("partitions", [("z",), ("a", "A"), ("b",)])
def test_partition_columns_that_cannot_be(partitions: tuple[str, ...]) -> None:
    with pytest.raises(LogError):
        TableSchema.of(metadata(EXAMPLE, partitions))


def test_columns_are_selected_in_the_order_asked_for() -> None:
    schema = TableSchema(EXAMPLE_TYPE, ("a",)).select(["c", "A"])
    assert schema.names == ("c", "a")
    assert schema.partition_columns == ("a",)
    assert TableSchema(EXAMPLE_TYPE, ("a",)).select(["c"]).partition_columns == ()


@pytest.mark.parametrize("columns", [["amount"], [], ["a", "A"], ["b.d"]])
def test_columns_that_cannot_be_selected(columns: list[str]) -> None:
    with pytest.raises(ConfigError) as wrong:
        TableSchema(EXAMPLE_TYPE).select(columns)
    assert wrong.value.exit_code == 2


@given(st.lists(st.sampled_from(["a", "A", "b", "c", "e", "z", "_change_type"])))
def test_a_version_has_some_of_the_columns_or_none(columns: list[str]) -> None:
    """Which ones is the table's content, so it is no error of the configuration."""
    schema = TableSchema(EXAMPLE_TYPE, ("a",))
    known = {name.lower(): name for name in schema.names}
    there = tuple(dict.fromkeys(known[name.lower()] for name in columns if name.lower() in known))
    if there:
        assert schema.present(columns) == schema.select(there)
        return
    with pytest.raises(MissingColumnError, match="The columns are: a"):
        schema.present(columns)


def test_the_nearest_column_is_named() -> None:
    schema = TableSchema(StructType((StructField("amount", LONG), StructField("id", LONG))))
    with pytest.raises(ConfigError, match=r"Did you mean 'amount'\? The columns are: amount, id"):
        schema.select(["amuont"])


def test_mode_of_column_mapping_is_read_in_any_case() -> None:
    assert mapping_mode({}) is ColumnMappingMode.NONE
    for mode in ColumnMappingMode:
        assert mapping_mode({"delta.columnMapping.mode": mode.value}) is mode
        assert mapping_mode({"delta.columnMapping.mode": mode.value.upper()}) is mode
    with pytest.raises(UnsupportedError, match="position"):
        mapping_mode({"delta.columnMapping.mode": "position"})


def test_mapping_of_a_field() -> None:
    child = StructField("x", ArrayType(LONG))
    assert column_id(child) is None
    for number in (-(2**31), 2**31 - 1):
        assert column_id(StructField("x", LONG, metadata={"delta.columnMapping.id": number})) == number
    assert physical_name(child, ColumnMappingMode.NAME) == "x"


@pytest.mark.parametrize("number", ["1", 1.0, True, 2**31, [1]])
def test_an_id_that_is_none(number: object) -> None:
    with pytest.raises(LogError):
        column_id(StructField("x", LONG, metadata={"delta.columnMapping.id": number}))


@pytest.mark.parametrize(("document", "shown"), [([1], "an array"), ({"a": 1}, "an object"), (7, "7")])
def test_error_shows_what_stands_for_a_field_in_few_words(document: object, shown: str) -> None:
    text = json.dumps({"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": document}]})
    with pytest.raises(LogError, match=rf"`nullable` must be true or false, not {shown}\. "):
        parse(text)


def test_a_physical_name_that_is_none() -> None:
    with pytest.raises(LogError):
        physical_name(StructField("x", LONG, metadata={"delta.columnMapping.physicalName": 1}), ColumnMappingMode.NAME)
