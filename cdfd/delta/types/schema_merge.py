"""The schema of a table after rows of another schema were appended. Pure.

Source: specification, "Schema Serialization Format", and the table feature `typeWidening` ("Type Change Metadata").
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cdfd.delta.types.datatypes import ArrayType, DataType, MapType, Primitive, StructField, StructType, fields_in
from cdfd.delta.types.schema_change import widens
from cdfd.errors import SchemaChangedError

TYPE_CHANGES = "delta.typeChanges"
SOURCE = "cdfd.source"
"""Key in a field's metadata: the physical name of the source's field, which survives a rename."""


@dataclass(slots=True)
class Merged:
    """A merged schema.

    Attributes:
        struct: the schema.
        follow: whether a field that the source renames or drops is renamed or dropped. Its `SOURCE` tells which one it is.
        earlier: whether the rows are of earlier versions of the source, so that a field that they lack is not dropped.
        missing: the table's fields that the rows do not have and that stay, by path.
        dropped: the table's fields that are dropped, by path. A new field may have the name of one.
        renamed: old names of the table's columns and the new ones.
        replaced: the table's fields whose name another field of the source has now, by path.
        by_name: whether the table knows the source of no column of the rows: the source was replaced, and its columns are paired by name.
    """

    struct: StructType
    follow: bool = False
    earlier: bool = False
    missing: dict[tuple[str, ...], StructField] = field(default_factory=dict)
    dropped: list[tuple[str, ...]] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    replaced: list[tuple[str, ...]] = field(default_factory=list)
    by_name: bool = False


def nullable(struct: StructType) -> StructType:
    """The struct as a target has it: all values nullable, a variant as text, and of the metadata of fields only comments and `SOURCE`."""
    fields = []
    for child in struct:
        metadata = {key: child.metadata[key] for key in ("comment", SOURCE) if key in child.metadata}
        fields.append(StructField(child.name, _nullable(child.type), True, metadata))
    return StructType(tuple(fields))


def merge(table: StructType, rows: StructType, *, follow: bool = False, earlier: bool = False) -> Merged:
    """The schema of a table that takes rows of another schema as well.

    New columns follow those that the table has. A column that the rows lack stays, and is null, or is dropped. A type that is wider in the
    rows is widened; one that is narrower stays. With `follow`, a column that was dropped and added again is another one.

    Raises:
        SchemaChangedError: a type changes to one that cannot hold the values of the one before, a name is taken, or two columns of the
            rows have one name.
    """
    check_names(rows)
    merged = Merged(table, follow, earlier)
    merged.by_name = {child.metadata.get(SOURCE) for child in table}.isdisjoint(
        child.metadata[SOURCE] for child in rows if SOURCE in child.metadata
    )
    merged.struct = _struct(table, rows, (), merged)
    return merged


def _struct(table: StructType, rows: StructType, path: tuple[str, ...], merged: Merged) -> StructType:
    pairs = _pairs(table, rows, path, merged)
    fields = []
    for child in table:
        other = pairs.get(child.name)
        if other is not None:
            fields.append(_field(child, other, (*path, child.name), merged))
        elif not merged.follow or merged.earlier or SOURCE not in child.metadata:
            merged.missing[(*path, child.name)] = child
            fields.append(child)
        else:
            merged.dropped.append((*path, child.name))
    paired = {other.name for other in pairs.values()}
    new = StructType(tuple(child for child in rows if child.name not in paired))
    struct = StructType((*fields, *nullable(new)))
    if merged.follow and (other := repeated(struct)) is not None:
        raise SchemaChangedError(
            f"the table has another column {'.'.join((*path, other.name))!r:.200}, which a column is renamed to",
            hint="Rename or drop that column of the target, which does not come from the source",
        )
    return struct


def check_names(rows: StructType) -> None:
    """`SchemaChangedError` if two columns of rows have one name."""
    if (child := repeated(rows)) is not None:
        raise SchemaChangedError(
            f"the rows have two columns {child.name!r:.200}, if case does not count, and a Delta table can have one",
            hint="Give one of them another name with `columns` and `as`",
        )


def repeated(struct: StructType) -> StructField | None:
    """The first field with the name of an earlier one, in any case; None if there is none."""
    seen: set[str] = set()
    for child in struct:
        if child.name.lower() in seen:
            return child
        seen.add(child.name.lower())
    return None


def _pairs(table: StructType, rows: StructType, path: tuple[str, ...], merged: Merged) -> dict[str, StructField]:
    """Name in the table -> the field of the rows: the one with the same source, else the one with the same name and no other source."""
    pairs: dict[str, StructField] = {}
    left = {child.name.lower(): child for child in rows}
    if merged.follow:
        sources = {child.metadata[SOURCE]: child for child in rows if SOURCE in child.metadata}
        for child in table:
            other = sources.get(child.metadata.get(SOURCE))
            if other is not None:
                pairs[child.name] = left.pop(other.name.lower())
    for child in table:
        other = left.get(child.name.lower())
        if child.name in pairs or other is None:
            continue
        source = other.metadata.get(SOURCE)
        if merged.follow and source is not None and child.metadata.get(SOURCE, source) != source:
            merged.replaced.append((*path, child.name))
            # A source that gave up its column mapping has columns by their own names, and they are the same ones, unless one is known to
            # have no source.
            if not merged.by_name and (source != other.name or not child.metadata[SOURCE]):
                continue
        pairs[child.name] = left.pop(child.name.lower())
    return pairs


def _field(child: StructField, other: StructField, path: tuple[str, ...], merged: Merged) -> StructField:
    if merged.follow and SOURCE in other.metadata:
        if child.name != other.name and len(path) == 1:
            merged.renamed[child.name] = other.name
        child = replace(child, name=other.name, metadata={**child.metadata, SOURCE: other.metadata[SOURCE]})
    changes: list[dict[str, Any]] = []
    kind = _type(child.type, other.type, path, (), changes, merged)
    if not changes:
        return replace(child, type=kind)
    history = child.metadata.get(TYPE_CHANGES)
    before: Iterable[Any] = history if isinstance(history, list) else ()
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
            return replace(table, element=_type(element, other, path, (*inside, "element"), changes, merged))
        case MapType(key, value), MapType(other_key, other_value):
            keys = _type(key, other_key, path, (*inside, "key"), changes, merged)
            return replace(table, key=keys, value=_type(value, other_value, path, (*inside, "value"), changes, merged))
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
        case Primitive("variant"):
            return Primitive("string")
    return kind


def type_changes(kind: DataType) -> int:
    """The number of type changes that a schema records."""
    return sum(
        len(history) for child in fields_in(kind) if isinstance(history := child.metadata.get(TYPE_CHANGES), list)
    )
