"""Avro schemas as shapes and physical columns, as the reference's `AvroColumnator` makes them.

| Avro            | columns                                                                                             |
|-----------------|-----------------------------------------------------------------------------------------------------|
| record          | those of its fields, `#` between names: `address#city`                                              |
| array           | `tags[]`, an array column if its items are simple; otherwise its lengths, and then the items        |
| map             | `m>` for the lengths, `m>key`, and those of the values: `m>value`                                   |
| union           | `x/string`, an array column of at most one value, for each branch but null, by the branch's full name |
| enum, fixed     | `int`, which is the number of the symbol, and `bytes`                                               |
| others          | the type of the same name                                                                           |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from cdfd.errors import TrevniError
from cdfd.trevni.metadata import ColumnMetadata
from cdfd.trevni.shapes import Array, Branch, Field, Leaf, Map, Record, Shape, Union
from cdfd.trevni.values.value_types import ValueType

KEY = "avro.schema"
"""The file's property that has the schema."""
NAME, TYPE, FIELD_ID = "arrow.name", "arrow.type", "field-id"
"""Attributes of the schema: a column's name that Avro does not allow, an Arrow type that Avro does not have, and a column's id."""
DEEPEST = 100
"""Records, arrays and maps within each other, at most, with the record that is a row."""
UNBACKED_TYPES = 100_000
"""Types of a schema, at most, beside eight for each column. Records without fields add no column, and named types count at each use."""
LARGEST_FIXED = 64 << 20
"""Bytes of a fixed type, at most: nulls take as many, although they have none in the file."""
MOST_SYMBOLS = 1_000_000
"""Symbols of all enums of a schema, at most. They count for each column of an enum."""

_SIMPLE: Mapping[str, tuple[ValueType, Any]] = {
    "null": (ValueType.NULL, pa.null()),
    "boolean": (ValueType.BOOLEAN, pa.bool_()),
    "int": (ValueType.INT, pa.int32()),
    "long": (ValueType.LONG, pa.int64()),
    "float": (ValueType.FLOAT, pa.float32()),
    "double": (ValueType.DOUBLE, pa.float64()),
    "bytes": (ValueType.BYTES, pa.binary()),
    "string": (ValueType.STRING, pa.string()),
}
_LOGICAL: Mapping[tuple[str, str], Any] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{local}timestamp-{long}"): pa.timestamp(unit, zone)
        for long, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
        for local, zone in (("", "UTC"), ("local-", None))
    },
}
ARROW_ONLY: Mapping[str, tuple[str, Any]] = {
    "int8": ("int", pa.int8()),
    "int16": ("int", pa.int16()),
    "json": ("string", pa.json_(pa.string())),
}
"""Types that Avro does not have, by the attribute `arrow.type`: the Avro type of their values."""


def parse(text: bytes | str, most: int) -> tuple[list[ColumnMetadata], Shape]:
    """The columns and the shape of rows with a schema.

    Args:
        text: the schema, as JSON.
        most: columns, at most. A short schema can have very many: its named types may be used again and again.

    Raises:
        TrevniError: the schema is no Avro schema, is recursive, or has more columns.
    """
    try:
        schema = orjson.loads(text)
    except ValueError as error:
        raise TrevniError(f"the Avro schema is not JSON: {error}") from None
    columnator = _Columnator(most)
    shape = columnator.shape(None, schema, None, "")
    return columnator.columns, shape


