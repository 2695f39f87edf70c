"""From `sink.format` to what makes records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cdfd.encoding.arrow import RECORD_BYTES, ArrowRecords, Partitioner
from cdfd.encoding.avro import AvroRows, Register
from cdfd.encoding.cloudevents import CloudEventAttributes
from cdfd.encoding.envelopes import EnvelopeRecords
from cdfd.encoding.keys import JsonRows, KeyColumns
from cdfd.encoding.records import Origin, RecordEncoder
from cdfd.encoding.row_records import RowRecords
from cdfd.errors import ConfigError

Format = Literal["flat", "debezium", "avro", "arrow", "cloudevents"]


def record_encoder(
    kind: Format,
    origin: Origin,
    *,
    key: Sequence[str] = (),
    tombstones: bool = False,
    longs_as_strings: bool = False,
    register: Register | None = None,
    partitioner: Partitioner | None = None,
    record_bytes: int = RECORD_BYTES,
) -> RecordEncoder:
    """An encoder for the rows of one table, from where its delivery begins on.

    Args:
        kind: the format.
        origin: the table.
        key: columns of the key; none, and records have no key.
        tombstones: whether deletes are followed by tombstones; only where there is a key.
        longs_as_strings: integers of 64 bits in quotes, where records are JSON.
        register: of a schema registry; needed with `avro`.
        partitioner: the partition of each key, over the topic's partitions; needed with `arrow` and a key.
        record_bytes: with `arrow`, length of a record at most, but a row may be longer.

    Raises:
        ConfigError: something is missing that the format needs.
    """
    columns = KeyColumns(key) if key else None
    if kind == "avro":
        if register is None:
            raise ConfigError("the format avro needs a schema registry", hint="Set `sink.schema_registry.url`")
        keys = AvroRows(register, origin.topic, "key", columns) if columns else None
        return RowRecords(AvroRows(register, origin.topic, "value"), keys, tombstones=tombstones)
    json_keys = JsonRows(columns, longs_as_strings=longs_as_strings) if columns else None
    if kind == "debezium":
        return EnvelopeRecords(origin, json_keys, tombstones=tombstones, longs_as_strings=longs_as_strings)
    if kind == "arrow":
        if json_keys is not None and partitioner is None:
            raise ConfigError(
                "the format arrow, whose records hold many rows, needs to know the partitions of their keys",
                hint="Leave `key` out, or use a sink that has partitions",
            )
        return ArrowRecords(json_keys, partitioner, record_bytes=record_bytes)
    attributes = CloudEventAttributes(origin) if kind == "cloudevents" else None
    return RowRecords(
        JsonRows(longs_as_strings=longs_as_strings), json_keys, tombstones=tombstones, attributes=attributes
    )
