"""Readers of cdfd's topics for Spark: change rows as a DataFrame, and a copy of the Delta table that they update.

    changes = read_changes(spark, "shop.orders", bootstrap_servers="kafka:9092", table="s3://lake/orders", streaming=True)
    apply_changes(changes, "s3://copies/orders", ["order_id"], checkpoint="s3://copies/orders.checkpoint")

Spark's own connector reads Kafka (`spark-sql-kafka-0-10`, a jar that is not part of Spark), with all its settings and metrics. See
`docs/spark-topics.md`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from cdfd.encode.formats import CHOICES, MODES, EncodingName, EnvelopeName, FormatChoice
from cdfd.errors import ConfigError, UnsupportedError
from cdfd.spark.records.arrow import arrow_rows
from cdfd.spark.records.avro import AvroFrames
from cdfd.spark.records.json import envelope_rows, json_rows, unframe
from cdfd.spark.records.records import CHANGE_NAMES, KAFKA_NAMES, ROW, VALUE, check_columns, chosen
from cdfd.spark.records.schemas import SchemaSource
from cdfd.spark.upsert import Upsert, apply_changes

__all__ = ["Place", "Upsert", "apply_changes", "read_changes"]

Format: TypeAlias = Literal["flat", "debezium", "avro", "arrow", "cloudevents"] | Mapping[str, str]
"""As `sink.format` of the pipeline: a word, or `envelope` and `encoding`."""

Place: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[int, int]
"""The start or end of a read: `earliest`, `latest`, a time (the first record not before it), or an offset for each partition."""

_OURS: Final = {
    "subscribe": "Give the topic as `topic`",
    "subscribepattern": "Read one topic per call: topics belong to different tables",
    "assign": "Give the topic as `topic`",
    "kafka.bootstrap.servers": "Give them as `bootstrap_servers`",
    "kafka.isolation.level": "It is always read_committed: other levels show rows that were never delivered",
    "startingoffsets": "Give them as `starting`",
    "startingtimestamp": "Give it as `starting`",
    "startingoffsetsbytimestamp": "Give it as `starting`",
    "endingoffsets": "Give them as `ending`",
    "endingtimestamp": "Give it as `ending`",
    "endingoffsetsbytimestamp": "Give it as `ending`",
}

_READ: Final[Mapping[EncodingName, tuple[EnvelopeName, ...]]] = {
    "json": get_args(EnvelopeName),
    "json_schema": get_args(EnvelopeName),
    "avro": get_args(EnvelopeName),
    "arrow": ("flat",),
}
"""Envelopes that are read, by encoding."""
_FUNCTIONS: Final[Mapping[EncodingName, str]] = {
    "protobuf": "`from_protobuf`",
    "connect_json": "`from_json`",
}
"""Functions of Spark that read other encodings."""
_FORMS: Final = ("decimal", "time", "binary")
"""Keys of a format that choose the form of values."""

_SPLITS: Final = frozenset({"minpartitions", "maxrecordsperpartition"})
# Spark gives Python workers many records at a time, whatever their length: of half a megabyte each, these are 128 MB.
_RECORDS_OF_MANY_ROWS: Final = 256


def read_changes(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap_servers: str | Sequence[str],
    format: Format = "flat",
    schema: StructType | str | None = None,
    table: str | None = None,
    storage_options: Mapping[str, object] | None = None,
    schema_topic: str | None = None,
    registry: str | Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    unknown_columns: Literal["fail", "ignore"] | None = None,
    streaming: bool = False,
    starting: Place = "earliest",
    ending: Place = "latest",
    kafka_columns: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The change rows in a topic of cdfd.

    The schema of the rows comes from one of `schema`, `table`, `schema_topic`, or, in Avro, from `registry` alone. It is fixed at this call.
    Rows of earlier schemas have null in columns that they lack. A row with a column that the schema lacks is an error, so no value of a new
    column is lost: a running query ends, and you start it again. Columns are matched by name, so rows from before a column was renamed have
    the old name.

    Args:
        spark: a session, classic or Connect, with Spark's Kafka connector.
        topic: the topic of one table.
        bootstrap_servers: of the Kafka cluster.
        format: as `sink.format` of the pipeline: a word, or a mapping with `envelope` and `encoding`. The encodings `json`,
            `json_schema` and `avro` are read in all envelopes, `arrow` in `flat`, each with the default forms of values.
        schema: of the table, as a type or in DDL, without the change columns.
        table: URI of the Delta table that is delivered; its newest schema is used.
        storage_options: of the table's store.
        schema_topic: `<prefix>.schema` of the pipeline; its newest schema is used.
        registry: the schema registry that Avro needs: its URL, or a mapping as `sink.schema_registry`.
        columns: the table's columns to read. Needed if the pipeline delivers only some of them, because all others would be null.
        unknown_columns: `fail` or `ignore`, if records have a column that the schema lacks. Default: `fail`, or `ignore` with `columns`. In
            JSON, only columns are checked, not fields of structs.
        streaming: whether to return a streaming DataFrame, instead of the records that exist now.
        starting: where to begin. A streaming query with a checkpoint continues from there instead.
        ending: where to end; not for streaming.
        kafka_columns: further columns at the end: `_kafka_topic`, `_kafka_partition`, `_kafka_offset`, `_kafka_timestamp`.
        options: of Spark's Kafka source, such as `maxOffsetsPerTrigger`, `minPartitions`, `kafka.security.protocol`.

    Returns:
        The table's columns, then `_change_type` (string), `_commit_version` (long), `_commit_timestamp` (timestamp), `_change_ordinal`
        (long). Tombstones are left out. A record that does not fit the format and the schema ends the query, with an error that names topic,
        partition and offset.

    Raises:
        ConfigError: arguments contradict each other, the format is not supported, or the session lacks a jar.
        CdfdError: the schema cannot be read.
    """
    if not topic or "," in topic:
        raise ConfigError(
            f"{topic!r:.200} is not a topic name", hint="Read one topic per call: topics belong to different tables"
        )
    if streaming and ending != "latest":
        raise ConfigError("a stream has no end", hint="Leave `ending` out, or `streaming`")
    choice = format_choice(format)
    if unknown_columns not in (None, "fail", "ignore"):
        raise ConfigError(f"`unknown_columns` is {unknown_columns!r:.100}", hint="It is `fail` or `ignore`")
    strict = columns is None if unknown_columns is None else unknown_columns == "fail"
    source = SchemaSource(schema, table, storage_options, schema_topic, registry)
    source.check(choice.encoding)
    servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
    if not servers:
        raise ConfigError("`bootstrap_servers` is empty", hint="Such as localhost:9092")
    reading = {**(options or {}), "kafka.bootstrap.servers": servers, "kafka.isolation.level": "read_committed"}
    for name in options or ():
        if (hint := _OURS.get(name.lower())) is not None:
            raise ConfigError(f"`options` has {name!r}, which has an argument of its own", hint=hint)
    table_rows, versions = source.find(spark, topic, reading, events=choice.envelope == "debezium")
    table_rows = table_rows if columns is None else chosen(table_rows, columns)
    check_columns(table_rows)
    reading |= {"subscribe": topic, **_place("starting", starting, topic)}
    if choice.encoding == "arrow" and not any(name.lower() in _SPLITS for name in reading):
        reading["maxRecordsPerPartition"] = str(_RECORDS_OF_MANY_ROWS)
    if not streaming:
        reading |= _place("ending", ending, topic)
    records = _records(spark, reading, streaming)
    if choice.encoding == "json_schema":
        records = unframe(records, table_rows)
    if choice.encoding == "arrow":
        rows = arrow_rows(records, table_rows, strict=strict)
    elif choice.encoding == "avro":
        rows = AvroFrames(table_rows, versions, strict, events=choice.envelope == "debezium").rows(records)
    else:
        decode = envelope_rows if choice.envelope == "debezium" else json_rows
        rows = decode(records, table_rows, strict=strict)
    row = sql.col(ROW)
    names = (*table_rows.names, *CHANGE_NAMES)
    return rows.select(*(row.getField(name).alias(name) for name in names), *(KAFKA_NAMES if kafka_columns else ()))


