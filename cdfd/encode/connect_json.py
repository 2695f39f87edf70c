"""Records as Kafka Connect's JsonConverter writes them: `{"schema":...,"payload":...}`."""

import json
from typing import Any, Final, Literal

import pyarrow as pa

from cdfd.encode.json import JsonWriter
from cdfd.encode.kinds import HINT, Kind, Modes, column_errors, kind_of_shape
from cdfd.encode.payload import Payload, Shape
from cdfd.encode.records import BARE, Headers
from cdfd.encode.values import Rules
from cdfd.errors import UnsupportedError

_VERSIONS: Final = {"io.debezium.connector.cdfd.Source": 1, "event.block": 1}
"""Versions of the envelope's structs, as Debezium has them."""

_FLOATS: Final = {"float32": "float", "float64": "double"}


def rules_of(modes: Modes, maps: Literal["pairs", "entries"]) -> Rules:
    """How JSON with a schema has values."""
    return Rules(decimal=modes.decimal, time=modes.time, binary=modes.binary, maps=maps, no_number=True)


class ConnectJsonEncoding:
    """Each record has its schema with it.

    Args:
        modes: forms of values.

    Attributes:
        headers: of records; none.
        wrapping: the schema before a payload, and the brace after it.
    """

    headers: Headers = ()
    wrapping = BARE

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        self._writer = JsonWriter(rules_of(modes, "pairs"))
        self._shape: Shape | None = None

    def values(self, payload: Payload) -> pa.Array:
        """As `Encoding.values`."""
        if self._shape is not payload.shape:
            schema = _schema(kind_of_shape(payload.shape, self._modes), optional=False)
            text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
            self._shape, self.wrapping = payload.shape, (b'{"schema":' + text.encode() + b',"payload":', b"}")
        return self._writer.rows(payload, payload.shape.fields)


def _schema(kind: Kind, *, optional: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"type": _FLOATS.get(kind.type, kind.type)}
    match kind.type:
        case "struct":
            document["fields"] = fields = []
            for each in kind.fields:
                with column_errors(kind, each):
                    fields.append({**_schema(each.kind, optional=each.nullable), "field": each.name})
        case "array":
            assert kind.items is not None
            document["items"] = _schema(kind.items, optional=True)
        case "map":
            assert kind.keys is not None
            assert kind.items is not None
            document["keys"] = _schema(kind.keys, optional=kind.keys.can_be_nan)
            document["values"] = _schema(kind.items, optional=True)
        case "null":
            raise UnsupportedError("a value of type void has no type in Kafka Connect", hint=HINT)
    document["optional"] = optional
    if kind.name is not None:
        document["name"] = kind.name
        if kind.type != "struct" or kind.name in _VERSIONS:
            document["version"] = _VERSIONS.get(kind.name, 1)
    if kind.parameters:
        document["parameters"] = dict(kind.parameters)
    return document
