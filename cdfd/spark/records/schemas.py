"""Where the schema of a topic's rows comes from: the table itself, the pipeline's schema topic, or a schema registry."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from cdfd.delta.types.schema_string import serialize
from cdfd.encode.registered import Registration
from cdfd.errors import ConfigError, DataError, UnsupportedError
from cdfd.log.table import Table
from cdfd.runtime.tasks import run_blocking
from cdfd.sinks.kafka.client.schema_registry import SchemaRegistry, login_of, tls_of
from cdfd.sinks.kafka.settings import SchemaRegistry as Settings
from cdfd.spark.records import avro as topic_avro
from cdfd.spark.records.records import table_type
from cdfd.trevni.avro_names import legal_path


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """Where the schema is to be taken from; see `read_changes`."""

    schema: StructType | str | None
    table: str | None
    storage_options: Mapping[str, object] | None = field(repr=False)
    schema_topic: str | None
    registry: str | Mapping[str, str] | None = field(repr=False)

    def check(self, encoding: str) -> None:
        """`ConfigError` where what is given does not go together, or is not enough."""
        if (self.registry is None) == (encoding == "avro"):
            hint = "Give the URL as `registry`" if self.registry is None else "Leave `registry` out"
            raise ConfigError("Avro needs a schema registry, and no other format does", hint=hint)
        sources = {"schema": self.schema, "table": self.table, "schema_topic": self.schema_topic}
        named = [f"`{name}`" for name, value in sources.items() if value is not None]
        if len(named) > 1 or (not named and self.registry is None):
            raise ConfigError(
                f"the schema of the rows is given {'by ' + ' and '.join(named) if named else 'nowhere'}",
                hint="Give one of `schema`, `table` and `schema_topic`; with Avro `registry` will do",
            )

    def find(
        self, spark: SparkSession, topic: str, options: Mapping[str, str], *, events: bool
    ) -> tuple[StructType, dict[int, str]]:
        """The schema of the table; and with a registry, the Avro schemas of the topic by id.

        `options` are those of Spark's Kafka source, without the topic and where to begin. Debezium's events have `events`.

        Raises:
            CdfdError: it cannot be had.
        """
        record = f"{topic}.{'Envelope' if events else 'Value'}"
        versions = {} if self.registry is None else avro_versions(self.registry, topic, record)
        if self.schema is not None:
            try:
                struct = self.schema if isinstance(self.schema, StructType) else StructType.fromDDL(self.schema)
            except PySparkException as error:
                raise ConfigError(
                    f"`schema` is not a schema: {error}"[:1000], hint="Such as 'id BIGINT, note STRING'"
                ) from error
            return table_type(struct.json()), versions
        if self.table is not None:
            log = Table.open(self.table, self.storage_options).log
            return table_type(serialize(run_blocking(log.header()).schema.struct)), versions
        if self.schema_topic is not None:
            return of_schema_topic(spark, self.schema_topic, topic, options), versions
        return topic_avro.table_type(list(versions.values())[-1], events=events), versions


def of_schema_topic(spark: SparkSession, schema_topic: str, topic: str, options: Mapping[str, str]) -> StructType:
    """The newest schema in a pipeline's `<prefix>.schema` of the table whose rows are in `topic`. The options are as for `find`.

    Raises:
        ConfigError: there is nothing of that table.
        DataError: what is there is not a schema.
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
            hint="A pipeline writes it with the first rows of a table, unless `sink.topics.schemas` is false",
        )
    try:
        return table_type(json.dumps(json.loads(newest[0]["value"])["schema"]))
    except (ValueError, KeyError) as error:
        raise DataError(f"the newest record of {topic} in the topic {schema_topic} is not a schema") from error


def avro_versions(registry: str | Mapping[str, str], topic: str, record: str) -> dict[int, str]:
    """All Avro schemas of a topic's values, by id.

    Args:
        registry: its URL, or settings as in `sink.schema_registry`.
        topic: of the rows.
        record: full name of the record in the schemas.

    Raises:
        ConfigError: the registry does not know the topic, or the arguments are wrong.
        SinkError: the registry cannot be asked.
    """
    settings = _settings({"url": registry} if isinstance(registry, str) else registry)
    versions = SchemaRegistry(settings.url, login=login_of(settings), tls=tls_of(settings), timeout=settings.timeout)
    try:
        subjects = Registration(versions, settings.subject)
        return versions.versions(subjects.subject(topic, "value", legal_path(record)))
    finally:
        versions.close()


def _settings(options: Mapping[str, str]) -> Settings:
    try:
        settings = Settings.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"`registry`: {name}: {first['msg']}"[:1000], hint="It has the settings of `sink.schema_registry`"
        ) from None
    if settings.framing != "confluent":
        raise UnsupportedError(
            "ids of schemas in headers, as Apicurio has them, are not read", hint="Deliver with `framing: confluent`"
        )
    return settings
