"""The record formats by `sink.format`: what makes the encoder of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from cdfd.encoding.arrow import RECORD_BYTES, ArrowRecords, Partitioner
from cdfd.encoding.avro import AvroRows, Register
from cdfd.encoding.cloudevents import CloudEventAttributes
from cdfd.encoding.envelopes import EnvelopeRecords
from cdfd.encoding.keys import JsonRows, KeyColumns
from cdfd.encoding.records import Origin, RecordEncoder
from cdfd.encoding.row_records import RowRecords
from cdfd.errors import ConfigError
from cdfd.ports.registry import RECORD_FORMATS


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """What an encoder is made from.

    Attributes:
        origin: the table.
        key: columns of the key; without any, records have no key.
        tombstones: whether deletes are followed by tombstones; only if there is a key.
        longs_as_strings: integers of 64 bits in quotes, in formats that are JSON.
        register: of a schema registry, for formats that need one.
        partitioner: the partition of each key, over the topic's partitions, for formats whose records hold several rows.
        record_bytes: length of such a record at most, but a row may be longer.
    """

    origin: Origin
    key: Sequence[str] = ()
    tombstones: bool = False
    longs_as_strings: bool = False
    register: Register | None = None
    partitioner: Partitioner | None = None
    record_bytes: int = RECORD_BYTES

    @property
    def json_keys(self) -> JsonRows | None:
        """What makes keys in JSON; None without a key."""
        return JsonRows(KeyColumns(self.key), longs_as_strings=self.longs_as_strings) if self.key else None


class RecordFormat(ABC):
    """A record format.

    Attributes:
        needs_registry: whether it needs a schema registry.
        tells_snapshots: whether records tell live rows from inserts.
    """

    needs_registry: ClassVar[bool] = False
    tells_snapshots: ClassVar[bool] = False

    @abstractmethod
    def encoder(self, options: EncoderOptions) -> RecordEncoder:
        """An encoder for the rows of one table, from where its delivery begins on.

        Raises:
            ConfigError: an option is missing that the format needs.
        """


class Flat(RecordFormat):
    """A JSON object for each row."""

    def encoder(self, options: EncoderOptions) -> RecordEncoder:
        """See the port."""
        rows = JsonRows(longs_as_strings=options.longs_as_strings)
        return RowRecords(rows, options.json_keys, tombstones=options.tombstones)


class CloudEvents(RecordFormat):
    """The same with the attributes of CloudEvents as headers."""

    tells_snapshots = True

    def encoder(self, options: EncoderOptions) -> RecordEncoder:
        """See the port."""
        rows, attributes = JsonRows(longs_as_strings=options.longs_as_strings), CloudEventAttributes(options.origin)
        return RowRecords(rows, options.json_keys, tombstones=options.tombstones, attributes=attributes)


class Debezium(RecordFormat):
    """An event of Debezium for each change."""

    tells_snapshots = True

    def encoder(self, options: EncoderOptions) -> RecordEncoder:
        """See the port."""
        keys, longs = options.json_keys, options.longs_as_strings
        return EnvelopeRecords(options.origin, keys, tombstones=options.tombstones, longs_as_strings=longs)


class Avro(RecordFormat):
    """Avro with a schema registry."""

    needs_registry = True

    def encoder(self, options: EncoderOptions) -> RecordEncoder:
        """See the port."""
        register, topic = options.register, options.origin.topic
        if register is None:
            raise ConfigError("the format avro needs a schema registry", hint="Set `sink.schema_registry.url`")
        keys = AvroRows(register, topic, "key", KeyColumns(options.key)) if options.key else None
        return RowRecords(AvroRows(register, topic, "value"), keys, tombstones=options.tombstones)


class Arrow(RecordFormat):
    """Many rows in each record, as Arrow IPC."""

    def encoder(self, options: EncoderOptions) -> RecordEncoder:
        """See the port."""
        if options.key and options.partitioner is None:
            raise ConfigError(
                "the format arrow, whose records hold many rows, needs to know the partitions of their keys",
                hint="Leave `key` out, or use a sink that has partitions",
            )
        return ArrowRecords(options.json_keys, options.partitioner, record_bytes=options.record_bytes)


def record_format(name: str) -> RecordFormat:
    """The format of that name."""
    found: RecordFormat = RECORD_FORMATS.load(name)()
    return found
