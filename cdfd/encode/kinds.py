"""The types of records as Kafka Connect names them, which schemas in JSON, JSON Schema, Avro and Protobuf are made from.

| Arrow                                  | Connect                                          | with                       |
|----------------------------------------|--------------------------------------------------|----------------------------|
| bool                                   | boolean                                          |                            |
| int8, int16, int32, int64              | int8, int16, int32, int64; unsigned the next one |                            |
| half, float; double                    | float32; float64                                 |                            |
| decimal                                | bytes, `org.apache.kafka.connect.data.Decimal`   | `decimal: precise`         |
|                                        | string                                           | `decimal: string`          |
|                                        | float64                                          | `decimal: double`          |
| date                                   | int32, `io.debezium.time.Date`                   | `time: micros`             |
|                                        | int32, `org.apache.kafka.connect.data.Date`      | `time: connect`            |
|                                        | string                                           | `time: iso`                |
| timestamp                              | int64, `io.debezium.time.MicroTimestamp`         | `time: micros`             |
|                                        | int64, `org.apache.kafka.connect.data.Timestamp` | `time: connect`            |
|                                        | string, `io.debezium.time.ZonedTimestamp` with a zone | `time: iso`           |
| binary                                 | bytes                                            | `binary: bytes`            |
|                                        | string                                           | `binary: base64` and `hex` |
| string                                 | string                                           |                            |
| arrow.json                             | string, `io.debezium.data.Json`                  |                            |
| struct, list, map                      | struct, array, map                               |                            |
| dictionary, run-end encoded            | as their values                                  |                            |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa
from pyarrow import types

from cdfd.encode.payload import Shape, ShapeField
from cdfd.errors import UnsupportedError

Primitive = Literal["boolean", "int8", "int16", "int32", "int64", "float32", "float64", "string", "bytes", "null"]

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
MICRO_TIMESTAMP: Final = "io.debezium.time.MicroTimestamp"
ZONED_TIMESTAMP: Final = "io.debezium.time.ZonedTimestamp"
CONNECT_TIMESTAMP: Final = "org.apache.kafka.connect.data.Timestamp"
DAYS: Final = "io.debezium.time.Date"
CONNECT_DATE: Final = "org.apache.kafka.connect.data.Date"
JSON: Final = "io.debezium.data.Json"
ENUM: Final = "io.debezium.data.Enum"

HINT: Final = "Leave the column out with `columns`"
"""For a type that a format does not have."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Forms of values, as in Debezium's `decimal.handling.mode`, `time.precision.mode` and `binary.handling.mode`.

    Attributes:
        decimal: unscaled bytes, text with all digits, or the nearest double.
        time: days and milliseconds, days and microseconds, or text.
        binary: bytes, or text.
    """

    decimal: Literal["precise", "string", "double"] = "string"
    time: Literal["connect", "iso", "micros"] = "iso"
    binary: Literal["base64", "hex", "bytes"] = "base64"


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A type.

    Attributes:
        type: `struct`, `array`, `map`, or a primitive.
        name: full name of its schema, of structs and of types that mean more than the primitive; None for none.
        parameters: of the name.
        arrow: of the values; None of structs that are no column.
        fields: of a struct.
        items: of an array, and the values of a map. They can be null.
        keys: of a map.
    """

    type: str
    name: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    arrow: pa.DataType | None = None
    fields: tuple[KindField, ...] = ()
    items: Kind | None = None
    keys: Kind | None = None

    @property
    def scale(self) -> int:
        """Digits after the point, of a decimal."""
        return int(self.parameters["scale"])

    @property
    def can_be_nan(self) -> bool:
        """Whether there are values that are no numbers, which JSON with a schema has as null: also as keys of maps."""
        return self.arrow is not None and types.is_floating(self.arrow)

    @property
    def is_decimal(self) -> bool:
        """Whether values are unscaled bytes."""
        return self.name == DECIMAL


@dataclass(frozen=True, slots=True, eq=False)
class KindField:
    """A field of a struct.

    Attributes:
        name: of the field, as in the table.
        kind: of its values.
        nullable: whether there can be nulls.
    """

    name: str
    kind: Kind
    nullable: bool = True


def kind_of_shape(shape: Shape, modes: Modes) -> Kind:
    """The type of records. A shape that occurs twice is the same object twice.

    Raises:
        UnsupportedError: a column is of a type that Kafka Connect has no form for.
    """
    return _of_shape(shape, modes, {})


def _of_shape(shape: Shape, modes: Modes, kinds: dict[int, Kind]) -> Kind:
    if id(shape) not in kinds:
        fields = tuple(KindField(each.name, _of_field(each, modes, kinds), each.nullable) for each in shape.fields)
        kinds[id(shape)] = Kind("struct", shape.name, fields=fields)
    return kinds[id(shape)]