@dataclass(eq=False)
class _Columnator:
    most: int
    columns: list[ColumnMetadata] = field(default_factory=list, init=False)
    _named: dict[str, tuple[Any, str]] = field(default_factory=dict, init=False)
    _open: list[str] = field(default_factory=list, init=False)
    _types: int = field(default=0, init=False)
    _symbols: int = field(default=0, init=False)

    def _add(self, path: str, kind: ValueType, parent: str | None, *, array: bool) -> int:
        if len(self.columns) >= self.most:
            raise TrevniError(f"the Avro schema has more than {self.most} columns")
        self.columns.append(ColumnMetadata(path, kind, array, parent))
        return len(self.columns) - 1

    def shape(self, path: str | None, schema: Any, parent: str | None, namespace: str) -> Shape:
        """The shape of values at a path. Adds their columns."""
        schema, namespace = self._resolve(schema, namespace)
        simple = self._simple(schema)
        if simple is not None:
            kind, arrow, symbols = simple
            name = _full_name(schema, namespace) if path is None else path
            return Leaf(self._add(name, kind, parent, array=False), kind, arrow, symbols)
        if isinstance(schema, list):
            return self._union(path, schema, parent, namespace)
        name = _full_name(schema, namespace) if _type(schema) == "record" else ""
        if name in self._open and name:
            raise TrevniError(f"the Avro schema is recursive: {name!r:.100} contains itself")
        if len(self._open) == DEEPEST:
            raise TrevniError(f"the Avro schema has more than {DEEPEST} levels")
        self._open.append(name)
        try:
            match _type(schema):
                case "record":
                    return self._record(path, schema, parent, _full_name(schema, namespace).rpartition(".")[0])
                case "array":
                    return self._array(f"{path or ''}[]", schema, parent, namespace)
                case "map":
                    return self._map(f"{path or ''}>", schema, parent, namespace)
            raise TrevniError(f"the Avro schema has an unknown type: {str(_type(schema))!r:.100}")
        finally:
            self._open.pop()

    def _record(self, path: str | None, schema: Any, parent: str | None, namespace: str) -> Record:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise TrevniError("a record of the Avro schema has no fields")
        own_fields = []
        for child in fields:
            if not isinstance(child, dict) or not isinstance(child.get("name"), str) or "type" not in child:
                raise TrevniError("a field of the Avro schema has no name or no type")
            name = child["name"]
            shape = self.shape(name if path is None else f"{path}#{name}", child["type"], parent, namespace)
            shown, id = child.get(NAME, name), child.get(FIELD_ID)
            own_fields.append(
                Field(shown if isinstance(shown, str) else name, shape, id if isinstance(id, int) else None)
            )
        return Record(tuple(own_fields))

    def _array(self, path: str, schema: Any, parent: str | None, namespace: str) -> Array:
        if "items" not in schema:
            raise TrevniError("an array of the Avro schema has no items")
        column, items, inner = self._item(path, schema["items"], parent, namespace)
        entries = None
        if schema.get("logicalType") == "map" and isinstance(items, Record) and len(items.fields) == 2:
            key, value = (field.shape for field in items.fields)
            # Arrow's maps have no nulls as keys.
            entries = None if isinstance(key, Union) else (key, value)
        return Array(column, items, inner, entries)

    def _item(self, path: str, schema: Any, parent: str | None, namespace: str) -> tuple[int, Shape, bool]:
        """An array column: its number, the shape of its items, and whether their values are in the same column."""
        resolved, inside = self._resolve(schema, namespace)
        simple = self._simple(resolved)
        if simple is not None:
            kind, arrow, symbols = simple
            column = self._add(path, kind, parent, array=True)
            return column, Leaf(column, kind, arrow, symbols), True
        column = self._add(path, ValueType.NULL, parent, array=True)
        return column, self.shape(path, schema, path, inside), False

    def _map(self, path: str, schema: Any, parent: str | None, namespace: str) -> Map:
        if "values" not in schema:
            raise TrevniError("a map of the Avro schema has no values")
        column = self._add(path, ValueType.NULL, parent, array=True)
        key = Leaf(self._add(f"{path}key", ValueType.STRING, path, array=False), ValueType.STRING, pa.string())
        return Map(column, key, self.shape(f"{path}value", schema["values"], path, namespace))

    def _union(self, path: str | None, schema: list[Any], parent: str | None, namespace: str) -> Union:
        branches: list[Branch | None] = []
        for each in schema:
            resolved, inside = self._resolve(each, namespace)
            if isinstance(resolved, list):
                raise TrevniError("a union of the Avro schema is directly in another one")
            if _type(resolved) == "null":
                branches.append(None)
                continue
            name = _full_name(resolved, inside)
            column, shape, inner = self._item(name if path is None else f"{path}/{name}", each, parent, namespace)
            branches.append(Branch(column, shape, inner, name))
        return Union(tuple(branches))

    def _resolve(self, schema: Any, namespace: str) -> tuple[Any, str]:
        """A schema instead of its name, and the namespace around it. Remembers named types."""
        self._types += 1
        if self._types > UNBACKED_TYPES + 8 * self.most:
            raise TrevniError(
                f"the Avro schema has more than {UNBACKED_TYPES + 8 * self.most} types for {self.most} columns"
            )
        while isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            # {"type": {"type": "int"}} is the type within.
            schema = schema["type"]
        if isinstance(schema, str) and schema not in _SIMPLE:
            name = schema if "." in schema else f"{namespace}.{schema}".lstrip(".")
            named = self._named.get(name) or self._named.get(schema)
            if named is None:
                raise TrevniError(f"the Avro schema has an unknown type: {schema!r:.100}")
            return named
        if not isinstance(schema, str | dict | list):
            raise TrevniError("the Avro schema has a type that is neither text, nor an object or a list")
        if isinstance(schema, dict):
            kind = _type(schema)
            if kind in ("record", "enum", "fixed"):
                self._named[_full_name(schema, namespace)] = (schema, namespace)
            elif isinstance(kind, str) and kind not in (*_SIMPLE, "array", "map"):
                return self._resolve(kind, namespace)
        return schema, namespace

    def _simple(self, schema: Any) -> tuple[ValueType, Any, tuple[str, ...] | None] | None:
        kind = _type(schema)
        if isinstance(schema, dict) and kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
                raise TrevniError("an enum of the Avro schema has no symbols")
            self._symbols += len(symbols)
            if self._symbols > MOST_SYMBOLS:
                raise TrevniError(f"the enums of the Avro schema have more than {MOST_SYMBOLS} symbols")
            return ValueType.INT, pa.dictionary(pa.int32(), pa.string()), tuple(symbols)
        if isinstance(schema, dict) and kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or size < 0:
                raise TrevniError("a fixed type of the Avro schema has no size")
            if size > LARGEST_FIXED:
                raise TrevniError(f"a fixed type of the Avro schema has {size} bytes; at most {LARGEST_FIXED} are read")
            return ValueType.BYTES, _decimal(schema) or pa.binary(size), None
        if kind not in _SIMPLE:
            return None
        value, arrow = _SIMPLE[kind]
        if isinstance(schema, dict):
            # The Arrow type that attributes say, if they say one that fits.
            name, logical = schema.get(TYPE), schema.get("logicalType")
            if isinstance(name, str) and name in ARROW_ONLY and ARROW_ONLY[name][0] == kind:
                arrow = ARROW_ONLY[name][1]
            elif isinstance(logical, str):
                arrow = (_decimal(schema) if kind == "bytes" else _LOGICAL.get((kind, logical))) or arrow
        return value, arrow, None


def _type(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, dict) else schema if isinstance(schema, str) else None


def _decimal(schema: Mapping[str, Any]) -> Any:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema.get("logicalType") != "decimal" or not isinstance(precision, int) or not isinstance(scale, int):
        return None
    # Avro says to ignore a logical type that is not valid.
    return pa.decimal128(precision, scale) if 0 < precision <= 38 and 0 <= scale <= precision else None


def _full_name(schema: Any, around: str) -> str:
    if isinstance(schema, str):
        return schema
    kind = _type(schema)
    if kind not in ("record", "enum", "fixed"):
        return str(kind)
    name, space = schema.get("name"), schema.get("namespace", around)
    if not isinstance(name, str) or not isinstance(space, str):
        raise TrevniError(f"a {kind} of the Avro schema has no name")
    return name if "." in name or not space else f"{space}.{name}"
