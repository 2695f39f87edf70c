"""`metaData.schemaString` <-> types (specification, "Schema Serialization Format").

Read leniently where deployed readers are: `nullable`, `metadata`, `containsNull` and `valueContainsNull` may be missing
(everything may be null then), a user-defined type is what it is stored as, `char(n)` and `varchar(n)` are strings.
Anything else that is not in the specification is an error: a schema half understood would publish wrong rows.
"""

import re
from collections.abc import Mapping
from typing import Any, get_args

import orjson
import pyarrow as pa

from cdfd.delta.types.datatypes import (
    MAX_PRECISION,
    VOID,
    ArrayType,
    DataType,
    Decimal,
    Foreign,
    MapType,
    Primitive,
    PrimitiveName,
    StructField,
    StructType,
)
from cdfd.errors import LogError, UnsupportedError

MAX_DEPTH = 63
"""Deepest nesting of types, as Parquet has them: an array or a map has two levels. Arrow's libraries pass no more to each other."""

_PRIMITIVES: dict[str, DataType] = {name: Primitive(name) for name in get_args(PrimitiveName)}
_SPELLINGS: dict[str, DataType] = {
    "null": VOID,
    "timestamp_ltz": Primitive("timestamp"),
    "decimal": Decimal(10, 0),
}
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*(-?[0-9]{1,9})\s*\)")
_CHARACTERS = re.compile(r"(?:char|varchar)\([0-9]{1,10}\)|string collate \w+", re.ASCII)
_FOREIGN: tuple[tuple[re.Pattern[str], pa.DataType | None], ...] = tuple(
    (re.compile(pattern, re.ASCII), arrow)
    for pattern, arrow in (
        # As Spark stores them in Parquet: months, and microseconds.
        (r"interval (?:year|month|year to month)", pa.int32()),
        (r"interval (?:day|hour|minute|second)(?: to (?:hour|minute|second))?", pa.int64()),
        (r"(?:geometry|geography)(?:\(.*\))?", pa.binary()),
        (r"timestamp_nanos", pa.timestamp("ns", "UTC")),
        (r"(?:(?:calendar_?)?interval(?:type)?|time|object)\b.*", None),
    )
)
"""Types that some writers have, and the Arrow type in which cdfd reads them: well-known binary for shapes; None: not at all."""


def parse(schema_string: str) -> StructType:
    """The schema of a table.

    Raises:
        LogError: not JSON, not a struct, missing or mistyped keys, an unknown type, a decimal out of range, two columns
            of one struct whose names differ at most in case.
        UnsupportedError: nesting deeper than `MAX_DEPTH`.
    """
    try:
        document = orjson.loads(schema_string)
    except orjson.JSONDecodeError as error:
        raise LogError(f"the schema is not valid JSON: {error}", hint=_HINT) from error
    kind = _type(document, ())
    if not isinstance(kind, StructType):
        raise LogError(f"the schema is of type {kind}, not a struct", hint=_HINT)
    return kind


def serialize(struct: StructType) -> str:
    """The schema as one line of JSON, with keys in Spark's order.

    Raises:
        LogError: metadata that JSON cannot hold, or that is nested too deep.
    """
    try:
        return orjson.dumps(_document(struct)).decode()
    except orjson.JSONEncodeError as error:
        raise LogError(f"the schema cannot be written as JSON: {error}") from error


_METADATA_DEPTH = 32
_HINT = "metaData.schemaString is broken; the table's writer is faulty"
_Path = tuple[str, ...]


def _error(path: _Path, what: str) -> LogError:
    return LogError(f"schema: {'.'.join(path) or 'the root'}: {what}"[:500], hint=_HINT)


