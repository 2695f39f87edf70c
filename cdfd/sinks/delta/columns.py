"""The columns of a target, how files hold them, and the conditions for their values."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pyarrow as pa

from cdfd.delta.protocol import writer_features
from cdfd.delta.types import column_mapping, schema_string
from cdfd.delta.types.column_mapping import assign_ids, highest_id
from cdfd.delta.types.datatypes import ArrayType, DataType, MapType, StructField, StructType, is_nested, types_in
from cdfd.delta.types.schema import ID, PHYSICAL_NAME, ColumnMappingMode, TableSchema, mapping_mode, physical_name
from cdfd.delta.types.schema_merge import SOURCE, TYPE_CHANGES, check_names, merge, nullable, repeated
from cdfd.delta.write.writing import check_appendable, compression, conditions
from cdfd.errors import SchemaChangedError, SinkError
from cdfd.model.columns import CHANGE_NAMES
from cdfd.plan.shape.shape import Shape
from cdfd.sinks.delta.conditions import check_conditions
from cdfd.sinks.ledger.txn_state import TxnState

parse_schema = lru_cache(maxsize=64)(schema_string.parse)
"""The schema of a target, which is the same in most commits."""

_DEFAULT = "CURRENT_DEFAULT"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table.

    Attributes:
        struct: all of them.
        partition_by: the names of those that partition the table.
        mapping: how data files name them.
        highest_id: the highest id that a column has or had.
        conditions: that each row must fulfil, as (name for messages, SQL).
        materialized: whether data files have the partition columns too.
        compression: of data files, as a property of the table says; None if there is none. Files with another one are still of the table.
    """

    struct: StructType
    partition_by: tuple[str, ...] = ()
    mapping: ColumnMappingMode = ColumnMappingMode.NONE
    highest_id: int = 0
    conditions: tuple[tuple[str, str], ...] = ()
    materialized: bool = False
    compression: str | None = field(default=None, compare=False)

    @property
    def stored(self) -> pa.Schema:
        """The columns as data files name them, in the order of `struct`."""
        return column_mapping.stored_schema(self.struct, self.mapping)

    @property
    def stored_partitions(self) -> tuple[str, ...]:
        """The names by which the log has the values of the partition columns."""
        fields = {child.name: child for child in self.struct}
        return tuple(physical_name(fields[name], self.mapping) for name in self.partition_by)

    def completed(self) -> Columns:
        """The same, with ids and physical names for new columns if there is a mapping."""
        if self.mapping is ColumnMappingMode.NONE:
            return self
        struct, highest = assign_ids(self.struct, self.highest_id, lambda _: f"col-{uuid.uuid4()}")
        return replace(self, struct=struct, highest_id=highest)


NO_COLUMNS = Columns(StructType(()))
"""No table."""


def columns_of(state: TxnState) -> Columns:
    """The columns of a table.

    Raises:
        UnsupportedError: it has a rule or a property that an append of rows does not honour.
    """
    metadata, struct = state.metadata, parse_schema(state.metadata.schema_string)
    check_appendable(state.protocol, struct)
    mapping = mapping_mode(metadata.configuration)
    highest = 0 if mapping is ColumnMappingMode.NONE else highest_id(metadata.configuration, struct)
    constraints = tuple(sorted(conditions(metadata, struct).items()))
    check_conditions(constraints, struct)
    partition_by = tuple(metadata.partition_columns)
    materialized = "materializePartitionColumns" in writer_features(state.protocol)
    return Columns(struct, partition_by, mapping, highest, constraints, materialized, compression(metadata))


def columns_of_new(rows: StructType, partition_by: Sequence[str], *, follow: bool) -> Columns:
    """The columns of a new table.

    Raises:
        SchemaChangedError: two columns of the rows have one name.
        SinkError: the rows have no column for `partition_by`.
    """
    check_names(rows)
    struct = nullable(rows)
    kinds = {child.name: child.type for child in struct}
    for name in partition_by:
        if name not in kinds or is_nested(kinds[name]):
            raise SinkError(
                f"the rows have no column {name!r:.200} by which a table can be partitioned",
                hint="Correct `sink.partition_by`",
            )
    columns = Columns(struct, tuple(partition_by))
    return replace(columns, mapping=ColumnMappingMode.NAME).completed() if follow else columns


