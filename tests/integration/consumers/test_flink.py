"""Flink SQL is left with the rows of the Delta table."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.support.consumers import flink
from tests.support.consumers.images import Images, as_milliseconds, as_numbers, difference, images
from tests.support.consumers.life import NESTED, SCALARS, Life
from tests.support.consumers.living import deliver
from tests.support.consumers.recipes import flink_options
from tests.support.kafka.pipeline import Pipeline
from tests.support.schema_registry import Registry

_TYPES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.binary(): "BYTES",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP_LTZ(6)",
    pa.timestamp("us"): "TIMESTAMP(6)",
}
_AVRO_INTEGERS = {"TINYINT": "INT", "SMALLINT": "INT"}
IN_AVRO = _AVRO_INTEGERS | {"TIMESTAMP_LTZ(6)": "BIGINT", "TIMESTAMP(6)": "BIGINT"}
"""The types that Flink's Avro formats need instead. Times are microseconds since 1970."""
IN_AVRO_WITH_MILLISECONDS = _AVRO_INTEGERS | {"TIMESTAMP_LTZ(6)": "TIMESTAMP(3)", "TIMESTAMP(6)": "TIMESTAMP(3)"}
"""With `time: connect`."""


def sql_type(kind: pa.DataType, instead: Mapping[str, str]) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_struct(kind):
        return f"ROW<{', '.join(f'`{field.name}` {sql_type(field.type, instead)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{sql_type(kind.key_type, instead)}, {sql_type(kind.item_type, instead)}>"
    if pa.types.is_nested(kind):
        return f"ARRAY<{sql_type(kind.value_type, instead)}>"
    name = _TYPES[kind]
    return instead.get(name, name)


def check(
    pipeline: Pipeline,
    life: Life,
    options: Mapping[str, str],
    *,
    key: bool = False,
    instead: Mapping[str, str] | None = None,
    expected: Images | None = None,
) -> None:
    """Read the topic to its end with a table of these options, and compare."""
    columns = [f"`{field.name}` {sql_type(field.type, instead or {})}" for field in life.schema]
    columns += ["PRIMARY KEY (`id`) NOT ENFORCED"] if key else []
    settings = ", ".join(
        f"'{name}' = '{value}'" for name, value in {**options, "scan.bounded.mode": "latest-offset"}.items()
    )
    rows = flink.rows(f"CREATE TABLE t ({', '.join(columns)}) WITH ({settings});\nSELECT * FROM t;\n")
    actual = images([dict(zip(life.schema.names, row, strict=True)) for row in rows], life.schema)
    assert not difference(actual, life.images() if expected is None else expected)


def living(pipeline: Pipeline, seed: int, sink: Mapping[str, Any], **options: Any) -> Life:
    topics = {"prefix": f"{pipeline.name}.", "partitions": 3}
    pipeline.configure(sink={"topics": topics} | dict(sink))
    life = Life(pipeline.uri, seed, **options)
    deliver(pipeline, life, seed)
    return life


def options(pipeline: Pipeline, number: int, **addresses: str) -> dict[str, str]:
    """Those of a block of the page."""
    own = {"topic": pipeline.topic, "properties.bootstrap.servers": pipeline.direct}
    return flink_options(number, own | addresses)


@pytest.mark.parametrize("feed", [True, False], ids=["feed", "derived"])
def test_events_in_json(feed: bool, pipeline: Pipeline) -> None:
    life = living(pipeline, 4, {"format": "debezium"}, feed=feed, columns=(*SCALARS, *NESTED))
    check(pipeline, life, options(pipeline, 0))


def test_events_with_schemas_in_json(pipeline: Pipeline) -> None:
    modes = {"decimal": "string", "time": "iso", "binary": "base64"}
    sink = {"format": {"envelope": "debezium", "encoding": "connect_json"} | modes}
    life = living(pipeline, 12, sink, columns=(*SCALARS, *NESTED))
    check(
        pipeline,
        life,
        options(pipeline, 0) | {"debezium-json.schema-include": "true"},
        expected=as_numbers(life.images()),
    )


def test_events_in_avro(pipeline: Pipeline, registry: Registry) -> None:
    sink = {"format": {"envelope": "debezium", "encoding": "avro"}, "schema_registry": {"url": registry.url}}
    life = living(pipeline, 8, sink, columns=(*SCALARS, *NESTED))
    address = {"debezium-avro-confluent.url": registry.url}
    check(pipeline, life, options(pipeline, 1, **address), instead=IN_AVRO)


def test_events_in_avro_with_milliseconds(pipeline: Pipeline, registry: Registry) -> None:
    choice = {"envelope": "debezium", "encoding": "avro", "time": "connect"}
    life = living(pipeline, 13, {"format": choice, "schema_registry": {"url": registry.url}})
    address = {"debezium-avro-confluent.url": registry.url}
    expected = as_milliseconds(life.images())
    check(pipeline, life, options(pipeline, 1, **address), instead=IN_AVRO_WITH_MILLISECONDS, expected=expected)


def test_the_newest_row_of_each_key_in_json(pipeline: Pipeline) -> None:
    life = living(pipeline, 3, {"format": "flat", "tombstones": "always"}, columns=(*SCALARS, *NESTED))
    check(pipeline, life, options(pipeline, 2), key=True)


def test_the_newest_row_of_each_key_in_avro(pipeline: Pipeline, registry: Registry) -> None:
    sink = {"format": "avro", "tombstones": "always", "schema_registry": {"url": registry.url}}
    life = living(pipeline, 5, sink, columns=(*SCALARS, *NESTED))
    json_only = {"value.json.timestamp-format.standard"}
    common = {name: value for name, value in options(pipeline, 2).items() if name not in json_only}
    addresses = {f"{side}.avro-confluent.url": registry.url for side in ("key", "value")}
    check(pipeline, life, common | flink_options(3, addresses), key=True, instead=IN_AVRO)
