"""Records whose schema is in a registry, in Confluent's frame or with Apicurio's headers.

| framing    | key and value                                                          | headers                                      |
|------------|------------------------------------------------------------------------|----------------------------------------------|
| confluent  | a zero byte, the schema's id in four bytes, and the record             | none                                         |
|            | in Protobuf a zero byte more, which stands for the schema's first message |                                           |
| apicurio   | the record; in Protobuf behind its message's name                      | `apicurio.value.contentId`, eight bytes, and |
|            |                                                                        | those of the kind of schema                  |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa

from cdfd.encode.payload import Payload, Shape
from cdfd.encode.records import BARE, Headers
from cdfd.encode.writer import Writer

Kind = Literal["AVRO", "JSON", "PROTOBUF"]
Strategy = Literal["topic", "record", "topic_record"]
Framing = Literal["confluent", "apicurio"]


class Schemas(Protocol):
    """A schema registry: `cdfd.sinks.kafka.client.schema_registry.SchemaRegistry`. Calls block."""

    def register(self, subject: str, schema: str, kind: Kind) -> int:
        """The id of a schema, which is registered under that subject unless it is already.

        Raises:
            SchemaChangedError: it is not compatible with the versions that the subject has.
            SinkError: the registry cannot be reached, or does not do it for another reason.
        """

    def history(self, subject: str) -> Sequence[str]:
        """The schemas that a subject has or had, the newest last; none if it has none. `SinkError` as `register` says."""


@dataclass(frozen=True, slots=True, eq=False)
class SchemaFormat:
    """Records of one shape, which have a schema.

    Attributes:
        kind: Avro, JSON Schema or Protobuf, as registries name them.
        schema: of the records, as text.
        name: full name of the record in the schema: in Avro and Protobuf, in characters that they allow.
        writer: makes the records.
        fields: of the records, as the writer takes them.
        continues: whether the schema depends on those that its subject has.
    """

    kind: Kind
    schema: str
    name: str
    writer: Writer[Any]
    fields: Sequence[Any]
    continues: bool = False


MakeFormat = Callable[[Shape, Sequence[str]], SchemaFormat]
"""Takes the shape of records, and the schemas of their subject, the newest last."""


@dataclass(frozen=True, slots=True)
class Registration:
    """How schemas are registered, and how records name them.

    Attributes:
        schemas: the registry.
        strategy: which subject a schema has: `<topic>-value`, the record's full name, or `<topic>-` and that name.
        framing: where the id is.
    """

    schemas: Schemas
    strategy: Strategy = "topic"
    framing: Framing = "confluent"

    def subject(self, topic: str, part: str, record: str) -> str:
        """The subject of keys or values."""
        match self.strategy:
            case "record":
                return record
            case "topic_record":
                return f"{topic}-{record}"
        return f"{topic}-{part}"


class RegisteredEncoding:
    """Registers the schema of each shape before its first record is encoded, which blocks.

    Args:
        make: an encoder of records of one shape.
        registration: of schemas.
        topic: of the records.
        part: `value` or `key`.
    """

    wrapping = BARE

    def __init__(self, make: MakeFormat, registration: Registration, topic: str, part: str) -> None:
        self._make = make
        self._registration = registration
        self._topic, self._part = topic, part
        self._shape: Shape | None = None
        self._format: SchemaFormat | None = None
        self._prefix = b""
        self.headers: Headers = ()

    def values(self, payload: Payload) -> pa.Array:
        """As `Encoding.values`."""
        shape, registration = payload.shape, self._registration
        if self._format is None or self._shape is not shape:
            made = self._make(shape, ())
            subject = registration.subject(self._topic, self._part, made.name)
            if made.continues:
                # Fields keep the numbers and names that they have in the registry.
                made = self._make(shape, registration.schemas.history(subject))
            number = registration.schemas.register(subject, made.schema, made.kind)
            if registration.framing == "confluent":
                self._prefix = b"\0" + number.to_bytes(4, "big") + (b"\0" if made.kind == "PROTOBUF" else b"")
            else:
                headers = [(f"apicurio.{self._part}.contentId", number.to_bytes(8, "big"))]
                self._prefix = b""
                if made.kind == "AVRO":
                    headers.append((f"apicurio.{self._part}.encoding", b"BINARY"))
                elif made.kind == "PROTOBUF":
                    message = shape.name.rpartition(".")[2].encode()
                    headers.append((f"apicurio.protobuf.type{'.key' if self._part == 'key' else ''}", message))
                    # A message with the name as its first field, behind its length.
                    self._prefix = bytes([len(message) + 2, 0x0A, len(message)]) + message
                self.headers = tuple(headers)
            self._format, self._shape = made, shape
        return self._format.writer.rows(payload, self._format.fields, self._prefix)
