"""The section `sink` of `kind: kafka`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from cdfd.config import values
from cdfd.config.problems import Conflicts, Path, refuse
from cdfd.config.settings import (
    Count,
    Flag,
    LocalPath,
    SecretText,
    Section,
    SinkSettings,
    UserText,
    WebAddress,
    either,
    registry_name,
)
from cdfd.encode.cloudevents import ATTRIBUTES
from cdfd.encode.formats import CHOICES, FormatChoice, RecordFormat, record_format
from cdfd.runtime.registry import RECORD_FORMATS, Registry
from cdfd.sinks.kafka.security import OAuth, Security

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


class Format(Section):
    """Form of the records: `format: debezium`, a word for an envelope and an encoding, or a mapping with these keys."""

    words: ClassVar[Registry | None] = RECORD_FORMATS

    name: Annotated[str, registry_name(RECORD_FORMATS)] | None = None
    """A word for an envelope and an encoding: `flat`, `cloudevents` and `debezium` are in JSON, `avro` and `arrow` are flat. Or a format
    that another package registers.
    """

    envelope: Literal["flat", "debezium", "cloudevents"] = "flat"
    """Content of a record: the row, an event with both images of an update, or the row with headers of CloudEvents."""

    encoding: Literal["json", "json_schema", "connect_json", "avro", "protobuf", "arrow"] = "json"
    """How a record is written. `json_schema`, `avro` and `protobuf` need a schema registry."""

    decimal: Literal["precise", "string", "double"] | None = None
    """Form of decimals: unscaled bytes, text with all digits, or the nearest double.

    Default: `string`; `precise` with encoding `avro` and `connect_json`.
    """

    time: Literal["connect", "iso", "micros"] | None = None
    """Form of dates and times: days and milliseconds, text, or days and microseconds.

    Default: `iso`; `micros` with encoding `avro` and `connect_json`; `connect` with `protobuf`.
    """

    binary: Literal["base64", "hex", "bytes"] | None = None
    """Form of bytes in schemas: text in base64 or hex, or bytes. JSON has bytes in base64, too.

    Default: `base64`; `bytes` with encoding `avro`, `connect_json` and `protobuf`.
    """

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, data: Any) -> Any:
        if isinstance(data, str):
            if data not in RECORD_FORMATS:
                raise ValueError(f"expected {either(RECORD_FORMATS.names())}, or a mapping")
            data = {"name": data}
        word = CHOICES.get(str(data["name"])) if isinstance(data, dict) and "name" in data else None
        if word is None or "envelope" in data or "encoding" in data:
            return data
        others = {key: value for key, value in data.items() if key != "name"}
        return {"envelope": word.envelope, "encoding": word.encoding, **others}

    @model_validator(mode="after")
    def _check_combination(self) -> Format:
        conflicts: list[tuple[Path, str]] = []
        choice = self.choice
        if isinstance(choice, str):
            others = self.model_fields_set - {"name"}
            conflicts += [((other,), "has no use with name") for other in sorted(others)]
        elif choice.conflict is not None:
            key, what = choice.conflict
            conflicts.append(((key,), what))
        refuse(conflicts)
        return self

    @property
    def choice(self) -> str | FormatChoice:
        """The envelope and the encoding, or the name of another package's format."""
        if self.name is not None:
            return self.name
        return FormatChoice(self.envelope, self.encoding, self.decimal, self.time, self.binary)

    @property
    def record_format(self) -> RecordFormat:
        """The maker of encoders."""
        return record_format(self.choice)

    def __str__(self) -> str:
        words = (word for word, choice in CHOICES.items() if choice == self.choice)
        return self.name or next(words, f"{{envelope: {self.envelope}, encoding: {self.encoding}}}")


class SchemaRegistry(Section):
    """A Confluent-compatible schema registry. Required with the encodings `json_schema`, `avro` and `protobuf`."""

    url: Annotated[tuple[WebAddress, ...], BeforeValidator(values.addresses), Field(min_length=1)]
    """Address of the registry, or several of one registry. cdfd uses the next one if one does not answer."""

    username: UserText | None = None
    """User name at the registry."""

    password: SecretText | None = None
    """Password at the registry."""

    oauth: OAuth | None = None
    ca_path: LocalPath | None = None
    """PEM file of the authorities that the registry's certificate may have.

    Default: the system's.
    """

    certificate_path: LocalPath | None = None
    """PEM file of the client's certificate."""

    key_path: LocalPath | None = None
    """PEM file of the client's private key."""

    auto_register: Flag = True
    """Whether the daemon registers schemas. If not, it stops before a version whose schema is not registered."""

    subject: Literal["topic", "record", "topic_record"] = "topic"
    """Subject of a schema: `<topic>-value`, the full name of the record, or `<topic>-` and that name."""

    framing: Literal["confluent", "apicurio"] = "confluent"
    """Place of the schema's id: before the record, as Confluent's clients have it, or in Apicurio's headers."""

    timeout: Annotated[float, BeforeValidator(values.seconds), Field(ge=0.1, le=300)] = 10.0
    """Longest wait for an answer."""

    @model_validator(mode="after")
    def _check_login(self) -> SchemaRegistry:
        conflicts: list[tuple[Path, str]] = []
        if self.oauth is not None and self.username is not None:
            conflicts.append((("oauth",), "has no use with username"))
        if (self.username is None) != (self.password is None):
            conflicts.append(((), "username and password go together"))
        if (self.certificate_path is None) != (self.key_path is None):
            conflicts.append(((), "certificate_path and key_path go together"))
        refuse(conflicts)
        return self