def _of_field(each: ShapeField, modes: Modes, kinds: dict[int, Kind]) -> Kind:
    if isinstance(each.type, Shape):
        return _of_shape(each.type, modes, kinds)
    if each.symbols:
        return Kind("string", ENUM, {"allowed": ",".join(each.symbols)}, each.type)
    try:
        return kind_of(each.type, modes, each.name)
    except UnsupportedError as error:
        raise UnsupportedError(f"column {each.name}: {error.what}", hint=error.hint) from error


def kind_of(type: pa.DataType, modes: Modes, path: str) -> Kind:
    """The type of values. `path` names the structs in it. `UnsupportedError` where Kafka Connect has no form for them."""
    for matches, make in _KINDS:
        if matches(type):
            return make(type, modes, path)
    raise UnsupportedError(f"values of the type {type} have no form in records with a schema", hint=HINT)


def _primitive(name: Primitive) -> Callable[[pa.DataType, Modes, str], Kind]:
    return lambda type, _modes, _path: Kind(name, arrow=type)


def _decimal(type: pa.DataType, modes: Modes, _path: str) -> Kind:
    if type.scale < 0:
        raise UnsupportedError(f"values of the type {type} have no form in records with a schema", hint=HINT)
    if modes.decimal == "precise":
        parameters = {"scale": str(type.scale), "connect.decimal.precision": str(type.precision)}
        return Kind("bytes", DECIMAL, parameters, type)
    return Kind("string" if modes.decimal == "string" else "float64", arrow=type)


def _timestamp(type: pa.DataType, modes: Modes, _path: str) -> Kind:
    if modes.time == "iso":
        return Kind("string", None if type.tz is None else ZONED_TIMESTAMP, arrow=type)
    return Kind("int64", CONNECT_TIMESTAMP if modes.time == "connect" else MICRO_TIMESTAMP, arrow=type)


def _date(type: pa.DataType, modes: Modes, _path: str) -> Kind:
    if modes.time == "iso":
        return Kind("string", arrow=type)
    return Kind("int32", CONNECT_DATE if modes.time == "connect" else DAYS, arrow=type)


def _binary(type: pa.DataType, modes: Modes, _path: str) -> Kind:
    return Kind("bytes" if modes.binary == "bytes" else "string", arrow=type)


def _struct(type: pa.DataType, modes: Modes, path: str) -> Kind:
    children = [type.field(number) for number in range(type.num_fields)]
    fields = tuple(KindField(each.name, kind_of(each.type, modes, f"{path}.{each.name}")) for each in children)
    return Kind("struct", arrow=type, fields=fields)


def _list(type: pa.DataType, modes: Modes, path: str) -> Kind:
    return Kind("array", arrow=type, items=kind_of(type.value_type, modes, f"{path}.element"))


def _map(type: pa.DataType, modes: Modes, path: str) -> Kind:
    keys, items = kind_of(type.key_type, modes, f"{path}.key"), kind_of(type.item_type, modes, f"{path}.value")
    return Kind("map", arrow=type, keys=keys, items=items)


def _values(type: pa.DataType, modes: Modes, path: str) -> Kind:
    return kind_of(type.value_type, modes, path)


BYTES: Final = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
STRINGS: Final = (types.is_string, types.is_large_string, types.is_string_view)
LISTS: Final = (
    *(types.is_list, types.is_large_list, types.is_fixed_size_list),
    *(types.is_list_view, types.is_large_list_view),
)


def is_encoded(type: pa.DataType) -> bool:
    """Whether values are numbers of others, or runs of them."""
    return bool(types.is_dictionary(type) or types.is_run_end_encoded(type))


_KINDS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Modes, str], Kind]], ...]] = (
    (types.is_int64, _primitive("int64")),
    (types.is_int32, _primitive("int32")),
    *((matches, _primitive("string")) for matches in STRINGS),
    (types.is_timestamp, _timestamp),
    (types.is_decimal, _decimal),
    (types.is_float64, _primitive("float64")),
    (types.is_floating, _primitive("float32")),
    (types.is_boolean, _primitive("boolean")),
    (types.is_date, _date),
    *((matches, _binary) for matches in BYTES),
    (types.is_struct, _struct),
    (types.is_map, _map),
    *((matches, _list) for matches in LISTS),
    (types.is_int16, _primitive("int16")),
    (types.is_int8, _primitive("int8")),
    (types.is_uint8, _primitive("int16")),
    (types.is_uint16, _primitive("int32")),
    (types.is_uint32, _primitive("int64")),
    (is_encoded, _values),
    (lambda type: isinstance(type, pa.JsonType), lambda type, _modes, _path: Kind("string", JSON, arrow=type)),
    (
        lambda type: isinstance(type, pa.BaseExtensionType),
        lambda type, modes, path: kind_of(type.storage_type, modes, path),
    ),
    (types.is_null, lambda type, _modes, _path: Kind("null", arrow=type)),
)
