"""Records as Kafka Connect's JsonConverter writes them: `{"schema":...,"payload":...}`."""

import json
from typing import Any, Final, Literal

import pyarrow as pa

from cdfd.encode.json_writer import JsonWriter
from cdfd.encode.kinds import Kind, Modes, kind_of_shape
from cdfd.encode.payload import Payload, Shape
from cdfd.encode.records import Headers
from cdfd.encode.values import Rules
from cdfd.errors import UnsupportedError

MODES: Final = Modes("precise", "micros", "bytes")
"""Forms of values as Debezium's connectors have them by default."""

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
    """

    headers: Headers = ()

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        self._writer = JsonWriter(rules_of(modes, "pairs"))
        self._shape: Shape | None = None
        self._prefix = b""

    def values(self, payload: Payload) -> pa.Array:
        """As `Encoding.values`."""
        if self._shape is not payload.shape:
            self._prefix = b'{"schema":' + self.describe(payload.shape).encode() + b',"payload":'
            self._shape = payload.shape
        return self._writer.rows(payload, payload.shape.fields, self._prefix, b"}")

    def describe(self, shape: Shape) -> str:
        """As `Encoding.describe`."""
        kind = kind_of_shape(shape, self._modes)
        return json.dumps(_schema(kind, optional=False), ensure_ascii=False, separators=(",", ":"))


def _schema(kind: Kind, *, optional: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"type": _FLOATS.get(kind.type, kind.type)}
    match kind.type:
        case "struct":
            document["fields"] = [
                {**_schema(each.kind, optional=each.nullable), "field": each.name} for each in kind.fields
            ]
        case "array":
            assert kind.items is not None
            document["items"] = _schema(kind.items, optional=True)
        case "map":
            assert kind.keys is not None
            assert kind.items is not None
            document["keys"] = _schema(kind.keys, optional=False)
            document["values"] = _schema(kind.items, optional=True)
        case "null":
            raise UnsupportedError(
                "a column of type void has no type in Kafka Connect", hint="Leave the column out with `columns`"
            )
    document["optional"] = optional
    if kind.name is not None:
        document["name"] = kind.name
        if kind.type != "struct":
            document["version"] = 1
    if kind.parameters:
        document["parameters"] = dict(kind.parameters)
    return document
