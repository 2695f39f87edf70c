"""Arrow schemas as Avro schemas.

| Arrow                        | Avro                                                                                |
|------------------------------|-------------------------------------------------------------------------------------|
| null                         | `null`                                                                              |
| bool                         | `boolean`                                                                           |
| integers of up to 32 bits    | `int`; `long` for unsigned ones of 32                                               |
| int64                        | `long`                                                                              |
| half, float; double          | `float`; `double`                                                                   |
| decimal                      | `bytes`, `decimal`                                                                  |
| date                         | `int`, `date`                                                                       |
| timestamp with a zone        | `long`, `timestamp-micros`                                                          |
| timestamp without            | `long`, `local-timestamp-micros`                                                    |
| string, arrow.json           | `string`                                                                            |
| binary                       | `bytes`                                                                             |
| struct                       | record                                                                              |
| list                         | array                                                                               |
| map with strings as keys     | map                                                                                 |
| map with other keys          | array of records with the fields `key` and `value`                                  |
| dictionary, run-end encoded  | as their values                                                                     |

Every column, field, element and map value is a union of null and its type, with null as the default of fields, whatever
the table says of nulls: so any column can be added, dropped or made nullable, and the old and the new schema still read
each other's data. The four change columns are never null and are no unions.

Names that Avro does not allow get `_` for what is not a letter, digit or `_`; the name as it is stands in `doc` then.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from cdfd.errors import UnsupportedError
from cdfd.model.columns import CHANGE_COLUMNS
from cdfd.trevni.avro_names import RecordNames, legal, unique

_CHANGE_NAMES: Final = frozenset(field.name for field in CHANGE_COLUMNS)
_HINT: Final = "Leave the column out with `columns`"


def record_schema(schema: pa.Schema, columns: Sequence[int], name: str, namespace: str) -> str:
    """The schema of rows, as JSON; the same for the same columns, so that a registry gives it the same id again.

    Args:
        schema: of the rows.
        columns: positions of those to take, in this order.
        name: of the record.
        namespace: of the record and those within it; a topic's name will do.

    Raises:
        UnsupportedError: a column is of a type that Avro has no form for.
    """
    names = RecordNames(name)
    names.take()
    fields = []
    for number in columns:
        field = schema.field(number)
        try:
            kind = _type(field.type, names.under(field.name))
        except UnsupportedError as error:
            raise UnsupportedError(f"column {field.name}: {error.what}", hint=error.hint) from error
        fields.append((field.name, kind if is_change_column(schema, number) else _nullable(kind)))
    document = {"type": "record", "name": legal(name), "namespace": _namespace(namespace), "fields": _fields(fields)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def is_change_column(schema: pa.Schema, number: int) -> bool:
    """Whether it is one of the four behind the table's own."""
    return number >= len(schema) - len(_CHANGE_NAMES) and schema.field(number).name in _CHANGE_NAMES


def _namespace(name: str) -> str:
    return ".".join(legal(part) for part in name.split("."))


def _nullable(kind: Any) -> Any:
    return kind if kind == "null" else ["null", kind]


def _fields(fields: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    given: set[str] = set()
    return [_field(name, unique(legal(name), given), kind) for name, kind in fields]


def _field(name: str, given: str, kind: Any) -> dict[str, Any]:
    field = {"name": given, "type": kind}
    if given != name:
        field["doc"] = name
    if isinstance(kind, list) or kind == "null":
        field["default"] = None
    return field


def _type(kind: pa.DataType, names: RecordNames) -> Any:
    for matches, build in _TYPES:
        if matches(kind):
            return build(kind, names)
    raise UnsupportedError(f"values of the type {kind} have no Avro form", hint=_HINT)


def _logical(kind: str, name: str, **properties: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **properties}


def _decimal(kind: pa.DataType, _names: RecordNames) -> Any:
    if kind.scale < 0:
        raise UnsupportedError(f"values of the type {kind} have no Avro form", hint=_HINT)
    return _logical("bytes", "decimal", precision=kind.precision, scale=kind.scale)


def _timestamp(kind: pa.DataType, _names: RecordNames) -> Any:
    return _logical("long", "local-timestamp-micros" if kind.tz is None else "timestamp-micros")


def _struct(kind: pa.DataType, names: RecordNames) -> Any:
    children = [kind.field(number) for number in range(kind.num_fields)]
    fields = [(child.name, _nullable(_type(child.type, names.under(child.name)))) for child in children]
    return {"type": "record", "name": names.take(), "fields": _fields(fields)}


def _list(kind: pa.DataType, names: RecordNames) -> Any:
    return {"type": "array", "items": _nullable(_type(kind.value_type, names.under("element")))}


def _map(kind: pa.DataType, names: RecordNames) -> Any:
    values = _nullable(_type(kind.item_type, names.under("value")))
    key = _type(kind.key_type, names.under("key"))
    if key == "string":
        return {"type": "map", "values": values}
    fields = _fields([("key", key), ("value", values)])
    return {"type": "array", "items": {"type": "record", "name": names.under("entry").take(), "fields": fields}}


def _named(name: str) -> Callable[[pa.DataType, RecordNames], Any]:
    return lambda _kind, _names: name


_STRINGS: Final = (types.is_string, types.is_large_string, types.is_string_view)
_BYTES: Final = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
_LISTS: Final = (
    *(types.is_list, types.is_large_list, types.is_fixed_size_list),
    *(types.is_list_view, types.is_large_list_view),
)
_TYPES: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, RecordNames], Any]], ...]] = (
    (lambda kind: types.is_integer(kind) and kind.bit_width < 32, _named("int")),
    (types.is_int32, _named("int")),
    (types.is_int64, _named("long")),
    (types.is_uint32, _named("long")),
    *((matches, _named("string")) for matches in _STRINGS),
    *((matches, _named("bytes")) for matches in _BYTES),
    (types.is_boolean, _named("boolean")),
    (types.is_float64, _named("double")),
    (types.is_floating, _named("float")),
    (types.is_decimal, _decimal),
    (types.is_timestamp, _timestamp),
    (types.is_date, lambda _kind, _names: _logical("int", "date")),
    (types.is_struct, _struct),
    (types.is_map, _map),
    *((matches, _list) for matches in _LISTS),
    (lambda kind: types.is_dictionary(kind) or types.is_run_end_encoded(kind), lambda k, n: _type(k.value_type, n)),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), lambda kind, names: _type(kind.storage_type, names)),
    (types.is_null, _named("null")),
)