def _type(document: object, path: _Path) -> DataType:
    if len(path) > MAX_DEPTH:  # the path is Parquet's
        what = f"the schema is nested deeper than {MAX_DEPTH} levels, of which an array or a map has two"
        raise UnsupportedError(what, hint="Store deep columns as JSON text")
    if isinstance(document, str):
        return _named_type(document, path)
    if not isinstance(document, dict):
        raise _error(path, f"a type must be a name or an object, not {_show(document)}")
    match document.get("type"):
        case "struct":
            return _struct(document, path)
        case "array":
            if "elementType" not in document:
                raise _error(path, "an array needs `elementType`")
            element = _type(document["elementType"], (*path, "list", "element"))
            return ArrayType(element, _flag(document, "containsNull", path))
        case "map":
            if "keyType" not in document or "valueType" not in document:
                raise _error(path, "a map needs `keyType` and `valueType`")
            key = _type(document["keyType"], (*path, "key_value", "key"))
            value = _type(document["valueType"], (*path, "key_value", "value"))
            return MapType(key, value, _flag(document, "valueContainsNull", path))
        case "udt":
            if "sqlType" not in document:
                raise _error(path, "a user-defined type needs `sqlType`, the type it is stored as")
            return _type(document["sqlType"], (*path, "udt"))
        case unknown:
            raise _error(path, f"unknown type {_show(unknown)}")


def _named_type(name: str, path: _Path) -> DataType:
    kind = _PRIMITIVES.get(name) or _SPELLINGS.get(name)
    if kind is not None:
        return kind
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if not (1 <= precision <= MAX_PRECISION and 0 <= scale <= precision):
            digits = f"1 to {MAX_PRECISION} digits, scale 0 to precision"
            raise _error(path, f"decimal({precision},{scale}) is out of range: {digits}")
        return Decimal(precision, scale)
    if _CHARACTERS.fullmatch(name):
        return Primitive("string")
    for pattern, arrow in _FOREIGN:
        if pattern.fullmatch(name.lower()):
            return Foreign(name, arrow)
    raise _error(path, f"unknown type {name!r:.80}")


def _struct(document: Mapping[str, object], path: _Path) -> StructType:
    children = document.get("fields")
    if not isinstance(children, list):
        raise _error(path, "a struct needs `fields`, a list")
    fields = tuple(_field(child, path) for child in children)
    seen: dict[str, str] = {}
    for child in fields:
        if twin := seen.get(folded := child.name.lower()):
            raise _error(
                path, f"columns {twin!r:.80} and {child.name!r:.80} have the same name, because case does not count"
            )
        seen[folded] = child.name
    return StructType(fields)


def _field(document: object, path: _Path) -> StructField:
    if not isinstance(document, dict):
        raise _error(path, f"a field must be an object, not {_show(document)}")
    name = document.get("name")
    if not isinstance(name, str):
        raise _error(path, "a field needs `name`, a string")
    path = (*path, name)
    if "type" not in document:
        raise _error(path, "a field needs `type`")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict | None):
        raise _error(path, "`metadata` must be an object")
    if metadata and not _is_shallow(metadata):
        raise _error(path, f"`metadata` is nested deeper than {_METADATA_DEPTH} levels")
    nullable = _flag(document, "nullable", path)
    return StructField(name, _type(document["type"], path), nullable, metadata or {})


def _show(value: object) -> str:
    # The repr of what is nested deep would need more stack than there is.
    if isinstance(value, dict):
        return "an object"
    return "an array" if isinstance(value, list) else f"{value!r:.80}"


def _is_shallow(metadata: Mapping[str, object]) -> bool:
    """Whether metadata can be compared and pickled, which takes a stack as deep as it is nested."""
    level: list[Any] = [metadata]
    for _ in range(_METADATA_DEPTH):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
        if not level:
            return True
    return False


def _flag(document: Mapping[str, object], key: str, path: _Path) -> bool:
    flag = document.get(key)
    if flag is None:
        return True
    if not isinstance(flag, bool):
        raise _error(path, f"`{key}` must be true or false, not {_show(flag)}")
    return flag


def _document(kind: DataType) -> Any:
    match kind:
        case StructType():
            fields = [
                {
                    "name": child.name,
                    "type": _document(child.type),
                    "nullable": child.nullable,
                    "metadata": dict(child.metadata),
                }
                for child in kind
            ]
            return {"type": "struct", "fields": fields}
        case ArrayType(element, contains_null):
            return {"type": "array", "elementType": _document(element), "containsNull": contains_null}
        case MapType(key, value, value_contains_null):
            return {
                "type": "map",
                "keyType": _document(key),
                "valueType": _document(value),
                "valueContainsNull": value_contains_null,
            }
    return str(kind)