def format_choice(format: str | Mapping[str, str]) -> FormatChoice:
    """The envelope and the encoding of a format, which is given as in a configuration.

    Raises:
        ConfigError: there is no such format.
        UnsupportedError: it is not read.
    """
    if isinstance(format, str):
        if format not in CHOICES:
            raise ConfigError(
                f"there is no format {format!r:.100}",
                hint=f"There are {', '.join(CHOICES)}, or a mapping with `envelope` and `encoding`",
            )
        choice = CHOICES[format]
    else:
        words = {"envelope": get_args(EnvelopeName), "encoding": get_args(EncodingName)}
        for name, value in format.items():
            if name not in (*words, *_FORMS):
                raise ConfigError(f"`format` has no key {name!r:.100}", hint=f"It has {', '.join((*words, *_FORMS))}")
            if name in words and value not in words[name]:
                raise ConfigError(f"`{name}` of `format` is {value!r:.100}", hint=f"There are {', '.join(words[name])}")
        choice = FormatChoice(**dict(format))  # type: ignore[arg-type] # checked
    if choice.envelope not in _READ.get(choice.encoding, ()):
        function = _FUNCTIONS.get(choice.encoding, "hand")
        raise UnsupportedError(
            f"`read_changes` does not read the encoding {choice.encoding} in the envelope {choice.envelope}",
            hint=f"Deliver the table in avro or json_schema, or read records of Spark's Kafka source by {function}",
        )
    for form in _FORMS:
        own = getattr(MODES[choice.encoding], form) if choice.encoding in MODES else None
        if getattr(choice, form) not in (None, own):
            raise UnsupportedError(
                f"`read_changes` does not read `{form}: {getattr(choice, form)}` in the encoding {choice.encoding}",
                hint=f"Deliver the table with `{form}: {own}`, which is the default",
            )
    return choice


