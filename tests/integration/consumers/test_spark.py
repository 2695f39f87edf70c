"""Spark's own `from_json` and `from_avro` read Debezium's events, and are left with the rows of the Delta table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.support.consumers.images import difference, images
from tests.support.consumers.life import NESTED, SCALARS, Life
from tests.support.consumers.living import deliver
from tests.support.kafka.pipeline import Pipeline
from tests.support.schema_registry import Registry
from tests.support.spark.fixtures import needs_spark, spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["needs_spark", "spark"]


def living(pipeline: Pipeline, seed: int, sink: Mapping[str, Any]) -> Life:
    topics = {"prefix": f"{pipeline.name}.", "partitions": 3}
    pipeline.configure(sink={"topics": topics} | dict(sink))
    life = Life(pipeline.uri, seed, steps=20, columns=(*SCALARS, *NESTED))
    deliver(pipeline, life, seed)
    return life


def records(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """Of the topic, without tombstones."""
    options = {
        "kafka.bootstrap.servers": pipeline.direct,
        "kafka.isolation.level": "read_committed",
        "subscribe": pipeline.topic,
        "startingOffsets": "earliest",
    }
    return spark.read.format("kafka").options(**options).load().where("value IS NOT NULL")


def rows(records: DataFrame, event: Column) -> list[tuple[tuple[int, int], Mapping[str, Any]]]:
    """Events with their places in the topic."""
    events = records.select("partition", "offset", event.alias("event"))
    frame = events.select("partition", "offset", "event.op", "event.before", "event.after")
    return [((row["partition"], row["offset"]), row) for row in frame.toArrow().to_pylist(maps_as_pydicts="strict")]


def check(events: Sequence[tuple[tuple[int, int], Mapping[str, Any]]], life: Life) -> None:
    """Apply the events, of which those of each key are in order, and compare."""
    left: dict[int, Mapping[str, Any]] = {}
    for _, event in sorted(events, key=lambda each: each[0]):
        if event["op"] == "d":
            del left[event["before"]["id"]]
        else:
            left[event["after"]["id"]] = event["after"]
    assert not difference(images(left.values(), life.schema), life.images())


def test_from_json(spark: SparkSession, pipeline: Pipeline) -> None:
    from pyspark.sql.functions import col, from_json
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StringType, StructType

    life = living(pipeline, 10, {"format": "debezium"})
    row = from_arrow_schema(life.schema)
    schema = StructType().add("op", StringType()).add("before", row).add("after", row)
    check(rows(records(spark, pipeline), from_json(col("value").cast("string"), schema)), life)


def test_from_avro(spark: SparkSession, pipeline: Pipeline, registry: Registry) -> None:
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import expr

    sink = {"format": {"envelope": "debezium", "encoding": "avro"}, "schema_registry": {"url": registry.url}}
    life = living(pipeline, 11, sink)
    numbers = registry.subjects[f"{pipeline.topic}-value"]
    assert len(numbers) == 3  # a column is added, one becomes wider
    newest = registry.schemas[numbers[-1]]
    events = []
    for number in numbers:
        of_schema = records(spark, pipeline).where(expr(f"hex(substring(value, 1, 5)) = '00{number:08X}'"))
        event = from_avro(expr("substring(value, 6)"), registry.schemas[number], {"avroSchema": newest})
        events += rows(of_schema, event)
    check(events, life)
