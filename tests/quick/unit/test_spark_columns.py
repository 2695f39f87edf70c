"""Columns for Spark: its types, and Arrow arrays without what its readers do not take."""

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from cdfd.config.shapes import shape_of
from cdfd.delta.types.schema import ArrayType, Decimal, MapType, Primitive, StructField, StructType, TableSchema
from cdfd.errors import ConfigError
from cdfd.model.columns import change_schema, constant_type
from cdfd.plan.row_options import RowOptions
from cdfd.plan.shape.chosen import Chosen
from cdfd.spark.engine.target import Target
from cdfd.spark.source.columns import SparkBatches, spark_schema

VARIANT = Primitive("variant")
SCHEMA = TableSchema(
    StructType(
        (
            StructField("Id", Primitive("long"), nullable=False, metadata={"comment": "of an order", "x": 1}),
            StructField("v", VARIANT),
            StructField("list", ArrayType(VARIANT)),
            StructField("map", MapType(Primitive("string"), StructType((StructField("v", VARIANT),)))),
            StructField("m", Decimal(9, 2)),
        )
    )
)
VALUES: dict[str, list[Any]] = {
    "Id": [1, 2, None, 4],
    "v": ['{"a":1}', None, "2", "null"],
    "list": [["1", None], None, [], ["2", "3"]],
    "map": [[("a", {"v": "1"})], None, [("b", None), ("c", {"v": None})], []],
    "m": [None, None, None, None],
}


