"""The schema of a table after rows of another schema were appended. Pure.

Source: specification, "Schema Serialization Format", and the table feature `typeWidening` ("Type Change Metadata").
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cdfd.delta.datatypes import ArrayType, DataType, MapType, StructField, StructType
from cdfd.delta.schema_change import widens
from cdfd.errors import SchemaChangedError

TYPE_CHANGES = "delta.typeChanges"


@dataclass(slots=True)
class Merged:
    """A merged schema.

    Attributes:
        struct: the schema.
        widened: whether the type of a column was widened.
        missing: dotted names of the table's columns that the rows do not have.
    """

    struct: StructType
    widened: bool = False
    missing: list[str] = field(default_factory=list)


def nullable(struct: StructType) -> StructType:
    """The struct with all values nullable, and without the metadata of fields but comments."""
    fields = (StructField(child.name, _nullable(child.type), True, _comment(child)) for child in struct)
    return StructType(tuple(fields))


def merge(table: StructType, rows: StructType) -> Merged:
    """The schema of a table that takes rows of another schema as well.

    New columns follow those that the table has. A column that the rows lack stays, and is null. A type that is wider in the rows is widened;
    one that is narrower stays.

    Raises:
        SchemaChangedError: a type changes to one that cannot hold the values of the one before.
    """
    merged = Merged(table)
    merged.struct = _struct(table, rows, (), merged)
    return merged


def _struct(table: StructType, rows: StructType, path: tuple[str, ...], merged: Merged) -> StructType:
    found = {child.name.lower(): child for child in rows}
    fields = []
    for child in table:
        other = found.pop(child.name.lower(), None)
        if other is None:
            merged.missing.append(".".join((*path, child.name)))
            fields.append(child)
        else:
            fields.append(_field(child, other, (*path, child.name), merged))
    return StructType((*fields, *nullable(StructType(tuple(found.values())))))


def _field(child: StructField, other: StructField, path: tuple[str, ...], merged: Merged) -> StructField:
    changes: list[dict[str, Any]] = []
    kind = _type(child.type, other.type, path, (), changes, merged)
    if not changes:
        return replace(child, type=kind)
    merged.widened = True
    known = child.metadata.get(TYPE_CHANGES)
    before: Iterable[Any] = known if isinstance(known, list) else ()
    return replace(child, type=kind, metadata={**child.metadata, TYPE_CHANGES: [*before, *changes]})


def _type(
    table: DataType,
    rows: DataType,
    path: tuple[str, ...],
    inside: tuple[str, ...],
    changes: list[dict[str, Any]],
    merged: Merged,
) -> DataType:
    """The type of a column. `inside`: the way to it from its field, through arrays and maps; `changes` gets the widened types."""
    match table, rows:
        case StructType(), StructType():
            return _struct(table, rows, path, merged)
        case ArrayType(element), ArrayType(other):
            return ArrayType(_type(element, other, path, (*inside, "element"), changes, merged))
        case MapType(key, value), MapType(other_key, other_value):
            keys = _type(key, other_key, path, (*inside, "key"), changes, merged)
            return MapType(keys, _type(value, other_value, path, (*inside, "value"), changes, merged))
    if table == rows or widens(rows, table):
        return table
    if not widens(table, rows):
        raise SchemaChangedError(
            f"column {'.'.join(path)!r:.200} changes its type from {table} to {rows}",
            hint="Deliver into another target, or leave the column out with `columns`",
        )
    change = {"fromType": str(table), "toType": str(rows)}
    changes.append({**change, "fieldPath": ".".join(inside)} if inside else change)
    return rows


def _nullable(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return nullable(kind)
        case ArrayType(element):
            return ArrayType(_nullable(element))
        case MapType(key, value):
            return MapType(_nullable(key), _nullable(value))
    return kind


def _comment(child: StructField) -> dict[str, Any]:
    return {"comment": child.metadata["comment"]} if "comment" in child.metadata else {}
