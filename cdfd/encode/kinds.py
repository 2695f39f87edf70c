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

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa
from pyarrow import types

from cdfd.encode.payload import Shape, ShapeField
from cdfd.errors import UnsupportedError

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
    def can_be_nan(self) -> bool:
        """Whether there are values that are no numbers, which JSON with a schema has as null: also as keys of maps."""
        return self.arrow is not None and types.is_floating(self.arrow)


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


@contextmanager
def column_errors(struct: Kind | Shape, field: KindField | ShapeField) -> Iterator[None]:
    """Refusals of a field's type name it, if it is a column. A struct within a column has no name."""
    try:
        yield
    except UnsupportedError as error:
        if struct.name is not None and not error.what.startswith("column "):
            error.what = f"column {field.name}: {error.what}"
        raise


def kind_of_shape(shape: Shape, modes: Modes, kinds: dict[int, Kind] | None = None) -> Kind:
    """The type of records. A shape that occurs twice is the same object twice.

    Args:
        shape: of the records.
        modes: forms of values.
        kinds: those of the shapes so far, by the id of each.

    Raises:
        UnsupportedError: a column is of a type that Kafka Connect has no form for.
    """
    kinds = {} if kinds is None else kinds
    if id(shape) in kinds:
        return kinds[id(shape)]
    fields = []
    for each in shape.fields:
        if isinstance(each.type, Shape):
            kind = kind_of_shape(each.type, modes, kinds)
        elif each.symbols:
            kind = Kind("string", ENUM, {"allowed": ",".join(each.symbols)}, each.type)
        else:
            with column_errors(shape, each):
                kind = kind_of(each.type, modes)
        fields.append(KindField(each.name, kind, each.nullable))
    kinds[id(shape)] = Kind("struct", shape.name, fields=tuple(fields))
    return kinds[id(shape)]


BYTES: Final = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
STRINGS: Final = (types.is_string, types.is_large_string, types.is_string_view)
LISTS: Final = (
    *(types.is_list, types.is_large_list, types.is_fixed_size_list),
    *(types.is_list_view, types.is_large_list_view),
)
_PRIMITIVES: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (types.is_int64, "int64"),
    (types.is_int32, "int32"),
    *((matches, "string") for matches in STRINGS),
    (types.is_float64, "float64"),
    (types.is_floating, "float32"),
    (types.is_boolean, "boolean"),
    (types.is_int16, "int16"),
    (types.is_int8, "int8"),
    (types.is_uint8, "int16"),
    (types.is_uint16, "int32"),
    (types.is_uint32, "int64"),
    (types.is_null, "null"),
)
"""Types that have the same form in all modes."""


def is_encoded(type: pa.DataType) -> bool:
    """Whether values are numbers of others, or runs of them."""
    return bool(types.is_dictionary(type) or types.is_run_end_encoded(type))


def kind_of(type: pa.DataType, modes: Modes) -> Kind:
    """The type of values. `UnsupportedError` where Kafka Connect has no form for them."""
    for matches, name in _PRIMITIVES:
        if matches(type):
            return Kind(name, arrow=type)
    if types.is_timestamp(type):
        iso = None if type.tz is None else ZONED_TIMESTAMP
        name_of_mode = {"iso": iso, "connect": CONNECT_TIMESTAMP, "micros": MICRO_TIMESTAMP}
        return Kind("string" if modes.time == "iso" else "int64", name_of_mode[modes.time], arrow=type)
    if types.is_date(type):
        name_of_mode = {"iso": None, "connect": CONNECT_DATE, "micros": DAYS}
        return Kind("string" if modes.time == "iso" else "int32", name_of_mode[modes.time], arrow=type)
    if types.is_decimal(type) and type.scale >= 0:
        if modes.decimal == "precise":
            parameters = {"scale": str(type.scale), "connect.decimal.precision": str(type.precision)}
            return Kind("bytes", DECIMAL, parameters, type)
        return Kind("string" if modes.decimal == "string" else "float64", arrow=type)
    if any(matches(type) for matches in BYTES):
        return Kind("bytes" if modes.binary == "bytes" else "string", arrow=type)
    if types.is_struct(type):
        children = [type.field(number) for number in range(type.num_fields)]
        fields = tuple(KindField(each.name, kind_of(each.type, modes)) for each in children)
        return Kind("struct", arrow=type, fields=fields)
    if types.is_map(type):
        return Kind("map", arrow=type, keys=kind_of(type.key_type, modes), items=kind_of(type.item_type, modes))
    if any(matches(type) for matches in LISTS):
        return Kind("array", arrow=type, items=kind_of(type.value_type, modes))
    if isinstance(type, pa.JsonType):
        return Kind("string", JSON, arrow=type)
    if is_encoded(type) or isinstance(type, pa.BaseExtensionType):
        return kind_of(type.value_type if is_encoded(type) else type.storage_type, modes)
    raise UnsupportedError(f"values of the type {type} have no form in records with a schema", hint=HINT)
