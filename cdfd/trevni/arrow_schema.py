"""Arrow schemas as Avro schemas, for `avro.schema`.

| Arrow                        | Avro                                                                   |
|------------------------------|------------------------------------------------------------------------|
| null, bool, float, double    | the same                                                               |
| int8, int16                  | `int` with the attribute `arrow.type`                                  |
| uint8, uint16, int32         | `int`                                                                  |
| uint32, int64                | `long`                                                                 |
| half                         | `float`                                                                |
| decimal128                   | `fixed` of as few bytes as the precision needs, `decimal`              |
| date                         | `int`, `date`                                                          |
| timestamp                    | `long`, `timestamp-micros`, or `local-timestamp-micros` without a zone |
| time                         | `int`, `time-millis`, or `long`, `time-micros`                         |
| string, binary               | `string`, `bytes`                                                      |
| fixed-size binary            | `fixed`                                                                |
| arrow.json                   | `string` with the attribute `arrow.type`                               |
| struct, list                 | record, array                                                          |
| map with strings as keys     | map                                                                    |
| map with other keys          | array of records of `key` and `value`, `map`                           |
| dense union                  | union                                                                  |
| dictionary                   | as its values                                                          |

A nullable column is a union with null. Names that Avro does not allow get `_` for other characters, and the attribute `arrow.name`.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from cdfd.errors import UnsupportedError
from cdfd.runtime.arrays import type_without_views
from cdfd.trevni.avro_names import RecordNames, legal, unique
from cdfd.trevni.avro_schema import DEEPEST, FIELD_ID, NAME, TYPE


def avro_schema(schema: pa.Schema) -> bytes:
    """The Avro schema of rows, as JSON. The record that a row is has the name `row`.

    Raises:
        UnsupportedError: a column is of a type that Avro has no form for.
    """
    for field in schema:
        _check_depth(field)
    names, fields = RecordNames("row"), [field.with_type(type_without_views(field.type)) for field in schema]
    document = {"type": "record", "name": names.take(), "fields": _fields(fields, names)}
    # orjson writes 254 levels of JSON, and a nullable record takes four.
    return json.dumps(document, separators=(",", ":")).encode()


def _check_depth(field: Any) -> None:
    """Refuse a type that `avro_schema.parse` refuses as too deep, before anything walks over it."""
    kinds = [field.type]
    for _ in range(DEEPEST):
        kinds = [kind for kind in kinds if types.is_nested(kind)]
        if not kinds:
            return
        kinds = [kind.field(number).type for kind in kinds for number in range(kind.num_fields)]
    hint = "Leave the column out, or store what is inside as JSON"
    raise UnsupportedError(f"column {field.name} is nested deeper than the {DEEPEST} levels of Trevni files", hint=hint)


def _fields(fields: Iterable[Any], names: RecordNames) -> list[dict[str, Any]]:
    taken: set[str] = set()
    avro_fields = []
    for field in fields:
        name = unique(legal(field.name), taken)
        try:
            each: dict[str, Any] = {"name": name, "type": _nullable(field, names.under(field.name))}
        except UnsupportedError as error:
            raise UnsupportedError(f"column {field.name}: {error.what}", hint=error.hint) from None
        if name != field.name:
            each[NAME] = field.name
        id = (field.metadata or {}).get(b"PARQUET:field_id", b"")
        if re.fullmatch(rb"-?[0-9]{1,9}", id):
            each[FIELD_ID] = int(id)
        avro_fields.append(each)
    return avro_fields


def _nullable(field: Any, names: RecordNames) -> Any:
    kind = _type(field.type, names)
    return ["null", kind] if field.nullable and kind != "null" and not types.is_union(field.type) else kind


def decimal_bytes(precision: int) -> int:
    """Bytes of the largest number with so many digits, and its sign."""
    return int((10**precision).bit_length() // 8 + 1)


_PRIMITIVES: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (types.is_null, "null"),
    (types.is_boolean, "boolean"),
    *((matches, "int") for matches in (types.is_uint8, types.is_uint16, types.is_int32)),
    *((matches, "long") for matches in (types.is_uint32, types.is_int64)),
    *((matches, "float") for matches in (types.is_float16, types.is_float32)),
    (types.is_float64, "double"),
    *((matches, "string") for matches in (types.is_string, types.is_large_string)),
    *((matches, "bytes") for matches in (types.is_binary, types.is_large_binary)),
)
"""Types that have no attributes in Avro."""


def _type(kind: Any, names: RecordNames) -> Any:
    for matches, name in _PRIMITIVES:
        if matches(kind):
            return name
    if types.is_int8(kind) or types.is_int16(kind):
        return {"type": "int", TYPE: str(kind)}
    if types.is_decimal128(kind):
        if not 0 <= kind.scale <= kind.precision:
            hint = "Cast the column to a decimal with a scale from 0 to its precision"
            raise UnsupportedError(f"values of the type {kind} have no form in Trevni files", hint=hint)
        fixed = {"type": "fixed", "name": names.take(), "size": decimal_bytes(kind.precision)}
        return fixed | {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_timestamp(kind):
        unit = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}[kind.unit]
        return {"type": "long", "logicalType": f"{'local-' if kind.tz is None else ''}timestamp-{unit}"}
    if types.is_time32(kind):
        return {"type": "int", "logicalType": "time-millis"}
    if types.is_time64(kind) and kind.unit != "ns":
        return {"type": "long", "logicalType": "time-micros"}
    if types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": names.take(), "size": kind.byte_width}
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json":
        return {"type": "string", TYPE: "json"}
    return _nested(kind, names)


def _nested(kind: Any, names: RecordNames) -> Any:
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return {"type": "record", "name": names.take(), "fields": _fields(fields, names)}
    if types.is_map(kind):
        if types.is_string(kind.key_type) or types.is_large_string(kind.key_type):
            return {"type": "map", "values": _nullable(kind.item_field, names.under("value"))}
        key = kind.key_field.with_name("key").with_nullable(False)
        entry = {"type": "record", "name": names.under("entry").take()}
        pair = _fields([key, kind.item_field.with_name("value")], names)
        return {"type": "array", "items": entry | {"fields": pair}, "logicalType": "map"}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, names.under("element"))}
    if types.is_union(kind) and kind.mode == "dense":
        branches = [kind.field(number) for number in range(kind.num_fields)]
        return [_type(branch.type, names.under(branch.name)) for branch in branches]
    if types.is_dictionary(kind):
        return _type(kind.value_type, names)
    hint = "Leave the column out, or cast it to another type"
    raise UnsupportedError(f"values of the type {kind!s:.200} have no form in Trevni files", hint=hint)
