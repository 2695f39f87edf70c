"""Schemas of a registry: those of change rows, and those of other writers."""

import json
from typing import Any

import pytest
from pyspark.sql.types import DecimalType, LongType, StructField, StructType

from cdfd.errors import DataError
from cdfd.spark.records.avro import table_type

CHANGE: list[dict[str, Any]] = [
    {"name": "_change_type", "type": "string"},
    {"name": "_commit_version", "type": "long"},
    {"name": "_commit_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "_change_ordinal", "type": "long"},
]


def schema(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "r", "fields": [*fields, *CHANGE]})


def decimal(**more: Any) -> dict[str, Any]:
    return {"name": "x", "type": {"type": "bytes", "logicalType": "decimal", **more}}


def test_columns_of_a_table() -> None:
    actual = table_type(schema({"name": "id", "type": ["null", "long"]}, decimal(precision=5, scale=2)))
    assert actual == StructType([StructField("id", LongType()), StructField("x", DecimalType(5, 2))])


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"record"}',
        '{"type":"record","fields":{}}',
        '{"type":"record","fields":[5]}',
        schema({"type": "long"}),
        schema({"name": 5, "type": "long"}),
        schema({"name": "x"}),
        schema({"name": "x", "type": "record"}),
        schema({"name": "x", "type": {"type": "record"}}),
        schema({"name": "x", "type": {"type": "array"}}),
        schema({"name": "x", "type": {"type": "map"}}),
        schema({"name": "x", "type": {"type": ["long"]}}),
        schema({"name": "x", "type": 5}),
        schema({"name": "x", "type": [[]]}),
        schema({"name": "x", "type": ["null", ["long"]]}),
        schema({"name": "x", "type": {"type": "array", "items": {"type": "record", "fields": [1, 2]}}}),
        schema(decimal()),
        schema(decimal(precision=39, scale=0)),
        schema(decimal(precision="5", scale=2)),
        schema(decimal(precision=10**400, scale=2)),
        schema({"name": "x", "type": json.loads('{"type":"array","items":' * 90 + '"long"' + "}" * 90)}),
        "[" * 100_000,
    ],
)
def test_a_schema_that_is_none(text: str) -> None:
    with pytest.raises(DataError, match="the registry"):
        table_type(text)


def event(before: Any, **more: Any) -> str:
    """With a schema of rows that `before` defines, and `after` names."""
    fields = {"before": before, "after": ["null", "Value"], "source": {"type": "record", "name": "S", "fields": []}}
    named = [{"name": name, "type": type} for name, type in (fields | {"op": "string"} | more).items() if type]
    return json.dumps({"type": "record", "name": "Envelope", "fields": named})


ROW = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": ["null", "long"]}]}


def test_columns_of_a_table_from_a_schema_of_events() -> None:
    assert table_type(event(["null", ROW]), events=True) == StructType([StructField("id", LongType())])


@pytest.mark.parametrize(
    "text", [schema({"name": "id", "type": "long"}), event(["null", ROW], op=None), event(["null", "long"])]
)
def test_a_schema_that_is_not_of_events(text: str) -> None:
    with pytest.raises(DataError, match="not one of Debezium's events"):
        table_type(text, events=True)
