"""Schemas of JSON (JSON Schema, draft 7, which registries and their clients support), of the types of records.

`connect.type` and `title` have the type and the name that Kafka Connect's converter for JSON Schema looks for.
Objects have the properties of the schema and no others: then registries, whose default is BACKWARD, let columns be added and integers be
widened. To drop a column, set the subject's compatibility to FORWARD or NONE.
"""

import json
from typing import Any, Final

from pyarrow import types

from cdfd.encode.connect_json import rules_of
from cdfd.encode.json import JsonWriter
from cdfd.encode.kinds import JSON, Kind, Modes, kind_of_shape
from cdfd.encode.payload import Shape
from cdfd.encode.registered import SchemaFormat

_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_INTEGERS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def json_schema_format(shape: Shape, modes: Modes) -> SchemaFormat:
    """The format of records of one shape. `UnsupportedError` where a column is of a type that has no form in it."""
    document = {"$schema": _DRAFT, **_schema(kind_of_shape(shape, modes))}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return SchemaFormat("JSON", text, shape.name, JsonWriter(rules_of(modes, "entries")), shape.fields)


def _schema(kind: Kind) -> dict[str, Any]:
    document: dict[str, Any] = {} if kind.name is None else {"title": kind.name}
    return document | _type(kind)


def _type(kind: Kind) -> dict[str, Any]:
    if kind.type in _INTEGERS:
        limit = 1 << (_INTEGERS[kind.type] - 1)
        return {"type": "integer", "minimum": -limit, "maximum": limit - 1, "connect.type": kind.type}
    match kind.type:
        case "struct":
            properties = {
                each.name: {**(_nullable(each.kind) if each.nullable else _schema(each.kind)), "connect.index": number}
                for number, each in enumerate(kind.fields)
            }
            required = [each.name for each in kind.fields if not each.nullable]
            # A registry takes new properties if records of older schemas cannot have had them with other values.
            schema = {"type": "object", "properties": properties, "additionalProperties": False}
            return schema | ({"required": required} if required else {})
        case "array":
            assert kind.items is not None
            return {"type": "array", "items": _nullable(kind.items)}
        case "map":
            assert kind.keys is not None
            assert kind.items is not None
            if kind.keys.type == "string" and kind.keys.name != JSON:
                return {"type": "object", "additionalProperties": _nullable(kind.items), "connect.type": "map"}
            key = _nullable(kind.keys) if kind.keys.can_be_nan else _schema(kind.keys)
            pair = {"key": key, "value": _nullable(kind.items)}
            items = {"type": "object", "properties": pair, "required": ["key"]}
            return {"type": "array", "connect.type": "map", "items": items}
        case "float32" | "float64":
            return {"type": "number", "connect.type": kind.type}
        case "bytes":
            parameters = {"connect.parameters": dict(kind.parameters)} if kind.parameters else {}
            return {"type": "string", "connect.type": "bytes", **parameters}
        case "string" if "allowed" in kind.parameters:
            return {"type": "string", "enum": kind.parameters["allowed"].split(",")}
        case "string" if kind.arrow is not None and types.is_date(kind.arrow):
            return {"type": "string", "format": "date"}
        case "string" if kind.arrow is not None and types.is_timestamp(kind.arrow) and kind.arrow.tz is not None:
            return {"type": "string", "format": "date-time"}
    return {"type": kind.type}


def _nullable(kind: Kind) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, _schema(kind)]} if kind.type != "null" else {"type": "null"}
