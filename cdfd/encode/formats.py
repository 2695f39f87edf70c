"""The record formats by `sink.format`: what makes the encoder of a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cdfd.encode.arrow import RECORD_BYTES, ArrowRecords, Partitioner
from cdfd.encode.avro.format import AvroRows, Register
from cdfd.encode.cloudevents import CloudEventAttributes
from cdfd.encode.debezium import DebeziumEncoder
from cdfd.encode.headers import RowHeaders
from cdfd.encode.keys import JsonRows, KeyColumns
from cdfd.encode.records import Origin, RecordEncoder
from cdfd.encode.row_records import Attributes, RowRecords
from cdfd.errors import ConfigError
from cdfd.runtime.registry import RECORD_FORMATS


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Options of a record encoder.

    Attributes:
        origin: the table.
        key: columns of the key; without any, records have no key.
        tombstones: whether deletes are followed by tombstones; only if there is a key.
        longs_as_strings: integers of 64 bits in quotes, in formats that are JSON.
        register: of a schema registry, for formats that need one.
        partitioner: the partition of each key, over the topic's partitions, for formats whose records hold several rows.
        record_bytes: length of such a record at most, but a row may be longer.
        headers: the name of each record header, and of its column; see `RecordFormat.takes_headers`.
    """

    origin: Origin
    key: Sequence[str] = ()
    tombstones: bool = False
    longs_as_strings: bool = False
    register: Register | None = None
    partitioner: Partitioner | None = None
    record_bytes: int = RECORD_BYTES
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def row_headers(self) -> RowHeaders | None:
        """Makes headers of rows; None without any."""
        return RowHeaders(self.headers) if self.headers else None

    @property
    def json_keys(self) -> JsonRows | None:
        """The encoder of keys in JSON; None without a key."""
        return JsonRows(KeyColumns(self.key), longs_as_strings=self.longs_as_strings) if self.key else None


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A record format.

    Attributes:
        encoder: creates an encoder for the rows of one table, from the start of its delivery. Raises `ConfigError` if an option is missing.
        needs_registry: whether it needs a schema registry.
        tells_snapshots: whether records tell live rows from inserts.
        takes_headers: whether records have headers from columns: those of tables with a key, of all tables, or none.
    """

    encoder: Callable[[EncoderOptions], RecordEncoder]
    needs_registry: bool = False
    tells_snapshots: bool = False
    takes_headers: Literal["keyed", "all", "none"] = "none"


def record_format(name: str) -> RecordFormat:
    """The format of that name."""
    found: RecordFormat = RECORD_FORMATS.load(name)
    return found


def _flat(options: EncoderOptions, attributes: Attributes | None = None) -> RecordEncoder:
    rows = JsonRows(longs_as_strings=options.longs_as_strings)
    return RowRecords(
        rows, options.json_keys, tombstones=options.tombstones, attributes=attributes, headers=options.row_headers
    )


def _cloudevents(options: EncoderOptions) -> RecordEncoder:
    return _flat(options, CloudEventAttributes(options.origin))


def _debezium(options: EncoderOptions) -> RecordEncoder:
    return DebeziumEncoder(
        options.origin.table,
        name=options.origin.pipeline,
        keys=options.json_keys,
        tombstones=options.tombstones,
        longs_as_strings=options.longs_as_strings,
        headers=options.row_headers,
    )


def _avro(options: EncoderOptions) -> RecordEncoder:
    register, topic = options.register, options.origin.topic
    if register is None:
        raise ConfigError("the format avro needs a schema registry", hint="Set `sink.schema_registry.url`")
    keys = AvroRows(register, topic, "key", KeyColumns(options.key)) if options.key else None
    values = AvroRows(register, topic, "value")
    return RowRecords(values, keys, tombstones=options.tombstones, headers=options.row_headers)


def _arrow(options: EncoderOptions) -> RecordEncoder:
    if options.key and options.partitioner is None:
        raise ConfigError(
            "the format arrow, whose records hold many rows, needs to know the partitions of their keys",
            hint="Leave `key` out, or use a sink that has partitions",
        )
    return ArrowRecords(options.json_keys, options.partitioner, record_bytes=options.record_bytes)


FLAT = RecordFormat(_flat, takes_headers="all")
CLOUDEVENTS = RecordFormat(_cloudevents, tells_snapshots=True, takes_headers="all")
DEBEZIUM = RecordFormat(_debezium, tells_snapshots=True, takes_headers="keyed")
AVRO = RecordFormat(_avro, needs_registry=True, takes_headers="all")
ARROW = RecordFormat(_arrow)
