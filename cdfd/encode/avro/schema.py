"""Schemas of Avro, of the types of records.

| type (`cdfd.encode.kinds`)            | Avro                                                                        |
|---------------------------------------|-----------------------------------------------------------------------------|
| null                                  | `null`                                                                      |
| boolean                               | `boolean`                                                                   |
| int8, int16, int32; int64             | `int`; `long`                                                               |
| float32; float64                      | `float`; `double`                                                           |
| string; bytes                         | `string`; `bytes`                                                           |
| Decimal                               | `bytes`, `decimal`                                                          |
| Date                                  | `int`, `date`                                                               |
| MicroTimestamp                        | `long`, `timestamp-micros`, without a zone `local-timestamp-micros`          |
| Timestamp                             | `long`, `timestamp-millis`, without a zone `local-timestamp-millis`          |
| struct                                | record                                                                      |
| array                                 | array                                                                       |
| map with strings as keys              | map                                                                         |
| map with other keys                   | array of records with the fields `key` and `value`                          |

Every column, field, element and map value is a union of null and its type, with null as the default of fields, whatever
the table says of nulls: so any column can be added, dropped or made nullable, and the old and the new schema still read
each other's data. The four change columns are never null and are no unions.

`connect.name` has the names of types that Kafka Connect's converters do not derive from Avro's own.

Names that Avro does not allow get `_` for what is not a letter, digit or `_`; the name as it is stands in `doc` then. Where names become
equal, `cdfd.encode.avro.names` keeps those of the subject's earlier schemas.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from pyarrow import types

from cdfd.encode.avro.names import EarlierNames
from cdfd.encode.kinds import CONNECT_TIMESTAMP, DECIMAL, ENUM, JSON, MICRO_TIMESTAMP, ZONED_TIMESTAMP, Kind, KindField
from cdfd.trevni.avro_names import RecordNames, legal, legal_path

_PRIMITIVES: Final = {
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    "int64": "long",
    "float32": "float",
    "float64": "double",
}
_NAMED: Final = (ENUM, JSON, MICRO_TIMESTAMP, ZONED_TIMESTAMP)
"""Names that do not follow from a logical type of Avro."""


class AvroSchema:
    """The schema of records. Those within are defined once, and referred to by their names after that.

    The name of a record that has one is the last part of it, and its namespace the others. Records within have the names of the fields on the
    way to them.

    Args:
        kind: of records.
        names: whether types have their names in Kafka Connect, too.
        earlier: the schemas of the subject, the newest last, whose names columns keep.

    Attributes:
        folded: whether columns have other names, which `earlier` decides.
        text: the JSON; the same for the same columns, so that a registry gives it the same id again.
    """

    def __init__(self, kind: Kind, *, names: bool, earlier: Sequence[str] = ()) -> None:
        self._connect = names
        self._earlier = EarlierNames.of(earlier)
        self.folded = False
        self._full_names: dict[int, str] = {}
        self._names_in_use: set[str] = set()
        self.text = json.dumps(self._type(kind, RecordNames("")), ensure_ascii=False, separators=(",", ":"))

    def _type(self, kind: Kind, names: RecordNames) -> Any:
        match kind.type:
            case "struct":
                return self._record(kind, names)
            case "array":
                assert kind.items is not None
                return {"type": "array", "items": self._nullable(kind.items, names.under("element"))}
            case "map":
                assert kind.keys is not None
                assert kind.items is not None
                values = self._nullable(kind.items, names.under("value"))
                key = self._type(kind.keys, names.under("key"))
                if key == "string":
                    return {"type": "map", "values": values}
                fields = [_field("key", "key", key), _field("value", "value", values)]
                entry = {"type": "record", "name": self._take(names.under("entry")), "fields": fields}
                return {"type": "array", "items": entry}
        return _primitive(kind, self._connect)

    def _nullable(self, kind: Kind, names: RecordNames) -> Any:
        schema = self._type(kind, names)
        return schema if schema == "null" else ["null", schema]

    def _record(self, kind: Kind, names: RecordNames) -> Any:
        if id(kind) in self._full_names:
            return self._full_names[id(kind)]
        document: dict[str, Any] = {"type": "record"}
        if kind.name is None:
            document["name"] = self._take(names)
            return document | {"fields": self._fields(kind.fields, names)}
        namespace, _, name = legal_path(kind.name).rpartition(".")
        document |= {"name": name, "namespace": namespace}
        self._full_names[id(kind)] = f"{namespace}.{name}"
        self._names_in_use.add(name)
        document["fields"] = self._fields(kind.fields, RecordNames(name, taken=self._names_in_use))
        if self._connect and f"{namespace}.{name}" != kind.name:
            document["connect.name"] = kind.name
        return document

    def _fields(self, fields: Sequence[KindField], names: RecordNames) -> list[dict[str, Any]]:
        taken: set[str] = set()
        documents = []
        for each in fields:
            below, name = names.under(each.name), legal(each.name)
            self.folded |= name != each.name
            type = (self._nullable if each.nullable else self._type)(each.kind, below)
            documents.append(_field(each.name, self._earlier.take(names.path, below.path, name, taken), type))
        return documents

    def _take(self, names: RecordNames) -> str:
        return self._earlier.take((), names.path, names.joined, names.taken)


def _field(name: str, taken: str, type: Any) -> dict[str, Any]:
    field = {"name": taken, "type": type}
    if taken != name:
        field["doc"] = name
    if isinstance(type, list) or type == "null":
        field["default"] = None
    return field


def _primitive(kind: Kind, connect: bool) -> Any:
    name = _PRIMITIVES.get(kind.type, kind.type)
    properties: dict[str, Any] = {}
    if kind.name == DECIMAL:
        precision, scale = int(kind.parameters["connect.decimal.precision"]), int(kind.parameters["scale"])
        properties = {"logicalType": "decimal", "precision": precision, "scale": scale}
    elif kind.arrow is not None and types.is_date(kind.arrow) and kind.type == "int32":
        properties = {"logicalType": "date"}
    elif kind.name in (MICRO_TIMESTAMP, CONNECT_TIMESTAMP) and kind.arrow is not None:
        local = "local-" if kind.arrow.tz is None else ""
        properties = {"logicalType": f"{local}timestamp-{'micros' if kind.name == MICRO_TIMESTAMP else 'millis'}"}
        if connect and local and kind.name == CONNECT_TIMESTAMP:
            properties["connect.name"] = kind.name
    if connect and kind.name in _NAMED:
        properties["connect.name"] = kind.name
        if kind.parameters:
            properties["connect.parameters"] = dict(kind.parameters)
    return {"type": name, **properties} if properties else name
