"""The section `sink` of `kind: kafka`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from cdfd.config import values
from cdfd.config.problems import Conflicts
from cdfd.config.settings import (
    Count,
    Flag,
    SecretText,
    Section,
    SinkSettings,
    UserText,
    WebAddress,
    registry_name,
)
from cdfd.encode.formats import record_format
from cdfd.runtime.registry import RECORD_FORMATS
from cdfd.sinks.kafka.security import Security

DEAD_LETTER_SUFFIX = ".dlq"


class Topics(Section):
    """Names of topics, and settings of topics that the daemon creates."""

    prefix: Annotated[str, PlainValidator(values.topic_prefix)] = ""
    """Prefix of default topic names."""

    partitions: Count = 4
    """Partitions of topics that the daemon creates."""

    replication_factor: Annotated[int, BeforeValidator(values.whole), Field(ge=1, le=32767)] = 1
    """Replication factor of topics that the daemon creates."""

    config: Mapping[str, str] = {}
    """Settings of topics that the daemon creates, such as `cleanup.policy`."""

    schemas: Flag = True
    """Whether `<prefix>.schema` gets each table's schema and its changes. Without a prefix, the topic is
    `<pipeline>.schema`.
    """

    transactions: Flag = False
    """Whether `<prefix>.transactions` gets a BEGIN record for each version, and an END record with counts."""


class SchemaRegistry(Section):
    """A Confluent-compatible schema registry. Required with `format: avro`."""

    url: WebAddress
    """Address of the registry."""

    username: UserText | None = None
    """User name at the registry."""

    password: SecretText | None = None
    """Password at the registry."""


class KafkaSettings(SinkSettings):
    """Topics of a Kafka cluster."""

    ledger_by_default: ClassVar[bool] = True
    has_topics: ClassVar[bool] = True

    kind: Literal["kafka"] = "kafka"
    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(values.servers)]
    """Addresses of brokers."""

    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """`exactly_once`: with transactions. `at_least_once`: with an idempotent producer and no transactions."""

    format: Annotated[str, registry_name(RECORD_FORMATS)] = "flat"
    """Form of the records."""

    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    """Compression of record batches."""

    tombstones: Literal["auto", "always", "never"] = "auto"
    """Whether a record without a value follows each delete. `auto`: on compacted topics."""

    oversized: Literal["fail", "skip", "dlq"] = "fail"
    """Reaction to a record that the broker refuses because of its size."""

    longs: Literal["number", "string"] = "number"
    """Form of 64-bit integers in JSON. Choose `string` for readers whose numbers are doubles."""

    producer: Literal["kafka-python", "librdkafka"] = "kafka-python"
    """The client. `librdkafka` needs `pip install 'cdfd[librdkafka]'`."""

    transaction_timeout: Annotated[float, BeforeValidator(values.seconds), Field(ge=10, le=900)] = 300.0
    """Longest time for a transaction. At most the broker's `transaction.max.timeout.ms`."""

    topics: Topics = Topics()
    security: Security = Security()
    schema_registry: SchemaRegistry | None = None

    @model_validator(mode="after")
    def _check_format(self) -> KafkaSettings:
        if self.schema_registry is None and record_format(self.format).needs_registry:
            raise Conflicts((("schema_registry",), f"required with format {self.format}"))
        return self

    @property
    def topic_prefix(self) -> str:
        """`topics.prefix`, without the mark at its end."""
        return self.topics.prefix.rstrip("._-")

    def refusal_of_headers(self, *, keyed: bool) -> str | None:
        """It depends on the format."""
        takes = record_format(self.format).takes_headers
        if takes == "keyed" and not keyed:
            return f"need a key with format {self.format}"
        return f"have no use with format {self.format}, whose records have many rows" if takes == "none" else None

    @property
    def keeps_positions(self) -> bool:
        """Only with transactions."""
        return self.delivery == "exactly_once"

    def side_topics(self, pipeline: str) -> Mapping[str, str]:
        """Those of schemas and of transactions."""
        topics = {"schemas": self.schema_topic(pipeline), "transactions": self.transactions_topic(pipeline)}
        return {topic: f"sink.topics.{key}" for key, topic in topics.items() if topic is not None}

    def schema_topic(self, pipeline: str) -> str | None:
        """The topic of schemas; None: there is none."""
        return f"{self.topic_prefix or pipeline}.schema" if self.topics.schemas else None

    def transactions_topic(self, pipeline: str) -> str | None:
        """The topic of the start and the end of versions; None: there is none."""
        return f"{self.topic_prefix or pipeline}.transactions" if self.topics.transactions else None

    @property
    def dead_letter_suffix(self) -> str | None:
        """That of `<topic>.dlq`, with `oversized: dlq`."""
        return DEAD_LETTER_SUFFIX if self.oversized == "dlq" else None
