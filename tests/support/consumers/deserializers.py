"""confluent-kafka's deserializers of Avro, JSON Schema and Protobuf, on whole topics."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.common.serde import STRATEGY_TYPE_MAP
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message import Message

from tests.support.protobuf import message_type

_SECONDS = 30

Pair = tuple[Any, Any]
_Read = Callable[[bytes | None, SerializationContext], Any]


def pairs(
    bootstrap_servers: str,
    topic: str,
    registry: Mapping[str, str],
    encoding: str,
    strategy: str = "topic",
) -> list[Pair]:
    """Key and value of each committed record, by partition and offset. A tombstone's value is None.

    JSON is checked against the schema that the record names. Messages of Protobuf are of the newest schema, as dictionaries. Fields that are
    not there are left out.

    Args:
        bootstrap_servers: of the cluster.
        topic: an existing one.
        registry: settings of confluent-kafka's client, such as `url`.
        encoding: `avro`, `json_schema` or `protobuf`.
        strategy: `subject` of the pipeline. Except with `topic`, values are read with the newest schema of the subject, which the
            deserializers name by themselves.
    """
    # A client keeps the first form of a schema that it got. Protobuf's deserializer needs another one than its compiler.
    with SchemaRegistryClient(dict(registry)) as client, SchemaRegistryClient(dict(registry)) as texts:
        settings = {"subject.name.strategy.type": strategy.upper(), "use.latest.version": strategy != "topic"}
        readers = {
            field: _reader(encoding, client, texts, topic, field, settings)
            for field in (MessageField.KEY, MessageField.VALUE)
        }
        consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": topic, "enable.partition.eof": True})
        numbers = list(consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
        records: list[tuple[tuple[int, int], Pair]] = []
        left = set(numbers)
        while left:
            message = consumer.poll(_SECONDS)
            assert message is not None, f"no record and no end within {_SECONDS} seconds"
            if message.error() is not None:
                if message.error().code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(message.error())
                left.discard(message.partition())
                continue
            key, value = (
                read(data, SerializationContext(topic, field))
                for (field, read), data in zip(readers.items(), (message.key(), message.value()), strict=True)
            )
            records.append(((message.partition(), message.offset()), (key, value)))
        consumer.close()
    return [pair for _, pair in sorted(records, key=lambda each: each[0])]


def _reader(
    encoding: str,
    client: SchemaRegistryClient,
    texts: SchemaRegistryClient,
    topic: str,
    field: str,
    settings: dict[str, Any],
) -> _Read:
    if encoding == "avro":
        return AvroDeserializer(client, conf=settings)
    if encoding == "json_schema":
        return JSONDeserializer(None, schema_registry_client=client, conf=settings)
    record = f"{re.sub('[^a-z0-9.]', '_', topic)}.{field.title()}"
    subject = STRATEGY_TYPE_MAP[settings["subject.name.strategy.type"]](SerializationContext(topic, field), record)
    newest = texts.get_latest_version(subject).schema.schema_str
    assert newest is not None
    reader = ProtobufDeserializer(message_type(newest), settings, client)

    def read(data: bytes | None, context: SerializationContext) -> Any:
        message = reader(data, context)
        return None if message is None else _plain(message)

    return read


def _plain(message: Any) -> Any:
    """A message by the names of its columns. One with the single field `value` is that value: an element, or a map's item."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        return message.seconds * 1_000_000 + message.nanos // 1000
    row = {field.json_name: _field(field, each) for field, each in message.ListFields()}
    return row.get("value") if [field.name for field in message.DESCRIPTOR.fields] == ["value"] else row


def _field(field: Any, each: Any) -> Any:
    if field.message_type is None:
        return list(each) if field.is_repeated else each
    if field.message_type.GetOptions().map_entry:
        return {key: _plain(item) if isinstance(item, Message) else item for key, item in each.items()}
    return [_plain(item) for item in each] if field.is_repeated else _plain(each)
