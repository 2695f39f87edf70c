"""Debezium's JDBC sink, in Kafka Connect, keeps a table of PostgreSQL equal to the Delta table."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.consumers.connect import Connect
from tests.support.consumers.images import as_numbers, difference, images
from tests.support.consumers.life import WIDENED, Life
from tests.support.consumers.living import deliver
from tests.support.consumers.postgres import USER, Postgres
from tests.support.consumers.recipes import connector
from tests.support.kafka.pipeline import Pipeline
from tests.support.schema_registry import Registry

_SECONDS = 60.0
_TYPES = {
    "decimal": "numeric",
    "timestamp": "timestamp without time zone",
    "timestamp_ntz": "timestamp without time zone",
    "date": "date",
    "binary": "bytea",
}
"""The types of some columns in PostgreSQL."""


def converters(encoding: str, registry: Registry) -> dict[str, str]:
    """Those of an encoding. The connector's own are for JSON with schemas."""
    if encoding != "avro":
        return {}
    address = f"{registry.url}/apis/registry/v2"
    urls = {f"{side}.converter.apicurio.registry.url": address for side in ("key", "value")}
    return connector("jdbc-sink", 1, urls)


def sink(pipeline: Pipeline, database: Postgres) -> dict[str, str]:
    """The connector from the pipeline's topic into a table of the database."""
    own = {
        "topics": pipeline.topic,
        "connection.url": database.jdbc,
        "connection.username": USER,
        "collection.name.format": table_name(pipeline),
    }
    return connector("jdbc-sink", 0, own)


def table_name(pipeline: Pipeline) -> str:
    return pipeline.name.replace("-", "_")


def check(
    pipeline: Pipeline, worker: Connect, database: Postgres, life: Life, encoding: str, settings: Mapping[str, str]
) -> None:
    """Run the connector until the tables are equal."""
    table, expected = table_name(pipeline), life.images() if encoding == "avro" else as_numbers(life.images())

    def differences() -> str:
        return difference(images(database.rows(table), life.schema), expected)

    # The sink adds columns, and never makes one wider.
    database.execute(f'CREATE TABLE "{table}" (id BIGINT PRIMARY KEY, {WIDENED} BIGINT)')
    with worker.connector(pipeline.name, settings):
        try:
            worker.wait(pipeline.name, lambda: not differences(), _SECONDS)
        except TimeoutError as error:
            raise AssertionError(differences()) from error
    statement = f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{table}'"
    kinds = dict(line.split("|") for line in database.execute(statement).splitlines())
    assert kinds.items() >= _TYPES.items()


def living(pipeline: Pipeline, seed: int, registry: Registry, sink: Mapping[str, Any], **options: Any) -> Life:
    topics = {"prefix": f"{pipeline.name}.", "partitions": 3}
    pipeline.configure(sink={"topics": topics, "schema_registry": {"url": registry.url}} | dict(sink))
    life = Life(pipeline.uri, seed, **options)
    deliver(pipeline, life, seed)
    return life


@pytest.mark.parametrize("encoding", ["avro", "connect_json"])
@pytest.mark.parametrize("feed", [True, False], ids=["feed", "derived"])
def test_debezium_events(
    encoding: str, feed: bool, pipeline: Pipeline, worker: Connect, database: Postgres, registry: Registry
) -> None:
    life = living(pipeline, 1, registry, {"format": {"envelope": "debezium", "encoding": encoding}}, feed=feed)
    settings = sink(pipeline, database) | converters(encoding, registry)
    check(pipeline, worker, database, life, encoding, settings)


def test_events_that_a_transform_makes_rows(
    pipeline: Pipeline, worker: Connect, database: Postgres, registry: Registry
) -> None:
    encoding = "connect_json"
    life = living(pipeline, 2, registry, {"format": {"envelope": "debezium", "encoding": encoding}})
    transform = connector("jdbc-sink", 2)
    settings = sink(pipeline, database) | converters(encoding, registry) | transform
    check(pipeline, worker, database, life, encoding, settings)


def test_events_with_headers_of_apicurio(
    pipeline: Pipeline, worker: Connect, database: Postgres, registry: Registry
) -> None:
    framing = {"url": registry.url, "framing": "apicurio"}
    sinking = {"format": {"envelope": "debezium", "encoding": "avro"}, "schema_registry": framing}
    life = living(pipeline, 4, registry, sinking)
    names = [f"{side}.converter.apicurio.registry" for side in ("key", "value")]
    headers = {f"{name}.headers.enabled": "true" for name in names} | {
        f"{name}.as-confluent": "false" for name in names
    }
    settings = sink(pipeline, database) | converters("avro", registry) | headers
    check(pipeline, worker, database, life, "avro", settings)


@pytest.mark.parametrize("encoding", ["avro", "connect_json"])
def test_flat_rows(encoding: str, pipeline: Pipeline, worker: Connect, database: Postgres, registry: Registry) -> None:
    life = living(pipeline, 3, registry, {"format": {"encoding": encoding}, "tombstones": "always"})
    settings = sink(pipeline, database) | converters(encoding, registry) | connector("jdbc-sink", 3)
    check(pipeline, worker, database, life, encoding, settings)
