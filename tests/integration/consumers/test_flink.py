"""Flink SQL is left with the rows of the Delta table."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.support.consumers import flink
from tests.support.consumers.images import difference, images
from tests.support.consumers.life import NESTED, SCALARS, Life
from tests.support.consumers.living import deliver
from tests.support.kafka.pipeline import Pipeline
from tests.support.schema_registry import Registry

_ISO = {"timestamp-format.standard": "ISO-8601"}
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
IN_AVRO = {"TINYINT": "INT", "SMALLINT": "INT", "TIMESTAMP_LTZ(6)": "BIGINT", "TIMESTAMP(6)": "BIGINT"}
"""The types that Flink's Avro formats need instead. Times are microseconds since 1970."""


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
) -> None:
    """Read the topic to its end with a table of these options, and compare."""
    columns = [f"`{field.name}` {sql_type(field.type, instead or {})}" for field in life.schema]
    columns += ["PRIMARY KEY (`id`) NOT ENFORCED"] if key else []
    place = {
        "topic": pipeline.topic,
        "properties.bootstrap.servers": pipeline.direct,
        "properties.isolation.level": "read_committed",
        "scan.bounded.mode": "latest-offset",
    }
    settings = ", ".join(f"'{name}' = '{value}'" for name, value in (place | dict(options)).items())
    rows = flink.rows(f"CREATE TABLE t ({', '.join(columns)}) WITH ({settings});\nSELECT * FROM t;\n")
    found = images([dict(zip(life.schema.names, row, strict=True)) for row in rows], life.schema)
    assert not difference(found, life.images())


def living(pipeline: Pipeline, seed: int, sink: Mapping[str, Any], **options: Any) -> Life:
    topics = {"prefix": f"{pipeline.name}.", "partitions": 3}
    pipeline.configure(sink={"topics": topics} | dict(sink))
    life = Life(pipeline.uri, seed, **options)
    deliver(pipeline, life, seed)
    return life


def test_upsert_kafka_reads_flat_json(pipeline: Pipeline) -> None:
    life = living(pipeline, 3, {"format": "flat", "tombstones": "always"}, columns=(*SCALARS, *NESTED))
    formats = {"key.format": "json", "value.format": "json", "value.json.timestamp-format.standard": "ISO-8601"}
    check(pipeline, life, {"connector": "upsert-kafka"} | formats, key=True)


@pytest.mark.parametrize("feed", [True, False], ids=["feed", "derived"])
def test_debezium_json(feed: bool, pipeline: Pipeline) -> None:
    life = living(pipeline, 4, {"format": "debezium"}, feed=feed, columns=(*SCALARS, *NESTED))
    options = {f"debezium-json.{name}": value for name, value in _ISO.items()}
    check(
        pipeline,
        life,
        {"connector": "kafka", "scan.startup.mode": "earliest-offset", "format": "debezium-json"} | options,
    )


def test_upsert_kafka_reads_avro_of_a_registry(pipeline: Pipeline, registry: Registry) -> None:
    sink = {"format": "avro", "tombstones": "always", "schema_registry": {"url": registry.url}}
    life = living(pipeline, 5, sink, columns=(*SCALARS, *NESTED))
    formats = {"key.format": "avro-confluent", "value.format": "avro-confluent"}
    addresses = {f"{side}.avro-confluent.url": registry.url for side in ("key", "value")}
    check(pipeline, life, {"connector": "upsert-kafka"} | formats | addresses, key=True, instead=IN_AVRO)
