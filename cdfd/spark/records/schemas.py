"""Where the schema of a topic's rows comes from: the table itself, the pipeline's schema topic, or a schema registry."""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from cdfd.delta.types.schema_string import serialize
from cdfd.errors import ConfigError, DataError
from cdfd.log.table import Table
from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry
from cdfd.spark.records import avro as topic_avro
from cdfd.spark.records.records import table_type

_REGISTRY_SETTINGS: Final = frozenset({"url", "username", "password"})


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """Where the schema is to be taken from; see `read_changes`."""

    schema: StructType | str | None
    table: str | None
    storage_options: Mapping[str, object] | None = field(repr=False)
    schema_topic: str | None
    registry: str | Mapping[str, str] | None = field(repr=False)

    def check(self, format: str) -> None:
        """`ConfigError` where what is given does not go together, or is not enough."""
        if (self.registry is None) == (format == "avro"):
            hint = "Give the URL as `registry`" if self.registry is None else "Leave `registry` out"
            raise ConfigError("Avro needs a schema registry, and no other format does", hint=hint)
        sources = {"schema": self.schema, "table": self.table, "schema_topic": self.schema_topic}
        named = [f"`{name}`" for name, value in sources.items() if value is not None]
        if len(named) > 1 or (not named and self.registry is None):
            raise ConfigError(
                f"the schema of the rows is given {'by ' + ' and '.join(named) if named else 'nowhere'}",
                hint="Give one of `schema`, `table` and `schema_topic`; with Avro `registry` will do",
            )

    def find(self, spark: SparkSession, topic: str, options: Mapping[str, str]) -> tuple[StructType, dict[int, str]]:
        """The schema of the table; and with a registry, the Avro schemas of the topic by id.

        Args:
            spark: the session.
            topic: of the rows.
            options: of Spark's Kafka source, without the topic and where to begin.

        Raises:
            CdfdError: it cannot be had.
        """
        versions = {} if self.registry is None else avro_versions(self.registry, topic)
        if self.schema is not None:
            return of_spark(self.schema), versions
        if self.table is not None:
            return of_table(self.table, self.storage_options), versions
        if self.schema_topic is not None:
            return of_schema_topic(spark, self.schema_topic, topic, options), versions
        return topic_avro.table_type(list(versions.values())[-1]), versions


def of_table(uri: str, storage_options: Mapping[str, object] | None) -> StructType:
    """The schema of a Delta table's newest version.

    Raises:
        CdfdError: the table cannot be read; it names the table.
    """
    log = Table.open(uri, storage_options).log
    # A thread of its own: in a notebook there is a loop already.
    with ThreadPoolExecutor(1) as thread:
        header = thread.submit(lambda: asyncio.run(log.header())).result()
    return table_type(serialize(header.schema.struct))


def of_schema_topic(spark: SparkSession, schema_topic: str, topic: str, options: Mapping[str, str]) -> StructType:
    """The newest schema that a pipeline has identity of the table whose rows are in `topic`.

    Args:
        spark: the session.
        schema_topic: `<prefix>.schema`.
        topic: of the rows.
        options: of Spark's Kafka source, without the topic and where to begin.

    Raises:
        ConfigError: there is nothing of that table.
        DataError: what is there is no schema.
    """
    identity = sql.from_json(sql.col("value").cast("string"), "topic string, version long")
    records = spark.read.format("kafka").options(**options).option("subscribe", schema_topic).load()
    newest = (
        records.where(sql.col("value").isNotNull())
        .select("value", "offset", identity.alias("identity"))
        .where(sql.col("identity.topic") == topic)
        .orderBy(sql.col("identity.version").desc(), sql.col("offset").desc())
        .limit(1)
        .collect()
    )
    if not newest:
        raise ConfigError(
            f"the topic {schema_topic} says nothing of a table that is delivered to {topic}",
            hint="A pipeline writes it with the first rows of a table, unless its `topics.schema` says otherwise",
        )
    try:
        return table_type(json.dumps(json.loads(newest[0]["value"])["schema"]))
    except (ValueError, KeyError) as error:
        raise DataError(f"the newest record of {topic} in the topic {schema_topic} is no schema") from error


def avro_versions(registry: str | Mapping[str, str], topic: str) -> dict[int, str]:
    """All Avro schemas of a topic's values, by id.

    Args:
        registry: its URL, or `url`, `username` and `password`.
        topic: of the rows.

    Raises:
        ConfigError: the registry does not know the topic, or the arguments are wrong.
        SinkError: the registry cannot be asked.
    """
    settings: dict[str, Any] = {"url": registry} if isinstance(registry, str) else dict(registry)
    if unknown := settings.keys() - _REGISTRY_SETTINGS:
        raise ConfigError(f"`registry` has no setting {min(unknown)!r:.100}", hint="It has url, username and password")
    if not isinstance(settings.get("url"), str):
        raise ConfigError("`registry` has no url", hint="Such as http://registry:8081")
    versions = SchemaRegistry(settings["url"], username=settings.get("username"), password=settings.get("password"))
    try:
        return versions.versions(f"{topic}-value")
    finally:
        versions.close()


def of_spark(schema: StructType | str) -> StructType:
    """A schema that was given. `ConfigError` where Spark cannot read it."""
    if isinstance(schema, StructType):
        return table_type(schema.json())
    try:
        return table_type(StructType.fromDDL(schema).json())
    except PySparkException as error:
        raise ConfigError(f"`schema` is no schema: {error}"[:1000], hint="Such as 'id BIGINT, note STRING'") from error
