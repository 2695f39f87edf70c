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
    Text,
    WebAddress,
    registered,
)
from cdfd.encoding.formats import record_format
from cdfd.ports.registry import RECORD_FORMATS

if TYPE_CHECKING:
    from cdfd.sinks.kafka.connector import KafkaConnector


class Topics(Section):
    """Topics of a Kafka sink: their default names, and the settings of created topics."""

    prefix: Annotated[str, PlainValidator(values.topic_prefix)] = ""
    partitions: Count = 4
    replication_factor: Annotated[int, BeforeValidator(values.whole), Field(ge=1, le=32767)] = 1
    config: Mapping[str, str] = {}
    schemas: Flag = True
    transactions: Flag = False


class Security(Section):
    """Access to the Kafka cluster."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: Text | None = None
    password: SecretText | None = None
    ca_path: LocalPath | None = None
    certificate_path: LocalPath | None = None
    key_path: LocalPath | None = None
    key_password: SecretText | None = None

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
    """A Confluent-compatible schema registry."""

    url: WebAddress
    username: Text | None = None
    password: SecretText | None = None


class KafkaSettings(SinkSettings):
    """Topics of a Kafka cluster."""

    ledger_by_default: ClassVar[bool] = True

    kind: Literal["kafka"] = "kafka"
    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(values.servers)]
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    format: Annotated[str, registered(RECORD_FORMATS)] = "flat"
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    tombstones: Literal["auto", "always", "never"] = "auto"
    oversized: Literal["fail", "skip", "dlq"] = "fail"
    longs: Literal["number", "string"] = "number"
    producer: Literal["kafka-python", "librdkafka"] = "kafka-python"
    transaction_timeout: Annotated[float, BeforeValidator(values.seconds), Field(ge=10, le=900)] = 300.0
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