def columns_of_replaced(table: Columns, rows: StructType, partition_by: Sequence[str]) -> Columns:
    """The columns of a table all of whose rows are replaced: those of the rows, with the rules that the table has for them.

    Without `partition_by`, the table keeps its partition columns, as far as the rows have columns that can be some.

    Raises:
        SchemaChangedError: two columns of the rows have one name.
        SinkError: the rows have no column for `partition_by`.
    """
    if not partition_by:
        by_name = {child.name.lower(): child for child in rows if not is_nested(child.type)}
        partition_by = [by_name[name.lower()].name for name in table.partition_by if name.lower() in by_name]
    columns = columns_of_new(rows, partition_by, follow=False)
    # A mapping stays, and no id is used twice.
    struct = _fields_with_rules(columns.struct, table.struct)
    return replace(table, struct=struct, partition_by=columns.partition_by).completed()


def _fields_with_rules(rows: StructType, before: StructType) -> StructType:
    """Columns of rows that may be null only if the columns before may, and with the notes of those that have the same types."""
    by_name = {child.name.lower(): child for child in before}
    fields = []
    for child in rows:
        old = by_name.get(child.name.lower(), child)
        same = type(old.type) is type(child.type) if is_nested(child.type) else old.type == child.type
        notes = old.metadata if same else {}
        kept = {key: note for key, note in notes.items() if key not in (ID, PHYSICAL_NAME, SOURCE, TYPE_CHANGES)}
        kind = _type_with_rules(child.type, old.type)
        fields.append(replace(child, type=kind, nullable=old.nullable, metadata={**kept, **child.metadata}))
    return StructType(tuple(fields))


def _type_with_rules(rows: DataType, before: DataType) -> DataType:
    match rows, before:
        case StructType(), StructType():
            return _fields_with_rules(rows, before)
        case ArrayType(element), ArrayType(other, contains_null):
            return ArrayType(_type_with_rules(element, other), contains_null)
        case MapType(key, value), MapType(other_key, other, contains_null):
            return MapType(_type_with_rules(key, other_key), _type_with_rules(value, other), contains_null)
    return rows


def columns_of_extended(table: Columns, rows: StructType, on_missing_column: str, *, earlier: bool = False) -> Columns:
    """The columns of a table that takes these rows as well.

    Args:
        table: its columns.
        rows: the columns of the rows.
        on_missing_column: `keep`, `follow` or `stop`.
        earlier: whether the rows are of earlier versions of the source. A column that they lack was added since then, and stays.

    Raises:
        SchemaChangedError: the table cannot take the rows.
    """
    follow = on_missing_column == "follow"
    before = table
    if follow and table.mapping is ColumnMappingMode.NONE:
        # Files that exist have a column by its own name.
        struct, highest = assign_ids(table.struct, table.highest_id, lambda field: field.name)
        before = replace(table, struct=struct, mapping=ColumnMappingMode.NAME, highest_id=highest)
    merged = merge(before.struct, nullable(rows), follow=follow, earlier=earlier)
    if merged.missing and on_missing_column == "stop" and not earlier:
        raise SchemaChangedError(
            f"the rows have no column {'.'.join(next(iter(merged.missing)))!r:.200} any more",
            hint="Set `sink.on_missing_column: keep` to leave it in the target, with nulls",
        )
    for path, child in merged.missing.items():
        if not child.nullable or child.metadata.get(_DEFAULT, "NULL").upper() != "NULL":
            what = "may not be null" if not child.nullable else "has a default value"
            raise SchemaChangedError(
                f"column {'.'.join(path)!r:.200} of the target {what}, and the rows do not have it",
                hint="Remove that from the target's column, or deliver into another target",
            )
    if lost := {name for name in before.partition_by if (name,) in merged.dropped}:
        raise SchemaChangedError(
            f"the rows have no column {min(lost)!r:.200} any more, which partitions the target",
            hint="Set `sink.on_missing_column: keep`, or deliver into another target",
        )
    partition_by = tuple(merged.renamed.get(name, name) for name in before.partition_by)
    return replace(before, struct=merged.struct, partition_by=partition_by).completed()


def with_dropped(table: Columns, before: Columns) -> Columns:
    """The columns of a table that takes a version whose deletes have the columns of an earlier one, too.

    Those that the version drops have the source of no column, so that the next rows drop them. A column whose name another one has now is
    dropped at once.

    Args:
        table: the columns with the other rows of the version.
        before: the columns with its deletes.
    """
    stored = {physical_name(child, table.mapping) for child in table.struct}
    names = {child.name.lower() for child in table.struct}
    dropped = (
        replace(child, metadata={**child.metadata, SOURCE: ""})
        for child in before.struct
        if physical_name(child, before.mapping) not in stored and child.name.lower() not in names
    )
    return replace(table, struct=StructType((*table.struct, *dropped)))


