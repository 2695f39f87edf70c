"""Compatibility of schemas, by the rules that Confluent documents for its registry ("Schema Evolution and Compatibility").

Each function says whether what was written with one schema can be read with the other: BACKWARD, if the reader is the newer one.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from tests.support.protobuf import described

_PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_WIRE_TYPES: Final = (
    {"TYPE_INT32", "TYPE_INT64", "TYPE_UINT32", "TYPE_UINT64", "TYPE_BOOL"},
    {"TYPE_STRING", "TYPE_BYTES"},
)


def avro_is_readable(reader: str, writer: str) -> bool:
    """By "Schema Resolution" of Avro."""
    return _avro(json.loads(reader), json.loads(writer))


def json_is_readable(reader: str, writer: str) -> bool:
    """Each record that is valid by the writer's schema must be valid by the reader's. Formats and texts are not compared."""
    return _json(json.loads(reader), json.loads(writer))


def protobuf_is_readable(reader: str, writer: str) -> bool:
    """Fields are compared by number, messages by name. A message must not be removed."""
    return _messages(described(reader).message_type, described(writer).message_type)


READABLE: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "AVRO": avro_is_readable,
    "JSON": json_is_readable,
    "PROTOBUF": protobuf_is_readable,
}
"""By the registry's word for a kind of schema."""


def _avro(reader: Any, writer: Any) -> bool:
    if isinstance(writer, list):
        return all(_avro(reader, branch) for branch in writer)
    if isinstance(reader, list):
        return any(_avro(branch, writer) for branch in reader)
    to, was = (each["type"] if isinstance(each, dict) else each for each in (reader, writer))
    if to != was:
        return to in _PROMOTIONS.get(was, ())
    if to == "record":
        written = {each["name"]: each["type"] for each in writer["fields"]}
        return reader["name"].split(".")[-1] == writer["name"].split(".")[-1] and all(
            _avro(each["type"], written[each["name"]]) if each["name"] in written else "default" in each
            for each in reader["fields"]
        )
    if to == "array":
        return _avro(reader["items"], writer["items"])
    return to != "map" or _avro(reader["values"], writer["values"])


def _json(reader: Any, writer: Any) -> bool:
    if isinstance(writer, bool) or isinstance(reader, bool):
        return reader is True or reader is writer
    branches = reader.get("oneOf", [reader])
    if "oneOf" in writer or "oneOf" in reader:
        return all(any(_json(branch, each) for branch in branches) for each in writer.get("oneOf", [writer]))
    to, was = reader.get("type"), writer.get("type")
    if to != was and (was, to) != ("integer", "number"):
        return to is None
    return (
        reader.get("minimum", -math.inf) <= writer.get("minimum", -math.inf)
        and reader.get("maximum", math.inf) >= writer.get("maximum", math.inf)
        and ("enum" not in reader or set(writer.get("enum", [None])) <= set(reader["enum"]))
        and (to != "array" or _json(reader.get("items", True), writer.get("items", True)))
        and (to != "object" or _object(reader, writer))
    )


def _object(reader: Mapping[str, Any], writer: Mapping[str, Any]) -> bool:
    """A property may be added where the writer's objects had no others, and removed where the reader's may have others."""
    new, old = (each.get("properties", {}) for each in (reader, writer))
    others_of_reader, others_of_writer = (each.get("additionalProperties", True) for each in (reader, writer))
    required = set(reader.get("required", ())) - set(writer.get("required", ()))
    return (
        all(_json(new[name], old[name]) for name in new.keys() & old.keys())
        and all(_json(new[name], others_of_writer) for name in new.keys() - old.keys() if others_of_writer is not False)
        and all(_json(others_of_reader, old[name]) for name in old.keys() - new.keys())
        and all("default" in new.get(name, {}) for name in required)
        and (others_of_writer is False or _json(others_of_reader, others_of_writer))
    )


def _messages(reader: Sequence[DescriptorProto], writer: Sequence[DescriptorProto]) -> bool:
    new = {each.name: each for each in reader}
    return all(each.name in new and _message(new[each.name], each) for each in writer)


def _message(reader: DescriptorProto, writer: DescriptorProto) -> bool:
    new = {each.number: each for each in reader.field}
    fields = all(_field(new[each.number], each) for each in writer.field if each.number in new)
    return fields and _messages(reader.nested_type, writer.nested_type)


def _field(reader: FieldDescriptorProto, writer: FieldDescriptorProto) -> bool:
    to, was = (FieldDescriptorProto.Type.Name(each.type) for each in (reader, writer))
    if (reader.label == reader.LABEL_REPEATED) != (writer.label == writer.LABEL_REPEATED):
        # Of texts and messages, a reader takes the last one.
        return (
            to == was and to in ("TYPE_STRING", "TYPE_BYTES", "TYPE_MESSAGE") and reader.type_name == writer.type_name
        )
    same = to == was or any({to, was} <= group for group in _WIRE_TYPES)
    return same and reader.type_name == writer.type_name