def _place(which: Literal["starting", "ending"], place: Place, topic: str) -> dict[str, str]:
    if isinstance(place, datetime):
        if place.tzinfo is None:
            raise ConfigError(f"`{which}` is a time without a zone", hint="Such as datetime(2026, 1, 31, tzinfo=UTC)")
        # By default a partition without a later record is an error.
        strategy = {"startingOffsetsByTimestampStrategy": "latest"} if which == "starting" else {}
        return {f"{which}Timestamp": str(math.ceil(place.timestamp() * 1000)), **strategy}
    if isinstance(place, Mapping):
        return {f"{which}Offsets": json.dumps({topic: {str(partition): offset for partition, offset in place.items()}})}
    if place not in ("earliest", "latest") or (which, place) == ("ending", "earliest"):
        raise ConfigError(
            f"`{which}` is {place!r:.100}",
            hint="It is `earliest`, `latest`, a datetime, or an offset for every partition",
        )
    return {f"{which}Offsets": place}


def _records(spark: SparkSession, reading: Mapping[str, str], streaming: bool) -> DataFrame:
    """The records for decoders."""
    reader = spark.readStream if streaming else spark.read
    try:
        records = reader.format("kafka").options(**reading).load()
        has_value = sql.col("value").isNotNull()
        there = records.where(has_value)
        # Spark Connect contacts the server here, and classic sessions in `load`.
        there.schema  # noqa: B018
    except AnalysisException as error:
        raise ConfigError(
            f"Spark cannot read Kafka: {error.getCondition()}",
            hint="The session needs the jars of org.apache.spark:spark-sql-kafka-0-10_2.13 in Spark's version",
        ) from error
    places = (sql.when(has_value, sql.col("topic")), *map(sql.col, ("partition", "offset", "timestamp")))
    renamed = (place.alias(name) for place, name in zip(places, KAFKA_NAMES, strict=True))
    return there.select(*renamed, sql.col("value").alias(VALUE))
