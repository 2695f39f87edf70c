"""confluent-kafka's deserializers: a program that reads a topic of a registry, and prints keys and values as a pickle.

    python -m tests.support.consumers.deserializers SERVERS TOPIC REGISTRY avro|json_schema|protobuf

It runs in an environment of its own, which has confluent-kafka's extras and a compiler for Protobuf.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.consumers.installation import ConsumerError
from tests.support.spark import environments

REQUIREMENTS = ("confluent-kafka[avro,json,protobuf,schemaregistry]==2.16.1", "grpcio-tools==1.85.1")
_SECONDS = 90

Pair = tuple[Any, Any]


def pairs(bootstrap_servers: str, topic: str, registry: str, encoding: str) -> list[Pair]:
    """Key and value of each committed record, by partition and offset. A tombstone's value is None.

    Raises:
        ConsumerError: a record cannot be read.
    """
    program = [str(install()), "-m", "tests.support.consumers.deserializers"]
    try:
        done = subprocess.run(
            [*program, bootstrap_servers, topic, registry, encoding],
            env=environments.variables(),
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ConsumerError(f"confluent-kafka did not end within {_SECONDS} seconds") from None
    if done.returncode:
        raise ConsumerError(f"confluent-kafka ended with {done.returncode}:\n{done.stderr.decode()[-3000:]}")
    found: list[Pair] = pickle.loads(done.stdout)
    return found


def install() -> Path:
    """The interpreter of the environment."""
    return environments.python(*REQUIREMENTS)


def main() -> None:
    """Read one topic to its end."""
    servers, topic, registry, encoding = sys.argv[1:]
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = SchemaRegistryClient({"url": registry})
    readers = {field: READERS[encoding](client, f"{topic}-{field}") for field in (MessageField.KEY, MessageField.VALUE)}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True})
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    found = []
    left = set(partitions)
    while left:
        message = consumer.poll(30)
        if message is None:
            raise TimeoutError(f"no record and no end for 30 seconds; partitions {left}")
        if message.error() is not None:
            if message.error().name() != "_PARTITION_EOF":
                raise KafkaException(message.error())
            left.discard(message.partition())
            continue
        pair = [
            reader(data, SerializationContext(topic, field))
            for (field, reader), data in zip(readers.items(), (message.key(), message.value()), strict=True)
        ]
        found.append((message.partition(), message.offset(), tuple(pair)))
    consumer.close()
    sys.stdout.buffer.write(pickle.dumps([pair for _, _, pair in sorted(found, key=lambda each: each[:2])]))


def _avro(client: Any, _subject: str) -> Any:
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    return AvroDeserializer(client)


def _json_schema(client: Any, _subject: str) -> Any:
    """Each record is checked against the schema that it names."""
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer

    return JSONDeserializer(None, schema_registry_client=client)


def _protobuf(client: Any, subject: str) -> Callable[[bytes | None, Any], Any]:
    """Messages of the newest schema, as dictionaries without fields that are not there."""
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

    text = client.get_latest_version(subject).schema.schema_str
    message = _message_type(text, subject)
    reader = ProtobufDeserializer(message, schema_registry_client=client)

    def read(data: bytes | None, context: Any) -> Any:
        found = reader(data, context)
        return None if found is None else _plain(found)

    return read


def _message_type(text: str, name: str) -> Any:
    """The first message of a file."""
    from google.protobuf import (
        descriptor_pb2,
        timestamp_pb2,  # noqa: F401 -- files import it
    )
    from google.protobuf.descriptor_pool import Default
    from google.protobuf.message_factory import GetMessageClass

    file = descriptor_pb2.FileDescriptorProto.FromString(descriptor(text))
    file.name = f"{name}.proto"
    pool = Default()
    pool.Add(file)
    return GetMessageClass(pool.FindFileByName(file.name).message_types_by_name[file.message_type[0].name])


def descriptor(text: str) -> bytes:
    """A file of Protobuf, compiled by grpcio-tools: the `FileDescriptorProto` that Confluent's registry gives with `format=serialized`."""
    from google.protobuf import descriptor_pb2

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "default.proto").write_text(text)
        compiler = [str(install()), "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={folder}/out"]
        subprocess.run([*compiler, "default.proto"], check=True, timeout=_SECONDS, env=environments.variables())
        files = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / "out").read_bytes())
    return bytes(files.file[0].SerializeToString())


def _plain(message: Any) -> Any:
    """A message by the names of its columns. A message with the single field `value` is that value: an element or a map's item."""
    from google.protobuf.timestamp_pb2 import Timestamp

    if isinstance(message, Timestamp):
        return message.seconds * 1_000_000 + message.nanos // 1000
    row = {field.json_name: _field(field, given) for field, given in message.ListFields()}
    return row.get("value") if [field.name for field in message.DESCRIPTOR.fields] == ["value"] else row


def _field(field: Any, given: Any) -> Any:
    if field.message_type is None:
        return list(given) if field.is_repeated else given
    if field.message_type.GetOptions().map_entry:
        return {key: _plain(item) if hasattr(item, "ListFields") else item for key, item in given.items()}
    if field.is_repeated:
        return [_plain(item) for item in given]
    return _plain(given)


READERS: dict[str, Callable[[Any, str], Any]] = {"avro": _avro, "json_schema": _json_schema, "protobuf": _protobuf}


if __name__ == "__main__":
    main()