def batch() -> pa.RecordBatch:
    """As it is read: with extension types at any depth."""
    columns = [_array(VALUES[field.name], field.type) for field in SCHEMA.arrow]
    types = constant_type("insert", 4)
    more = [
        pa.array([7] * 4, pa.int64()),
        pa.array([1000] * 4, pa.timestamp("ms", "UTC")),
        pa.array(range(4), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays([*columns, types, *more], schema=change_schema(SCHEMA.arrow))


def _array(values: list[Any], kind: Any) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    mask = pa.array([value is None for value in values])
    if pa.types.is_list(kind):
        lengths = [len(value or ()) for value in values]
        flat = _array([item for value in values for item in value or ()], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(lengths), flat, type=kind, mask=mask)
    if pa.types.is_map(kind):
        lengths = [len(value or ()) for value in values]
        pairs = [pair for value in values for pair in value or ()]
        keys, items = (
            pa.array([key for key, _ in pairs], kind.key_type),
            _array([item for _, item in pairs], kind.item_type),
        )
        return pa.MapArray.from_arrays(_offsets(lengths), keys, items, type=kind, mask=mask)
    if pa.types.is_struct(kind):
        children = [_array([(value or {}).get(field.name) for value in values], field.type) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    return pa.array(values, kind)


def _offsets(lengths: list[int]) -> pa.Array:
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return pa.array(offsets, pa.int32())


@pytest.mark.parametrize(("start", "count"), [(0, 4), (1, 3), (2, 2), (3, 1), (4, 0)])
def test_slice_of_a_batch_is_converted_for_spark(start: int, count: int) -> None:
    """Slices of larger ones, too."""
    target = Target.of(SCHEMA, 3)
    whole = batch()
    convert = SparkBatches.plan(whole.schema, target.names, target.spark_schema)
    actual = convert(whole.slice(start, count))
    actual.validate(full=True)
    assert "extension" not in str(actual.schema)
    assert actual.schema.field("_change_type").type == pa.string()
    assert actual.schema.field("_commit_timestamp").type == pa.timestamp("us", "UTC")
    for name, values in VALUES.items():
        assert actual.column(name).to_pylist() == values[start : start + count]
    assert all(field.nullable for field in actual.schema)


def test_schema_for_spark_has_its_types_and_comments() -> None:
    actual = spark_schema(SCHEMA, ["Id", "v", "map", "m", "_commit_timestamp"])
    assert (
        actual.simpleString()
        == "struct<Id:bigint,v:string,map:map<string,struct<v:string>>,m:decimal(9,2),_commit_timestamp:timestamp>"
    )
    assert actual["Id"] == spark.StructField("Id", spark.LongType(), True, {"comment": "of an order"})


def chosen(*names: str) -> tuple[Chosen, ...]:
    return tuple(map(Chosen.parse, names))


def test_columns_that_are_shaped() -> None:
    rows = RowOptions(shape=shape_of("v IS NULL", None, {"ID": {"method": "hmac_sha256", "hmac_key": "k" * 16}}))
    target = Target.of(SCHEMA, 3, chosen("id as number", "m", "_change_type"), None, rows)
    assert target.names == ("number", "m", "_change_type")
    assert target.schema.names == ("Id", "m", "v")
    assert target.spark_schema.simpleString() == "struct<number:string,m:decimal(9,2),_change_type:string>"
    assert target.ordered  # a filter needs the order of images
    schema = spark.StructType().add("NUMBER", "string").add("_change_type", "string")
    of_user = Target.of(SCHEMA, 3, chosen("id as number", "m"), schema, rows)
    assert (of_user.names, of_user.spark_schema) == (("number", "_change_type"), schema)
    assert of_user.published.names == ("number",)
    with pytest.raises(ConfigError, match="cannot be renamed"):
        Target.of(SCHEMA, 3, chosen("_change_type as kind"))
    with pytest.raises(ConfigError, match="there is no column 'w'"):
        Target.of(SCHEMA, 3, None, None, RowOptions(shape=shape_of("w = 1")))


def test_columns_that_are_chosen() -> None:
    assert Target.of(SCHEMA, 3, chosen("M", "id")).names == (
        "m",
        "Id",
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_change_ordinal",
    )
    assert Target.of(SCHEMA, 3, chosen("_CHANGE_TYPE", "m")).names == ("_change_type", "m")
    assert Target.of(SCHEMA, 3, chosen("_commit_version")).schema.names == ()
    with pytest.raises(ConfigError, match="requested twice"):
        Target.of(SCHEMA, 3, chosen("m", "M"))
    with pytest.raises(ConfigError, match="Did you mean 'list'"):
        Target.of(SCHEMA, 3, chosen("lists"))


@pytest.mark.parametrize(
    ("name", "kind", "nullable"),
    [
        ("m", spark.DecimalType(9, 2), False),
        ("LIST", spark.ArrayType(spark.StringType(), containsNull=False), True),
        (
            "map",
            spark.MapType(spark.StringType(), spark.StructType().add("v", "string"), valueContainsNull=False),
            True,
        ),
        ("map", spark.MapType(spark.StringType(), spark.StructType().add("v", "string", False)), True),
    ],
)
def test_a_schema_without_the_nulls_of_the_table(name: str, kind: spark.DataType, nullable: bool) -> None:
    """Spark would read a struct whose fields are all null as null, and fail for a number."""
    with pytest.raises(ConfigError, match=r"may have nulls.*Omit NOT NULL"):
        Target.of(SCHEMA, 3, None, spark.StructType().add(name, kind, nullable))


def test_a_schema_that_is_given() -> None:
    schema = spark.StructType().add("ID", "long", False).add("_change_ordinal", "long")
    target = Target.of(SCHEMA, 3, None, schema)
    assert (target.names, target.spark_schema) == (("Id", "_change_ordinal"), schema)
    assert target.ordered
    assert not target.whole
    with pytest.raises(ConfigError, match="column 'm' is decimal"):
        Target.of(SCHEMA, 3, None, spark.StructType().add("m", "double"))
    with pytest.raises(ConfigError, match="there is no column 'n'"):
        Target.of(SCHEMA, 3, None, spark.StructType().add("n", "double"))


def test_a_table_with_a_column_of_ours() -> None:
    names = ("id", "_Commit_Version")
    schema = TableSchema(StructType(tuple(StructField(name, Primitive("string")) for name in names)))
    refusal = "names of change columns: _Commit_Version.*Leave them out with `columns`"
    with pytest.raises(ConfigError, match=refusal):
        Target.of(schema, 3)
    with pytest.raises(ConfigError, match=refusal):
        Target.of(schema.select(["_Commit_Version"]), 3, chosen("_commit_version"))
    rows = spark.StructType().add("id", "string").add("_commit_version", "long")
    for target in (
        Target.of(schema, 3, chosen("id", "_commit_version")),
        Target.of(schema, 3, None, rows),
        Target.of(schema, 3, chosen("id"), rows),
    ):
        assert (target.schema.names, target.names) == (("id",), ("id", "_commit_version"))
        assert target.spark_schema == rows
    with pytest.raises(ConfigError, match="there is no column '_Commit_Version'"):
        Target.of(schema, 3, chosen("id"), None, RowOptions(shape=shape_of("_Commit_Version = 'a'")))


@pytest.mark.parametrize("of_user", [False, True])
def test_batches_have_the_nullability_of_sparks_schema(of_user: bool) -> None:
    """Spark 4.2 refuses other batches."""
    number = StructType((StructField("n", Primitive("long"), nullable=False),))
    fields = {
        "struct": number,
        "list": ArrayType(Primitive("string"), contains_null=False),
        "map": MapType(Primitive("string"), number, value_contains_null=False),
    }
    table = TableSchema(StructType(tuple(StructField(name, kind, nullable=False) for name, kind in fields.items())))
    required = spark.StructType().add("n", "long", False)
    schema = spark.StructType().add("list", spark.ArrayType(spark.StringType(), False), False)
    schema = schema.add("map", spark.MapType(spark.StringType(), required, False), False).add("struct", required, False)
    target = Target.of(table, 3, None, schema if of_user else None)
    values: dict[str, list[Any]] = {"struct": [{"n": 1}], "list": [["a"]], "map": [[("k", {"n": 2})]]}
    more = [pa.array([7]), pa.array([1000], pa.timestamp("ms", "UTC")), pa.array([0])]
    arrays = [*(_array(values[field.name], field.type) for field in table.arrow), constant_type("insert", 1), *more]
    whole = pa.RecordBatch.from_arrays(arrays, schema=change_schema(table.arrow))
    actual = SparkBatches.plan(whole.schema, target.names, target.spark_schema)(whole)
    actual.validate(full=True)
    assert actual.schema.equals(to_arrow_schema(target.spark_schema))
    assert [field.nullable for field in actual.schema] == [not of_user] * len(target.names)
    assert {name: actual.column(name).to_pylist() for name in values} == values
