"""Debezium's JDBC sink, in Kafka Connect, keeps a table of PostgreSQL equal to the Delta table."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.consumers.connect import Connect
from tests.support.consumers.images import difference, images
from tests.support.consumers.life import WIDENED, Life
from tests.support.consumers.living import deliver
from tests.support.consumers.postgres import USER, Postgres
from tests.support.kafka.pipeline import Pipeline
from tests.support.schema_registry import Registry

_SECONDS = 60.0
_CHANGE_COLUMNS = "_change_type,_commit_version,_commit_timestamp,_change_ordinal"


def apicurio(registry: Registry) -> dict[str, str]:
    """Keys and values by Apicurio's converter, in Confluent's wire format."""
    settings: dict[str, str] = {}
    for side in ("key", "value"):
        settings |= {
            f"{side}.converter": "io.apicurio.registry.utils.converter.AvroConverter",
            f"{side}.converter.apicurio.registry.url": f"{registry.url}/apis/registry/v2",
            f"{side}.converter.apicurio.registry.as-confluent": "true",
            f"{side}.converter.apicurio.registry.use-id": "globalId",
        }
    return settings


def sink(pipeline: Pipeline, database: Postgres) -> dict[str, str]:
    """The connector from the pipeline's topic into the database's table `name`."""
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": pipeline.topic,
        "connection.url": database.jdbc,
        "connection.username": USER,
        "connection.password": "none",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "quote.identifiers": "true",
        "collection.name.format": table_name(pipeline),
    }


def table_name(pipeline: Pipeline) -> str:
    return pipeline.name.replace("-", "_")


def without_change_columns() -> dict[str, str]:
    """A transform of rows, but not of tombstones."""
    return {
        "transforms": "columns",
        "transforms.columns.type": "org.apache.kafka.connect.transforms.ReplaceField$Value",
        "transforms.columns.exclude": _CHANGE_COLUMNS,
        "transforms.columns.predicate": "tombstone",
        "transforms.columns.negate": "true",
        "predicates": "tombstone",
        "predicates.tombstone.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
    }


def check(pipeline: Pipeline, worker: Connect, database: Postgres, life: Life, settings: Mapping[str, str]) -> None:
    """Run the connector until the tables are equal."""
    table, expected = table_name(pipeline), life.images()

    def found() -> str:
        return difference(images(database.rows(table), life.schema), expected)

    # The sink adds columns, and never makes one wider.
    database.execute(f'CREATE TABLE "{table}" (id BIGINT PRIMARY KEY, {WIDENED} BIGINT)')
    with worker.connector(pipeline.name, settings):
        try:
            worker.wait(pipeline.name, lambda: not found(), _SECONDS)
        except TimeoutError as error:
            raise AssertionError(found()) from error


@pytest.mark.parametrize(("seed", "feed"), [(1, True), (2, False)], ids=["feed", "derived"])
def test_flat_rows_in_avro(
    seed: int, feed: bool, pipeline: Pipeline, worker: Connect, database: Postgres, registry: Registry
) -> None:
    sinking: dict[str, Any] = {"format": "avro", "tombstones": "always", "schema_registry": {"url": registry.url}}
    pipeline.configure(sink=sinking | {"topics": {"prefix": f"{pipeline.name}.", "partitions": 3}})
    life = Life(pipeline.uri, seed, feed=feed)
    deliver(pipeline, life, seed)
    settings = sink(pipeline, database) | apicurio(registry) | without_change_columns()
    check(pipeline, worker, database, life, settings)