class KafkaSettings(SinkSettings):
    """Topics of a Kafka cluster."""

    ledger_by_default: ClassVar[bool] = True
    has_topics: ClassVar[bool] = True

    kind: Literal["kafka"] = "kafka"
    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(values.servers)]
    """Addresses of brokers."""

    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """`exactly_once`: with transactions. `at_least_once`: with an idempotent producer and no transactions."""

    format: Format = Format()

    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4"
    """Compression of record batches."""

    tombstones: Literal["auto", "always", "never"] = "auto"
    """Whether a record without a value follows each delete. `auto`: on compacted topics; with envelope `debezium` on all."""

    oversized: Literal["fail", "skip", "dlq"] = "fail"
    """Reaction to a record that the broker refuses because of its size."""

    longs: Literal["number", "string"] = "number"
    """Form of 64-bit integers in JSON without a schema. Choose `string` for readers whose numbers are doubles."""

    producer: Literal["kafka-python", "librdkafka"] = "kafka-python"
    """The client. `librdkafka` needs `pip install 'cdfd[librdkafka]'`."""

    transaction_timeout: Annotated[float, BeforeValidator(values.seconds), Field(ge=10, le=900)] = 300.0
    """Longest time for a transaction. At most the broker's `transaction.max.timeout.ms`."""

    topics: Topics = Topics()
    security: Security = Security()
    schema_registry: SchemaRegistry | None = None

    @model_validator(mode="after")
    def _check_format(self) -> KafkaSettings:
        if self.schema_registry is None and self.format.record_format.schemas is not None:
            raise Conflicts((("schema_registry",), f"required with format {self.format}"))
        return self

    @property
    def tombstone_rule(self) -> Literal["auto", "always", "never"]:
        """`tombstones`, as the format has them where the configuration says nothing."""
        return "always" if self.tombstones == "auto" and self.format.record_format.tombstones else self.tombstones

    @property
    def form(self) -> str:
        """The envelope, if there is one, else the encoding."""
        choice = self.format.choice
        if isinstance(choice, str):
            return choice
        return choice.encoding if choice.envelope == "flat" else choice.envelope

    @property
    def partitions(self) -> tuple[int, int]:
        """As `topics` has them."""
        return self.topics.partitions, self.topics.replication_factor

    @property
    def topic_prefix(self) -> str:
        """`topics.prefix`, without the mark at its end."""
        return self.topics.prefix.rstrip("._-")

    @property
    def brokers(self) -> frozenset[str]:
        """The servers to begin with."""
        return frozenset(self.bootstrap_servers)

    @property
    def typed_keys(self) -> frozenset[str]:
        """Those that another schema has where the key is behind its schema or its id; otherwise those that have another form."""
        choice = self.format.choice
        if isinstance(choice, str) or choice.encoding in ("json", "arrow"):
            return frozenset(("long",)) if self.longs == "string" else frozenset()
        if (
            self.schema_registry is not None
            and self.schema_registry.framing == "apicurio"
            and self.format.record_format.schemas
        ):
            return frozenset(("double",)) if choice.encoding in ("avro", "protobuf") else frozenset()
        types = {"long", "double"}
        if choice.encoding in ("json_schema", "connect_json"):
            types |= {"short", "integer"}
        return frozenset(types | ({"decimal"} if choice.modes.decimal == "precise" else set()))

    def refusal_of_headers(self, names: Iterable[str], *, keyed: bool) -> str | None:
        """It depends on the format, which may have headers of its own."""
        by_headers = self.schema_registry is not None and self.schema_registry.framing == "apicurio"
        for name in names:
            event = self.format.envelope == "cloudevents" and name in ATTRIBUTES
            if event or (by_headers and name.startswith("apicurio.")):
                return f"have the name {name}, which records in format {self.format} have already"
        takes = self.format.record_format.takes_headers
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
