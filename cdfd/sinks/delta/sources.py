"""Which column of the source each column of the rows comes from. Pure.

The physical name of a column in the source survives a rename, so a target that keeps it can follow renames and drops (`cdfd.source` in a
field's metadata). A source without column mapping has the columns' own names there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdfd.delta.types.datatypes import ArrayType, DataType, MapType, StructField, StructType
from cdfd.delta.types.schema import ColumnMappingMode, TableSchema, physical_name
from cdfd.delta.types.schema_merge import SOURCE
from cdfd.plan.shape.shape import Shape


@dataclass(frozen=True, slots=True)
class Sources:
    """Adds the sources of columns to the schema of rows with a shape."""

    shape: Shape

    def tagged(self, rows: StructType, source: TableSchema) -> StructType:
        """The columns of rows of a version with this schema, each with its source. Change columns have none."""
        chosen = self.shape.columns_of(self.shape.select(source))
        # A mask replaces the values, and whatever is inside of them.
        published = {name.lower(): (child, mask is None) for child, name, mask in chosen}
        fields = []
        for child in rows:
            column = published.get(child.name.lower())
            fields.append(child if column is None else _tag(child, column[0], source.mapping, inside=column[1]))
        return StructType(tuple(fields))


def _tag(rows: StructField, source: StructField, mode: ColumnMappingMode, *, inside: bool = True) -> StructField:
    kind = _inside(rows.type, source.type, mode) if inside else rows.type
    return replace(rows, type=kind, metadata={**rows.metadata, SOURCE: physical_name(source, mode)})


def _inside(rows: DataType, source: DataType, mode: ColumnMappingMode) -> DataType:
    match rows, source:
        case StructType(), StructType():
            by_name = {child.name: child for child in source}
            return StructType(
                tuple(_tag(child, by_name[child.name], mode) if child.name in by_name else child for child in rows)
            )
        case ArrayType(element), ArrayType(other):
            return replace(rows, element=_inside(element, other, mode))
        case MapType(key, value), MapType(other_key, other_value):
            return replace(rows, key=_inside(key, other_key, mode), value=_inside(value, other_value, mode))
    return rows
