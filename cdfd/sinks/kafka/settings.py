"""The section `sink` of `kind: kafka`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from cdfd.config import values
from cdfd.config.problems import Conflicts, Path
from cdfd.config.settings import (
    Count,
    Flag,
    LocalPath,
    SecretText,
    Section,
    Settings,
    SinkSettings,
    UserText,
    WebAddress,
    registered,
)
from cdfd.encoding.formats import record_format
from cdfd.ports.registry import RECORD_FORMATS

if TYPE_CHECKING:
    from cdfd.sinks.kafka.connector import KafkaConnector


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


class Security(Section):
    """Access to the Kafka cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Protocol of the connections."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """SASL mechanism. Required with SASL."""

    username: UserText | None = None
    """User name. Required with SASL."""

    password: SecretText | None = None
    """Password. Required with SASL."""

    ca_path: LocalPath | None = None
    """PEM file of trusted certificate authorities.

    Default: the system's.
    """

    certificate_path: LocalPath | None = None
    """PEM file of the client's certificate."""

    key_path: LocalPath | None = None
    """PEM file of the client's private key."""

    key_password: SecretText | None = None
    """Password of the private key."""

    @model_validator(mode="after")
    def _check_protocol(self) -> Security:
        conflicts: list[tuple[Path, str]] = []
        sasl, tls = self.protocol.startswith("SASL_"), self.protocol.endswith("SSL")
        for name in ("mechanism", "username", "password"):
            if sasl and getattr(self, name) is None:
                conflicts.append(((name,), f"required with protocol {self.protocol}"))
            if not sasl and getattr(self, name) is not None:
                conflicts.append(
                    ((name,), f"has no use with protocol {self.protocol}; expected SASL_SSL or SASL_PLAINTEXT")
                )
        for name in ("ca_path", "certificate_path", "key_path"):
            if not tls and getattr(self, name) is not None:
                conflicts.append(((name,), f"has no use with protocol {self.protocol}; expected SSL or SASL_SSL"))
        if tls and (self.certificate_path is None) != (self.key_path is None):
            conflicts.append(((), "certificate_path and key_path go together"))
        if conflicts:
            raise Conflicts(*conflicts)
        return self


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

    kind: Literal["kafka"] = "kafka"
    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(values.servers)]
    """Addresses of brokers."""

    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """`exactly_once`: with transactions. `at_least_once`: with an idempotent producer and no transactions."""

    format: Annotated[str, registered(RECORD_FORMATS)] = "flat"
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
    def keeps_positions(self) -> bool:
        """Only with transactions."""
        return self.delivery == "exactly_once"

    def connector(self, config: Settings) -> KafkaConnector:
        """The connector of topics."""
        from cdfd.sinks.kafka.connector import KafkaConnector

        return KafkaConnector(config, self)