def without_mapping(table: Columns, before: TableSchema, after: TableSchema) -> Columns:
    """The columns of a table whose source switches its column mapping off: names are sources now, and may be those of other columns before.

    Args:
        table: its columns.
        before: the last schema of the source with the mapping.
        after: the first one without it. Columns that it lacks have no source, so that they are dropped with the next rows.
    """
    struct = _without_mapping(table.struct, before.struct, after.struct, before.mapping)
    assert isinstance(struct, StructType)
    return replace(table, struct=struct)


def _without_mapping(table: DataType, before: DataType, after: DataType, mode: ColumnMappingMode) -> DataType:
    match table, before, after:
        case StructType(), StructType(), StructType():
            sources = {physical_name(child, mode): child for child in before}
            names = {child.name.lower(): child for child in after}
            fields = []
            for child in table:
                source = sources.get(child.metadata.get(SOURCE, ""))
                other = None if source is None else names.get(source.name.lower())
                if source is not None and other is not None:
                    kind = _without_mapping(child.type, source.type, other.type, mode)
                    child = replace(child, type=kind, metadata={**child.metadata, SOURCE: other.name})
                elif SOURCE in child.metadata:
                    child = replace(child, metadata={**child.metadata, SOURCE: ""})
                fields.append(child)
            return StructType(tuple(fields))
        case ArrayType(element), ArrayType(old_element), ArrayType(new_element):
            return replace(table, element=_without_mapping(element, old_element, new_element, mode))
        case MapType(key, value), MapType(old_key, old_value), MapType(new_key, new_value):
            key = _without_mapping(key, old_key, new_key, mode)
            return replace(table, key=key, value=_without_mapping(value, old_value, new_value, mode))
    return table


def with_names_of(table: Columns, columns: Columns) -> Columns:
    """The columns by the names and sources that the table has for them. Data files have neither.

    A later column may have got the name of another one. Then the columns stay as they are.
    """
    struct = _with_names(table.struct, columns.struct, table.mapping, columns.mapping)
    assert isinstance(struct, StructType)
    names = {child.name: named.name for child, named in zip(columns.struct, struct, strict=True)}
    if any(isinstance(each, StructType) and repeated(each) is not None for each in types_in(struct)):
        return columns
    return replace(columns, struct=struct, partition_by=tuple(names[name] for name in columns.partition_by))


def _with_names(table: DataType, kind: DataType, table_mode: ColumnMappingMode, mode: ColumnMappingMode) -> DataType:
    match table, kind:
        case StructType(), StructType():
            before = {physical_name(child, table_mode): child for child in table}
            fields = []
            for child in kind:
                old = before.get(physical_name(child, mode))
                if old is not None:
                    inside = _with_names(old.type, child.type, table_mode, mode)
                    child = replace(child, name=old.name, type=inside)
                    if SOURCE in old.metadata:
                        child = replace(child, metadata={**child.metadata, SOURCE: old.metadata[SOURCE]})
                fields.append(child)
            return StructType(tuple(fields))
        case ArrayType(element), ArrayType(other):
            return replace(kind, element=_with_names(element, other, table_mode, mode))
        case MapType(key, value), MapType(other_key, other_value):
            key = _with_names(key, other_key, table_mode, mode)
            return replace(kind, key=key, value=_with_names(value, other_value, table_mode, mode))
    return kind


def with_sources(rows: StructType, sources: Sequence[TableSchema | None], shape: Shape) -> StructType:
    """The columns of rows, each with its source in the field's metadata: the physical name of the column that it comes from.

    That name survives a rename, so a target that keeps it can follow renames and drops. A source without column mapping has the columns'
    own names there. Change columns have no source.

    Args:
        rows: their columns.
        sources: the schemas of the source in which rows of the version are read: its own, and the earlier one of rows that it deletes. None:
            it is not known. A name may be that of another column in the earlier one.
        shape: of the rows.
    """
    names = [child.name for child in rows if child.name not in CHANGE_NAMES]
    known = [source for source in sources if source is not None]
    if not known:
        return rows
    matching = (source for source in known if names == list(shape.published(shape.select(source)).names))
    source = next(matching, known[0])
    chosen = shape.columns_of(shape.select(source))
    # Without a mapping, rows of the schema before are those of the columns with their names.
    mode = ColumnMappingMode.NONE if known[0].mapping is ColumnMappingMode.NONE else source.mapping
    # A mask replaces the values, and whatever is inside of them.
    published = {name.lower(): (child, mask is None) for child, name, mask in chosen}
    fields = []
    for child in rows:
        column = published.get(child.name.lower())
        fields.append(child if column is None else _tag(child, column[0], mode, inside=column[1]))
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
