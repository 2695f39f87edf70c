"""The record formats by `sink.format`: an envelope and an encoding, or a word for both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from cdfd.encode.arrow import RECORD_BYTES, ArrowRecords, Partitioner
from cdfd.encode.avro.format import avro_format
from cdfd.encode.cloudevents import CloudEventAttributes
from cdfd.encode.connect_json import ConnectJsonEncoding
from cdfd.encode.debezium import DebeziumEncoder
from cdfd.encode.encoding import EncodedRows, Encoding
from cdfd.encode.headers import RowHeaders
from cdfd.encode.json import JsonEncoding
from cdfd.encode.json_schema import json_schema_format
from cdfd.encode.kinds import Modes
from cdfd.encode.protobuf.format import protobuf_format
from cdfd.encode.records import Origin, RecordEncoder
from cdfd.encode.registered import Kind, MakeFormat, RegisteredEncoding, Registration
from cdfd.encode.row_records import RowRecords
from cdfd.encode.values import Rules
from cdfd.errors import ConfigError
from cdfd.runtime.registry import RECORD_FORMATS

EnvelopeName = Literal["flat", "debezium", "cloudevents"]
EncodingName = Literal["json", "json_schema", "connect_json", "avro", "protobuf", "arrow"]

MODES: Final[Mapping[str, Modes]] = {
    "json": Modes(),
    "json_schema": Modes(),
    "connect_json": Modes("precise", "micros", "bytes"),
    "avro": Modes("precise", "micros", "bytes"),
    "protobuf": Modes("string", "connect", "bytes"),
    "arrow": Modes(),
}
"""Forms of values that each encoding has by default: those that people read, or that Debezium, Avro and Protobuf have names for."""

_SCHEMAS: Final[Mapping[str, Kind]] = {"json_schema": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}
_CONTENT_TYPES: Final = {"avro": b"application/avro", "protobuf": b"application/protobuf"}


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """An envelope and an encoding.

    Attributes:
        envelope: what a record says.
        encoding: how it is written.
        decimal, time, binary: forms of values, see `Modes`; None for the encoding's own.
    """

    envelope: EnvelopeName = "flat"
    encoding: EncodingName = "json"
    decimal: Literal["precise", "string", "double"] | None = None
    time: Literal["connect", "iso", "micros"] | None = None
    binary: Literal["base64", "hex", "bytes"] | None = None

    @property
    def modes(self) -> Modes:
        """Forms of values."""
        own = MODES[self.encoding]
        return Modes(self.decimal or own.decimal, self.time or own.time, self.binary or own.binary)

    @property
    def rules(self) -> Rules:
        """The same forms in JSON: values are equal in it where they are equal in the encoding."""
        modes = self.modes
        # `google.protobuf.Timestamp` has microseconds.
        time = "micros" if (self.encoding, modes.time) == ("protobuf", "connect") else modes.time
        no_number = self.encoding in ("json_schema", "connect_json")
        return Rules(decimal=modes.decimal, time=time, binary=modes.binary, no_number=no_number)

    @property
    def conflict(self) -> tuple[str, str] | None:
        """The key that does not go with the others, and why; None if all do."""
        if self.encoding == "arrow":
            if self.envelope != "flat":
                return "envelope", "encoding arrow has the envelope flat alone"
            for name in ("decimal", "time", "binary"):
                if getattr(self, name) is not None:
                    return name, "encoding arrow has values as they are"
        if self.encoding == "protobuf" and self.decimal == "precise":
            return "decimal", "encoding protobuf has no such type: choose string or double"
        return None


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Options of a record encoder.

    Attributes:
        origin: the table.
        key: columns of the key; without any, records have no key.
        tombstones: whether deletes are followed by tombstones; only if there is a key.
        longs_as_strings: integers of 64 bits in quotes, in JSON without a schema.
        registration: of schemas, for formats that need a registry.
        partitioner: the partition of each key, over the topic's partitions, for formats whose records hold several rows.
        record_bytes: length of such a record at most, but a row may be longer.
        headers: the name of each record header, and of its column; see `RecordFormat.takes_headers`.
        clock: nanoseconds since 1970, for records that say when they were made; None: the time of the commit stands for that.
        transactions: whether the start and the end of each version are announced, so that records may refer to them.
    """

    origin: Origin
    key: Sequence[str] = ()
    tombstones: bool = False
    longs_as_strings: bool = False
    registration: Registration | None = None
    partitioner: Partitioner | None = None
    record_bytes: int = RECORD_BYTES
    headers: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], int] | None = None
    transactions: bool = False


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A record format.

    Attributes:
        encoder: creates an encoder for the rows of one table, from the start of its delivery. Raises `ConfigError` if an option is missing.
        schemas: the kind of schemas that it has in a registry; None if it needs none.
        tells_snapshots: whether records tell live rows from inserts.
        takes_headers: whether records have headers from columns: those of tables with a key, of all tables, or none.
        tombstones: whether tombstones follow deletes on every topic, if the configuration says nothing; otherwise on compacted ones.
        has_events: whether a record has both images of an update.
    """

    encoder: Callable[[EncoderOptions], RecordEncoder]
    schemas: Kind | None = None
    tells_snapshots: bool = False
    takes_headers: Literal["keyed", "all", "none"] = "none"
    tombstones: bool = False
    has_events: bool = False


def record_format(choice: str | FormatChoice) -> RecordFormat:
    """The format of that name, or of an envelope and an encoding."""
    if isinstance(choice, str):
        named: RecordFormat = RECORD_FORMATS.load(choice)
        return named
    if choice.encoding == "arrow":
        return RecordFormat(_arrow)
    schemas = _SCHEMAS.get(choice.encoding)
    if choice.envelope == "debezium":
        debezium = partial(_debezium, choice)
        return RecordFormat(
            debezium, schemas, tells_snapshots=True, takes_headers="keyed", tombstones=True, has_events=True
        )
    tells_snapshots = choice.envelope == "cloudevents"
    return RecordFormat(partial(_rows, choice), schemas, tells_snapshots, takes_headers="all")


def encoding_of(choice: FormatChoice, options: EncoderOptions, part: Literal["key", "value"]) -> Encoding:
    """The encoding of keys or values. `ConfigError` if it needs a registry and there is none."""
    # Other bytes of keys would be in other partitions: flat ones are what they were before there were names.
    modes, names = choice.modes, part == "value" or choice.envelope == "debezium"
    formats: Mapping[str, MakeFormat] = {
        "avro": lambda shape, earlier: avro_format(shape, modes, earlier, names=names),
        "json_schema": lambda shape, _earlier: json_schema_format(shape, modes),
        "protobuf": lambda shape, earlier: protobuf_format(shape, modes, earlier, key=part == "key"),
    }
    if choice.encoding in formats:
        if options.registration is None:
            raise ConfigError(
                f"the encoding {choice.encoding} needs a schema registry", hint="Set `sink.schema_registry.url`"
            )
        return RegisteredEncoding(formats[choice.encoding], options.registration, options.origin.topic, part)
    if choice.encoding == "connect_json":
        return ConnectJsonEncoding(modes)
    rules = replace(choice.rules, longs_as_strings=options.longs_as_strings)
    return JsonEncoding(rules, wrapped=part == "value" and choice.envelope == "debezium")


def keys_of(choice: FormatChoice, options: EncoderOptions) -> EncodedRows | None:
    """The maker of keys of rows; None without a key."""
    if not options.key:
        return None
    return EncodedRows(encoding_of(choice, options, "key"), f"{options.origin.topic}.Key", options.key)


def _rows(choice: FormatChoice, options: EncoderOptions) -> RecordEncoder:
    values = EncodedRows(encoding_of(choice, options, "value"), f"{options.origin.topic}.Value")
    attributes = None
    if choice.envelope == "cloudevents":
        attributes = CloudEventAttributes(options.origin, _CONTENT_TYPES.get(choice.encoding, b"application/json"))
    keys, headers = keys_of(choice, options), RowHeaders(options.headers)
    return RowRecords(values, keys, tombstones=options.tombstones, attributes=attributes, headers=headers)


def _debezium(choice: FormatChoice, options: EncoderOptions) -> RecordEncoder:
    return DebeziumEncoder(
        options.origin,
        encoding_of(choice, options, "value"),
        keys=keys_of(choice, options),
        tombstones=options.tombstones,
        headers=RowHeaders(options.headers),
        clock=options.clock,
        transactions=options.transactions,
    )


def _arrow(options: EncoderOptions) -> RecordEncoder:
    if options.key and options.partitioner is None:
        raise ConfigError(
            "the format arrow, whose records hold many rows, needs to know the partitions of their keys",
            hint="Leave `key` out, or use a sink that has partitions",
        )
    return ArrowRecords(keys_of(FormatChoice(), options), options.partitioner, record_bytes=options.record_bytes)


CHOICES: Final[Mapping[str, FormatChoice]] = {
    "flat": FormatChoice(),
    "debezium": FormatChoice("debezium"),
    "cloudevents": FormatChoice("cloudevents"),
    "avro": FormatChoice("flat", "avro"),
    "arrow": FormatChoice("flat", "arrow"),
}
"""Words for an envelope and an encoding."""

FLAT = record_format(CHOICES["flat"])
DEBEZIUM = record_format(CHOICES["debezium"])
CLOUDEVENTS = record_format(CHOICES["cloudevents"])
AVRO = record_format(CHOICES["avro"])
ARROW = record_format(CHOICES["arrow"])
